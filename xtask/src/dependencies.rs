//! A step of the check: each dependency has a compatible licence, comes from crates.io, and exists
//! in one version.
//!
//! The step reads the lock file through `cargo metadata`, without the network. It does not check
//! for known vulnerabilities; `cargo audit` and `cargo deny check advisories` do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use serde::Deserialize;
use spdx::{Expression, LicenseItem, ParseMode};

use crate::metadata;
use crate::outcome::Outcome;
use crate::test_log::TestLog;

/// The name of the step in `cargo xtask test`.
pub(crate) const NAME: &str = "dependencies";

/// Licences that require no more than ours: keeping the notice.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The source of packages.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages that exist in several versions, with the reason. An unused entry is an error.
const DUPLICATES: &[(&str, &str)] = &[
    ("cpufeatures", "rpm uses version 0.2, rand version 0.3"),
    (
        "itertools",
        "criterion uses version 0.13, ratatui version 0.14, rpm version 0.15",
    ),
    (
        "shlex",
        "trycmd uses version 1, the build dependency cc version 2",
    ),
    (
        "syn",
        "a macro of pcap-file uses version 1, those of clap version 3",
    ),
    ("thiserror", "pcap-file uses version 1"),
    ("thiserror-impl", "see thiserror"),
];

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

/// Runs the step.
pub(crate) fn step(workspace: &Path) -> Outcome {
    println!("\nxtask: {NAME}: licences, sources and versions in the lock file");
    let started = Instant::now();
    let problem = match metadata::packages::<Package>(workspace, "--locked") {
        Ok(packages) => {
            let problems = problems(&packages);
            for problem in &problems {
                eprintln!("{NAME}: {problem}");
            }
            println!("{} packages", packages.len());
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

fn problems(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let Package {
            name,
            version,
            license,
            source,
        } = package;
        // Packages of the workspace have no source.
        if source.as_deref().is_some_and(|source| source != SOURCE) {
            problems.push(format!("{name} {version} does not come from crates.io"));
        }
        let licence = license.as_deref().unwrap_or("none");
        if !is_allowed(licence) {
            problems.push(format!("{name} {version} has the licence {licence}"));
        }
        versions.entry(name).or_default().insert(version);
    }
    for (name, versions) in &versions {
        let known = DUPLICATES.iter().any(|(known, _)| known == name);
        if known != (versions.len() > 1) {
            let versions: Vec<_> = versions.iter().copied().collect();
            problems.push(format!(
                "{name} has the versions {}, and is {}in the list of allowed duplicates",
                versions.join(", "),
                if known { "" } else { "not " }
            ));
        }
    }
    problems
}

/// Returns whether some choice of the expression's alternatives consists of listed licences.
fn is_allowed(licence: &str) -> bool {
    // Older packages write a slash for OR.
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
        return false;
    };
    expression.evaluate(|asked| match &asked.license {
        // An exception only adds permissions.
        LicenseItem::Spdx { id, .. } => LICENCES.contains(&id.name),
        LicenseItem::Other { .. } => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_is_allowed_if_one_of_its_choices_is() {
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "MIT OR Apache-2.0 OR LGPL-2.1-or-later",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(licence), "{licence}");
        }
        for licence in [
            "GPL-2.0-only",
            "MIT AND GPL-3.0-only",
            "none",
            "LicenseRef-mine",
        ] {
            assert!(!is_allowed(licence), "{licence}");
        }
    }

    #[test]
    fn other_sources_and_duplicate_versions_are_problems() {
        let package = |name: &str, version: &str, source: &str| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: Some("MIT".to_owned()),
            source: Some(source.to_owned()),
        };
        let one = [package("a", "1.0.0", SOURCE)];
        assert_eq!(problems(&one), [""; 0]);
        let two = [package("a", "1.0.0", SOURCE), package("a", "2.0.0", SOURCE)];
        assert_eq!(problems(&two).len(), 1);
        let far = [package("a", "1.0.0", "git+https://example.org/a")];
        assert_eq!(problems(&far).len(), 1);
    }
}
