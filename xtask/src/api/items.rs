//! The public items of a crate, from rustdoc's JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::signature::{self, examples};

/// Automatic traits that are part of the API.
const AUTOMATIC: [&str; 3] = ["Send", "Sync", "Unpin"];

/// The trait that the compiler derives with `PartialEq`.
const MARKER: &str = "StructuralPartialEq";

/// A public item.
pub(super) struct Item {
    /// The path by which programs name it.
    pub(super) path: String,
    /// The path of the type or trait that it belongs to.
    pub(super) owner: Option<String>,
    /// Whether another crate defines it.
    pub(super) is_foreign: bool,
    /// The code of its examples.
    pub(super) examples: Vec<String>,
}

impl Item {
    pub(super) fn name(&self) -> &str {
        self.path.rsplit("::").next().unwrap_or_default()
    }

    /// Returns whether the documentation of `other` is on the same page.
    pub(super) fn is_on_page_of(&self, other: &Item) -> bool {
        let page = self.owner.as_deref();
        page.is_some() && (page == other.owner.as_deref() || page == Some(&other.path))
    }
}

/// The public API: its items, and the lines of its record.
#[derive(Default)]
pub(super) struct Api {
    pub(super) items: Vec<Item>,
    pub(super) lines: BTreeSet<String>,
}

impl Api {
    /// Reads rustdoc's JSON, and the sources that it refers to.
    pub(super) fn read(json: &Value, workspace: &Path) -> Result<Api, String> {
        let mut reader = Reader {
            index: &json["index"],
            workspace,
            sources: BTreeMap::new(),
            api: Api::default(),
        };
        let root = reader
            .get(&json["root"])
            .ok_or("rustdoc's JSON has no root")?;
        reader.module(root, "urxe")?;
        Ok(reader.api)
    }

    /// Returns the record.
    pub(super) fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line, "\n"]).collect()
    }
}

struct Reader<'a> {
    index: &'a Value,
    workspace: &'a Path,
    /// The sources by their paths.
    sources: BTreeMap<String, String>,
    api: Api,
}

/// The kind of an item, and its data.
fn inner(item: &Value) -> Option<(&str, &Value)> {
    let (kind, inner) = item["inner"].as_object()?.iter().next()?;
    Some((kind, inner))
}

