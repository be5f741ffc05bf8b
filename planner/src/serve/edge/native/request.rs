//! What is to be made, out of JSON: `Shape` of serve.md §9, as a [`JobRequest`].
//!
//! Nothing here is blocking or asks anybody: a picture stays base64 until it is kept.

use protocol::limits::{
    BATCH_MAX, LORA_WEIGHT_MAX, LORAS_MAX, PROMPT_BYTES_MAX, SEQUENCE_TOKENS_MAX, SIDE_PIXELS_MAX,
    STEPS_MAX,
};
use protocol::{ModelDescription, Sampler, Scheduler};
use serde_json::Value;

use crate::job::JobRequest;
use crate::job::model::ModelName;
use crate::job::request::{GuidanceRequest, Prompts, ShapeRequest, StartRequest};
use crate::job::seed::Seed;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::Members;
use crate::serve::edge::settings::EdgeSettings;
use crate::serve::edge::{sampler, size};

/// Largest guidance. Useful ones are below 30; a larger one is a mistake.
pub const SCALE_MAX: f64 = 1000.0;

/// What a request asks for.
#[derive(Debug)]
pub struct ReadShape {
    /// Without the picture that it starts from.
    pub request: JobRequest,
    /// The model's name, of those that there are.
    pub model: String,
    /// The picture that it starts from, in base64.
    pub image: Option<String>,
}

/// Takes the members of `Shape`.
///
/// # Errors
/// One of them is wrong: 400 with its name, or 404 for the model's.
pub fn read(settings: &EdgeSettings, members: &mut Members) -> Result<ReadShape, EdgeError> {
    let model = settings.model_name(members.text("model")?.as_deref())?;
    let image = members.text("image")?;
    let strength = members.number("strength", 0.0, 1.0)?;
    if strength.is_some() && image.is_none() {
        let message = "strength says how far a picture is changed; hint: add image";
        return Err(EdgeError::bad_value("strength", message));
    }
    let description = settings.model(&model).and_then(|model| model.description.as_deref());
    let mut request = JobRequest {
        model: ModelName::Name(model.clone()),
        prompts: prompts(members)?,
        shape: shape(members)?,
        guidance: guidance(members)?,
        start: StartRequest { strength, ..StartRequest::default() },
        seed: Some(seed(members)?),
        sampler: sampler(members, description)?,
        scheduler: scheduler(members, description)?,
        sigmas: sampler::sigmas(members.take("sigmas"))?,
        eta: members.number("eta", 0.0, 1.0)?.map(|eta| eta as f32),
        ..JobRequest::default()
    };
    request.policy.lora = loras(settings, members)?;
    check(&request)?;
    if let Some(description) = description {
        let ShapeRequest { width, height, .. } = request.shape;
        size::check_sides([width, height], description)?;
    }
    Ok(ReadShape { request, model, image })
}

/// Checks a request as a whole, whoever made it.
///
/// # Errors
/// 400 for what is beyond its limits.
pub fn check(request: &JobRequest) -> Result<(), EdgeError> {
    request.check().map_err(|error| {
        let (status, code) = (axum::http::StatusCode::BAD_REQUEST, "bad_value");
        EdgeError::new(status, code, error.to_string())
    })
}

fn prompts(members: &mut Members) -> Result<Prompts, EdgeError> {
    let mut prompt = |name: &str| {
        let text = members.text(name)?;
        match text.as_ref().map_or(0, String::len) {
            0..=PROMPT_BYTES_MAX => Ok(text),
            got => {
                let message = format!(
                    "{name} is {got} bytes long, more than {PROMPT_BYTES_MAX}; hint: shorten it"
                );
                Err(EdgeError::bad_value(name, message))
            }
        }
    };
    Ok(Prompts {
        prompt: prompt("prompt")?,
        prompt_2: prompt("prompt_2")?,
        negative_prompt: prompt("negative_prompt")?,
        negative_may_be_unused: false,
    })
}

