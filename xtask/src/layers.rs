//! A step of the check: imports within a package have one direction.
//!
//! ARCHITECTURE.md has a section «Layers in NAME» for a package, with a numbered list of its
//! modules from the top layer to the bottom one. A file may import from lower layers and from its
//! own. No chain of imports may lead from a file back to it. `mod` declarations and re-exports
//! (`pub use`) are no imports: a name that is imported through a re-export counts as imported from
//! the file that has it. Code under `#[cfg(test)]` is not checked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Instant;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::outcome::Outcome;
use crate::test_log::TestLog;

/// The step of `cargo xtask test`.
pub(crate) const NAME: &str = "layers";

/// The document with the lists of layers.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// The start of the heading of a list, which the directory of the package follows.
const HEADING: &str = "## Layers in ";

/// The name of the file `lib.rs` in a list.
const ROOT: &str = "lib";

/// Runs the step.
pub(crate) fn step(workspace: &Path) -> Outcome {
    println!("\nxtask: {NAME}: imports within packages");
    let started = Instant::now();
    let problem = match check(workspace) {
        Ok(problems) => {
            for problem in &problems {
                eprintln!("{NAME}: {problem}");
            }
            (!problems.is_empty()).then(|| format!("{} problems", problems.len()))
        }
        Err(problem) => Some(problem),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log: TestLog::default(),
    }
}

fn check(workspace: &Path) -> Result<Vec<String>, String> {
    let document = fs::read_to_string(workspace.join(DOCUMENT))
        .map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let lists = lists(&document);
    if lists.is_empty() {
        return Err(format!("{DOCUMENT} has no section «{HEADING}...»"));
    }
    let mut problems = Vec::new();
    for (package, layers) in lists {
        let source = workspace.join(&package).join("src");
        let mut files = BTreeMap::new();
        read(&source, &mut Vec::new(), &mut files)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let imports = Imports::of(&files)?;
        println!("{package}: {} files", imports.files.len());
        let found = imports.problems(&layers);
        problems.extend(found.into_iter().map(|text| format!("{package}: {text}")));
    }
    Ok(problems)
}

/// The path of a module in its crate; the root has none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Module(Vec<String>);

impl Module {
    fn parse(text: &str) -> Self {
        match text {
            ROOT => Module(Vec::new()),
            text => Module(text.split("::").map(str::to_owned).collect()),
        }
    }

    fn child(&self, name: &str) -> Self {
        let mut path = self.0.clone();
        path.push(name.to_owned());
        Module(path)
    }

    fn parent(&self) -> Self {
        Module(
            self.0
                .split_last()
                .map_or(Vec::new(), |(_, path)| path.to_vec()),
        )
    }

    /// Whether this module is `ancestor` or below it. Nothing but the root is below the root, whose
    /// entry in a list stands for one file.
    fn is_in(&self, ancestor: &Self) -> bool {
        match ancestor.0.is_empty() {
            true => self.0.is_empty(),
            false => self.0.starts_with(&ancestor.0),
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str(ROOT),
            path => f.write_str(&path.join("::")),
        }
    }
}

/// The modules of each layer, the top layer first.
type Layers = Vec<Vec<Module>>;

/// The lists of a document, each with the directory of its package.
fn lists(document: &str) -> Vec<(String, Layers)> {
    let mut lists: Vec<(String, Layers)> = Vec::new();
    let mut is_inside = false;
    for line in document.lines() {
        if line.starts_with('#') {
            let package = line.strip_prefix(HEADING);
            is_inside = package.is_some();
            lists.extend(package.map(|package| (package.trim().to_owned(), Layers::new())));
            continue;
        }
        let (true, Some((_, layers))) = (is_inside, lists.last_mut()) else {
            continue;
        };
        let (number, item) = line.split_once(". ").unwrap_or_default();
        let is_item = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let modules = |text: &str| -> Vec<Module> {
            let spans = text.split('`').skip(1).step_by(2);
            spans.map(Module::parse).collect()
        };
        if is_item {
            layers.push(modules(item));
        } else if let (true, Some(layer)) = (line.starts_with("   "), layers.last_mut()) {
            layer.extend(modules(line));
        }
    }
    lists
}

