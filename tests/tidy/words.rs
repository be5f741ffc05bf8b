//! Type names, and comments that say nothing but a name.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Ident, Lit, Meta};

use super::sources::{Source, attributes, is_for_tests};

/// The type names of one crate, each with the files that define one.
pub fn type_names(name: &str, sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_tests()) {
        if source.module().is_none_or(|(crate_name, _)| crate_name != name) {
            continue;
        }
        let mut types = Types(Vec::new());
        types.visit_file(&source.syntax());
        for name in types.0 {
            names.entry(name).or_default().insert(source.path.clone());
        }
    }
    names
}

struct Types(Vec<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let name = match item {
            item if is_for_tests(attributes(item)) => return,
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.0.extend(name.map(Ident::to_string));
        visit::visit_item(self, item);
    }
}

/// Documentation of at most three words one of which is the name that it stands at: place and text.
pub fn repetitions(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.module().is_some()) {
        let mut comments = Comments(Vec::new());
        comments.visit_file(&source.syntax());
        let repeating = comments.0.into_iter().filter(|(name, text)| repeats(name, text));
        found.extend(repeating.map(|(name, text)| format!("{}: {name}: {text}", source.path)));
    }
    found
}

/// Whether a comment is so short and says its name.
pub fn repeats(name: &str, text: &str) -> bool {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '\'')
        .filter(|word| !word.is_empty())
        .map(|word| stem(word.trim_end_matches("'s")))
        .collect();
    let parts = parts(name);
    (1..=3).contains(&words.len()) && words.iter().any(|word| parts.contains(word))
}

/// The words of a name in either case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for character in name.chars() {
        if character == '_' || character.is_uppercase() {
            parts.push(String::new());
        }
        if character != '_' {
            parts.last_mut().expect("there is one").push(character);
        }
    }
    parts.iter().filter(|part| !part.is_empty()).map(|part| stem(part)).collect()
}

/// A word without its ending for more than one.
fn stem(word: &str) -> String {
    let word = word.to_lowercase();
    word.strip_suffix('s').unwrap_or(&word).to_owned()
}

/// Names with their documentation.
struct Comments(Vec<(String, String)>);

impl Comments {
    fn add(&mut self, name: &Ident, attributes: &[Attribute]) {
        let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                Expr::Lit(literal) => match &literal.lit {
                    Lit::Str(text) => Some(text.value()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        });
        let text = lines.collect::<Vec<_>>().join(" ");
        if !text.trim().is_empty() {
            self.0.push((name.to_string(), text.trim().to_owned()));
        }
    }
}

impl<'ast> Visit<'ast> for Comments {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let name = match item {
            item if is_for_tests(attributes(item)) => return,
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Mod(item) => Some(&item.ident),
            _ => None,
        };
        if let Some(name) = name {
            self.add(name, attributes(item));
        }
        visit::visit_item(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.add(name, &field.attrs);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.add(&variant.ident, &variant.attrs);
        visit::visit_variant(self, variant);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, &item.attrs);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.sig.ident, &item.attrs);
        visit::visit_trait_item_fn(self, item);
    }
}

/// Lines of comments past so many columns: place and width.
pub fn wide_comments(sources: &[Source], columns: usize) -> Vec<String> {
    let mut wide = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let width = line.chars().count();
            if line.trim_start().starts_with("//") && width > columns {
                wide.push(format!("{}:{}: {width} columns", source.path, number + 1));
            }
        }
    }
    wide
}