fn shape(members: &mut Members) -> Result<ShapeRequest, EdgeError> {
    Ok(ShapeRequest {
        width: members.whole("width", 1, SIDE_PIXELS_MAX)?,
        height: members.whole("height", 1, SIDE_PIXELS_MAX)?,
        steps: members.whole("steps", 1, STEPS_MAX)?,
        batch: members.whole("n", 1, BATCH_MAX)?,
        max_sequence_length: members.whole("max_sequence_length", 1, SEQUENCE_TOKENS_MAX)?,
    })
}

fn guidance(members: &mut Members) -> Result<GuidanceRequest, EdgeError> {
    let mut scale = |name: &str| {
        Ok::<_, EdgeError>(members.number(name, 0.0, SCALE_MAX)?.map(|scale| scale as f32))
    };
    Ok(GuidanceRequest {
        guidance_scale: scale("guidance_scale")?,
        true_cfg_scale: scale("true_cfg_scale")?,
        cfg_scale: scale("cfg_scale")?,
        cfg_normalization: members.flag("cfg_normalization")?.unwrap_or(false),
        ..GuidanceRequest::default()
    })
}

/// The seed that is asked for, or one that is drawn: a job is the same when it is begun again.
fn seed(members: &mut Members) -> Result<Seed, EdgeError> {
    let wrong = |_| {
        let message = "seed must be a whole number ≥ 0, or -1 for one that is drawn";
        EdgeError::bad_value("seed", message)
    };
    let asked = match members.take("seed") {
        Some(value) => serde_json::from_value(value).map_err(wrong)?,
        None => Seed::Random,
    };
    drawn(asked)
}

/// A seed that stays what it is.
///
/// # Errors
/// The system gives no random numbers.
pub fn drawn(seed: Seed) -> Result<Seed, EdgeError> {
    seed.draw().map(Seed::Given).map_err(|error| EdgeError::internal(error.to_string()))
}

fn sampler(
    members: &mut Members,
    description: Option<&ModelDescription>,
) -> Result<Option<Sampler>, EdgeError> {
    let name = members.text("sampler")?;
    sampler::sampler(name, description).map_err(|error| EdgeError::unsupported("sampler", error))
}

fn scheduler(
    members: &mut Members,
    description: Option<&ModelDescription>,
) -> Result<Option<Scheduler>, EdgeError> {
    let name = members.text("scheduler")?;
    sampler::scheduler(name, description)
        .map_err(|error| EdgeError::unsupported("scheduler", error))
}

