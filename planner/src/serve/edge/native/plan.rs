//! `POST /v1/plan`: what a job would take, without doing it.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use super::{order, request, show};
use crate::policy::Policy;
use crate::serve::desk::action::Reply;
use crate::serve::desk::event::Ask;
use crate::serve::edge::asker::Caller;
use crate::serve::edge::body;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::{self, Members};
use crate::serve::edge::limits::PICTURE_BODY_BYTES_MAX;
use crate::serve::edge::state::Edge;

/// Answers what the surveyor says, also where nothing fits: that is an answer, and no error.
pub async fn plan(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let body = body::json(&edge, request, PICTURE_BODY_BYTES_MAX).await?;
    let mut members = Members(body.object);
    let mut shape = request::read(&edge.settings(), &mut members)?;
    let explain = members.flag("explain")?.unwrap_or(false);
    shape.request.policy.max_vram = members.text("max_vram")?;
    Policy::of(&shape.request.policy)
        .map_err(|error| EdgeError::bad_value("max_vram", error.to_string()))?;
    request::check(&shape.request)?;
    let mut notices = members.notices();
    let model = shape.model.clone();
    let request = Box::new(order::with_picture(&edge, shape).await?);
    match edge.ask(caller.asker, Ask::Plan { request, model, explain }).await {
        Reply::Quote { quoted, wait_ms, evicts } => {
            notices.extend(quoted.offer.notices.iter().cloned());
            let mut quote = show::offer(&quoted.offer, wait_ms);
            quote["evicts"] = json!(evicts);
            quote["ends_at"] = show::in_ms(wait_ms + quoted.offer.load_ms + quoted.offer.run_ms);
            let document = json!({
                "feasible": true, "plan": *quoted.plan, "quote": quote, "notices": notices,
            });
            Ok(json::answer(StatusCode::OK, &document))
        }
        reply => {
            let error = EdgeError::refused(reply);
            if error.code != "does_not_fit" {
                return Err(error);
            }
            let document = json!({
                "feasible": false, "because": error.message, "nearest": error.nearest,
                "notices": notices,
            });
            Ok(json::answer(StatusCode::OK, &document))
        }
    }
}
