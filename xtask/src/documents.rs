//! A step of the check: paths and symbols in the documents exist.
//!
//! In every Markdown file that git tracks, a relative link must lead to a file, and to a heading of
//! it where it names one; a path in a code span must be a tracked file or the end of the path of
//! one; and the last segment of a Rust path in a code span must be a word of the source. The change
//! log may name what no longer exists.
//!
//! The documents of `docs/` are also the chapters of a book, and each must be in its summary. Their
//! relative links must stay within `docs/`, because the book has no other files. Links to other
//! files begin with the repository's address, and are checked in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::outcome::Outcome;
use crate::test_log::TestLog;

/// The step of `cargo xtask test`.
pub(crate) const NAME: &str = "documents";

/// Endings of code spans that are taken for the names of files.
const FILES: &[&str] = &[
    ".rs", ".c", ".h", ".md", ".sh", ".toml", ".txt", ".py", ".svg",
];

/// The document whose code spans are not checked.
const HISTORY: &str = "CHANGELOG.md";

/// The address of files in the repository.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// The directory of the book's chapters, and the list of them.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Endings of files whose words are searched for symbols.
const SOURCES: &[&str] = &[".rs", ".c", ".h"];

/// Runs the step.
pub(crate) fn step(workspace: &Path) -> Outcome {
    println!("\nxtask: {NAME}: links, paths and symbols in the documents");
    let started = Instant::now();
    let problem = match Tree::read(workspace) {
        Ok(tree) => {
            let problems = tree.problems();
            for problem in &problems {
                eprintln!("{NAME}: {problem}");
            }
            println!("{} documents", tree.documents.len());
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

/// The files of the workspace.
struct Tree {
    /// Every tracked file, relative to the root.
    files: BTreeSet<PathBuf>,
    /// The text of each document.
    documents: BTreeMap<PathBuf, String>,
    /// Every word of the sources.
    words: BTreeSet<String>,
}

impl Tree {
    fn read(workspace: &Path) -> Result<Self, String> {
        let listed = Command::new("git")
            .current_dir(workspace)
            .args([
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "-z",
            ])
            .output()
            .map_err(|error| format!("git: {error}"))?;
        if !listed.status.success() {
            return Err(String::from_utf8_lossy(&listed.stderr).into_owned());
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let mut tree = Tree {
            files: BTreeSet::new(),
            documents: BTreeMap::new(),
            words: BTreeSet::new(),
        };
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            let Ok(text) = fs::read(workspace.join(name)) else {
                // Deleted, and not yet committed.
                continue;
            };
            let text = String::from_utf8_lossy(&text);
            if name.ends_with(".md") {
                tree.documents.insert(name.into(), text.into_owned());
            } else if SOURCES.iter().any(|ending| name.ends_with(ending)) {
                tree.words.extend(words(&text).map(str::to_owned));
            }
            tree.files.insert(name.into());
        }
        Ok(tree)
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(
            self.not_in_summary()
                .map(|document| format!("{SUMMARY}: no chapter {}", document.display())),
        );
        for (document, text) in &self.documents {
            let prose = without_code_blocks(text);
            let wrong_links = links(&prose).filter(|link| !self.has_link(document, link));
            problems.extend(
                wrong_links.map(|link| format!("{}: no such link: {link}", document.display())),
            );
            let is_history = document.ends_with(HISTORY);
            let wrong_spans = spans(&prose).filter(|span| !is_history && !self.has(span));
            problems.extend(
                wrong_spans.map(|span| format!("{}: no such thing: `{span}`", document.display())),
            );
        }
        problems
    }

    /// Returns the documents of the book that its summary does not link to.
    fn not_in_summary(&self) -> impl Iterator<Item = &Path> {
        let summary = self.documents.get(Path::new(SUMMARY));
        let chapters: BTreeSet<PathBuf> = summary
            .into_iter()
            .flat_map(|summary| links(summary))
            .map(|link| Path::new(BOOK).join(link))
            .collect();
        let documents = self.documents.keys().map(PathBuf::as_path);
        documents.filter(move |document| {
            document.starts_with(BOOK)
                && *document != Path::new(SUMMARY)
                && !chapters.contains(*document)
        })
    }

    fn has_link(&self, document: &Path, link: &str) -> bool {
        let in_repository = link.strip_prefix(REPOSITORY);
        if in_repository.is_none() && (link.contains("://") || link.starts_with("mailto:")) {
            return true;
        }
        if document.starts_with(BOOK) && link.starts_with("../") {
            return false;
        }
        let link = in_repository.unwrap_or(link);
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let directory = match in_repository {
            Some(_) => Path::new(""),
            None => document.parent().unwrap_or(Path::new("")),
        };
        let file = match file {
            "" => document.to_owned(),
            file => normalized(&directory.join(file)),
        };
        let exists = self.files.contains(&file) || self.has_directory(&file);
        exists
            && (heading.is_empty()
                || self.documents.get(&file).is_some_and(|text| {
                    without_code_blocks(text)
                        .lines()
                        .filter_map(|line| line.strip_prefix('#'))
                        .any(|line| anchor(line.trim_start_matches('#')) == heading)
                }))
    }

    fn has_directory(&self, path: &Path) -> bool {
        self.files.iter().any(|file| file.starts_with(path))
    }

    /// Whether a code span names something that exists, or nothing that this step knows of.
    fn has(&self, span: &str) -> bool {
        if span.contains([' ', '*', '<', '%', '$', '=', '~']) || span.starts_with(['/', '-', '.']) {
            return true;
        }
        let alternatives = expanded(span);
        if FILES.iter().any(|ending| span.ends_with(ending)) || span.contains('{') {
            return alternatives.iter().all(|path| self.has_file(path));
        }
        if let Some(directory) = span.strip_suffix('/') {
            let directory = Path::new(directory);
            return self.files.iter().any(|file| {
                file.parent()
                    .is_some_and(|parent| contains(parent, directory))
            });
        }
        match span.rsplit_once("::") {
            Some((_, symbol)) => {
                let symbol = symbol.trim_end_matches("()");
                !is_word(symbol) || self.words.contains(symbol)
            }
            None => true,
        }
    }

    fn has_file(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.ends_with(path))
    }
}

/// Whether `directory` is a run of components of `path`.
fn contains(path: &Path, directory: &Path) -> bool {
    path.ancestors()
        .any(|ancestor| ancestor.ends_with(directory))
}

/// A path without `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            component => whole.push(component),
        }
    }
    whole
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expanded(span: &str) -> Vec<String> {
    let parts = span
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (names, after))) => names
            .split(',')
            .map(|name| format!("{before}{}{after}", name.trim()))
            .collect(),
        None => vec![span.to_owned()],
    }
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            character => character.is_alphanumeric().then_some(character),
        })
        .collect()
}