/// Reads the files below a directory.
fn read(
    directory: &Path,
    module: &mut Vec<String>,
    files: &mut BTreeMap<Module, String>,
) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        if path.is_dir() {
            module.push(stem.to_owned());
            read(&path, module, files)?;
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = match stem {
                ROOT | "mod" => Module(module.clone()),
                stem => Module(module.clone()).child(stem),
            };
            files.insert(file, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// A name that a file takes from another module.
struct Use {
    /// The module that has the `use` declaration or the path.
    from: Module,
    path: Vec<String>,
    /// The name under which `from` has it; `None` for a path outside `use`, and for a glob.
    name: Option<String>,
    is_reexport: bool,
}

/// What one file contains.
#[derive(Default)]
struct Contents {
    uses: Vec<Use>,
    /// Modules in the braces of this file, and those of files.
    modules: BTreeSet<Module>,
    /// Modules under `#[cfg(test)]`.
    tests: BTreeSet<Module>,
    /// All identifiers outside `use` declarations.
    words: BTreeSet<String>,
}

impl Contents {
    /// Scans the tokens of a module.
    fn scan(&mut self, module: &Module, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        let mut is_public = false;
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                at += self.skip_test_item(module, &tokens[at..]);
                continue;
            }
            let head = match &tokens[at] {
                TokenTree::Group(group) => {
                    // The parentheses of `pub(super)` do not end the visibility.
                    is_public &= group.delimiter() == Delimiter::Parenthesis;
                    self.scan(module, group.stream());
                    at += 1;
                    continue;
                }
                TokenTree::Ident(ident) => ident.to_string(),
                _ => {
                    is_public = false;
                    at += 1;
                    continue;
                }
            };
            match head.as_str() {
                "pub" => is_public = true,
                "use" => {
                    let end = tokens[at..].iter().position(|token| is_punct(token, ';'));
                    let end = end.map_or(tokens.len(), |end| at + end);
                    let mut tree = Vec::new();
                    use_tree(&tokens[at + 1..end], &[], &mut tree);
                    self.uses.extend(tree.into_iter().map(|(path, name)| Use {
                        from: module.clone(),
                        path,
                        name,
                        is_reexport: is_public,
                    }));
                    is_public = false;
                    at = end;
                }
                "mod" => {
                    if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                        let child = module.child(&name.to_string());
                        if let Some(body) = brace(tokens.get(at + 2)) {
                            self.scan(&child, body.stream());
                        }
                        self.modules.insert(child);
                        at += 2;
                    }
                    is_public = false;
                }
                _ => {
                    is_public = false;
                    let path = path(&tokens[at..]);
                    let is_head = at < 2 || !is_separator(&tokens[at - 2..]);
                    self.words.extend(path.iter().cloned());
                    let tokens_of_path = 3 * path.len() - 2;
                    if is_head && path.len() > 1 {
                        self.uses.push(Use {
                            from: module.clone(),
                            path,
                            name: None,
                            is_reexport: false,
                        });
                    }
                    at += tokens_of_path;
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Returns the number of tokens of an item under `#[cfg(test)]` and its attributes.
    fn skip_test_item(&mut self, module: &Module, tokens: &[TokenTree]) -> usize {
        let mut at = 0;
        while is_punct_at(tokens, at, '#') {
            at += 2;
        }
        let is_word = |at: usize, word: &str| match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => ident == word,
            _ => false,
        };
        if is_word(at, "pub") {
            at += 1;
            at += usize::from(matches!(tokens.get(at), Some(TokenTree::Group(_))));
        }
        if let (true, Some(TokenTree::Ident(name))) = (is_word(at, "mod"), tokens.get(at + 1)) {
            self.tests.insert(module.child(&name.to_string()));
        }
        let ends_with_semicolon = ["use", "static", "type", "let"]
            .iter()
            .any(|word| is_word(at, word))
            || is_word(at, "const") && !is_word(at + 1, "fn");
        let is_end = |token: &TokenTree| {
            let is_body = !ends_with_semicolon && brace(Some(token)).is_some();
            is_punct(token, ';') || is_body || !ends_with_semicolon && is_punct(token, ',')
        };
        let end = tokens[at..].iter().position(is_end);
        end.map_or(tokens.len(), |end| at + end + 1)
    }
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn is_punct_at(tokens: &[TokenTree], at: usize, character: char) -> bool {
    tokens
        .get(at)
        .is_some_and(|token| is_punct(token, character))
}

/// Whether the tokens start with `::`.
fn is_separator(tokens: &[TokenTree]) -> bool {
    is_punct_at(tokens, 0, ':') && is_punct_at(tokens, 1, ':')
}

fn brace(token: Option<&TokenTree>) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => Some(group),
        _ => None,
    }
}

/// Whether the tokens start with `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let (true, Some(TokenTree::Group(attribute))) = (is_punct_at(tokens, 0, '#'), tokens.get(1))
    else {
        return false;
    };
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    let condition = text
        .strip_prefix("cfg(")
        .map(|text| text.trim_start_matches("all("));
    condition.is_some_and(|text| text.split([',', ')']).next() == Some("test"))
}

