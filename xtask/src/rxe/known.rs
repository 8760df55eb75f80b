//! The known differences in `tests/rxe/known.txt`: the cells, the exact detail, and the reason.
//!
//! A cell with any other detail is red.

/// The list of known differences.
pub(crate) struct Known {
    entries: Vec<Entry>,
}

struct Entry {
    /// The patterns of kernel releases.
    kernels: Vec<String>,
    cell: String,
    detail: String,
    reason: String,
}

const LIST: &str = include_str!("../../../tests/rxe/known.txt");

impl Known {
    /// Loads the list of this checkout.
    pub(crate) fn load() -> Self {
        Self::parse(LIST)
    }

    /// Parses lines `KERNELS | CELL | DETAIL | REASON`, where `*` matches any text. The reason `"`
    /// repeats that of the previous line. Lines that begin with `#` are comments.
    fn parse(text: &str) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [kernels, cell, detail, reason] = fields[..] else {
                continue;
            };
            let reason = match entries.last() {
                Some(last) if reason == "\"" => last.reason.clone(),
                _ => reason.to_owned(),
            };
            entries.push(Entry {
                kernels: kernels.split_whitespace().map(str::to_owned).collect(),
                cell: cell.to_owned(),
                detail: detail.to_owned(),
                reason,
            });
        }
        Self { entries }
    }

    /// Returns the reason for this detail of a cell, if it is known.
    pub(crate) fn reason(
        &self,
        kernel: &str,
        group: &str,
        cell: &str,
        detail: &str,
    ) -> Option<&str> {
        let cell = format!("{group}/{cell}");
        self.entries
            .iter()
            .find(|entry| {
                entry.kernels.iter().any(|like| matches(like, kernel))
                    && matches(&entry.cell, &cell)
                    && matches(&entry.detail, detail)
            })
            .map(|entry| entry.reason.as_str())
    }
}

/// Returns whether `text` matches `pattern`, where `*` matches any text, including none.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(before) else {
        return false;
    };
    (0..=rest.len())
        .filter(|&at| rest.is_char_boundary(at))
        .any(|at| matches(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        assert!(matches("*", ""));
        assert!(matches("errors-*/send/*", "errors-v4/send/100"));
        assert!(!matches("errors-*/send/*", "errors-v4/send"));
        assert!(!matches("send", "send/1"));
    }

    #[test]
    fn known_cell_with_another_detail_is_red() {
        let known = Known::parse("* | e/a* | here 1* | because\n4.* 6.* | e/b | x | \"\n# no\n");
        assert_eq!(known.reason("6.1", "e", "ab", "here 12"), Some("because"));
        assert_eq!(known.reason("6.1", "e", "ab", "here 2"), None);
        assert_eq!(known.reason("6.1", "e", "b", "x"), Some("because"));
        assert_eq!(known.reason("5.1", "e", "b", "x"), None);
    }
}
