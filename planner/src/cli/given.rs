//! A plan that is given: read, and held against what is asked for and what is here, before anything
//! is loaded.

use std::path::Path;

use anyhow::{Context, Result, bail};
use protocol::plan::{DeviceBackend, DevicePlan, SCHEMA};
use protocol::{BackendKind, Bytes, DeviceId, JobShape, ModelSource, Plan};

use crate::inventory::Inventory;
use crate::planning::{NoRoom, PlanError};
use crate::read::{self, ReadError};

/// Largest plan file. A plan of the largest known model has some 30 kB.
const PLAN_FILE_BYTES_MAX: Bytes = Bytes::mib(16);

/// What helps where a file cannot be a plan.
const READ_HINT: &str = "hint: name a file that `berth plan --output` wrote";

/// Reads a plan that `plan --output` wrote.
pub fn read_plan(path: &Path) -> Result<Plan> {
    let context = || format!("cannot read the plan {}", path.display());
    let text = match read::text(path, PLAN_FILE_BYTES_MAX) {
        Err(ReadError::TooLarge { got, .. }) => {
            bail!("{} has {got}, more than a plan can have; {READ_HINT}", path.display())
        }
        Err(ReadError::NotRegular) => {
            bail!("cannot read the plan {}: it is not a regular file; {READ_HINT}", path.display())
        }
        text => text.with_context(context)?,
    };
    let document: toml::Table = text.parse().with_context(context)?;
    // Told before what is missing: another version may lack anything.
    let schema = document.get("schema").and_then(toml::Value::as_integer);
    if let Some(schema) = schema.filter(|schema| *schema != i64::from(SCHEMA)) {
        bail!(
            "the plan breaks a rule: schema {schema} where {SCHEMA} is understood; hint: {} is of another version of Berth, make a new one by `berth plan --output`",
            path.display()
        );
    }
    toml::from_str(&text).with_context(context)
}

/// Whether a plan is for this model and this job.
pub fn check_plan(plan: &Plan, model: &ModelSource, shape: &JobShape) -> Result<()> {
    if plan.model != *model {
        bail!(
            "the plan is for the model {}, not for {}; hint: name that model, or make a new plan",
            plan.model,
            model
        );
    }
    if plan.job != *shape {
        bail!(
            "the plan is for {}x{}, {} steps{}, batch {}, {} text tokens; hint: ask for the same, or make a new plan",
            plan.job.width,
            plan.job.height,
            plan.job.steps,
            of_picture(&plan.job),
            plan.job.batch,
            plan.job.max_sequence_length
        );
    }
    Ok(())
}

/// What of a job's steps a given picture changes, for people.
fn of_picture(job: &JobShape) -> String {
    match job.init_image {
        true => format!(" of which {} run, from a picture", job.steps_run()),
        false => String::new(),
    }
}

/// Whether what a plan uses is here and free now. Virtual devices are made of the host's memory.
///
/// # Errors
/// A device is not here, this executor cannot compute on it, or less of it is free than the plan
/// takes.
pub fn check_here(
    plan: &Plan,
    inventory: &Inventory,
    backends: &[BackendKind],
) -> Result<(), PlanError> {
    let mut on_host = plan.host.peak_bytes;
    let mut needed = vec![Bytes::ZERO; inventory.devices.len()];
    for (device, place) in plan.devices.iter().zip(inventory.places_of(plan)) {
        match &device.backend {
            _ if device.peak_bytes == Bytes::ZERO => {}
            DeviceBackend::Virtual { .. } => on_host += device.peak_bytes,
            DeviceBackend::Cuda { uuid, .. } => {
                let place = here(device, uuid.as_deref(), place, inventory)?;
                if !backends.contains(&BackendKind::Cuda) {
                    return Err(PlanError::Elsewhere(format!(
                        "the plan computes on {} ({}), and this executor has no backend for CUDA devices; hint: leave out --plan for a plan without it",
                        device.id, device.name
                    )));
                }
                // Parts of one GPU may be the whole of it here.
                needed[place] += device.peak_bytes;
                fits(plan, &device.id, needed[place], inventory.devices[place].free_bytes)?;
            }
        }
    }
    fits(plan, &DeviceId::host(), on_host, inventory.host.available_bytes)
}