/// Returns the identifiers at the start that `::` joins; at least one if the first token is one.
fn path(tokens: &[TokenTree]) -> Vec<String> {
    let mut path = Vec::new();
    let mut rest = tokens;
    while let Some(TokenTree::Ident(ident)) = rest.first() {
        path.push(ident.to_string());
        match rest.get(1..) {
            Some(after) if is_separator(after) => rest = &after[2..],
            _ => break,
        }
    }
    path
}

/// Adds the paths of a `use` tree, each with the name that it introduces.
fn use_tree(
    tokens: &[TokenTree],
    before: &[String],
    found: &mut Vec<(Vec<String>, Option<String>)>,
) {
    let own = path(tokens);
    let whole = [before, &own].concat();
    // The path ends before `::{...}`, `::*` or ` as name`.
    let rest = &tokens[(3 * own.len()).saturating_sub(2).min(tokens.len())..];
    let rest = if is_separator(rest) { &rest[2..] } else { rest };
    match rest {
        [TokenTree::Group(group), ..] => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            for part in parts.split(|token| is_punct(token, ',')) {
                if !part.is_empty() {
                    use_tree(part, &whole, found);
                }
            }
        }
        [TokenTree::Punct(_), ..] => found.push((whole, None)),
        [TokenTree::Ident(_), TokenTree::Ident(name), ..] => {
            found.push((without_self(whole), Some(name.to_string())));
        }
        _ => {
            let whole = without_self(whole);
            let name = whole.last().cloned();
            found.push((whole, name));
        }
    }
}

/// `a::self`, from `a::{self}`, as `a`.
fn without_self(mut path: Vec<String>) -> Vec<String> {
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    path
}

/// The imports between the files of a package.
struct Imports {
    files: BTreeSet<Module>,
    /// For each pair of files, one of the paths that import from the second in the first.
    edges: BTreeMap<(Module, Module), String>,
}

impl Imports {
    fn of(texts: &BTreeMap<Module, String>) -> Result<Self, String> {
        let mut contents = BTreeMap::new();
        for (file, text) in texts {
            let tokens: TokenStream = text
                .parse()
                .map_err(|error| format!("{file}: not Rust: {error}"))?;
            let mut content = Contents::default();
            content.scan(file, tokens);
            contents.insert(file.clone(), content);
        }
        let tests: BTreeSet<Module> = contents.values().flat_map(|c| c.tests.clone()).collect();
        contents.retain(|file, _| !tests.iter().any(|test| file.is_in(test)));
        let modules: BTreeSet<Module> = contents
            .iter()
            .flat_map(|(file, content)| content.modules.iter().chain([file]).cloned())
            .collect();
        let names: BTreeMap<(Module, &str), &Use> = contents
            .values()
            .flat_map(|content| &content.uses)
            .filter_map(|import| Some(((import.from.clone(), import.name.as_deref()?), import)))
            .collect();
        let files: BTreeSet<Module> = contents.keys().cloned().collect();
        let mut edges = BTreeMap::new();
        for (file, content) in &contents {
            for import in &content.uses {
                // A file that re-exports a name may also use it.
                let is_used = |name: &String| content.words.contains(name);
                if import.is_reexport && !import.name.as_ref().is_some_and(is_used) {
                    continue;
                }
                let found = target(&import.from, &import.path, &modules, &names, 0);
                let to = found.map(|module| file_of(module, &files));
                if let Some(to) = to.filter(|to| to != file) {
                    let text = import.path.join("::");
                    edges.entry((file.clone(), to)).or_insert(text);
                }
            }
        }
        Ok(Imports { files, edges })
    }

