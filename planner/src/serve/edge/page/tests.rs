//! What holds for the page's files, read as text.

use std::fs;
use std::path::{Path, PathBuf};

use axum::http::HeaderValue;

use super::*;

/// What no address is, though it looks like one: the name that SVG has in XML.
const SVG_NAMESPACE: &str = "http://www.w3.org/2000/svg";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
}

fn text(path: &str) -> &'static str {
    let file = PAGE_FILES.iter().find(|file| file.path == path);
    let file = file.unwrap_or_else(|| panic!("there is no {path}"));
    std::str::from_utf8(file.bytes).expect("text")
}

/// All files with their text.
fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE_FILES.iter().map(|file| (file.path, text(file.path)))
}

/// The JavaScript that is not vendored.
fn modules() -> impl Iterator<Item = (&'static str, &'static str)> {
    texts().filter(|(path, _)| path.ends_with(".js") && !path.starts_with("vendor/"))
}

fn paths_under(folder: &Path, below: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the page's sources") {
        let entry = entry.expect("an entry");
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => paths_under(&entry.path(), &format!("{name}/"), found),
            false => found.push(name),
        }
    }
}

/// The text between each of these beginnings and the next end.
fn between<'a>(text: &'a str, begin: &str, end: char) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// What a module's `./` and `../` mean.
fn resolved(from: &str, import: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in import.split('/') {
        match part {
            "." => {}
            ".." => assert!(parts.pop().is_some(), "{from} imports {import}"),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn every_file_of_the_folder_is_served() {
    let mut there = Vec::new();
    paths_under(&folder(), "", &mut there);
    there.sort();
    let mut served: Vec<&str> = PAGE_FILES.iter().map(|file| file.path).collect();
    served.sort();
    assert_eq!(served, there);
}

#[test]
fn what_is_loaded_is_here() {
    let mut loaded = 0;
    for attribute in ["src=\"", "href=\""] {
        for address in between(text(INDEX), attribute, '"') {
            if address != "/openapi.json" {
                text(address.strip_prefix("/assets/").expect("an asset"));
                loaded += 1;
            }
        }
    }
    assert_eq!(loaded, 3, "the icon, the styles and the first module");
    let mut imports = 0;
    for (path, module) in modules() {
        assert!(!module.contains("import("), "{path} imports when it runs");
        let statements = module.lines().filter(|line| line.contains(" from '"));
        for import in statements.flat_map(|line| between(line, " from '", '\'')) {
            assert!(import.starts_with('.'), "{path} imports {import}");
            text(&resolved(path, import));
            imports += 1;
        }
    }
    assert!(imports > 20, "{imports}");
}

#[test]
fn no_file_names_another_host() {
    for (path, text) in texts().filter(|(path, _)| !path.contains("LICENSE")) {
        let text = text.replace(SVG_NAMESPACE, "");
        for sign in ["://", "'//", "\"//", "(//", "url(", "@import"] {
            assert!(!text.contains(sign), "{path} has {sign}");
        }
    }
}

/// `script-src 'self'; style-src 'self'` of the guards lets none of this through.
#[test]
fn nothing_needs_a_weaker_policy() {
    for (path, module) in texts().filter(|(path, _)| path.ends_with(".js")) {
        for sign in ["eval(", "new Function", "Function(\"", "setTimeout(\"", "WebAssembly"] {
            assert!(!module.contains(sign), "{path} has {sign}");
        }
    }
    for (path, source) in modules().chain([(INDEX, text(INDEX))]) {
        for sign in [" style=", "<style", "<script>", " onclick=", "javascript:", "innerHTML"] {
            assert!(!source.contains(sign), "{path} has {sign}");
        }
    }
}

#[test]
fn vendored_files_are_those_of_their_packages() {
    let table: toml::Table = text("vendor/vendor.toml").parse().expect("TOML");
    let of = |value: &toml::Value, key: &str| value[key].as_str().expect(key).to_owned();
    let hash = |file: String| sha256_of(text(&format!("vendor/{file}")).as_bytes());
    let mut named = vec!["vendor.toml".to_owned()];
    for vendored in table["vendored"].as_array().expect("a list") {
        assert_eq!(hash(of(vendored, "file")), of(vendored, "sha256"));
        named.push(of(vendored, "file"));
        for package in vendored["package"].as_array().expect("a list") {
            assert_eq!(hash(of(package, "licence_file")), of(package, "licence_sha256"));
            assert!(["Apache-2.0", "MIT"].contains(&of(package, "licence").as_str()));
            assert!(!of(package, "name").is_empty() && !of(package, "version").is_empty());
            named.push(of(package, "licence_file"));
        }
    }
    named.sort();
    let mut there = Vec::new();
    paths_under(&folder().join("vendor"), "", &mut there);
    there.sort();
    assert_eq!(named, there);
}

#[test]
fn a_file_is_answered_with_its_type_and_only_once() {
    let mut headers = HeaderMap::new();
    let first = answer("main.js", &headers).unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(first.headers()[CONTENT_TYPE], "text/javascript; charset=utf-8");
    assert_eq!(first.headers()[CACHE_CONTROL], "no-cache");
    let tag = first.headers()[ETAG].clone();
    let weak = HeaderValue::from_str(&format!("\"other\", W/{}", tag.to_str().unwrap())).unwrap();
    for (known, status) in [
        (tag, StatusCode::NOT_MODIFIED),
        (weak, StatusCode::NOT_MODIFIED),
        (HeaderValue::from_static("\"other\""), StatusCode::OK),
    ] {
        headers.insert(IF_NONE_MATCH, known);
        assert_eq!(answer("main.js", &headers).unwrap().status(), status);
    }
    assert_eq!(answer("../Cargo.toml", &headers).unwrap_err().status, StatusCode::NOT_FOUND);
    assert_eq!(media_type("vendor/LICENSE-htm"), "text/plain; charset=utf-8");
}
