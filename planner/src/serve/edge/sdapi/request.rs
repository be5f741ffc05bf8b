//! What a body of A1111's `txt2img` and `img2img` asks for. Pure: pictures are read by
//! [`embedded`](crate::serve::edge::embedded), and a seed that nobody gave is not drawn.

use protocol::ModelDescription;
use protocol::limits::{BATCH_MAX, LORAS_MAX, PROMPT_BYTES_MAX, SIDE_PIXELS_MAX, STEPS_MAX};
use protocol::profile::GuidanceScale;
use serde_json::{Map, Value};

use super::networks::{self, NamedLora};
use super::{choice, names, overrides, refusals};
use crate::job::JobRequest;
use crate::job::model::ModelName;
use crate::job::request::{GuidanceRequest, Prompts, ShapeRequest, StartRequest};
use crate::policy::PolicyText;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::{Fields, shortened};
use crate::serve::edge::settings::{EdgeModel, EdgeSettings};
use crate::serve::edge::{sampler, size};

/// How far a picture is changed where nobody says (A1111's default).
const STRENGTH: f64 = 0.75;

/// Pictures on the way to one of few steps.
const PREVIEWS: u32 = 4;

/// Most steps between two of them (A1111's `show_progress_every_n_steps`).
const PREVIEW_EVERY_MAX: u32 = 10;

/// The two routes that make pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SdapiRoute {
    /// From a prompt.
    Txt2Img,
    /// From a prompt and a picture.
    Img2Img,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct SdapiRequest {
    /// What is to be made, but for a seed that is drawn and the picture that it starts from.
    pub job: JobRequest,
    /// The model's own name.
    pub model: String,
    /// The seed; drawn where it is `None`.
    pub seed: Option<u64>,
    /// The client's own name for the job.
    pub label: Option<String>,
    /// Pictures that are counted as one run.
    pub batch_size: u32,
    /// Whether the answer holds pictures.
    pub send_images: bool,
    /// Whether the answer holds the pictures that the job started from.
    pub include_init_images: bool,
    /// What was asked and is done by something else, as `sampler: Euler a -> Euler`.
    pub substituted: Vec<String>,
    /// What is to be told, a sentence each.
    pub notices: Vec<String>,
}

/// Reads a body; `checkpoint` is the model where the request names none, by the desk's settings.
///
/// # Errors
/// A field is none that there is; the error names it.
pub fn read(
    route: SdapiRoute,
    body: Map<String, Value>,
    settings: &EdgeSettings,
    checkpoint: Option<&str>,
) -> Result<SdapiRequest, EdgeError> {
    let mut fields = Fields::of(body);
    refusals::check(&mut fields)?;
    let asked = overrides::read(&mut fields)?;
    let model = overrides::model(asked.as_deref().or(checkpoint), settings)?;
    let known = settings.model(&model).cloned().unwrap_or_default();
    let description = known.description.as_deref();
    let (batch_size, pictures) = counts(&mut fields)?;
    let choice = choice::read(&mut fields, description)?;
    let (prompt, loras) = networks::split(&prompt_text(&mut fields, "prompt")?);
    let prompts = Prompts {
        prompt: Some(prompt),
        prompt_2: None,
        negative_prompt: Some(prompt_text(&mut fields, "negative_prompt")?),
        negative_may_be_unused: true,
    };
    let [width, height] = sides(&mut fields, description)?;
    let shape = ShapeRequest {
        width,
        height,
        steps: fields.count("steps", 1, STEPS_MAX)?,
        batch: Some(pictures),
        max_sequence_length: None,
    };
    let strength = strength(&mut fields, route)?;
    let steps = shape.steps.or(description.map(|description| description.defaults.steps));
    let job = JobRequest {
        model: ModelName::Name(model.clone()),
        prompts,
        shape,
        guidance: guidance(&mut fields, &known)?,
        start: StartRequest { strength, ..StartRequest::default() },
        preview_every: steps.map(|steps| preview_every(steps, strength)),
        sampler: choice.sampler,
        scheduler: choice.scheduler,
        eta: choice.eta,
        policy: PolicyText {
            lora: lora_files(&mut fields, loras, settings)?,
            ..PolicyText::default()
        },
        ..JobRequest::default()
    };
    tell_of_the_negative_prompt(&mut fields, &job, description);
    Ok(SdapiRequest {
        model,
        job,
        seed: fields.seed("seed")?,
        label: fields.filled_text("force_task_id")?,
        batch_size,
        send_images: fields.value("send_images") != Some(Value::Bool(false)),
        include_init_images: fields.is_on("include_init_images")?,
        substituted: choice.substituted,
        notices: finished(fields),
    })
}

/// Passes over what only keeps books, and tells of the rest.
fn finished(mut fields: Fields) -> Vec<String> {
    fields.accept(&names::BOOKKEEPING);
    fields.notices()
}

