//! `POST /login`: a cookie for the page, in place of a token that its scripts would have to hold.

use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::serve::edge::asker::Peer;
use crate::serve::edge::body;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::Members;
use crate::serve::edge::state::Edge;
use crate::serve::edge::tokens::LOGIN_COOKIE;

/// Largest body of a login.
const LOGIN_BYTES_MAX: usize = 4 << 10;

/// For so long a browser keeps the cookie, in seconds: 30 days.
const COOKIE_AGE_S: u64 = 30 * 24 * 60 * 60;

/// Takes `{"token": …}`. Where no token is needed there is nothing to log in to.
pub async fn login(
    State(edge): State<Edge>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, EdgeError> {
    let body = body::json(&edge, request, LOGIN_BYTES_MAX).await?;
    let token = Members(body.object).text("token")?.unwrap_or_default();
    if !edge.guardian().has_tokens() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let value = edge.guardian().login(&token, &peer, Instant::now())?;
    // Behind a proxy with TLS the cookie stays off plain connections.
    let by_tls = edge.settings().public_url.as_ref().is_some_and(|url| url.starts_with("https:"));
    let secure = if by_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{LOGIN_COOKIE}={value}; Path=/; Max-Age={COOKIE_AGE_S}; HttpOnly; SameSite=Strict{secure}"
    );
    let cookie = HeaderValue::from_str(&cookie)
        .map_err(|_| EdgeError::internal("the cookie is no header"))?;
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response())
}
