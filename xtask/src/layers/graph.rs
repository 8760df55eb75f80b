//! The imports between the files of a package, and the rules that they must keep.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proc_macro2::TokenStream;

use super::module::Module;
use super::scan::{Contents, Use};

/// The modules of each layer, the top layer first.
pub(super) type Layers = Vec<Vec<Module>>;

/// The imports between the files of a package.
pub(super) struct Imports {
    pub(super) files: BTreeSet<Module>,
    /// For each pair of files, one of the paths that import from the second in the first.
    edges: BTreeMap<(Module, Module), String>,
}

/// How many files and imports a package has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    pub(super) files: usize,
    /// The pairs of files of which the first imports from the second.
    pub(super) imports: usize,
    /// The files in import cycles.
    pub(super) files_in_cycles: usize,
    /// The imports that are a part of a cycle.
    pub(super) imports_in_cycles: usize,
}

impl Imports {
    pub(super) fn of(texts: &BTreeMap<Module, String>) -> Result<Self, String> {
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

    pub(super) fn problems(&self, layers: &Layers) -> Vec<String> {
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
        problems.extend(self.cycle_problems());
        problems
    }

    pub(super) fn cycle_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
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

    pub(super) fn counts(&self) -> Counts {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> = (self.files.iter())
            .map(|file| (file, self.reached_from(file)))
            .collect();
        let in_cycle = (reached.iter()).filter(|(file, reached)| reached.contains(*file));
        let is_returned = |(from, to): &&(Module, Module)| reached[to].contains(from);
        Counts {
            files: self.files.len(),
            imports: self.edges.len(),
            files_in_cycles: in_cycle.count(),
            imports_in_cycles: self.edges.keys().filter(is_returned).count(),
        }
    }

    /// The files that a file imports from, directly or through others.
    fn reached_from(&self, file: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut next = vec![file];
        while let Some(from) = next.pop() {
            let imports = self.edges.keys().filter(|(importer, _)| importer == from);
            next.extend(imports.filter_map(|(_, to)| reached.insert(to).then_some(to)));
        }
        reached
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
