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

/// Fields of a shape, as the words of errors about them.
const SHAPE_FIELDS: [&str; 5] = ["width", "height", "steps", "batch", "max_sequence_length"];

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
        RequestError::Shape(found) => (ErrorCode::BadValue, of_sentence(found)),
        RequestError::NegativeWithoutGuidance => (ErrorCode::BadValue, field("negative-prompt")),
        RequestError::TwoGuidances { .. } => (ErrorCode::BadValue, field("guidance-scale")),
        RequestError::NotOfModel { kind, .. } => (ErrorCode::BadValue, field(kind)),
        RequestError::SigmasAndScheduler(_) | RequestError::SigmasAndSteps { .. } => {
            (ErrorCode::BadValue, field("sigmas"))
        }
        RequestError::EtaWithoutNoise { .. } => (ErrorCode::BadValue, field("eta")),
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
    let param = match error {
        SessionError::Failed(failure) if matches!(failure.kind, FailureKind::BadRequest) => {
            of_sentence(&failure.message)
        }
        _ => None,
    };
    let code = match error {
        SessionError::Died { .. } | SessionError::Silent { .. } => ErrorCode::ExecutorDied,
        SessionError::TooLong(too_long) => {
            let param = of_text(too_long);
            return JobError { param, ..JobError::new(ErrorCode::BadValue, error.to_string()) };
        }
        SessionError::Failed(failure) => match failure.kind {
            FailureKind::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            FailureKind::DeviceFailed { .. } | FailureKind::DeviceLost { .. } => {
                ErrorCode::DeviceFailed
            }
            FailureKind::BadModel => ErrorCode::BadModel,
            FailureKind::BadRequest => ErrorCode::BadValue,
            _ => ErrorCode::Internal,
        },
        SessionError::Cancelled | SessionError::Start { .. } | SessionError::Confused { .. } => {
            ErrorCode::Internal
        }
    };
    JobError { param, ..JobError::new(code, error.to_string()) }
}

/// The field of a shape that a sentence begins with, as `width 65 is no multiple of 16`.
fn of_sentence(sentence: &str) -> Option<String> {
    let word = sentence.split(' ').next().unwrap_or_default();
    SHAPE_FIELDS.contains(&word).then(|| field(word)).flatten()
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

#[cfg(test)]
mod tests {
    use protocol::{Bytes, Failure, JobShape};

    use super::*;
    use crate::engine::session::death::Cause;
    use crate::solve::Infeasible;

    fn failure(kind: FailureKind) -> PlanError {
        let message = "it failed".to_owned();
        PlanError::Session(SessionError::Failed(Failure { kind, message }))
    }

    #[test]
    fn what_is_wrong_with_a_shape_is_told_with_its_field() {
        let refused = |message: &str| {
            let (kind, message) = (FailureKind::BadRequest, message.to_owned());
            of_session(&SessionError::Failed(Failure { kind, message })).param
        };
        let width = "width 65 is no multiple of 16; hint: use 64 or 80";
        assert_eq!(refused(width).as_deref(), Some("width"));
        assert_eq!(refused("the prompt has no end"), None);
        let shape = JobShape { batch: 0, ..crate::render::testing::plan().job };
        let found = protocol::check::check_job(&shape).unwrap_err();
        let told = of_request(&RequestError::Shape(found.sentences()));
        assert_eq!(told.param.as_deref(), Some("n"), "{}", told.message);
    }

    #[test]
    fn a_failure_is_told_by_the_code_of_its_kind() {
        let device = protocol::DeviceId("cuda0".to_owned());
        let died = || SessionError::Died {
            phase: "load phase".to_owned(),
            cause: Cause::OutOfMemory,
            status: "signal 9".to_owned(),
            lines: Vec::new(),
        };
        let out_of_memory = FailureKind::OutOfMemory {
            device: device.clone(),
            region: "weights".to_owned(),
            requested_bytes: Bytes(2),
            free_bytes: Some(Bytes(1)),
        };
        let files = "a.gguf".to_owned();
        let missing = SetupError::Missing { device: "cuda1".to_owned(), why: "gone".to_owned() };
        for (error, code) in [
            (failure(out_of_memory), ErrorCode::OutOfMemory),
            (failure(FailureKind::DeviceLost { device: device.clone() }), ErrorCode::DeviceFailed),
            (failure(FailureKind::DeviceFailed { device }), ErrorCode::DeviceFailed),
            (failure(FailureKind::BadModel), ErrorCode::BadModel),
            (failure(FailureKind::BadRequest), ErrorCode::BadValue),
            (failure(FailureKind::PlanRefused), ErrorCode::Internal),
            (PlanError::Session(died()), ErrorCode::ExecutorDied),
            (PlanError::NothingLess(died()), ErrorCode::OutOfMemory),
            (PlanError::FilesChanged { files, error: died() }, ErrorCode::BadModel),
            (PlanError::Inventory(missing.into()), ErrorCode::DeviceFailed),
            (PlanError::Unsettled("1 B".to_owned()), ErrorCode::Internal),
        ] {
            let told = of_plan(&error, &ModelSource::default());
            assert_eq!((told.code, told.message), (code, error.to_string()));
        }
    }

    #[test]
    fn what_does_not_fit_says_what_would() {
        let infeasible = Infeasible {
            because: "cuda0 is short".to_owned(),
            max_vram: Some(Bytes(7)),
            max_ram: None,
            together: false,
            margin_flag: None,
        };
        let job = JobShape {
            width: 64,
            height: 64,
            steps: 1,
            max_sequence_length: 8,
            ..JobShape::small()
        };
        let error = DoesNotFit { job, infeasible, largest: Some([32, 48]) };
        let told = of_plan(&PlanError::Infeasible(Box::new(error)), &ModelSource::default());
        assert_eq!(told.code, ErrorCode::DoesNotFit);
        let expected = serde_json::json!({
            "max_vram_bytes": 7, "max_ram_bytes": null, "together": false, "width": 32, "height": 48
        });
        assert_eq!(told.nearest, Some(expected));
        assert!(told.message.contains("cuda0 is short"), "{}", told.message);
    }

    #[test]
    fn a_wrong_field_is_named_as_documents_call_it() {
        let number = |flag| RequestError::Number { flag, expected: "a number", got: String::new() };
        for (error, code, param) in [
            (number("guidance-scale"), ErrorCode::BadValue, "guidance_scale"),
            (RequestError::Batch(99), ErrorCode::BadValue, "n"),
            (
                TooLong { what: "second prompt", got: 2, limit: 1 }.into(),
                ErrorCode::BadValue,
                "prompt_2",
            ),
            (RequestError::NoModel("a".into()), ErrorCode::BadModel, "model"),
            (RequestError::NegativeWithoutGuidance, ErrorCode::BadValue, "negative_prompt"),
        ] {
            let told = of_request(&error);
            assert_eq!((told.code, told.param.as_deref()), (code, Some(param)), "{error}");
        }
        let unknown = no_model("x", vec!["demo".to_owned()]);
        assert_eq!((unknown.code, unknown.param.as_deref()), (ErrorCode::NoModel, Some("model")));
    }
}
