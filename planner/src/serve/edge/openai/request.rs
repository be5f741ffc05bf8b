//! What a body of OpenAI's image routes asks for. Pure: pictures are still text here, and a seed
//! that nobody gave is not drawn.

use protocol::limits::{PROMPT_BYTES_MAX, STEPS_MAX};
use protocol::{ModelDescription, Sampler, Scheduler};
use serde_json::{Map, Value};

use super::delivery::{Delivery, ImagesRoute};
use super::quality;
use crate::job::JobRequest;
use crate::job::model::ModelName;
use crate::job::request::{GuidanceRequest, Prompts, ShapeRequest, StartRequest};
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::Fields;
use crate::serve::edge::native::policy::JobPolicy;
use crate::serve::edge::settings::EdgeSettings;
use crate::serve::edge::{sampler, size};

/// Most characters of a prompt (OpenAI's images API).
const PROMPT_CHARACTERS_MAX: usize = 32_000;

/// Pictures of one request (OpenAI's images API).
const PICTURES_MAX: u32 = 10;

/// How far an edited picture is changed where nobody says (serve.md §9).
const STRENGTH: f64 = 0.75;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ImagesRequest {
    /// What is to be made, but for a seed that is drawn and the picture that it starts from.
    pub job: JobRequest,
    /// The model's own name.
    pub model: String,
    /// The seed; drawn where it is `None`.
    pub seed: Option<u64>,
    /// How the job is to be treated.
    pub policy: JobPolicy,
    /// What the client calls its user.
    pub user: Option<String>,
    /// How the pictures are wanted.
    pub delivery: Delivery,
    /// What is to be told, a sentence each.
    pub notices: Vec<String>,
}

/// Reads a body. What it starts from is read by [`embedded`](crate::serve::edge::embedded).
///
/// # Errors
/// A field is none that there is; the error names it.
pub fn read(
    route: ImagesRoute,
    body: Map<String, Value>,
    settings: &EdgeSettings,
) -> Result<ImagesRequest, EdgeError> {
    let mut fields = Fields::of(body);
    let prompt = prompt(&mut fields)?;
    let model = settings.model_name(fields.text("model")?.as_deref())?;
    let description = settings.model(&model).and_then(|model| model.description.as_deref());
    refuse_what_nothing_makes(&mut fields)?;
    let shape = shape(&mut fields, description)?;
    let named_quality = quality::read(&mut fields)?;
    let steps = steps(&mut fields, settings, named_quality, description)?;
    let delivery = Delivery::read(&mut fields, route, named_quality, settings.openai_as_url)?;
    let strength = strength(&mut fields, route)?;
    let policy = fields.policy()?;
    if policy.preview_every.is_some() && delivery.partials == 0 {
        fields.notice("preview_every has an effect with partial_images only");
    }
    let all_steps = steps.or(description.map(|description| description.defaults.steps));
    let job = JobRequest {
        model: ModelName::Name(model.clone()),
        prompts: prompts(&mut fields, prompt)?,
        shape: ShapeRequest { steps, ..shape },
        guidance: guidance(&mut fields)?,
        start: StartRequest { strength, ..StartRequest::default() },
        sampler: sampler(&mut fields, description)?,
        scheduler: scheduler(&mut fields, description)?,
        sigmas: sampler::sigmas(fields.value("sigmas"))?,
        eta: fields.number("eta", 0.0, 1.0)?.map(|eta| eta as f32),
        preview_every: delivery.preview_every(policy.preview_every, all_steps, strength),
        ..JobRequest::default()
    };
    tell_of_the_negative_prompt(&mut fields, &job, description);
    let seed = fields.seed("seed")?;
    let user = user(&mut fields)?;
    fields.without_effect(&["moderation", "style", "input_fidelity", "complexity"]);
    let notices = fields.notices();
    Ok(ImagesRequest { job, model, seed, policy, user, delivery, notices })
}

fn prompt(fields: &mut Fields) -> Result<String, EdgeError> {
    let Some(prompt) = fields.text("prompt")? else {
        let message = "prompt is missing; hint: say what the picture is to show";
        return Err(EdgeError::bad_value("prompt", message));
    };
    let characters = prompt.chars().count();
    if characters > PROMPT_CHARACTERS_MAX || prompt.len() > PROMPT_BYTES_MAX {
        let message = format!(
            "prompt has {characters} characters ({} bytes), at most \
             {PROMPT_CHARACTERS_MAX} ({PROMPT_BYTES_MAX} bytes) are taken; hint: shorten it",
            prompt.len()
        );
        return Err(EdgeError::bad_value("prompt", message));
    }
    Ok(prompt)
}

