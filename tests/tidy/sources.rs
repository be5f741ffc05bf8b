//! The repository's Rust files, as text and as syntax.

use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item};

/// The crates, by the folder of their sources.
pub const CRATES: [&str; 3] = ["protocol", "executor", "planner"];

/// A Rust file.
pub struct Source {
    /// Path from the root, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// Lines without comments and string contents, with their numbers, up to the unit tests.
    pub fn code(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        let lines = self.text.lines().take_while(|line| *line != "mod tests {");
        lines.enumerate().map(|(index, line)| (index + 1, without_text(line)))
    }

    /// Whether all of it is for unit tests.
    pub fn is_tests(&self) -> bool {
        let names = ["tests.rs", "testing.rs", "support.rs"];
        names.iter().any(|name| self.path.ends_with(name)) || self.path.contains("/tests/")
    }

    /// Whether its path begins so.
    pub fn is_under(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }

    /// Its syntax.
    ///
    /// # Panics
    /// It is no Rust: the compiler would have said so.
    pub fn syntax(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// The crate whose sources it is of, and the module that it is there; `None` for tests,
    /// examples and benchmarks.
    pub fn module(&self) -> Option<(&'static str, Vec<String>)> {
        let (name, path) = CRATES.iter().find_map(|name| {
            let path = self.path.strip_prefix(name)?.strip_prefix("/src/")?;
            Some((*name, path.strip_suffix(".rs")?))
        })?;
        let module = match path {
            "lib" | "main" => Vec::new(),
            path => path.split('/').map(str::to_owned).collect(),
        };
        Some((name, module))
    }
}

/// A line without its comment and the contents of its strings.
pub fn without_text(line: &str) -> String {
    let mut code = String::new();
    let mut in_string = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => {
                characters.next();
            }
            // A quote as a character is no string.
            '"' if !code.ends_with('\'') => in_string = !in_string,
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            _ if in_string => {}
            other => code.push(other),
        }
    }
    code
}

/// Whether an item is compiled for unit tests only.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// The attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the crate is in it")
}

/// All files under a folder, but for what is built or fetched.
pub fn files_under(folder: &Path, found: &mut Vec<PathBuf>) {
    let skipped = ["target", ".git", "node_modules", "shared"];
    for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if skipped.contains(&name.as_str()) || path.is_symlink() {
            continue;
        }
        if path.is_dir() { files_under(&path, found) } else { found.push(path) }
    }
}

/// All Rust files of the repository.
pub fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    files_under(&root, &mut found);
    found.sort();
    let rust = found.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let read = |path: PathBuf| {
        let relative = path.strip_prefix(&root).expect("found under it").to_string_lossy();
        let text = fs::read_to_string(&path).expect("source is UTF-8");
        Source { path: relative.replace('\\', "/"), text }
    };
    let sources: Vec<Source> = rust.map(read).collect();
    assert!(sources.len() > 50, "the sources were not found");
    sources
}

/// Fails with all places at once.
pub fn none(rule: &str, places: Vec<String>) {
    assert!(places.is_empty(), "{rule}:\n  {}", places.join("\n  "));
}

/// Places of code, in sources that `applies` to, whose line `breaks` the rule.
pub fn places(
    sources: &[Source],
    applies: impl Fn(&Source) -> bool,
    breaks: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut places = Vec::new();
    for source in sources.iter().filter(|source| applies(source)) {
        let broken = source.code().filter(|(_, line)| breaks(line));
        places.extend(
            broken.map(|(number, line)| format!("{}:{number}: {}", source.path, line.trim())),
        );
    }
    places
}