    fn problems(&self, layers: &Layers) -> Vec<String> {
        let mut problems = Vec::new();
        for module in layers.iter().flatten() {
            if !self.files.iter().any(|file| file.is_in(module)) {
                problems.push(format!("`{module}` is listed, and does not exist"));
            }
        }
        // Of several entries that contain a file, the longest counts.
        let layer = |file: &Module| {
            let entries = layers.iter().enumerate();
            entries
                .flat_map(|(number, modules)| modules.iter().map(move |module| (number, module)))
                .filter(|(_, module)| file.is_in(module))
                .max_by_key(|(_, module)| module.0.len())
                .map(|(number, _)| number)
        };
        for file in self.files.iter().filter(|file| layer(file).is_none()) {
            problems.push(format!("`{file}` is in no layer"));
        }
        for ((from, to), path) in &self.edges {
            if let (Some(below), Some(above)) = (layer(from), layer(to))
                && above < below
            {
                let (below, above) = (below + 1, above + 1);
                problems.push(format!(
                    "`{from}` of layer {below} imports `{path}` from `{to}` of layer {above}"
                ));
            }
        }
        for cycle in self.cycles() {
            let steps: Vec<String> = cycle
                .iter()
                .zip(cycle.iter().cycle().skip(1))
                .map(|(from, to)| {
                    let path = &self.edges[&(from.clone(), to.clone())];
                    format!("`{from}` imports `{path}` from `{to}`")
                })
                .collect();
            problems.push(format!("import cycle: {}", steps.join(", ")));
        }
        problems
    }

    /// One shortest cycle through each file that is in any and in no cycle found before.
    fn cycles(&self) -> Vec<Vec<Module>> {
        let mut cycles: Vec<Vec<Module>> = Vec::new();
        for file in &self.files {
            if cycles.iter().flatten().any(|known| known == file) {
                continue;
            }
            cycles.extend(self.shortest_cycle(file));
        }
        cycles
    }

    fn shortest_cycle(&self, start: &Module) -> Option<Vec<Module>> {
        let mut paths = VecDeque::from([vec![start.clone()]]);
        let mut reached = BTreeSet::new();
        while let Some(path) = paths.pop_front() {
            let last = path.last()?;
            for (_, to) in self.edges.keys().filter(|(from, _)| from == last) {
                if to == start {
                    return Some(path);
                }
                if reached.insert(to) {
                    paths.push_back([path.as_slice(), std::slice::from_ref(to)].concat());
                }
            }
        }
        None
    }
}

/// Returns the module in which the item of a path is defined, as far as that is visible; `None` for
/// a path into another crate.
fn target(
    from: &Module,
    path: &[String],
    modules: &BTreeSet<Module>,
    names: &BTreeMap<(Module, &str), &Use>,
    depth: u8,
) -> Option<Module> {
    let mut rest = path.iter();
    let mut at = match rest.next()?.as_str() {
        "crate" => Module(Vec::new()),
        "self" => from.clone(),
        "super" => from.parent(),
        head if modules.contains(&from.child(head)) => from.child(head),
        _ => return None,
    };
    while let Some(name) = rest.next() {
        if name == "super" {
            at = at.parent();
        } else if modules.contains(&at.child(name)) {
            at = at.child(name);
        } else if let Some(import) = names
            .get(&(at.clone(), name.as_str()))
            .filter(|_| depth < 8)
        {
            // The module has the name from elsewhere.
            let whole: Vec<String> = import.path.iter().chain(rest).cloned().collect();
            return target(&at, &whole, modules, names, depth + 1).or(Some(at));
        } else {
            break;
        }
    }
    Some(at)
}

