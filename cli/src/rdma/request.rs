//! The requests that concern urxe's devices, by iproute2's rules for arguments.

use std::ffi::OsString;

/// A request to show devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub format: Format,
    pub object: Object,
    pub subject: Subject,
    /// An argument that follows a complete request.
    pub extra: Option<String>,
}

/// What to show of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    Device,
    Link,
    Resource,
    Statistic,
}

/// The devices to show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    All,
    One {
        device: String,
        /// The port, if the argument names one.
        port: Option<u32>,
    },
}

/// The format of the output.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Format {
    pub details: bool,
    pub json: bool,
    pub pretty: bool,
    pub one_line: bool,
}

/// iproute2's objects, in the order in which it compares them with an argument.
const OBJECTS: [&str; 7] = [
    "help",
    "dev",
    "link",
    "resource",
    "system",
    "statistic",
    "monitor",
];

/// Returns the request; `None` if it is not one to show devices, or cannot be parsed.
pub fn parse(arguments: &[OsString]) -> Option<Request> {
    let arguments: Option<Vec<&str>> = arguments.iter().map(|word| word.to_str()).collect();
    let (format, words) = options(&arguments?)?;
    let (word, rest) = words.split_first()?;
    let object = match complete(word, &OBJECTS)? {
        "dev" => Object::Device,
        "link" => Object::Link,
        "resource" => Object::Resource,
        "statistic" => Object::Statistic,
        _ => return None,
    };
    let rest = match rest.split_first() {
        None => &[],
        Some((word, rest)) => {
            let command = complete(word, commands(object))?;
            if !["show", "list"].contains(&command) {
                return None;
            }
            rest
        }
    };
    let (subject, extra) = subject(object, rest)?;
    Some(Request {
        format,
        object,
        subject,
        extra: extra.map(|word| (*word).to_owned()),
    })
}

/// Separates the options from the other arguments, which they may follow.
fn options<'a>(arguments: &[&'a str]) -> Option<(Format, Vec<&'a str>)> {
    let mut format = Format::default();
    let mut words = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if *argument == "--" {
            words.extend(arguments);
            break;
        } else if let Some(long) = argument.strip_prefix("--") {
            let names = ["version", "help", "json", "oneline", "pretty", "details"];
            let others = ["raw", "force", "batch"];
            let all = [&names[..], &others[..]].concat();
            // Abbreviations are unique: no two names begin with the same letter.
            format.set(complete(long, &all)?.chars().next()?)?;
        } else if let Some(letters) = argument.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            for letter in letters.chars() {
                format.set(letter)?;
            }
        } else {
            words.push(*argument);
        }
    }
    Some((format, words))
}

impl Format {
    /// Applies an option that concerns the format; `None` for any other option.
    fn set(&mut self, letter: char) -> Option<()> {
        match letter {
            'd' => self.details = true,
            'j' => self.json = true,
            'o' => self.one_line = true,
            'p' => self.pretty = true,
            // Raw data of resources, of which urxe shows the numbers only.
            'r' => {}
            _ => return None,
        }
        Some(())
    }
}

/// Returns the first word that begins with this text.
fn complete<'a>(text: &str, words: &[&'a str]) -> Option<&'a str> {
    words.iter().copied().find(|word| word.starts_with(text))
}

/// Returns the commands of an object, in iproute2's order.
fn commands(object: Object) -> &'static [&'static str] {
    match object {
        Object::Device => &["add", "delete", "show", "list", "set", "help"],
        Object::Link => &["add", "delete", "show", "list", "help"],
        Object::Resource => &["show", "set", "list", "help"],
        Object::Statistic => &["show", "list", "help", "qp", "mr", "mode", "set", "unset"],
    }
}

/// Returns the devices to show, and the argument after them.
fn subject<'a>(object: Object, words: &'a [&'a str]) -> Option<(Subject, Option<&'a &'a str>)> {
    let words = match (object, words) {
        (Object::Statistic, [word, rest @ ..]) => match complete(word, &["link", "mr", "help"])? {
            "link" => rest,
            _ => return None,
        },
        _ => words,
    };
    let (name, extra) = match words {
        [] => return Some((Subject::All, None)),
        [name, extra @ ..] => (*name, extra.first()),
    };
    let (device, port) = match (object, name.split_once('/')) {
        (Object::Device | Object::Resource, _) | (_, None) => (name, None),
        (_, Some((device, ""))) => (device, None),
        (_, Some((device, "-"))) => (device, Some(0)),
        // No device has such a port.
        (_, Some((device, port))) => (device, Some(port.parse().unwrap_or(u32::MAX))),
    };
    // Two words after `resource show` are a kind of resource and a filter.
    if object == Object::Resource && extra.is_some() {
        return None;
    }
    let device = device.to_owned();
    Some((Subject::One { device, port }, extra))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Request> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&words)
    }

    fn shown(line: &str) -> Option<(Object, Subject)> {
        parsed(line).map(|request| (request.object, request.subject))
    }

    fn one(device: &str, port: Option<u32>) -> Subject {
        let device = device.to_owned();
        Subject::One { device, port }
    }

    #[test]
    fn words_may_be_abbreviated() {
        for line in [
            "link",
            "link show",
            "l",
            "li sh",
            "link list",
            "-r link",
            "-- link",
        ] {
            assert_eq!(shown(line), Some((Object::Link, Subject::All)), "{line}");
        }
        for (line, object) in [
            ("dev s", Object::Device),
            ("res", Object::Resource),
            ("st", Object::Statistic),
            ("statistic show link", Object::Statistic),
        ] {
            assert_eq!(shown(line), Some((object, Subject::All)), "{line}");
        }
    }

    #[test]
    fn options_may_be_anywhere() {
        for line in [
            "link show -j",
            "-j link show",
            "link -jp show",
            "--js link --details",
        ] {
            let format = parsed(line).expect(line).format;
            assert!(format.json && !format.one_line, "{line}");
        }
        assert!(parsed("link -pdo").expect("valid").format.details);
    }

    #[test]
    fn other_requests_are_the_kernels() {
        for line in [
            "",
            "help",
            "-V",
            "--version link",
            "-b file",
            "-x link",
            "s",
            "system show",
            "monitor",
            "link add rxe0 type rxe netdev eth0",
            "link delete rxe0",
            "link nonsense",
            "dev set rxe0 name rxe1",
            "resource show qp link rxe0/1",
            "statistic qp show",
            "statistic mode",
            "statistic show mr",
        ] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }

    #[test]
    fn one_device_may_be_named_with_its_port() {
        for (line, object, subject) in [
            ("dev show a", Object::Device, one("a", None)),
            ("link show a/1", Object::Link, one("a", Some(1))),
            ("link show a", Object::Link, one("a", None)),
            ("link show a/x", Object::Link, one("a", Some(u32::MAX))),
            ("resource show a", Object::Resource, one("a", None)),
            ("statistic show link a/", Object::Statistic, one("a", None)),
            (
                "statistic show link a/-",
                Object::Statistic,
                one("a", Some(0)),
            ),
        ] {
            assert_eq!(shown(line), Some((object, subject)), "{line}");
        }
        let extra = parsed("dev show a b").expect("valid").extra;
        assert_eq!(extra.as_deref(), Some("b"));
    }
}