fn prompts(fields: &mut Fields, prompt: String) -> Result<Prompts, EdgeError> {
    let negative_prompt = fields.text("negative_prompt")?;
    if negative_prompt.as_ref().is_some_and(|text| text.len() > PROMPT_BYTES_MAX) {
        let message =
            format!("negative_prompt has more than {PROMPT_BYTES_MAX} bytes; hint: shorten it");
        return Err(EdgeError::bad_value("negative_prompt", message));
    }
    Ok(Prompts {
        prompt: Some(prompt),
        prompt_2: None,
        negative_prompt,
        negative_may_be_unused: true,
    })
}

/// Refuses transparency and masks: no model here makes or takes them.
fn refuse_what_nothing_makes(fields: &mut Fields) -> Result<(), EdgeError> {
    if fields.word("background", &["transparent", "opaque", "auto"])? == Some("transparent") {
        let message = "no model here makes transparent pictures; hint: leave background out";
        return Err(EdgeError::unsupported("background", message));
    }
    for mask in ["mask", "markup"] {
        if fields.value(mask).is_some_and(|value| value.as_str() != Some("")) {
            let message = format!(
                "{mask} is not taken: pictures are changed as a whole here; hint: leave it out"
            );
            return Err(EdgeError::unsupported(mask, message));
        }
    }
    Ok(())
}

fn shape(
    fields: &mut Fields,
    description: Option<&ModelDescription>,
) -> Result<ShapeRequest, EdgeError> {
    let batch = Some(fields.count("n", 1, PICTURES_MAX)?.unwrap_or(1));
    let asked = fields.filled_text("size")?.filter(|size| size != "auto");
    let size = asked.map(|text| size::read("size", &text)).transpose()?;
    if let (Some(size), Some(description)) = (size, description) {
        size::check("size", size, description.side_multiple_pixels)?;
    }
    // What is not asked for is the model's, or that of the picture that is edited.
    let [width, height] = size.map_or([None, None], |size| size.map(Some));
    Ok(ShapeRequest { width, height, batch, ..ShapeRequest::default() })
}

/// Steps as asked for, by their number or by a quality; `None` for the model's own.
fn steps(
    fields: &mut Fields,
    settings: &EdgeSettings,
    quality: quality::PictureQuality,
    description: Option<&ModelDescription>,
) -> Result<Option<u32>, EdgeError> {
    let diffusers = fields.count("num_inference_steps", 1, STEPS_MAX)?;
    if let Some(steps) = fields.count("steps", 1, STEPS_MAX)?.or(diffusers) {
        return Ok(Some(steps));
    }
    let factor = quality.factor(&settings.quality);
    match description {
        _ if factor == 1.0 => Ok(None),
        Some(description) => Ok(Some(quality::scaled(description.defaults.steps, factor))),
        None => {
            fields.notice("quality has no effect until the model's files have been read");
            Ok(None)
        }
    }
}

fn strength(fields: &mut Fields, route: ImagesRoute) -> Result<Option<f64>, EdgeError> {
    match route {
        ImagesRoute::Generations => Ok(None),
        ImagesRoute::Edits => Ok(Some(fields.number("strength", 0.0, 1.0)?.unwrap_or(STRENGTH))),
    }
}

fn guidance(fields: &mut Fields) -> Result<GuidanceRequest, EdgeError> {
    Ok(GuidanceRequest {
        guidance_scale: fields.scale("guidance_scale")?,
        true_cfg_scale: fields.scale("true_cfg_scale")?,
        ..GuidanceRequest::default()
    })
}

fn sampler(
    fields: &mut Fields,
    description: Option<&ModelDescription>,
) -> Result<Option<Sampler>, EdgeError> {
    let name = fields.filled_text("sampler")?;
    sampler::sampler(name, description).map_err(|error| EdgeError::bad_value("sampler", error))
}

fn scheduler(
    fields: &mut Fields,
    description: Option<&ModelDescription>,
) -> Result<Option<Scheduler>, EdgeError> {
    let name = fields.filled_text("scheduler")?;
    sampler::scheduler(name, description).map_err(|error| EdgeError::bad_value("scheduler", error))
}

/// Who asks, in the client's words: what is newer goes first.
fn user(fields: &mut Fields) -> Result<Option<String>, EdgeError> {
    let user = fields.filled_text("user")?;
    Ok(fields.filled_text("safety_identifier")?.or(user))
}

fn tell_of_the_negative_prompt(
    fields: &mut Fields,
    job: &JobRequest,
    description: Option<&ModelDescription>,
) {
    let negative = job.prompts.negative_prompt.as_deref().unwrap_or_default();
    let Some(description) = description.filter(|_| !negative.is_empty()) else { return };
    if !sampler::follows_negative(&job.guidance, description) {
        fields.notice(
            "negative_prompt has no effect without classifier-free guidance; \
             hint: send true_cfg_scale above 1",
        );
    }
}
