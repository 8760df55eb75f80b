//! The last results of each program, kept in the directory of the programs. docs/ECOSYSTEM.md is
//! written from them, so that a program that failed under load can run again alone.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::program::{Place, Program, Run};

/// The results of a program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) version: String,
    outcomes: Vec<Outcome>,
}

/// The result of a run at a place.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    run: String,
    /// The command that ran, so that results of another command are not taken for this one's.
    command: String,
    place: Place,
    /// The cause of a failure.
    pub(super) failure: Option<String>,
    /// The part of the output that the page shows: the line with the expected text.
    pub(super) line: String,
}

impl Outcome {
    pub(super) fn new(run: &Run, place: Place, result: Result<String, String>) -> Self {
        let (line, failure) = match result {
            Ok(line) => (line, None),
            Err(failure) => (String::new(), Some(failure)),
        };
        Self {
            run: run.name.to_owned(),
            command: run.client.to_owned(),
            place,
            failure,
            line,
        }
    }

    fn is_of(&self, run: &Run, place: Place) -> bool {
        (self.run.as_str(), self.command.as_str(), self.place) == (run.name, run.client, place)
    }
}

impl Results {
    pub(super) fn new(version: String, outcomes: Vec<Outcome>) -> Self {
        Self { version, outcomes }
    }

    /// Returns the program's runs with their outcomes, `None` for a run that has none.
    pub(super) fn of(
        &self,
        program: &Program,
    ) -> impl Iterator<Item = (&'static Run, Place, Option<&Outcome>)> {
        runs(program).map(|(run, place)| {
            let mut outcomes = self.outcomes.iter();
            (
                run,
                place,
                outcomes.find(|outcome| outcome.is_of(run, place)),
            )
        })
    }

    /// Returns the number of runs whose result is not the one in the catalogue.
    pub(super) fn unexpected(&self, program: &Program) -> usize {
        self.of(program)
            .filter(|(run, _, outcome)| {
                outcome.is_none_or(|outcome| outcome.failure.is_some() != run.known.is_some())
            })
            .count()
    }

    /// Stores the results in the directory of the programs.
    pub(super) fn store(&self, program: &Program, directory: &Path) -> Result<(), String> {
        let path = path(program, directory);
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the stored results, `None` if there are none.
    pub(super) fn load(program: &Program, directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path(program, directory)).ok()?).ok()
    }
}

/// Returns the runs of a program with their places, in the order in which they run.
pub(super) fn runs(program: &Program) -> impl Iterator<Item = (&'static Run, Place)> {
    let places = |run: &'static Run| run.places.iter().map(move |place| (run, *place));
    program.runs.iter().flat_map(places)
}

fn path(program: &Program, directory: &Path) -> PathBuf {
    directory.join(program.name).join("results.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ecosystem::catalogue::PROGRAMS;

    #[test]
    fn results_of_another_command_do_not_count() {
        let program = &PROGRAMS[0];
        let directory = std::env::temp_dir().join(format!("urxe-results-{}", std::process::id()));
        fs::create_dir_all(directory.join(program.name)).unwrap();
        assert!(Results::load(program, &directory).is_none());
        let outcomes =
            runs(program).map(|(run, place)| Outcome::new(run, place, Ok(String::new())));
        let mut results = Results::new("1".to_owned(), outcomes.collect());
        results.outcomes[0].failure = Some("time limit exceeded".to_owned());
        results.outcomes[1].command.push_str(" -n 1");
        results.outcomes.pop();
        results.store(program, &directory).unwrap();
        let loaded = Results::load(program, &directory).unwrap();
        assert_eq!(loaded.unexpected(program), 3);
        assert_eq!(
            loaded
                .of(program)
                .filter(|(.., outcome)| outcome.is_none())
                .count(),
            2
        );
        fs::remove_dir_all(&directory).unwrap();
    }
}
