//! What each request goes through before and behind its handler: its name, by which host and for
//! whom it comes, what every answer says, and what is counted of it.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{ACCEPT, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::asker::Peer;
use super::errors::EdgeError;
use super::hosts;
use super::state::Edge;

/// Where no token is needed: signs of life, and what a browser needs to ask for one.
const OPEN: [&str; 5] = ["/healthz", "/readyz", "/login", "/", "/assets/{*path}"];

/// What pages may load and do (serve.md §12).
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; \
     frame-ancestors 'none'";

/// Headers of all answers.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (
        HeaderName::from_static("content-security-policy"),
        HeaderValue::from_static(CONTENT_SECURITY_POLICY),
    ),
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer")),
];

/// The name of a request, for its sender and the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Where a request stands in a trace (W3C, Trace Context); 55 characters.
const TRACE_PARENT: &str = "traceparent";
const TRACE_PARENT_BYTES: usize = 55;

/// By which our page says that it asks, and how a browser says how it fetches.
const REQUESTED_WITH: &str = "x-requested-with";
const FETCH_MODE: &str = "sec-fetch-mode";

/// What metrics call a path that no route has.
const NO_ROUTE: &str = "none";

/// Lets a request that the router has found a route for through to its handler, or answers it.
pub async fn guard(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    guarded(&edge, request, route, |request| next.run(request)).await
}

/// Lets a request through to `handle`, or answers it. `route`: the pattern of its path.
pub async fn guarded<F: Future<Output = Response>>(
    edge: &Edge,
    mut request: Request,
    route: Option<&str>,
    handle: impl FnOnce(Request) -> F,
) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let id = edge.new_job_id().0;
    let trace = trace_parent(request.headers());
    let of_script = is_of_script(request.headers());
    let (mut response, origin) = match admit(edge, &request, route, began) {
        Ok(Admitted::Let(caller, origin)) => {
            request.extensions_mut().insert(caller);
            (handle(request).await, origin)
        }
        Ok(Admitted::Open(origin)) => (handle(request).await, origin),
        Ok(Admitted::Options(origin)) => (StatusCode::NO_CONTENT.into_response(), origin),
        Err(refusal) => (refusal.0.into_response(), refusal.1),
    };
    let unauthorized = response.status() == StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    if unauthorized && of_script {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(value);
    }
    // A ULID has letters and digits only.
    headers.extend(HeaderValue::from_str(&id).ok().map(|id| (REQUEST_ID, id)));
    if let Some(origin) = origin {
        hosts::cors(headers, origin);
    }
    let (route, code) = (route.unwrap_or(NO_ROUTE), response.status().as_u16());
    let took = began.elapsed();
    tracing::debug!(id, %method, route, code, trace = trace.as_deref(), ms = took.as_secs_f64() * 1e3, "answered");
    edge.metrics().request(route, method_name(&method), code, took);
    response
}

/// Whether a page's script asks: its browser would meet the word `Basic` with a dialog of its own,
/// over the page that asks for a token by itself. A stream of events carries no header of the
/// page's; how a browser fetches is told on this machine and over TLS only (W3C, Fetch Metadata).
fn is_of_script(headers: &HeaderMap) -> bool {
    let is = |name: HeaderName, wanted: &[&str]| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| wanted.contains(&value))
    };
    is(HeaderName::from_static(REQUESTED_WITH), &["berth-page"])
        || is(ACCEPT, &["text/event-stream"])
        || is(HeaderName::from_static(FETCH_MODE), &["cors", "no-cors", "same-origin"])
}

/// What becomes of a request, with the origin that its answer names.
enum Admitted {
    Let(super::asker::Caller, Option<HeaderValue>),
    Open(Option<HeaderValue>),
    Options(Option<HeaderValue>),
}

type Refusal = (EdgeError, Option<HeaderValue>);

fn admit(
    edge: &Edge,
    request: &Request,
    route: Option<&str>,
    now: Instant,
) -> Result<Admitted, Box<Refusal>> {
    let peer = request.extensions().get::<Peer>().copied();
    let peer = peer.unwrap_or(Peer { address: None, local: None });
    let (method, headers) = (request.method(), request.headers());
    let origin = edge.hosts().check(method, request.uri(), headers, &peer);
    let origin = origin.map_err(|error| Box::new((error, None)))?;
    if *method == Method::OPTIONS && route.is_some() {
        return Ok(Admitted::Options(origin));
    }
    match edge.guardian().admit(headers, &peer, now) {
        Ok(caller) => Ok(Admitted::Let(caller, origin)),
        Err(_) if route.is_some_and(|route| OPEN.contains(&route)) => Ok(Admitted::Open(origin)),
        Err(error) => Err(Box::new((error, origin))),
    }
}

fn trace_parent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(TRACE_PARENT)?.to_str().ok()?;
    let hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (text.len() == TRACE_PARENT_BYTES && text.bytes().all(hex)).then(|| text.to_owned())
}

/// A method as metrics count it: clients may send any word.
fn method_name(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|name| method.as_str() == *name).unwrap_or("other")
}