fn is_public(item: &Value) -> bool {
    item["visibility"] == "public"
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl<'a> Reader<'a> {
    fn get(&self, id: &Value) -> Option<&'a Value> {
        let key = match id {
            Value::String(key) => key.clone(),
            id => id.to_string(),
        };
        self.index.get(key)
    }

    fn all(&self, ids: &'a Value) -> Vec<&'a Value> {
        array(ids).filter_map(|id| self.get(id)).collect()
    }

    fn module(&mut self, module: &'a Value, path: &str) -> Result<(), String> {
        self.add(module, path, None, false);
        // The prelude has no items of its own.
        if path == "urxe::prelude" {
            return Ok(());
        }
        let items = self.all(&module["inner"]["module"]["items"]);
        for item in items.into_iter().filter(|item| is_public(item)) {
            let Some((kind, inner)) = inner(item) else {
                continue;
            };
            match kind {
                "use" => {
                    let name = inner["name"].as_str().unwrap_or_default();
                    let path = format!("{path}::{name}");
                    match self
                        .get(&inner["id"])
                        .filter(|target| target["crate_id"] == 0)
                    {
                        Some(target) => self.item(target, &path)?,
                        None => {
                            self.add(item, &path, None, true);
                            self.line(&path, "use", item)?;
                        }
                    }
                }
                _ => {
                    let name = item["name"].as_str().unwrap_or_default();
                    self.item(item, &format!("{path}::{name}"))?;
                }
            }
        }
        Ok(())
    }

    /// Adds an item of a module.
    fn item(&mut self, item: &'a Value, path: &str) -> Result<(), String> {
        let Some((kind, inner)) = inner(item) else {
            return Ok(());
        };
        if kind == "module" {
            return self.module(item, path);
        }
        self.add(item, path, None, false);
        self.line(path, kind, item)?;
        let children = match kind {
            "struct" => self.all(&inner["kind"]["plain"]["fields"]),
            "enum" => self.all(&inner["variants"]),
            "trait" => self.all(&inner["items"]),
            _ => Vec::new(),
        };
        for child in children {
            self.member(child, path)?;
        }
        for implementation in self.all(&inner["impls"]) {
            self.implementation(implementation, path)?;
        }
        Ok(())
    }

    /// Adds a field, a variant, or an item of a trait. Only the last need examples.
    fn member(&mut self, member: &'a Value, owner: &str) -> Result<(), String> {
        let Some((kind, inner)) = inner(member) else {
            return Ok(());
        };
        let name = member["name"].as_str().unwrap_or_default();
        let path = format!("{owner}::{name}");
        match kind {
            "struct_field" => self.line(&path, "field", member)?,
            "variant" => {
                self.line(&path, "variant", member)?;
                for field in self.all(&inner["kind"]["struct"]["fields"]) {
                    self.member(field, &path)?;
                }
            }
            _ => {
                self.add(member, &path, Some(owner), false);
                self.line(&path, kind, member)?;
            }
        }
        Ok(())
    }

    fn implementation(&mut self, item: &'a Value, owner: &str) -> Result<(), String> {
        let implementation = &item["inner"]["impl"];
        if !implementation["blanket_impl"].is_null() {
            return Ok(());
        }
        let written = self.written(item);
        let of = &implementation["trait"];
        if of.is_null() {
            // The methods are recorded one by one; the bounds that they share are here.
            if let Some(written) = written.filter(|written| signature::has_bounds(written)) {
                self.api.lines.insert(format!("{owner}: {written}"));
            }
            for item in self.all(&implementation["items"]) {
                if let Some((kind, _)) = inner(item).filter(|_| is_public(item)) {
                    let path = format!("{owner}::{}", item["name"].as_str().unwrap_or_default());
                    self.add(item, &path, Some(owner), false);
                    self.line(&path, kind, item)?;
                }
            }
            return Ok(());
        }
        let name = of["path"].as_str().unwrap_or_default();
        let is_automatic = implementation["is_synthetic"] == true;
        if is_automatic && !AUTOMATIC.contains(&name) || name == MARKER {
            return Ok(());
        }
        let not = if implementation["is_negative"] == true {
            "!"
        } else {
            ""
        };
        let Some(written) = written else {
            let arguments = signature::arguments(&of["args"]);
            let of = signature::of_type(&implementation["for"]);
            let line = format!("{owner}: impl {not}{name}{arguments} for {of}");
            self.api.lines.insert(line);
            return Ok(());
        };
        for item in self.all(&implementation["items"]) {
            if let Some(("assoc_type", _)) = inner(item) {
                let text = signature::declaration(self.source(item)?, "assoc_type");
                self.api.lines.insert(format!("{owner}: {written}: {text}"));
            }
        }
        self.api.lines.insert(format!("{owner}: {written}"));
        Ok(())
    }

    /// Returns the text of an implementation in the source, with its bounds; `None` if the compiler
    /// or a macro makes it.
    fn written(&mut self, item: &Value) -> Option<String> {
        let source = self.source(item).ok()?;
        let text = signature::declaration(source, "impl");
        let is_written = text.starts_with("impl ") || text.starts_with("impl<");
        is_written.then_some(text)
    }

    fn add(&mut self, item: &Value, path: &str, owner: Option<&str>, is_foreign: bool) {
        self.api.items.push(Item {
            path: path.to_owned(),
            owner: owner.map(str::to_owned),
            is_foreign,
            examples: examples(item["docs"].as_str().unwrap_or_default()),
        });
    }

    /// Adds the line of an item to the record.
    fn line(&mut self, path: &str, kind: &str, item: &Value) -> Result<(), String> {
        let text = match kind {
            // The target is the text.
            "use" => item["inner"]["use"]["source"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            "variant" => {
                let fields = self.all(&item["inner"]["variant"]["kind"]["tuple"]);
                let types = fields
                    .iter()
                    .map(|field| signature::of_type(&field["inner"]["struct_field"]));
                match types.collect::<Vec<_>>().join(", ") {
                    types if types.is_empty() => "variant".to_owned(),
                    types => format!("variant({types})"),
                }
            }
            _ => signature::declaration(self.source(item)?, kind),
        };
        self.api.lines.insert(format!("{path}: {text}"));
        Ok(())
    }

    /// Returns the source text of an item.
    fn source(&mut self, item: &Value) -> Result<&str, String> {
        let span = &item["span"];
        let file = span["filename"].as_str().ok_or("an item has no source")?;
        if !self.sources.contains_key(file) {
            let path = self.workspace.join(file);
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            self.sources.insert(file.to_owned(), text);
        }
        let place = |position: &Value| {
            let number = |index: usize| position[index].as_u64().and_then(|it| it.try_into().ok());
            Some((number(0)?, number(1)?))
        };
        let text = self
            .sources
            .get(file)
            .map(String::as_str)
            .unwrap_or_default();
        let part = place(&span["begin"])
            .zip(place(&span["end"]))
            .and_then(|(begin, end)| signature::part(text, begin, end));
        part.ok_or_else(|| format!("{file} is not the documented source"))
    }
}
