//! A1111's lists: what can be chosen from, mostly nothing. Pure but for [`memory`].

use serde_json::{Value, json};

use super::names::AUTOMATIC;
use crate::inventory::{HostError, Inventory};
use crate::job::request::Sampler;
use crate::serve::edge::sampler;
use crate::serve::edge::settings::EdgeSettings;

/// `sd-models`: a model's title is its name.
pub fn models(settings: &EdgeSettings) -> Value {
    let model = |name: &String| {
        json!({
            "title": name,
            "model_name": name,
            "hash": null,
            "sha256": null,
            // Where it is on this host is nobody else's business.
            "filename": name,
            "config": null,
        })
    };
    settings.models.keys().map(model).collect()
}

/// `samplers`: those of the models.
pub fn samplers() -> Value {
    let row = |rule| {
        json!({
            "name": sampler::name(rule), "aliases": sampler::aliases(rule), "options": {}
        })
    };
    Sampler::ALL.into_iter().map(row).collect()
}

/// `schedulers`: each model has one table of noise levels, its own.
pub fn schedulers() -> Value {
    let (name, label) = AUTOMATIC;
    json!([{
        "name": name, "label": label, "aliases": null, "default_rho": -1.0,
        "need_inner_model": false,
    }])
}

/// `upscalers`: none, which clients expect by name.
pub fn upscalers() -> Value {
    json!([{
        "name": "None", "model_name": null, "model_path": null, "model_url": null, "scale": 1.0,
    }])
}

/// `loras`, by the names that prompts use.
pub fn loras(settings: &EdgeSettings) -> Value {
    let row = |name: &String| json!({"name": name, "alias": name, "path": name, "metadata": {}});
    settings.loras.keys().map(row).collect()
}

/// `scripts`: there are none by which a job could be changed.
pub fn scripts() -> Value {
    json!({ "txt2img": [], "img2img": [] })
}

/// `embeddings`: there are none that a prompt could name.
pub fn embeddings() -> Value {
    json!({ "loaded": {}, "skipped": {} })
}

/// `memory`: of this host and its GPUs, in bytes. Reads `/proc` and asks the driver.
///
/// # Errors
/// The host's memory cannot be read.
pub fn memory() -> Result<Value, HostError> {
    let Inventory { host, devices, .. } = Inventory::of_this_machine()?;
    let sums = |free: u64, total: u64| {
        json!({
            "free": free, "used": total.saturating_sub(free), "total": total,
        })
    };
    let free: u64 = devices.iter().map(|device| device.free_bytes.0).sum();
    let total: u64 = devices.iter().map(|device| device.total_bytes.0).sum();
    let cuda = match devices.is_empty() {
        true => json!({ "error": "unavailable" }),
        false => json!({ "system": sums(free, total) }),
    };
    Ok(json!({ "ram": sums(host.available_bytes.0, host.total_bytes.0), "cuda": cuda }))
}
