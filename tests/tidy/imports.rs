//! Who uses whom: paths of `use` and of code, resolved to the files of their modules.
//!
//! Unit tests are left out. A path that begins with a name that its file imports is followed to
//! what that is; what a macro expands to is not seen.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, UseTree};

use super::sources::{Source, attributes, is_for_tests};

/// The files of one crate, and which of them use which.
pub struct Crate {
    /// Modules by their paths, with the path of the file of each.
    pub files: BTreeMap<Vec<String>, String>,
    /// From a module to another of the crate, as each file says it.
    pub uses: BTreeSet<(Vec<String>, Vec<String>)>,
    /// From a module to another crate of the workspace.
    pub foreign: BTreeSet<(Vec<String>, String)>,
}

impl Crate {
    /// Reads the files of a crate.
    pub fn of(name: &str, sources: &[Source]) -> Crate {
        let of_crate = || {
            sources.iter().filter(|source| !source.is_tests()).filter_map(move |source| {
                let (crate_name, module) = source.module()?;
                (crate_name == name).then_some((source, module))
            })
        };
        let files: BTreeMap<_, _> =
            of_crate().map(|(source, module)| (module, source.path.clone())).collect();
        let mut found = Crate { files, uses: BTreeSet::new(), foreign: BTreeSet::new() };
        for (source, module) in of_crate() {
            let mut reader =
                Reader { module: module.clone(), names: BTreeMap::new(), paths: Vec::new() };
            // Imports first: code may stand above what it is imported by.
            for item in &source.syntax().items {
                if let syn::Item::Use(item) = item {
                    reader.visit_item_use(item);
                }
            }
            reader.visit_file(&source.syntax());
            for path in reader.paths {
                found.add(&module, &path);
            }
        }
        found
    }

    fn add(&mut self, module: &[String], path: &[String]) {
        match path.split_first() {
            Some((first, rest)) if first == "crate" => {
                let target = self.module_of(rest);
                if target != module {
                    self.uses.insert((module.to_vec(), target));
                }
            }
            Some((first, _)) if super::sources::CRATES.contains(&first.as_str()) => {
                self.foreign.insert((module.to_vec(), first.clone()));
            }
            _ => {}
        }
    }

    /// The module in which a path ends: its longest beginning that is one.
    fn module_of(&self, path: &[String]) -> Vec<String> {
        (0..=path.len())
            .rev()
            .map(|length| path[..length].to_vec())
            .find(|beginning| self.files.contains_key(beginning))
            .unwrap_or_default()
    }

    /// The uses between files neither of which is within the other's module.
    pub fn across(&self) -> impl Iterator<Item = (&[String], &[String])> {
        let pairs = self.uses.iter().map(|(from, to)| (from.as_slice(), to.as_slice()));
        pairs.filter(|(from, to)| !from.starts_with(to) && !to.starts_with(from))
    }

    /// Groups of files that use each other in a circle.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reaches = |start: &Vec<String>| {
            let mut seen = BTreeSet::new();
            let mut open = vec![start.clone()];
            while let Some(at) = open.pop() {
                for (_, to) in self.across().filter(|(from, _)| *from == at) {
                    if seen.insert(to.to_vec()) {
                        open.push(to.to_vec());
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
            self.files.keys().map(|module| (module, reaches(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, all) in &reached {
            if all.contains(*module) {
                let circle = all.iter().filter(|other| reached[other].contains(*module));
                circles.insert(circle.map(|module| module.join("::")).collect::<Vec<_>>());
            }
        }
        circles.into_iter().collect()
    }
}

/// Collects the paths of a file, each from `crate` or from another crate on.
struct Reader {
    module: Vec<String>,
    /// What names of the file mean.
    names: BTreeMap<String, Vec<String>>,
    paths: Vec<Vec<String>>,
}

impl Reader {
    /// A path from the crate's root or another crate's; `None` for one that is neither.
    fn resolved(&self, segments: &[String]) -> Option<Vec<String>> {
        let (first, rest) = segments.split_first()?;
        match first.as_str() {
            "crate" => Some(segments.to_vec()),
            "self" => Some([&["crate".to_owned()], self.module.as_slice(), rest].concat()),
            "super" => {
                let ups = segments.iter().take_while(|segment| *segment == "super").count();
                let parent = self.module.len().checked_sub(ups)?;
                let above = &self.module[..parent];
                Some([&["crate".to_owned()], above, &segments[ups..]].concat())
            }
            name if super::sources::CRATES.contains(&name) => Some(segments.to_vec()),
            name => {
                let known = self.names.get(name)?;
                Some([known.as_slice(), rest].concat())
            }
        }
    }

    fn add_tree(&mut self, tree: &UseTree, before: &[String]) {
        match tree {
            UseTree::Path(path) => {
                let before = [before, &[path.ident.to_string()]].concat();
                self.add_tree(&path.tree, &before);
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.add_name(before, &name, &name);
            }
            UseTree::Rename(rename) => {
                self.add_name(before, &rename.ident.to_string(), &rename.rename.to_string());
            }
            UseTree::Glob(_) => self.paths.extend(self.resolved(before)),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(tree, before));
            }
        }
    }

    fn add_name(&mut self, before: &[String], name: &str, known_as: &str) {
        let path = match name {
            "self" => before.to_vec(),
            name => [before, &[name.to_owned()]].concat(),
        };
        let Some(path) = self.resolved(&path) else { return };
        let known_as = match known_as {
            "self" => before.last().cloned().unwrap_or_default(),
            name => name.to_owned(),
        };
        self.names.insert(known_as, path.clone());
        self.paths.push(path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.add_tree(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.paths.extend(self.resolved(&segments));
        visit::visit_path(self, path);
    }
}
