//! The end of a command that plans: a result, or what does not fit, which is an answer too.

use anyhow::Result;
use protocol::ModelSource;

use crate::planning::PlanError;
use crate::render::document::{self, InfeasibleDocument};

/// The result, or its error; with `json`, that nothing fits is still an answer on standard output.
pub fn feasible<T>(json: bool, model: &ModelSource, result: Result<T, PlanError>) -> Result<T> {
    match &result {
        Err(PlanError::Infeasible(error)) if json => {
            document::print(&InfeasibleDocument::new(model, error))?;
        }
        Err(PlanError::NoRoom(error)) if json => {
            document::print(&InfeasibleDocument::of_given(model, error, &error.to_string()))?;
        }
        _ => {}
    }
    Ok(result?)
}
