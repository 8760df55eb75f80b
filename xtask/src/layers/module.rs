//! The path of a module.

use std::fmt;

/// The name of the file `lib.rs` in a list of layers.
pub(super) const ROOT: &str = "lib";

/// The path of a module in its crate; the root has none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Module(pub(super) Vec<String>);

impl Module {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            ROOT => Module(Vec::new()),
            text => Module(text.split("::").map(str::to_owned).collect()),
        }
    }

    pub(super) fn child(&self, name: &str) -> Self {
        let mut path = self.0.clone();
        path.push(name.to_owned());
        Module(path)
    }

    pub(super) fn parent(&self) -> Self {
        Module(
            self.0
                .split_last()
                .map_or(Vec::new(), |(_, path)| path.to_vec()),
        )
    }

    /// Whether this module is `ancestor` or below it. Nothing but the root is below the root, whose
    /// entry in a list stands for one file.
    pub(super) fn is_in(&self, ancestor: &Self) -> bool {
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
