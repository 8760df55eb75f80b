//! The text of declarations and types, and the code in documentation.

use serde_json::Value;

/// Returns the part of a text between two positions: a line and a column, both counted from 1, and
/// the column in characters. The end is exclusive.
pub(super) fn part(text: &str, begin: (usize, usize), end: (usize, usize)) -> Option<&str> {
    let offset = |(line, column): (usize, usize)| {
        let start: usize = text
            .split_inclusive('\n')
            .take(line - 1)
            .map(str::len)
            .sum();
        let mut columns = text.get(start..)?.char_indices();
        Some(
            start
                + columns
                    .nth(column - 1)
                    .map_or(text.len() - start, |(at, _)| at),
        )
    };
    text.get(offset(begin)?..offset(end)?)
}

/// Returns the declaration of an item without its body, attributes and comments, in one line. Of an
/// item that a macro defines, it is the macro's name.
pub(super) fn declaration(source: &str, kind: &str) -> String {
    let is_code = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("//") && !line.starts_with("#[")
    };
    let code: Vec<&str> = source.lines().filter(is_code).map(str::trim).collect();
    let code = code.join(" ");
    if let Some((name, _)) = code.split_once("! {") {
        return format!("{name}!");
    }
    let has_body = matches!(kind, "function" | "struct" | "enum" | "trait" | "impl");
    let declaration = match has_body {
        true => code.split('{').next().unwrap_or_default(),
        false => &code,
    };
    // The fields of a tuple are private.
    let declaration = match declaration.split_once('(') {
        Some((name, _)) if kind == "struct" => name,
        _ => declaration,
    };
    let declaration = declaration.trim_end_matches(|c: char| c.is_whitespace() || c == ';');
    // As in one line, whichever way rustfmt has divided it.
    let one_line = declaration
        .replace("( ", "(")
        .replace(", )", ")")
        .replace(",)", ")");
    one_line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether the declaration of an implementation restricts its type parameters.
pub(super) fn has_bounds(implementation: &str) -> bool {
    // The colons of a path come in pairs.
    implementation.replace("::", "").contains(':')
}

/// Returns the text of a type of rustdoc's JSON; `_` for kinds that no implementation here has.
pub(super) fn of_type(ty: &Value) -> String {
    let Some((kind, data)) = ty.as_object().and_then(|ty| ty.iter().next()) else {
        return "_".into();
    };
    match kind.as_str() {
        "resolved_path" => {
            let path = data["path"].as_str().unwrap_or("_");
            format!("{path}{}", arguments(&data["args"]))
        }
        "primitive" | "generic" => data.as_str().unwrap_or("_").into(),
        "borrowed_ref" => {
            let lifetime = data["lifetime"].as_str().map(|name| format!("{name} "));
            let mutable = if data["is_mutable"] == true {
                "mut "
            } else {
                ""
            };
            let of = of_type(&data["type"]);
            format!("&{}{mutable}{of}", lifetime.unwrap_or_default())
        }
        "slice" => format!("[{}]", of_type(data)),
        "array" => {
            let len = data["len"].as_str().unwrap_or("_");
            format!("[{}; {len}]", of_type(&data["type"]))
        }
        _ => "_".into(),
    }
}

/// Returns the text of generic arguments, empty if there are none.
pub(super) fn arguments(arguments: &Value) -> String {
    let text = |argument: &Value| match argument["lifetime"].as_str() {
        Some(lifetime) => lifetime.to_owned(),
        None => of_type(&argument["type"]),
    };
    let arguments = arguments["angle_bracketed"]["args"].as_array();
    let arguments: Vec<String> = arguments.into_iter().flatten().map(text).collect();
    match arguments.is_empty() {
        true => String::new(),
        false => format!("<{}>", arguments.join(", ")),
    }
}

/// Returns the examples in documentation that run.
pub(super) fn examples(docs: &str) -> Vec<String> {
    let mut examples = Vec::new();
    // The lines of the current block, and whether it runs.
    let mut block: Option<(Vec<&str>, bool)> = None;
    for line in docs.lines() {
        match (line.trim().strip_prefix("```"), &mut block) {
            (Some(language), None) => block = Some((Vec::new(), language.is_empty())),
            (Some(_), Some(_)) => {
                if let Some((lines, true)) = block.take() {
                    examples.push(lines.join("\n"));
                }
            }
            (None, Some((lines, _))) => lines.push(line),
            (None, None) => {}
        }
    }
    examples
}

/// Returns whether code names `name`, as a whole word outside of comments.
pub(super) fn names(code: &str, name: &str) -> bool {
    let code = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .any(|word| word == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_text_is_given_by_lines_and_columns() {
        let text = "one\ntwö three\nfour\n";
        assert_eq!(part(text, (2, 5), (3, 3)), Some("three\nfo"));
        assert_eq!(part(text, (1, 1), (2, 1)), Some("one\n"));
    }

    #[test]
    fn a_declaration_has_one_line_and_no_body() {
        let source = "pub fn read(\n    &self,\n    into: &mut [u8],\n) -> usize {\n    1\n}";
        let declared = "pub fn read(&self, into: &mut [u8]) -> usize";
        assert_eq!(declaration(source, "function"), declared);
        let source = "#[error(\"no\")]\npub struct Number(u32);";
        assert_eq!(declaration(source, "struct"), "pub struct Number");
        assert_eq!(declaration("pub len: u64", "field"), "pub len: u64");
        let source = "bitflags! {\n    pub struct Flags: u32 {\n    }\n}";
        assert_eq!(declaration(source, "struct"), "bitflags!");
    }

    #[test]
    fn the_declaration_of_an_implementation_has_its_bounds() {
        let source = "impl<'a, B> Future\n    for Transfer<'a, B>\nwhere\n    B: Buffer,\n{\n    fn f() {}\n}";
        let declared = "impl<'a, B> Future for Transfer<'a, B> where B: Buffer,";
        assert_eq!(declaration(source, "impl"), declared);
        assert!(has_bounds(declared));
        assert!(has_bounds("impl<B: Buffer> Transfer<B>"));
        assert!(!has_bounds("impl<'a> fmt::Display for Error<'a>"));
    }

    #[test]
    fn only_blocks_that_run_are_examples() {
        let docs = "Text\n```\nlet a = 1;\n```\n```compile_fail,E0382\nb();\n```\n```text\nc\n```";
        assert_eq!(examples(docs), ["let a = 1;"]);
        assert!(names("qp.post_send(request)", "post_send"));
        assert!(!names("qp.post_sends(request)", "post_send"));
        assert!(!names("// post_send", "post_send"));
    }

    #[test]
    fn a_type_is_written_as_in_the_source() {
        let json = r#"{"borrowed_ref": {"lifetime": "'a", "is_mutable": true,
            "type": {"resolved_path": {"path": "Vec", "args": {"angle_bracketed":
            {"args": [{"type": {"array": {"type": {"primitive": "u8"}, "len": "N"}}}]}}}}}}"#;
        let ty = serde_json::from_str(json).unwrap();
        assert_eq!(of_type(&ty), "&'a mut Vec<[u8; N]>");
    }
}