/// Returns the file that contains a module.
fn file_of(mut module: Module, files: &BTreeSet<Module>) -> Module {
    while !files.contains(&module) && !module.0.is_empty() {
        module = module.parent();
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)], list: &str) -> Vec<String> {
        let files = files
            .iter()
            .map(|(file, text)| (Module::parse(file), (*text).to_owned()))
            .collect();
        let document = format!("# Title\n## Layers in here\nProse.\n\n{list}\n## Next\n1. `x`\n");
        let lists = lists(&document);
        let [(package, layers)] = lists.as_slice() else {
            panic!("{} lists", lists.len());
        };
        assert_eq!(package, "here");
        Imports::of(&files).unwrap().problems(layers)
    }

    const LIST: &str = "1. `lib`\n2. `high`,\n   `side`\n3. `low`, `low::deep`\n";

    fn with(file: &str, text: &str) -> Vec<String> {
        let mut files = BTreeMap::from([
            ("lib", "mod high; mod low; mod side; pub use low::Low;"),
            ("high", "use crate::low::Low; use std::fmt;"),
            ("side", "fn f() { crate::low::deep::g() }"),
            ("low", "pub struct Low; pub mod deep;"),
            ("low::deep", "pub fn g() {}"),
        ]);
        files.insert(file, text);
        problems(&files.into_iter().collect::<Vec<_>>(), LIST)
    }

    #[test]
    fn downward_imports_are_permitted() {
        assert_eq!(with("high", "use crate::low::Low;"), [""; 0]);
        assert_eq!(with("high", "use crate::side::f;"), [""; 0]);
    }

    #[test]
    fn upward_imports_are_found_in_every_form() {
        for text in [
            "use crate::high::High;",
            "use crate::{high, side};",
            "use crate::{side::{A, B}, high::High as Other};",
            "fn f() { crate::high::f() }",
            "fn f() -> Vec<u8> { vec![super::high::f()] }",
            "type T = Option<crate::high::High>;",
            "mod inner { use super::super::high::*; }",
            "#[cfg(not(test))] use crate::high::High;",
        ] {
            let problems = with("low", text);
            let found = problems
                .iter()
                .any(|p| p.starts_with("`low` of layer 3 imports"));
            assert!(found, "{text}: {problems:?}");
        }
    }

    #[test]
    fn comments_strings_and_tests_are_no_imports() {
        for text in [
            "// use crate::high::High;",
            "/// See [`crate::high::High`].\nstruct Low;",
            "/* /* */ use crate::high::High; */",
            "const TEXT: &str = r#\"use crate::high::High;\"#;",
            "#[cfg(test)] mod tests { use crate::high::High; }",
            "#[cfg(test)] use crate::{high::High};",
            "#[cfg(test)]\n#[allow(unused)]\nfn f() { crate::high::f() }",
            "#[cfg(all(test, unix))] pub(super) fn f() { crate::high::f() }",
            "use urxe::high::High; fn f() { other::crate_::high() }",
        ] {
            assert_eq!(
                with("low", &format!("{text} pub mod deep;")),
                [""; 0],
                "{text}"
            );
        }
    }

    #[test]
    fn files_of_tests_are_not_checked() {
        let low = ("low", "#[cfg(test)] mod tests;");
        let tests = ("low::tests", "use crate::high::High; mod more;");
        let more = ("low::tests::more", "use crate::high::High;");
        let files = [("lib", ""), ("high", ""), low, tests, more];
        assert_eq!(problems(&files, "1. `lib`\n2. `high`\n3. `low`\n"), [""; 0]);
    }

    #[test]
    fn cycles_are_found_within_a_layer() {
        let files = [
            ("lib", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B;"),
            ("b", "fn f(_: super::c::C) {}"),
            ("c", "use crate::a;"),
        ];
        let list = "1. `lib`\n2. `a`, `b`, `c`\n";
        let expected = "import cycle: `a` imports `crate::b::B` from `b`, \
             `b` imports `super::c::C` from `c`, `c` imports `crate::a` from `a`";
        assert_eq!(problems(&files, list), [expected]);
    }

    #[test]
    fn parent_and_child_may_form_a_cycle() {
        let parent = ("a", "mod child; struct A(child::B);");
        let files = [("lib", ""), parent, ("a::child", "use super::A;")];
        let found = problems(&files, "1. `lib`\n2. `a`\n");
        assert!(
            found[0].starts_with("import cycle: `a` imports `child::B`"),
            "{found:?}"
        );
    }

    #[test]
    fn symbols_are_looked_up_in_their_file() {
        // Neither is an import of the root.
        assert_eq!(
            with("low::deep", "use crate::Low; use super::Low as L;"),
            [""; 0]
        );
        assert_eq!(with("high", "use crate::Low;"), [""; 0]);
        let files = [
            ("lib", "pub use high::High;"),
            ("high", ""),
            ("low", "use crate::High;"),
        ];
        let found = problems(&files, "1. `lib`\n2. `high`\n3. `low`\n");
        assert_eq!(
            found,
            ["`low` of layer 3 imports `crate::High` from `high` of layer 2"]
        );
        let files = [
            ("lib", ""),
            ("a", "mod b; mod c; pub use b::B; fn f(_: B) {}"),
            ("a::b", "use super::c::C;"),
            ("a::c", ""),
        ];
        assert_eq!(
            problems(&files, "1. `lib`\n2. `a`\n3. `a::b`\n4. `a::c`\n"),
            [""; 0]
        );
        let upward = [("lib", ""), files[1], ("a::b", ""), ("a::c", "")];
        let found = problems(&upward, "1. `lib`\n2. `a::b`, `a::c`\n3. `a`\n");
        assert_eq!(
            found,
            ["`a` of layer 3 imports `b::B` from `a::b` of layer 2"]
        );
    }

    #[test]
    fn list_and_files_agree() {
        let list = "1. `lib`\n2. `gone`\n";
        let found = problems(&[("lib", ""), ("new", "")], list);
        assert_eq!(
            found,
            [
                "`gone` is listed, and does not exist",
                "`new` is in no layer"
            ]
        );
    }
}