fn without_code_blocks(text: &str) -> String {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence && !line.starts_with("    ")
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// The targets of the links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

/// The code spans; a span does not go beyond its line.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .filter(|word| !word.is_empty())
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|character| character.is_alphanumeric() || character == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let text = "# One, two\nSee [three](docs/B.md#of-it) and `src/a.rs`.\n";
        Tree {
            files: ["A.md", "docs/B.md", "driver/src/a.rs", "driver/src/b/c.rs"]
                .into_iter()
                .map(PathBuf::from)
                .collect(),
            documents: BTreeMap::from([
                ("A.md".into(), text.to_owned()),
                (
                    "docs/B.md".into(),
                    format!("## Of it\n[back]({REPOSITORY}A.md#one-two)\n"),
                ),
                (SUMMARY.into(), "[B](B.md)\n".to_owned()),
            ]),
            words: BTreeSet::from(["create".to_owned()]),
        }
    }

    #[test]
    fn existing_paths_and_symbols_pass() {
        assert_eq!(tree().problems(), Vec::<String>::new());
    }

    #[test]
    fn paths_are_found_by_their_ends() {
        let tree = tree();
        for span in [
            "a.rs",
            "src/a.rs",
            "b/c.rs",
            "src/b/",
            "driver/src/{a,b/c}.rs",
            "Qp::create",
        ] {
            assert!(tree.has(span), "{span}");
        }
        for span in [
            "d.rs",
            "c/a.rs",
            "src/c/",
            "driver/src/{a,d}.rs",
            "Qp::destroy",
        ] {
            assert!(!tree.has(span), "{span}");
        }
    }

    #[test]
    fn dead_links_are_found() {
        let tree = tree();
        for link in ["docs/C.md", "docs/B.md#elsewhere", "#three"] {
            assert!(!tree.has_link(Path::new("A.md"), link), "{link}");
        }
        for link in ["docs/B.md", "docs/", "#one-two", "https://example.com"] {
            assert!(tree.has_link(Path::new("A.md"), link), "{link}");
        }
    }

    #[test]
    fn chapters_link_to_other_files_in_the_repository() {
        let tree = tree();
        let chapter = Path::new("docs/B.md");
        let url = |path: &str| format!("{REPOSITORY}{path}");
        assert!(tree.has_link(chapter, &url("driver/src/a.rs")));
        assert!(tree.has_link(chapter, &url("A.md#one-two")));
        for link in ["../A.md", &url("C.md"), &url("A.md#three")] {
            assert!(!tree.has_link(chapter, link), "{link}");
        }
    }

    #[test]
    fn chapter_that_the_summary_lacks_is_found() {
        let mut tree = tree();
        assert_eq!(tree.not_in_summary().count(), 0);
        tree.documents.insert("docs/C.md".into(), String::new());
        let missing: Vec<_> = tree.not_in_summary().collect();
        assert_eq!(missing, [Path::new("docs/C.md")]);
    }
}
