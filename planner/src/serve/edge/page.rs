//! The page in the browser: where its files will come from.
//!
//! There is none yet. It adds `/` and `/assets/{*path}` here, of files that are embedded in the
//! program; the guards let both through without a token, and send the page's policy with all
//! answers already.

use axum::Router;

use super::state::Edge;

/// Routes of the page.
pub fn routes() -> Router<Edge> {
    Router::new()
}