/// The place here of the device that a plan means: without a UUID, of the same id and name.
fn here(
    device: &DevicePlan,
    uuid: Option<&str>,
    place: Option<usize>,
    inventory: &Inventory,
) -> Result<usize, PlanError> {
    let same = |at: &usize| uuid.is_some() || inventory.devices[*at].name == device.name;
    place.filter(same).ok_or_else(|| {
        let uuid = uuid.map(|uuid| format!(", {uuid}")).unwrap_or_default();
        PlanError::Elsewhere(format!(
            "the plan was made for another machine: {} ({}{uuid}) is not here; hint: `berth devices` lists what is, without --plan a new plan is made for that",
            device.id, device.name
        ))
    })
}

fn fits(plan: &Plan, id: &DeviceId, needed: Bytes, free: Bytes) -> Result<(), PlanError> {
    if needed <= free {
        return Ok(());
    }
    Err(PlanError::NoRoom(Box::new(NoRoom {
        job: plan.job.clone(),
        device: id.clone(),
        needed_bytes: needed,
        free_bytes: free,
    })))
}

#[cfg(test)]
mod tests {
    use protocol::Faults;
    use protocol::plan::DevicePlan;

    use super::*;
    use crate::inventory::tests::{device_of, host_of};
    use crate::render::testing::{device, plan};

    const BACKENDS: [BackendKind; 2] = [BackendKind::Host, BackendKind::Cuda];

    /// A machine with a card of 12 GiB, of which so much is free.
    fn machine(free: Bytes) -> Inventory {
        let mut card = device_of("cuda0", Bytes::gib(12), free);
        card.uuid = Some("GPU-cuda0".to_owned());
        Inventory {
            source: "test".to_owned(),
            devices: vec![card],
            host: host_of(Bytes::gib(32), Bytes::gib(16)),
            why_no_devices: None,
        }
    }

    fn message(plan: &Plan, inventory: &Inventory, backends: &[BackendKind]) -> String {
        check_here(plan, inventory, backends).expect_err("it is refused").to_string()
    }

    #[test]
    fn what_is_free_decides_and_not_what_was() {
        let plan = plan();
        assert!(check_here(&plan, &machine(Bytes::gib(10)), &BACKENDS).is_ok());
        let error = check_here(&plan, &machine(Bytes(Bytes::gib(10).0 - 1)), &BACKENDS);
        assert!(matches!(error, Err(PlanError::NoRoom(_))), "{error:?}");
        let error = error.unwrap_err().to_string();
        let says = "it takes 10737418240 B (10.0 GiB) of cuda0, 10737418239 B";
        assert!(error.contains(says) && error.contains("\nhint: "), "{error}");
    }

    #[test]
    fn a_device_is_known_by_its_uuid() {
        let mut here = machine(Bytes::gib(12));
        here.devices[0].id = "cuda5".to_owned();
        assert!(check_here(&plan(), &here, &BACKENDS).is_ok());
        here.devices[0].uuid = Some("GPU-other".to_owned());
        let error = message(&plan(), &here, &BACKENDS);
        assert!(error.contains("another machine: cuda0 (Test, GPU-cuda0) is not here"), "{error}");
        assert!(message(&plan(), &machine(Bytes::gib(12)), &[]).contains("no backend for CUDA"));
    }

    #[test]
    fn parts_of_a_gpu_must_fit_into_it_together() {
        let mut plan = plan();
        let second = DevicePlan { id: DeviceId("cuda1".to_owned()), ..plan.devices[0].clone() };
        plan.devices.push(second);
        assert!(check_here(&plan, &machine(Bytes::gib(12)), &BACKENDS).is_err());
        let mut large = machine(Bytes::gib(12));
        (large.devices[0].total_bytes, large.devices[0].free_bytes) =
            (Bytes::gib(24), Bytes::gib(20));
        assert!(check_here(&plan, &large, &BACKENDS).is_ok());
        large.devices[0].free_bytes = Bytes(Bytes::gib(20).0 - 1);
        assert!(message(&plan, &large, &BACKENDS).contains("21474836480 B (20.0 GiB) of cuda1"));
    }

    #[test]
    fn virtual_devices_are_made_of_the_hosts_memory() {
        let mut plan = plan();
        let backend = DeviceBackend::Virtual {
            link_bytes_per_s: 1e9,
            faults: Faults::default(),
            speed: 1.0,
            threads: None,
            unsupported: Vec::new(),
        };
        let of = |id: &str| DevicePlan { backend: backend.clone(), ..device(id, [4, 4, 4]) };
        plan.devices = vec![of("virtual0")];
        let here = machine(Bytes::ZERO);
        assert!(check_here(&plan, &here, &BACKENDS).is_ok(), "8 GiB of 16");
        plan.devices.push(of("virtual1"));
        assert!(message(&plan, &here, &BACKENDS).contains("of host"), "16 GiB and a little of 16");
    }
}
