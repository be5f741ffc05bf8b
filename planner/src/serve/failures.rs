//! What went wrong, in the words and codes of the daemon's answers.

use protocol::limits::TooLong;
use protocol::{FailureKind, ModelSource};
use serde_json::Value;

use super::desk::job::{ErrorCode, JobError};
use crate::engine::host::SetupError;
use crate::engine::session::SessionError;
use crate::job::RequestError;
use crate::planning::{DoesNotFit, PlanError};
use crate::render::document::InfeasibleDocument;

/// What is wrong with a request, and with which of its fields.
pub fn of_request(error: &RequestError) -> JobError {
    let (code, param) = match error {
        RequestError::Number { flag, .. } => (ErrorCode::BadValue, field(flag)),
        RequestError::Batch(_) => (ErrorCode::BadValue, Some("n".to_owned())),
        RequestError::TooLong(too_long) => (ErrorCode::BadValue, of_text(too_long)),
        RequestError::UnknownModel { .. } => (ErrorCode::NoModel, field("model")),
        RequestError::NoModel(_)
        | RequestError::NoPart { .. }
        | RequestError::PartIsDirectory { .. }
        | RequestError::NoTokenizers(_)
        | RequestError::NoAbsolutePath { .. }
        | RequestError::NotUtf8 { .. }
        | RequestError::Source(_) => (ErrorCode::BadModel, field("model")),
        RequestError::Demo(_) | RequestError::NoSeed(_) => (ErrorCode::Internal, None),
        RequestError::Policy(_) => (ErrorCode::BadValue, None),
        RequestError::Tile(_) => (ErrorCode::BadValue, field("vae-tile")),
        RequestError::NoLora(_) => (ErrorCode::BadValue, field("lora")),
        RequestError::StrengthWithoutPicture | RequestError::NoStep { .. } => {
            (ErrorCode::BadValue, field("strength"))
        }
        RequestError::TwoStarts | RequestError::Picture(_) => (ErrorCode::BadValue, field("image")),
        RequestError::Shape(_) => (ErrorCode::BadValue, field("size")),
        RequestError::NegativeWithoutGuidance => (ErrorCode::BadValue, field("negative-prompt")),
        RequestError::TwoGuidances { .. } => (ErrorCode::BadValue, field("guidance-scale")),
        RequestError::PreviewEveryZero | RequestError::PreviewEveryTooMany { .. } => {
            (ErrorCode::BadValue, field("preview-every"))
        }
    };
    JobError { param, ..JobError::new(code, error.to_string()) }
}

/// What is wrong with the host or with the policy for it.
pub fn of_setup(error: &SetupError) -> JobError {
    let code = match innermost(error) {
        SetupError::Cap(_) | SetupError::Pin(_) => ErrorCode::BadValue,
        SetupError::Missing { .. } => ErrorCode::DeviceFailed,
        _ => ErrorCode::Internal,
    };
    JobError::new(code, error.to_string())
}

/// Why a job of a model was not planned, or did not run.
pub fn of_plan(error: &PlanError, model: &ModelSource) -> JobError {
    let code = match error {
        PlanError::Infeasible(found) => return does_not_fit(found, model),
        PlanError::Session(error) => return of_session(error),
        PlanError::Inventory(error) => {
            let setup = error.downcast_ref::<SetupError>().map(of_setup);
            return setup.unwrap_or_else(|| internal(format!("{error:#}")));
        }
        PlanError::NoRoom(_) => ErrorCode::DoesNotFit,
        PlanError::NothingLess(_) => ErrorCode::OutOfMemory,
        PlanError::Pin(_) => ErrorCode::BadValue,
        PlanError::PinnedToFailed { .. } => ErrorCode::DeviceFailed,
        PlanError::FilesChanged { .. } => ErrorCode::BadModel,
        PlanError::Violation(_)
        | PlanError::Given(_)
        | PlanError::Elsewhere(_)
        | PlanError::Unsettled(_) => ErrorCode::Internal,
    };
    JobError::new(code, error.to_string())
}

/// How an executor failed.
pub fn of_session(error: &SessionError) -> JobError {
    let code = match error {
        SessionError::Died { .. } | SessionError::Silent { .. } => ErrorCode::ExecutorDied,
        SessionError::TooLong(too_long) => {
            let param = of_text(too_long);
            return JobError { param, ..JobError::new(ErrorCode::BadValue, error.to_string()) };
        }
        SessionError::Failed(failure) => match failure.kind {
            FailureKind::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            FailureKind::DeviceFailed { .. } => ErrorCode::DeviceFailed,
            FailureKind::BadModel => ErrorCode::BadModel,
            FailureKind::BadRequest => ErrorCode::BadValue,
            _ => ErrorCode::Internal,
        },
        SessionError::Cancelled | SessionError::Start { .. } | SessionError::Confused { .. } => {
            ErrorCode::Internal
        }
    };
    JobError::new(code, error.to_string())
}

/// A fault that no request and no file is to blame for.
pub fn internal(message: impl Into<String>) -> JobError {
    JobError::new(ErrorCode::Internal, message)
}

/// A picture or a model of a name that nothing has.
pub fn no_model(name: &str, known: Vec<String>) -> JobError {
    of_request(&RequestError::UnknownModel { name: name.to_owned(), known })
}

fn does_not_fit(found: &DoesNotFit, model: &ModelSource) -> JobError {
    let document = serde_json::to_value(InfeasibleDocument::new(model, found));
    let nearest = document.ok().and_then(|mut document| {
        document.get_mut("nearest").map(Value::take).filter(|nearest| !nearest.is_null())
    });
    JobError { nearest, ..JobError::new(ErrorCode::DoesNotFit, found.message()) }
}

/// An error that stands under the names of files.
fn innermost(error: &SetupError) -> &SetupError {
    match error {
        SetupError::Joined { error, .. } => innermost(error),
        error => error,
    }
}

/// A flag of the command line, as the field of a document is called.
fn field(flag: &str) -> Option<String> {
    Some(match flag {
        "batch" => "n".to_owned(),
        flag => flag.replace('-', "_"),
    })
}

fn of_text(TooLong { what, .. }: &TooLong) -> Option<String> {
    let known = match *what {
        "prompt" => "prompt",
        "second prompt" => "prompt_2",
        "negative prompt" => "negative_prompt",
        "model's name" => "model",
        _ => return None,
    };
    Some(known.to_owned())
}
