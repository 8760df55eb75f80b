//! A step of the check: imports within a package have one direction.
//!
//! ARCHITECTURE.md has a section «Layers in NAME» for a package, with a numbered list of its
//! modules from the top layer to the bottom one. A file may import from lower layers and from its
//! own. No chain of imports may lead from a file back to it. `mod` declarations and re-exports
//! (`pub use`) are no imports: a name that is imported through a re-export counts as imported from
//! the file that has it. Code under `#[cfg(test)]` is not checked.
//!
//! Packages without such a section are checked for cycles only.

mod graph;
mod module;
mod scan;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;

use crate::metadata;
use crate::outcome::Outcome;
use crate::test_log::TestLog;

use graph::{Counts, Imports, Layers};
use module::{Module, ROOT};

/// The step of `cargo xtask test`.
pub(crate) const NAME: &str = "layers";

/// The document with the lists of layers.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// The start of the heading of a list, which the directory of the package follows.
const HEADING: &str = "## Layers in ";

/// The options of `cargo xtask layers`.
#[derive(clap::Args)]
pub(crate) struct LayersOptions {
    /// Count the imports of the workspace in this directory instead, such as another commit
    directory: Option<PathBuf>,
}

/// Runs the command. Returns whether it succeeded.
pub(crate) fn run(options: &LayersOptions, workspace: &Path) -> bool {
    let workspace = options.directory.as_deref().unwrap_or(workspace);
    match table(workspace) {
        Ok(table) => {
            print!("{table}");
            true
        }
        Err(error) => {
            eprintln!("xtask: {NAME}: {error}");
            false
        }
    }
}

/// Returns the numbers of files and imports of each package.
fn table(workspace: &Path) -> Result<String, String> {
    let workspace = fs::canonicalize(workspace).map_err(|error| error.to_string())?;
    let mut table =
        String::from("package | files | imports | files in cycles | imports in cycles\n");
    for source in sources(&workspace)? {
        let counts = read_imports(&source)?.counts();
        let package = source.strip_prefix(&workspace).unwrap_or(&source).display();
        let Counts { files, imports, .. } = counts;
        let (in_cycles, cyclic) = (counts.files_in_cycles, counts.imports_in_cycles);
        let _ = writeln!(
            table,
            "{package} | {files} | {imports} | {in_cycles} | {cyclic}"
        );
    }
    Ok(table)
}

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
    for (package, layers) in &lists {
        let imports = imports(package, &source_of(workspace, package))?;
        let found = imports.problems(layers);
        problems.extend(found.into_iter().map(|text| format!("{package}: {text}")));
    }
    let listed: Vec<PathBuf> = (lists.iter())
        .map(|(package, _)| source_of(workspace, package))
        .collect();
    for source in sources(workspace)? {
        if listed.contains(&source) {
            continue;
        }
        let package = source.strip_prefix(workspace).unwrap_or(&source).display();
        let imports = imports(&package.to_string(), &source)?;
        let found = imports.cycle_problems();
        problems.extend(found.into_iter().map(|text| format!("{package}: {text}")));
    }
    Ok(problems)
}

/// Reads the imports of a package.
fn imports(package: &str, source: &Path) -> Result<Imports, String> {
    let imports = read_imports(source)?;
    println!("{package}: {} files", imports.files.len());
    Ok(imports)
}

fn read_imports(source: &Path) -> Result<Imports, String> {
    let mut files = BTreeMap::new();
    read(source, &mut Vec::new(), &mut files)
        .map_err(|error| format!("{}: {error}", source.display()))?;
    Imports::of(&files)
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
}

/// Returns the directories with the sources of all packages of the workspace.
fn sources(workspace: &Path) -> Result<Vec<PathBuf>, String> {
    let packages: Vec<Package> = metadata::packages(workspace, "--no-deps")?;
    let directories = (packages.iter()).filter_map(|package| package.manifest_path.parent());
    let mut sources: Vec<PathBuf> = directories
        .map(|directory| directory.join("src"))
        .filter(|source| source.exists())
        .collect();
    sources.sort();
    Ok(sources)
}

/// Returns the directory of a package's sources. The package at the top of the workspace has its
/// sources in `src/`, and is listed by that name.
fn source_of(workspace: &Path, package: &str) -> PathBuf {
    let directory = workspace.join(package);
    let source = directory.join("src");
    if source.exists() { source } else { directory }
}

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
                // A package with both `lib.rs` and `main.rs` has a library, and a program that
                // imports it by name.
                "main" if module.is_empty() && !path.with_file_name("lib.rs").exists() => {
                    Module(Vec::new())
                }
                stem => Module(module.clone()).child(stem),
            };
            files.insert(file, fs::read_to_string(&path)?);
        }
    }
    Ok(())
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
    fn every_package_is_checked() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let sources = sources(workspace).unwrap();
        for directory in ["src", "driver/src", "xtask/src"] {
            assert!(sources.contains(&workspace.join(directory)), "{sources:?}");
        }
        let xtask = imports("xtask", &workspace.join("xtask/src")).unwrap();
        // Its root is `main.rs`.
        assert!(xtask.files.contains(&Module::parse(ROOT)));
        assert!(!xtask.files.contains(&Module::parse("main")));
    }

    #[test]
    fn files_and_imports_of_cycles_are_counted() {
        // `a` and `b` import each other; `c` imports both, and `b` imports `d`.
        let files = [
            ("lib", ""),
            ("a", "use crate::b::B;"),
            ("b", "use crate::{a::A, d::D};"),
            ("c", "use crate::{a::A, b::B};"),
            ("d", ""),
        ];
        let files = files.map(|(file, text)| (Module::parse(file), text.to_owned()));
        let counts = Imports::of(&BTreeMap::from(files)).unwrap().counts();
        let expected = Counts {
            files: 5,
            imports: 5,
            files_in_cycles: 2,
            imports_in_cycles: 2,
        };
        assert_eq!(counts, expected);
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
