//! Which interfaces have a device in this process, in which order, and with which names and speeds:
//! `URXE_DEVICES`.

use super::speed::{Speed, SpeedError};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// The prefix of device names; the name of the interface follows.
pub const NAME_PREFIX: &str = "urxe_";

/// The environment variable with the selection.
pub const VARIABLE: &str = "URXE_DEVICES";

/// A prefix that excludes the interfaces of a pattern.
const EXCLUDE: char = '^';

/// The separator of an interface and the name of its device.
const NAME: char = '=';

/// The separator of an element and the speed of its devices.
const SPEED: char = '@';

/// The longest name of a device: verbs have 64 bytes, the last of which is zero.
const LONGEST_NAME: usize = 63;

/// Returns the name of an interface's device.
pub(super) fn device_name(interface: &str) -> String {
    format!("{NAME_PREFIX}{interface}")
}

/// A selection of interfaces: patterns of names that are selected, then of names that are excluded.
///
/// The text is a list with commas, such as `eth0,ib*,^ib3`. `*` stands for any characters, and `^`
/// excludes. If the list only excludes, all other interfaces are selected. A pattern may also be
/// that of a device's name, such as `urxe_eth0`. `eth0=mlx5_0` gives the device another name, and
/// `@100G` at the end of an element the speed that its devices report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection {
    selected: Vec<Selected>,
    excluded: Vec<Pattern>,
    text: String,
}

/// An element that selects.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Selected {
    pattern: Pattern,
    /// The name of the only device.
    name: Option<String>,
    speed: Speed,
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
    /// A speed is unknown.
    #[error(transparent)]
    Speed(#[from] SpeedError),
    /// An excluded element has a name or a speed.
    #[error("`{0}` is excluded: it has no device, and so neither a name nor a speed")]
    ExcludedDevice(String),
    /// A device name is given to more than one device.
    #[error("`{0}`: each device has a name of its own; give a name to one interface, without `*`")]
    NameOfSeveral(String),
    /// A device name has characters or a prefix that are not permitted.
    #[error(
        "`{0}` cannot be given to a device: a name has up to {LONGEST_NAME} letters, digits and \
         `_`, `-` or `.`, and does not begin with `.` or `{NAME_PREFIX}`"
    )]
    DeviceName(String),
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
        let mut names = HashSet::new();
        for element in text.split(',').map(str::trim) {
            if let Some(excluded_name) = element.strip_prefix(EXCLUDE) {
                if excluded_name.contains([NAME, SPEED]) {
                    return Err(SelectionError::ExcludedDevice(element.to_owned()));
                }
                excluded.push(pattern(excluded_name, text)?);
                continue;
            }
            let (rest, speed) = match element.split_once(SPEED) {
                Some((rest, speed)) => (rest, speed.parse()?),
                None => (element, Speed::default()),
            };
            let (interface, name) = match rest.split_once(NAME) {
                Some((interface, name)) => (interface, Some(name)),
                None => (rest, None),
            };
            let pattern = pattern(interface, text)?;
            if !excluded.is_empty() {
                let name = interface.to_owned();
                return Err(SelectionError::AfterExclusion { name });
            }
            if let Some(name) = name {
                check_name(name)?;
                if pattern.0.contains('*') || !names.insert(name) {
                    return Err(SelectionError::NameOfSeveral(element.to_owned()));
                }
            }
            selected.push(Selected {
                pattern,
                name: name.map(str::to_owned),
                speed,
            });
        }
        if selected.is_empty() {
            selected.push(Selected {
                pattern: Pattern("*".to_owned()),
                name: None,
                speed: Speed::default(),
            });
        }
        let text = text.to_owned();
        Ok(Selection {
            selected,
            excluded,
            text,
        })
    }
}

/// Returns the pattern of an element of the list `text`.
fn pattern(element: &str, text: &str) -> Result<Pattern, SelectionError> {
    if element.is_empty() {
        return Err(SelectionError::Empty(text.to_owned()));
    }
    if element.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(SelectionError::Name(element.to_owned()));
    }
    Ok(Pattern(element.to_owned()))
}

/// Checks a name for a device, which is also that of files in sysfs.
fn check_name(name: &str) -> Result<(), SelectionError> {
    let is_permitted = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_good = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.starts_with('.')
        && !name.starts_with(NAME_PREFIX)
        && name.chars().all(is_permitted);
    match is_good {
        true => Ok(()),
        false => Err(SelectionError::DeviceName(name.to_owned())),
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
        selected.position(|selected| selected.pattern.suits(interface))
    }

    /// Returns the name and the speed of the device of an interface.
    pub(super) fn device(&self, interface: &str) -> (String, Speed) {
        let selected = self.rank(interface).map(|rank| &self.selected[rank]);
        let name = selected.and_then(|selected| selected.name.clone());
        (
            name.unwrap_or_else(|| device_name(interface)),
            selected.map_or_else(Speed::default, |selected| selected.speed),
        )
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
    fn names_and_speeds_are_those_of_the_first_pattern() {
        let selection: Selection = "eth0=mlx5_0@100G,eth1@25G,urxe_ib0=rocep0s6f1,*"
            .parse()
            .expect("good");
        for (interface, name, speed) in [
            ("eth0", "mlx5_0", Speed::G100),
            ("eth1", "urxe_eth1", Speed::G25),
            ("ib0", "rocep0s6f1", Speed::G40),
            ("lo", "urxe_lo", Speed::G40),
        ] {
            assert_eq!(selection.device(interface), (name.to_owned(), speed));
        }
        assert_eq!(select("eth0=a@10G,^lo", &["lo", "eth0"]), ["eth0"]);
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
            ("^lo,eth0=a", "`^lo,^eth0`"),
            ("^lo=a", "`^lo=a` is excluded"),
            ("^lo@10G", "`^lo@10G` is excluded"),
            ("=a", "empty name"),
            ("eth0=", "`` cannot be given"),
            ("eth0=urxe_lo", "`urxe_lo` cannot be given"),
            ("eth0=a/b", "`a/b` cannot be given"),
            ("eth0=..", "`..` cannot be given"),
            ("eth*=a", "`eth*=a`: each device"),
            ("eth0=a,eth1=a", "`eth1=a`: each device"),
            ("eth0@1G", "`1G` is no speed"),
        ] {
            let error = text.parse::<Selection>().expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
