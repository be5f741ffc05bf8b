//! All addresses in one table: the router and `/openapi.json` are made of the same rows.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

use super::errors::{EdgeError, wrong_method};
use super::guard::guard;
use super::json;
use super::native;
use super::openapi;
use super::page;
use super::state::Edge;
use super::table::RouteTable;

/// Our own routes.
pub fn table() -> RouteTable {
    native::add_routes(RouteTable::default())
}

/// Everything that is answered, behind the guards.
pub fn router(edge: Edge) -> Router {
    let table = table();
    let document = Arc::new(openapi::document(table.operations()));
    let show = move || {
        let document = document.clone();
        async move { json::answer(StatusCode::OK, &*document) }
    };
    // The two foreign protocols are merged here: they document themselves.
    let all = table.router().route(openapi::PATH, get(show)).merge(page::routes());
    all.fallback(|| async { EdgeError::no_route("there is nothing here; hint: see /openapi.json") })
        .method_not_allowed_fallback(|| async { wrong_method() })
        .layer(from_fn_with_state(edge.clone(), guard))
        .with_state(edge)
}
