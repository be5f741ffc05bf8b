//! The page in the browser: the files of `planner/page/`, as they are, out of the program itself.
//!
//! No build step, and nothing of another host: the tests below hold that the files name none, that
//! what they load is here, and that vendored files are those of their packages. A new file takes a
//! line in `PAGE_FILES`.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::errors::EdgeError;
use super::state::Edge;
use crate::fingerprint::sha256_of;

/// The file at `/`.
const INDEX: &str = "index.html";

/// A browser asks each time whether a file is still the same: after an update of the server no old
/// module meets a new one.
const CACHED: &str = "no-cache";

/// Characters of a tag: 64 bits tell two versions of a file from each other.
const TAG_DIGITS: usize = 16;

/// A file that is served.
struct PageFile {
    /// Below `/assets/`.
    path: &'static str,
    bytes: &'static [u8],
}

/// Embeds files of `planner/page/`.
macro_rules! page_files {
    ($($path:literal,)*) => {
        [$(PageFile { path: $path, bytes: include_bytes!(concat!("../../../page/", $path)) },)*]
    };
}

/// All of them.
static PAGE_FILES: [PageFile; 26] = page_files![
    "icon.svg",
    "index.html",
    "lib/api.js",
    "lib/chart.js",
    "lib/curve.js",
    "lib/dom.js",
    "lib/form.js",
    "lib/format.js",
    "lib/sse.js",
    "lib/store.js",
    "main.js",
    "style.css",
    "vendor/LICENSE-htm",
    "vendor/LICENSE-preact",
    "vendor/htm-preact.js",
    "vendor/vendor.toml",
    "views/budget.js",
    "views/gallery.js",
    "views/job.js",
    "views/login.js",
    "views/make.js",
    "views/minutes.js",
    "views/plan.js",
    "views/queue.js",
    "views/quote.js",
    "views/slots.js",
];

/// The tag of each file, in the same order: of its content.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let tag = |file: &PageFile| format!("\"{}\"", &sha256_of(file.bytes)[..TAG_DIGITS]);
    PAGE_FILES.iter().map(tag).collect()
});

/// Routes of the page.
pub fn routes() -> Router<Edge> {
    let index = async |headers: HeaderMap| answer(INDEX, &headers);
    let asset = async |Path(path): Path<String>, headers: HeaderMap| answer(&path, &headers);
    Router::new().route("/", get(index)).route("/assets/{*path}", get(asset))
}

/// A file, or that the browser has it already.
fn answer(path: &str, headers: &HeaderMap) -> Result<Response, EdgeError> {
    let place = PAGE_FILES.iter().position(|file| file.path == path);
    let place = place.ok_or_else(|| EdgeError::no_route("the page has no such file"))?;
    let (file, tag) = (&PAGE_FILES[place], TAGS[place].as_str());
    let kept = [(ETAG, tag), (CACHE_CONTROL, CACHED)];
    if has(headers, tag) {
        return Ok((StatusCode::NOT_MODIFIED, kept).into_response());
    }
    Ok((kept, [(CONTENT_TYPE, media_type(path))], file.bytes).into_response())
}

/// Whether the browser names the tag among those that it has (RFC 9110, section 13.1.2). A proxy
/// that compresses may have made it a weak one.
fn has(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|list| list.split(',')).map(str::trim);
    known.any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        // Licences, and where vendored files are from.
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests;
