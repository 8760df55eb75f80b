//! Which interfaces have a device in this process, and in which order: `URXE_DEVICES`.

use std::fmt;
use std::str::FromStr;

/// The prefix of device names; the name of the interface follows.
pub const NAME_PREFIX: &str = "urxe_";

/// The environment variable with the selection.
pub const VARIABLE: &str = "URXE_DEVICES";

/// A prefix that excludes the interfaces of a pattern.
const EXCLUDE: char = '^';

/// Returns the name of an interface's device.
pub(super) fn device_name(interface: &str) -> String {
    format!("{NAME_PREFIX}{interface}")
}

/// A selection of interfaces: patterns of names that are selected, then of names that are excluded.
///
/// The text is a list with commas, such as `eth0,ib*,^ib3`. `*` stands for any characters, and `^`
/// excludes. If the list only excludes, all other interfaces are selected. A pattern may also be
/// that of a device's name, such as `urxe_eth0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection {
    selected: Vec<Pattern>,
    excluded: Vec<Pattern>,
    text: String,
}

/// A pattern of interface names.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pattern(String);

/// Errors in the text of a selection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SelectionError {
    /// An element of the list is empty.
    #[error(
        "`{0}` has an empty name: give names of interfaces with commas between them, such as \
         `eth0,lo`"
    )]
    Empty(String),
    /// An element cannot be the name of an interface.
    #[error("`{0}` is no name of an interface: names have no spaces and no slashes")]
    Name(String),
    /// A selection follows an exclusion. Programs differ in whether an exclusion applies to all
    /// that follows it, so such a list is ambiguous.
    #[error(
        "`{name}` follows an exclusion: put the names that are selected first, or `^` before each \
         name that is excluded, as in `^lo,^{name}`"
    )]
    AfterExclusion {
        /// The name.
        name: String,
    },
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        let (mut selected, mut excluded) = (Vec::new(), Vec::new());
        for element in text.split(',').map(str::trim) {
            let exclusion = element.strip_prefix(EXCLUDE);
            let name = exclusion.unwrap_or(element);
            if name.is_empty() {
                return Err(SelectionError::Empty(text.to_owned()));
            }
            if name.contains(|c: char| c.is_whitespace() || c == '/') {
                return Err(SelectionError::Name(name.to_owned()));
            }
            let name = name.to_owned();
            match exclusion {
                Some(_) => excluded.push(Pattern(name)),
                None if !excluded.is_empty() => {
                    return Err(SelectionError::AfterExclusion { name });
                }
                None => selected.push(Pattern(name)),
            }
        }
        if selected.is_empty() {
            selected.push(Pattern("*".to_owned()));
        }
        let text = text.to_owned();
        Ok(Selection {
            selected,
            excluded,
            text,
        })
    }
}

/// Shows the text from which it was parsed.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Selection {
    /// Returns the rank of an interface; `None` if it is not selected. Those with a lower rank come
    /// first.
    pub(super) fn rank(&self, interface: &str) -> Option<usize> {
        if self.excluded.iter().any(|pattern| pattern.suits(interface)) {
            return None;
        }
        let mut selected = self.selected.iter();
        selected.position(|pattern| pattern.suits(interface))
    }
}

impl Pattern {
    /// Returns whether an interface, or its device, has such a name.
    fn suits(&self, interface: &str) -> bool {
        matches(&self.0, interface) || matches(&self.0, &device_name(interface))
    }
}

/// Returns whether a text matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // The first place of each part leaves the most text for the others.
    for part in parts {
        let Some(at) = text.find(part) else {
            return false;
        };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the selected ones of a list of interfaces, in their order.
    fn select<'a>(text: &str, interfaces: &[&'a str]) -> Vec<&'a str> {
        let selection: Selection = text.parse().expect(text);
        let mut ranked: Vec<_> = interfaces
            .iter()
            .filter_map(|name| Some((selection.rank(name)?, *name)))
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn order_is_that_of_the_patterns() {
        let all = ["eth0", "eth1", "ib0", "lo"];
        for (text, expected) in [
            ("eth0", &["eth0"][..]),
            ("lo,eth1", &["lo", "eth1"]),
            (" lo , eth0 ", &["lo", "eth0"]),
            ("ib*,*", &["ib0", "eth0", "eth1", "lo"]),
            ("*1,eth*", &["eth1", "eth0"]),
            ("^lo", &["eth0", "eth1", "ib0"]),
            ("^lo,^eth*", &["ib0"]),
            ("eth*,^eth1", &["eth0"]),
            ("urxe_lo,urxe_e*0", &["lo", "eth0"]),
            ("^urxe_lo", &["eth0", "eth1", "ib0"]),
            ("eth", &[]),
            ("lo,^lo", &[]),
        ] {
            assert_eq!(select(text, &all), expected, "{text}");
        }
    }

    #[test]
    fn star_stands_for_any_characters() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "lo"),
            ("e*", "e"),
            ("e*p*s0", "enp1s0s0"),
            ("*a*a", "aa"),
            ("**0", "eth0"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("e*", "lo"),
            ("*a*a", "a"),
            ("eth0*0", "eth0"),
            ("a*b*c", "acb"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn errors_name_the_element() {
        for (text, part) in [
            ("", "empty name"),
            ("eth0,", "`eth0,` has an empty name"),
            ("^", "empty name"),
            ("eth0 lo", "`eth0 lo` is no name"),
            ("a/b", "`a/b` is no name"),
            ("^lo,eth0", "`^lo,^eth0`"),
        ] {
            let error = text.parse::<Selection>().expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
