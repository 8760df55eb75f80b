//! The imports, modules and identifiers in the text of a file.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::module::Module;

/// A name that a file takes from another module.
pub(super) struct Use {
    /// The module that has the `use` declaration or the path.
    pub(super) from: Module,
    pub(super) path: Vec<String>,
    /// The name under which `from` has it; `None` for a path outside `use`, and for a glob.
    pub(super) name: Option<String>,
    pub(super) is_reexport: bool,
}

/// What one file contains.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) uses: Vec<Use>,
    /// Modules in the braces of this file, and those of files.
    pub(super) modules: BTreeSet<Module>,
    /// Modules under `#[cfg(test)]`.
    pub(super) tests: BTreeSet<Module>,
    /// All identifiers outside `use` declarations.
    pub(super) words: BTreeSet<String>,
}

impl Contents {
    /// Scans the tokens of a module.
    pub(super) fn scan(&mut self, module: &Module, tokens: TokenStream) {
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
