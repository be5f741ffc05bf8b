//! A1111's lists: what can be chosen from, mostly nothing. Pure but for [`memory`].

use protocol::sampler::Names;
use protocol::{ModelDescription, Sampler, Scheduler};
use serde_json::{Value, json};

use crate::inventory::{HostError, Inventory};
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
pub fn samplers(settings: &EdgeSettings) -> Value {
    let is_there = |sampler: &Sampler| {
        let mut known = descriptions(settings);
        *sampler == Sampler::default() || known.any(|model| model.samplers.contains(sampler))
    };
    let row = |sampler: Sampler| {
        let Names { label, name, aliases } = sampler.names();
        let others = aliases.iter().filter(|alias| !alias.eq_ignore_ascii_case(label));
        let name = Some(&name).filter(|name| !name.eq_ignore_ascii_case(label));
        let aliases: Vec<&str> = name.into_iter().chain(others).copied().collect();
        json!({ "name": label, "aliases": aliases, "options": {} })
    };
    Sampler::ALL.into_iter().filter(is_there).map(row).collect()
}

/// `schedulers`: those of the models.
pub fn schedulers(settings: &EdgeSettings) -> Value {
    let is_there = |table: &Scheduler| {
        let mut known = descriptions(settings);
        *table == Scheduler::Automatic || known.any(|model| model.schedulers.contains(table))
    };
    let row = |table: Scheduler| {
        let Names { name, label, aliases } = table.names();
        json!({
            "name": name, "label": label, "aliases": aliases, "default_rho": -1.0,
            "need_inner_model": false,
        })
    };
    Scheduler::ALL.into_iter().filter(is_there).map(row).collect()
}

/// What is known of the models.
fn descriptions(settings: &EdgeSettings) -> impl Iterator<Item = &ModelDescription> {
    settings.models.values().filter_map(|model| model.description.as_deref())
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
