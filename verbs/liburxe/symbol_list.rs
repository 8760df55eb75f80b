//! Parser of `symbols.txt`. `build.rs` generates exports from it; a test compares it with
//! `docs/SUPPORT.md` and the built library.

/// A symbol, with all nodes that export the same function.
#[derive(Clone, Debug)]
pub struct Symbol {
    /// The name that programs look up.
    pub name: String,
    /// The nodes, at least one.
    pub versions: Vec<Version>,
    /// The function or variable behind it.
    pub state: State,
    /// A note for readers of the support page, or empty.
    pub note: String,
}

/// One version of a symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// The version node.
    pub node: String,
    /// Whether programs are linked with this version (`@@`); otherwise it only serves older
    /// programs (`@`).
    pub default: bool,
}

/// The kind of function or variable behind a symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// The Rust function of that name.
    Done,
    /// A function that returns the errno.
    Errno(String),
    /// A function that returns -1 and sets the errno.
    MinusOne(String),
    /// A function that returns null and sets the errno.
    Null(String),
    /// A function that returns 0 and sets the errno.
    Zero(String),
    /// A function that returns nothing.
    Void,
    /// A variable of one zero byte.
    Data,
}

/// Returns the symbols in the order of the file.
///
/// # Errors
/// The first line that does not match the format in the head of the file, with its number.
pub fn parse(text: &str) -> Result<Vec<Symbol>, String> {
    let mut private: Vec<&str> = Vec::new();
    let mut symbols = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(numbers) = line.strip_prefix("private ") {
            private = numbers.split_whitespace().collect();
            continue;
        }
        let bad = |what: &str| format!("symbols.txt, line {}: {what}: {line}", index + 1);
        symbols.extend(parse_line(line, &private).map_err(bad)?);
    }
    Ok(symbols)
}

fn parse_line(line: &str, private: &[&str]) -> Result<Vec<Symbol>, &'static str> {
    let mut words = line.split_whitespace();
    let mut word = || {
        words
            .next()
            .ok_or("expected: node symbol state errno [note]")
    };
    let (node, name, state, errno) = (word()?, word()?, word()?, word()?);
    let note = words.collect::<Vec<_>>().join(" ");

    let (node, default) = match node.strip_prefix("@@") {
        Some(node) => (node, true),
        None => (
            node.strip_prefix('@').ok_or("a node begins with @@ or @")?,
            false,
        ),
    };
    let state = match (state, errno) {
        ("done", "-") => State::Done,
        ("void", "-") => State::Void,
        ("data", "-") => State::Data,
        (_, "-") => return Err("this state needs an errno, or is none"),
        ("errno", errno) => State::Errno(errno.to_owned()),
        ("minus1", errno) => State::MinusOne(errno.to_owned()),
        ("null", errno) => State::Null(errno.to_owned()),
        ("zero", errno) => State::Zero(errno.to_owned()),
        _ => return Err("no such state, or one that has no errno"),
    };
    let symbol = |name: String, versions| Symbol {
        name,
        versions,
        state: state.clone(),
        note: note.clone(),
    };
    let private_node = |number: &&str| format!("IBVERBS_PRIVATE_{number}");

    Ok(if node != "PRIVATE" {
        vec![symbol(
            name.to_owned(),
            vec![Version {
                node: node.to_owned(),
                default,
            }],
        )]
    } else if name.contains('%') {
        let numbered = |number| {
            let version = Version {
                node: private_node(number),
                default,
            };
            symbol(name.replace('%', number), vec![version])
        };
        private.iter().map(numbered).collect()
    } else {
        // The newest version comes first: a name has one default version.
        let version = |(index, number)| Version {
            node: private_node(number),
            default: default && index == 0,
        };
        vec![symbol(
            name.to_owned(),
            private.iter().enumerate().map(version).collect(),
        )]
    })
}
