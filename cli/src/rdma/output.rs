//! iproute2's output formats: lines of text, and an array of JSON objects.

use super::request::Format;

/// An object, such as a port.
#[derive(Clone, Default, Debug)]
pub struct Record(Vec<Field>);

#[derive(Clone, Debug)]
struct Field {
    name: String,
    /// The value as JSON.
    json: String,
    /// The field in a line of text.
    text: Text,
}

#[derive(Clone, Debug)]
enum Text {
    /// In the object's line.
    InLine(String),
    /// In an indented line of its own.
    OwnLine(String),
}

impl Record {
    /// Adds a text. `{}` in `format` stands for the value in a line of text.
    pub fn text(&mut self, name: &str, value: &str, format: &str) {
        self.0.push(Field {
            name: name.to_owned(),
            json: quoted(value),
            text: Text::InLine(format.replace("{}", value)),
        });
    }

    /// Adds a number. `{}` in `format` stands for the value in a line of text.
    pub fn number(&mut self, name: &str, value: impl Into<u64>, format: &str) {
        let value = value.into().to_string();
        self.0.push(Field {
            name: name.to_owned(),
            text: Text::InLine(format.replace("{}", &value)),
            json: value,
        });
    }

    /// Adds a counter.
    pub fn counter(&mut self, name: &str, value: u64) {
        self.0.push(Field {
            name: name.to_owned(),
            json: value.to_string(),
            text: Text::OwnLine(format!("{name} {value} ")),
        });
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the output for these objects, followed by those of `others`, an output of iproute2 in
/// the same format.
pub fn write(records: &[Record], format: Format, others: &str) -> String {
    match format.json {
        true => json(records, format.pretty, others),
        false => lines(records, format.one_line) + others,
    }
}

fn lines(records: &[Record], one_line: bool) -> String {
    let line_end = if one_line { "\\" } else { "\n" };
    let mut lines = String::new();
    for Record(fields) in records {
        for field in fields {
            match &field.text {
                Text::InLine(text) => lines += text,
                Text::OwnLine(text) => lines += &format!("{line_end}    {text}"),
            }
        }
        lines.push('\n');
    }
    lines
}

fn json(records: &[Record], pretty: bool, others: &str) -> String {
    let object = |Record(fields): &Record| {
        let field = |Field { name, json, .. }: &Field| match pretty {
            true => format!("\n        {}: {json}", quoted(name)),
            false => format!("{}:{json}", quoted(name)),
        };
        let fields: Vec<String> = fields.iter().map(field).collect();
        let end = if pretty { "\n    " } else { "" };
        format!("{{{}{end}}}", fields.join(","))
    };
    let mut objects: Vec<String> = records.iter().map(object).collect();
    // The other objects keep their text, so that unknown fields and their order are kept.
    let others = others.trim();
    let others = others
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let others = others.map(str::trim).filter(|others| !others.is_empty());
    objects.extend(others.map(str::to_owned));
    let objects = objects.join(",");
    match pretty {
        true if objects.is_empty() => "[ ]\n".to_owned(),
        true => format!("[ {objects} ]\n"),
        false => format!("[{objects}]\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: Format = Format {
        details: false,
        json: true,
        pretty: false,
        one_line: false,
    };

    fn port() -> Record {
        let mut record = Record::default();
        record.number("ifindex", 2_u32, "");
        record.text("ifname", "urxe_\"", "link {}/");
        record.number("port", 1_u32, "{} ");
        record.counter("sent_pkts", 7);
        record
    }

    #[test]
    fn text_has_one_line_for_an_object_and_one_for_each_counter() {
        let text = write(&[port(), port()], Format::default(), "link rxe0/1 \n");
        let line = "link urxe_\"/1 \n    sent_pkts 7 \n";
        assert_eq!(text, format!("{line}{line}link rxe0/1 \n"));
        let one_line = Format {
            one_line: true,
            ..Format::default()
        };
        let text = write(&[port()], one_line, "");
        assert_eq!(text, "link urxe_\"/1 \\    sent_pkts 7 \n");
    }

    #[test]
    fn objects_of_both_are_in_one_array() {
        let ours = r#"{"ifindex":2,"ifname":"urxe_\"","port":1,"sent_pkts":7}"#;
        for (theirs, both) in [
            ("", format!("[{ours}]\n")),
            ("[ ]\n", format!("[{ours}]\n")),
            (
                "[{\"a\":1}\n,{\"b\":2}\n]\n",
                format!("[{ours},{{\"a\":1}}\n,{{\"b\":2}}]\n"),
            ),
        ] {
            let text = write(&[port()], JSON, theirs);
            assert_eq!(text, both);
            serde_json::from_str::<serde_json::Value>(&text).expect("valid JSON");
        }
        assert_eq!(write(&[], JSON, ""), "[]\n");
    }

    #[test]
    fn pretty_objects_are_indented() {
        let pretty = Format {
            pretty: true,
            ..JSON
        };
        let mut small = Record::default();
        small.number("a", 1_u32, "");
        small.text("b", "c", "");
        assert_eq!(
            write(&[small.clone(), small], pretty, ""),
            "[ {\n        \"a\": 1,\n        \"b\": \"c\"\n    },{\n        \"a\": 1,\n        \"b\": \
             \"c\"\n    } ]\n"
        );
    }
}
