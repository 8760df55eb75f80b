//! A check of the host, and its result.

use serde_json::json;

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Ok,
    /// urxe works, but more slowly or with fewer features.
    Warning,
    /// urxe does not work.
    Failure,
}

/// One check with its result.
#[derive(Debug)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do; empty if nothing is to be done, or if `found` says it.
    pub remedy: String,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: String::new(),
        }
    }

    pub fn warning(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            verdict: Verdict::Warning,
            found: found.into(),
            remedy: remedy.into(),
        }
    }

    pub fn failure(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Failure,
            ..Self::warning(name, found, remedy)
        }
    }

    pub fn line(&self) -> String {
        let mark = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "FAILURE",
        };
        let line = format!("{mark:<8} {:<12} {}\n", self.name, self.found);
        match self.remedy.is_empty() {
            true => line,
            false => format!("{line}{:22}{}\n", "", self.remedy),
        }
    }

    pub fn json(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "failure",
        };
        let Self {
            name,
            found,
            remedy,
            ..
        } = self;
        let remedy = (!remedy.is_empty()).then_some(remedy);
        format!(
            "{}\n",
            json!({"check": name, "verdict": verdict, "found": found, "remedy": remedy})
        )
    }
}
