//! The readers of both wires, as their routes call them, and what must hold of each answer. The
//! fuzz targets call them with any bytes, the tests of the daemon with the corpus.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use planner::job::JobRequest;
use planner::serve::edge::body::{self, FormField};
use planner::serve::edge::errors::EdgeError;
use planner::serve::edge::openai::delivery::ImagesRoute;
use planner::serve::edge::sdapi::request::SdapiRoute;
use planner::serve::edge::settings::{EdgeModel, EdgeSettings};
use planner::serve::edge::{embedded, json, openai, sdapi};
use protocol::profile::{GuidanceScale, JobDefaults};
use protocol::{ModelDescription, ModelSource};

/// The boundary of all forms.
const FORM: &str = "multipart/form-data; boundary=B";

/// Most bytes of what a client is told: of an error, or of one notice.
const TOLD_BYTES_MAX: usize = 4096;

/// Reads a body of OpenAI's image routes, and says whether it is a job. Its first byte says the
/// route: `0` generations, `1` edits in JSON, `2` edits as a form.
pub fn openai(data: &[u8]) -> bool {
    let Some((first, body)) = data.split_first() else { return false };
    let (route, fields) = match first & 3 {
        0 => (ImagesRoute::Generations, json::object(body)),
        1 => (ImagesRoute::Edits, json::object(body).and_then(without_pictures)),
        _ => {
            (ImagesRoute::Edits, form(body).and_then(openai::form::read).map(|(fields, _)| fields))
        }
    };
    match fields.and_then(|fields| openai::request::read(route, fields, &settings())) {
        Ok(read) => {
            check_job(&read.job);
            let pictures = read.job.shape.batch;
            assert!(pictures.is_some_and(|pictures| (1..=10).contains(&pictures)), "{pictures:?}");
            check_notices(&read.notices);
            true
        }
        Err(error) => refused(&error),
    }
}

/// Reads a body of `txt2img` or `img2img`, and says whether it is a job. Its first byte says the
/// route and the chosen checkpoint.
pub fn sdapi(data: &[u8]) -> bool {
    let Some((first, body)) = data.split_first() else { return false };
    let route = match first & 1 {
        0 => SdapiRoute::Txt2Img,
        _ => SdapiRoute::Img2Img,
    };
    let checkpoint =
        [None, Some("demo"), Some("guided"), Some("unread")][usize::from(first >> 1 & 3)];
    let fields = json::object(body).and_then(|mut object| {
        embedded::take(&mut object, "init_images")?;
        Ok(object)
    });
    let read =
        fields.and_then(|fields| sdapi::request::read(route, fields, &settings(), checkpoint));
    match read {
        Ok(read) => {
            check_job(&read.job);
            let pictures = read.job.shape.batch;
            assert!(pictures.is_some_and(|pictures| (read.batch_size..=64).contains(&pictures)));
            check_notices(&read.notices);
            true
        }
        Err(error) => refused(&error),
    }
}

fn without_pictures(
    mut object: serde_json::Map<String, serde_json::Value>,
) -> Result<serde_json::Map<String, serde_json::Value>, EdgeError> {
    openai::take_pictures(&mut object)?;
    Ok(object)
}

/// The parts of a form that is there as a whole, so nothing is waited for.
fn form(bytes: &[u8]) -> Result<Vec<FormField>, EdgeError> {
    let request = Request::builder().header(CONTENT_TYPE, FORM);
    let request = request.body(Body::from(bytes.to_vec())).expect("a request");
    match pin!(body::form_fields(request)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(fields) => fields,
        Poll::Pending => panic!("a form that is there is waited for"),
    }
}

/// A model with embedded guidance, one that is guided by a second run, one of which nothing is
/// known, and a LoRA.
fn settings() -> EdgeSettings {
    let model = |guidance, true_cfg_scale| EdgeModel {
        description: Some(Arc::new(description(guidance, true_cfg_scale))),
        ..EdgeModel::default()
    };
    let mut settings = EdgeSettings { default_model: "demo".to_owned(), ..Default::default() };
    settings.models.insert("demo".to_owned(), model(GuidanceScale::Embedded, 1.0));
    settings.models.insert("guided".to_owned(), model(GuidanceScale::BeyondPrompt, 5.0));
    settings.models.insert("unread".to_owned(), EdgeModel::default());
    settings.aliases.insert("dall-e-3".to_owned(), "demo".to_owned());
    settings.loras.insert("ink".to_owned(), PathBuf::from("/lora/ink.safetensors"));
    settings
}

fn description(guidance: GuidanceScale, true_cfg_scale: f32) -> ModelDescription {
    ModelDescription {
        model: ModelSource::default(),
        family: "test".to_owned(),
        files: Vec::new(),
        components: Vec::new(),
        defaults: JobDefaults {
            width: 64,
            height: 64,
            steps: 4,
            max_sequence_length: 64,
            guidance_scale: 3.5,
            true_cfg_scale,
        },
        side_multiple_pixels: 16,
        sequence_tokens_max: 64,
        own_prompts: true,
        guidance,
        samplers: vec![
            protocol::Sampler::Euler,
            protocol::Sampler::EulerAncestral,
            protocol::Sampler::Dpmpp2m,
        ],
        schedulers: vec![protocol::Scheduler::Automatic, protocol::Scheduler::Karras],
        few_steps: None,
        lacks: Vec::new(),
        problems: Vec::new(),
    }
}

/// A sound job, which is the same after the store has kept it.
#[track_caller]
fn check_job(job: &JobRequest) {
    job.check().expect("what is read is sound");
    let text = serde_json::to_vec(job).expect("it can be kept");
    let mut kept: JobRequest = serde_json::from_slice(&text).expect("what is kept can be read");
    kept.check().expect("it is sound still");
    // JSON keeps the f64 of a strength but for its last bit.
    if let (Some(kept), Some(read)) = (&mut kept.start.strength, job.start.strength) {
        assert!((*kept - read).abs() <= f64::EPSILON, "{kept} of {read}");
        *kept = read;
    }
    assert_eq!(kept, *job);
}

/// Few sentences, none of them long.
#[track_caller]
fn check_notices(notices: &[String]) {
    assert!(notices.len() < 64, "{}", notices.len());
    assert!(notices.iter().all(|notice| !notice.is_empty() && notice.len() < TOLD_BYTES_MAX));
}

/// A refusal tells the client what is wrong with its request, in a few sentences.
#[track_caller]
fn refused(error: &EdgeError) -> bool {
    assert!(error.status.is_client_error(), "{error:?}");
    assert!(!error.message.is_empty() && error.message.len() < TOLD_BYTES_MAX, "{error:?}");
    assert!(error.param.as_ref().is_none_or(|param| param.len() < TOLD_BYTES_MAX), "{error:?}");
    assert!(error.body().is_object());
    false
}