/// Pictures of a run, and of the whole request.
fn counts(fields: &mut Fields) -> Result<(u32, u32), EdgeError> {
    let batch_size = fields.count("batch_size", 1, BATCH_MAX)?.unwrap_or(1);
    let runs = fields.count("n_iter", 1, BATCH_MAX)?.unwrap_or(1);
    let pictures = batch_size * runs;
    if pictures > BATCH_MAX {
        let message = format!(
            "batch_size × n_iter is {pictures}, at most {BATCH_MAX} pictures are made for a \
             request; hint: send several requests"
        );
        return Err(EdgeError::bad_value("n_iter", message));
    }
    Ok((batch_size, pictures))
}

fn prompt_text(fields: &mut Fields, name: &str) -> Result<String, EdgeError> {
    let prompt = fields.text(name)?.unwrap_or_default();
    match prompt.len() > PROMPT_BYTES_MAX {
        true => {
            let message =
                format!("{name} has more than {PROMPT_BYTES_MAX} bytes; hint: shorten it");
            Err(EdgeError::bad_value(name, message))
        }
        false => Ok(prompt),
    }
}

fn sides(
    fields: &mut Fields,
    description: Option<&ModelDescription>,
) -> Result<[Option<u32>; 2], EdgeError> {
    let sides =
        [fields.count("width", 1, SIDE_PIXELS_MAX)?, fields.count("height", 1, SIDE_PIXELS_MAX)?];
    if let Some(description) = description {
        size::check_sides(sides, description)?;
    }
    Ok(sides)
}

fn strength(fields: &mut Fields, route: SdapiRoute) -> Result<Option<f64>, EdgeError> {
    // Without a picture it is that of a second pass, which is refused.
    let asked = fields.number("denoising_strength", 0.0, 1.0)?;
    Ok((route == SdapiRoute::Img2Img).then(|| asked.unwrap_or(STRENGTH)))
}

/// Steps between the pictures that `progress` shows: a few for each job, without a request's word.
fn preview_every(steps: u32, strength: Option<f64>) -> u32 {
    // A start from a picture leaves the first steps out.
    let run = (f64::from(steps) * strength.unwrap_or(1.0)) as u32;
    (run / PREVIEWS).clamp(1, PREVIEW_EVERY_MAX)
}

/// `cfg_scale` is what all clients send: it counts where the model guides so by itself, or where
/// the host says so. `distilled_cfg_scale` is an input of models that take one.
fn guidance(fields: &mut Fields, model: &EdgeModel) -> Result<GuidanceRequest, EdgeError> {
    let cfg = fields.scale("cfg_scale")?;
    let distilled = fields.scale("distilled_cfg_scale")?;
    let Some(description) = model.description.as_deref() else {
        if cfg.is_some() || distilled.is_some() {
            fields.notice("cfg_scale has no effect until the model's files have been read");
        }
        return Ok(GuidanceRequest::default());
    };
    let counts = model.sdapi_cfg || sampler::guides_by_itself(description);
    if !counts && cfg.is_some_and(|scale| scale > 1.0) {
        fields.notice("cfg_scale has no effect on this model, which is guided without it");
    }
    let embedded = description.guidance == GuidanceScale::Embedded;
    Ok(GuidanceRequest {
        true_cfg_scale: cfg.filter(|_| counts),
        guidance_scale: distilled.filter(|_| embedded),
        ..GuidanceRequest::default()
    })
}

/// The files of a prompt's LoRA, as a policy writes them.
fn lora_files(
    fields: &mut Fields,
    named: Vec<NamedLora>,
    settings: &EdgeSettings,
) -> Result<Option<Vec<String>>, EdgeError> {
    if named.is_empty() {
        return Ok(None);
    }
    if named.len() > LORAS_MAX {
        let message = format!("prompt names {} LoRA, at most {LORAS_MAX} are taken", named.len());
        return Err(EdgeError::bad_value("prompt", message));
    }
    let mut files = Vec::new();
    for NamedLora { name, weight } in named {
        match settings.loras.get(&name) {
            Some(path) => files.push(format!("{}:{weight}", path.display())),
            None => fields.notice(format!("there is no LoRA {:?}", shortened(&name))),
        }
    }
    Ok(Some(files))
}

fn tell_of_the_negative_prompt(
    fields: &mut Fields,
    job: &JobRequest,
    description: Option<&ModelDescription>,
) {
    let negative = job.prompts.negative_prompt.as_deref().unwrap_or_default();
    let Some(description) = description.filter(|_| !negative.is_empty()) else { return };
    if !sampler::follows_negative(&job.guidance, description) {
        fields.notice("negative_prompt has no effect on this model, which is guided without one");
    }
}