/// `[{name, weight}]` as a policy text has it: a file and its weight.
fn loras(settings: &EdgeSettings, members: &mut Members) -> Result<Option<Vec<String>>, EdgeError> {
    let bad = |message: String| EdgeError::bad_value("lora", message);
    let listed = match members.take("lora") {
        None => return Ok(None),
        Some(Value::Array(listed)) => listed,
        Some(_) => return Err(bad("lora must be a list of {name, weight}".to_owned())),
    };
    if listed.len() > LORAS_MAX {
        return Err(bad(format!("{} LoRA are more than {LORAS_MAX}", listed.len())));
    }
    let one = |value: Value| {
        let Value::Object(object) = value else {
            return Err(bad("lora must be a list of {name, weight}".to_owned()));
        };
        let mut lora = Members(object);
        let name = lora.text("name").ok().flatten().unwrap_or_default();
        let limit = f64::from(LORA_WEIGHT_MAX);
        let weight = lora.number("weight", -limit, limit).map_err(|error| bad(error.message))?;
        let path = settings.loras.get(&name).and_then(|path| path.to_str()).ok_or_else(|| {
            let known: Vec<&str> = settings.loras.keys().map(String::as_str).take(16).collect();
            let shown: String = name.chars().take(64).collect();
            bad(format!("there is no LoRA {shown:?}; hint: those there are: {}", known.join(", ")))
        })?;
        Ok(format!("{path}:{}", weight.unwrap_or(1.0)))
    };
    listed.into_iter().map(one).collect::<Result<Vec<_>, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::Policy;
    use crate::serve::edge::testing::settings;

    fn read_json(value: Value) -> Result<ReadShape, EdgeError> {
        let Value::Object(object) = value else { panic!("an object") };
        read(&settings(), &mut Members(object))
    }

    #[test]
    fn all_of_a_shape_is_read() {
        let read = read_json(json!({
            "model": "large", "prompt": "a house", "negative_prompt": "a tree", "prompt_2": "b",
            "width": 512, "height": "768", "steps": 4.0, "n": 2, "seed": 7,
            "guidance_scale": 3.5, "true_cfg_scale": 2, "sampler": "Euler",
            "max_sequence_length": 77, "strength": 0.5, "image": "AQI=",
            "lora": [{"name": "style", "weight": 0.8}, {"name": "style"}],
        }))
        .unwrap();
        let ShapeRequest { width, height, steps, batch, .. } = read.request.shape;
        assert_eq!((width, height, steps, batch), (Some(512), Some(768), Some(4), Some(2)));
        assert_eq!((read.model.as_str(), read.image.as_deref()), ("large", Some("AQI=")));
        assert_eq!(read.request.model, ModelName::Name("large".to_owned()));
        assert_eq!(read.request.seed, Some(Seed::Given(7)));
        assert_eq!(read.request.guidance.guidance_scale, Some(3.5));
        let loras = Policy::of(&read.request.policy).unwrap().loras;
        let weights: Vec<f32> = loras.iter().map(|lora| lora.weight).collect();
        assert_eq!((loras[0].path.as_str(), weights), ("/l/a:style.gguf", vec![0.8, 1.0]));
    }

    #[test]
    fn a_seed_is_drawn_where_none_is_given() {
        for body in [json!({}), json!({"seed": -1}), json!({"seed": null})] {
            let Some(Seed::Given(seed)) = read_json(body).unwrap().request.seed else {
                panic!("a seed")
            };
            assert!(seed < 1 << 32);
        }
    }

    #[test]
    fn a_side_that_the_model_does_not_make_is_named() {
        let settings = crate::serve::edge::openai::testing::settings();
        for (param, body) in [
            ("width", json!({"width": 65})),
            ("height", json!({"width": 64, "height": 100})),
            ("width", json!({"model": "guided", "width": 100, "height": 100})),
        ] {
            let Value::Object(object) = body else { panic!("an object") };
            let error = super::read(&settings, &mut Members(object)).expect_err(param);
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
            assert!(error.nearest.is_some());
        }
        // Of a model that has not been looked into, nothing is known.
        let Value::Object(object) = json!({"model": "unread", "width": 65}) else { unreachable!() };
        assert!(super::read(&settings, &mut Members(object)).is_ok());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (param, value) in [
            ("width", json!(0)),
            ("height", json!(SIDE_PIXELS_MAX + 1)),
            ("steps", json!(1.5)),
            ("n", json!(65)),
            ("seed", json!(-2)),
            ("seed", json!(1.5)),
            ("guidance_scale", json!(-1)),
            ("true_cfg_scale", json!("x")),
            ("sampler", json!("other")),
            ("max_sequence_length", json!(1 << 20)),
            ("strength", json!(0.5)),
            ("strength", json!(2)),
            ("prompt", json!(["a"])),
            ("prompt_2", json!("x".repeat(PROMPT_BYTES_MAX + 1))),
            ("lora", json!("style")),
            ("lora", json!([{"name": "other"}])),
            ("lora", json!([{"name": "style", "weight": 2000}])),
            ("lora", json!(vec![json!({"name": "style"}); LORAS_MAX + 1])),
            ("model", json!("nothing")),
        ] {
            let error = read_json(json!({ param: value.clone() })).expect_err(param);
            assert_eq!(error.param.as_deref(), Some(param), "{value} {}", error.message);
        }
    }
}
