//! A1111's answer to a job that made pictures, and its `info`: all keys that its clients know, and
//! `berth` beside them. Pure.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};

use super::names;
use super::request::SdapiRequest;
use crate::job::infotext::{self, Settings};
use crate::serve::desk::action::JobView;
use crate::serve::desk::job::{JobRecord, JobState};

/// The answer of `txt2img` and `img2img`: `images` are files in base64.
pub fn answer(
    view: &JobView,
    request: &SdapiRequest,
    parameters: Map<String, Value>,
    images: Vec<String>,
) -> Value {
    json!({
        "images": if request.send_images { images } else { Vec::new() },
        "parameters": parameters,
        "info": info(view, request).to_string(),
    })
}

/// What is told of a job and its pictures.
pub fn info(view: &JobView, request: &SdapiRequest) -> Value {
    let record = &view.record;
    let made = first_settings(record);
    let prompts = &record.order.request.prompts;
    let (prompt, negative) = (text(&prompts.prompt), text(&prompts.negative_prompt));
    let seeds = seeds(record);
    let pictures = seeds.len();
    let size = made.size.unwrap_or_else(|| asked_size(record));
    let mut info = json!({
        "prompt": prompt,
        "all_prompts": vec![prompt; pictures],
        "negative_prompt": negative,
        "all_negative_prompts": vec![negative; pictures],
        "seed": seeds.first(),
        "all_seeds": seeds,
        // No second seed is mixed in: -1 is none.
        "subseed": -1,
        "all_subseeds": vec![-1; pictures],
        "subseed_strength": 0,
        "width": size[0],
        "height": size[1],
        "sampler_name": made.sampler,
        "cfg_scale": made.cfg_scale,
        "steps": made.steps.or(record.order.request.shape.steps),
        "batch_size": request.batch_size,
        "restore_faces": false,
        "face_restoration_model": null,
        "sd_model_name": record.order.model,
        "sd_model_hash": made.fingerprint,
        "sd_vae_name": null,
        "sd_vae_hash": null,
        "seed_resize_from_w": -1,
        "seed_resize_from_h": -1,
        "denoising_strength": record.order.request.start.strength,
        "extra_generation_params": extra(&made),
        "index_of_first_image": 0,
        "infotexts": record.pictures.iter().map(|p| p.infotext.as_str()).collect::<Vec<_>>(),
        "styles": [],
        "job_timestamp": timestamp(record.created_at),
        "is_using_inpainting_conditioning": false,
        "version": Settings::this_version(),
        "interrupted": view.state == JobState::Cancelled,
        "berth": berth(record, request),
    });
    info[names::SKIPPED_LAYERS] = json!(1);
    info
}

/// The settings of the first picture; nothing is known where none was made.
fn first_settings(record: &JobRecord) -> Settings {
    let first = record.pictures.first();
    let read = first.and_then(|picture| infotext::read(&picture.infotext).ok());
    read.map(|reading| reading.settings).unwrap_or_default()
}

/// Seeds of the pictures; of those that were to be made where none was.
fn seeds(record: &JobRecord) -> Vec<u64> {
    if !record.pictures.is_empty() {
        return record.pictures.iter().map(|picture| picture.seed).collect();
    }
    match record.order.request.seed {
        Some(crate::job::seed::Seed::Given(seed)) => vec![seed],
        _ => Vec::new(),
    }
}

fn asked_size(record: &JobRecord) -> [u32; 2] {
    let shape = &record.order.request.shape;
    [shape.width, shape.height].map(Option::unwrap_or_default)
}

/// What A1111 has no key of its own for.
fn extra(made: &Settings) -> Value {
    let mut extra = Map::new();
    if let Some(scale) = made.guidance_scale {
        extra.insert("Distilled CFG Scale".to_owned(), json!(scale));
    }
    Value::Object(extra)
}

fn berth(record: &JobRecord, request: &SdapiRequest) -> Value {
    let measured_ms = record.ended_at.zip(record.started_at);
    let notices: Vec<&String> = request.notices.iter().chain(&record.notices).collect();
    json!({
        "job": record.id,
        "substituted": request.substituted,
        "notices": notices,
        "predicted_ms": record.offer.load_ms + record.offer.run_ms,
        "measured_ms": measured_ms.map(|(end, start)| end.saturating_sub(start)),
    })
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

/// A time as A1111 writes it: `20261123030405`, here in UTC.
pub fn timestamp(unix_ms: u64) -> String {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    let time = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
    time.to_zoned(TimeZone::UTC).strftime("%Y%m%d%H%M%S").to_string()
}
