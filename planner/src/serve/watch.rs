//! The watch: a thread that reads what devices and host have free, and looks for models that came,
//! went or changed.

mod ours;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{io, thread};

use protocol::Bytes;
use serde_json::{Value, json};

use super::catalog::Catalog;
use super::desk::event::SlotFree;
use super::shared::ServedHost;
use crate::engine::lanes::Lanes;
use crate::inventory::{Device, DeviceKind, Inventory};
use ours::OurMemory;

/// Between two readings while something runs.
const EVERY_RUNNING: Duration = Duration::from_secs(1);

/// Between two readings while nothing does: a reading opens the driver's library, which takes tens
/// of milliseconds.
const EVERY_IDLE: Duration = Duration::from_secs(5);

/// Between two looks at the directories of models.
const MODELS_EVERY: Duration = Duration::from_secs(10);

/// What was read at one time.
pub struct HostReading {
    /// What there is and what is free of it, for people.
    pub shown: Value,
    /// What loaded models could have of it; `None` where something runs.
    pub free: Option<Vec<SlotFree>>,
    /// What computes one thing at a time.
    pub lanes: Lanes,
}

/// The watch's thread; it ends with this.
pub struct HostWatch {
    readings: Receiver<HostReading>,
    _end: Sender<()>,
}

impl HostWatch {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(shared: Arc<ServedHost>, catalog: Catalog) -> io::Result<HostWatch> {
        let (sender, readings) = channel();
        let (end, ended) = channel();
        let work = move || watch(&shared, &catalog, &sender, &ended);
        thread::Builder::new().name("watch".to_owned()).spawn(work)?;
        Ok(HostWatch { readings, _end: end })
    }

    /// The readings since the last call.
    pub fn readings(&self) -> impl Iterator<Item = HostReading> {
        self.readings.try_iter()
    }
}

fn watch(
    shared: &ServedHost,
    catalog: &Catalog,
    readings: &Sender<HostReading>,
    end: &Receiver<()>,
) {
    let mut looked_at = Instant::now();
    let mut ours = OurMemory::default();
    loop {
        if let Some(reading) = read(shared, &mut ours)
            && readings.send(reading).is_err()
        {
            return;
        }
        if looked_at.elapsed() >= MODELS_EVERY {
            catalog.rescan_if_changed();
            looked_at = Instant::now();
        }
        let every = if shared.is_running() { EVERY_RUNNING } else { EVERY_IDLE };
        if end.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// What is there and free now, and what idle plans of this daemon hold of it.
fn read(shared: &ServedHost, ours: &mut OurMemory) -> Option<HostReading> {
    let host = shared.host();
    let ran = shared.is_running();
    let inventory = host.profile.profile.inventory();
    let inventory = inventory.inspect_err(|error| tracing::warn!(%error, "no reading")).ok()?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let idle = idle_bytes(shared);
    let mut reading = reading(&inventory, &idle, since_1970.as_millis() as u64);
    ours.renew(&inventory.devices, shared.is_running());
    let margins = shared.margins(&inventory.devices);
    for (index, device) in inventory.devices.iter().enumerate() {
        let shown = &mut reading["devices"][index];
        shown["left_out"] = left_out(shared.outage(device));
        shown["margin_bytes"] = json!(margins.get(index));
        let held = ours.of(device, held(&idle, &device.id));
        shown["ours_bytes"] = json!(held);
        shown["others_bytes"] = json!(held.map(|held| of_others(device, held)));
    }
    let free = (!ran).then(|| shared.free_for_slots(&inventory));
    // What began meanwhile took some of it.
    let free = free.filter(|_| !shared.is_running());
    let mut lanes = Lanes::named(inventory.host.compute.then_some("host"));
    inventory.devices.iter().for_each(|device| lanes.join(&Lanes::of_device(device)));
    Some(HostReading { shown: reading, free, lanes })
}

/// What is taken of a device by others than this daemon.
fn of_others(device: &Device, ours: Bytes) -> Bytes {
    match device.kind {
        // What ours hold of it is not taken off what is free.
        DeviceKind::Virtual => device.used_by_others_bytes,
        DeviceKind::Cuda => {
            device.total_bytes.saturating_sub(device.free_bytes).saturating_sub(ours)
        }
    }
}

fn held(idle: &[(String, Bytes)], id: &str) -> Bytes {
    idle.iter().find(|(known, _)| known == id).map(|(_, bytes)| *bytes).unwrap_or_default()
}

/// For how long a device that failed is left out, and why.
fn left_out(outage: Option<(Duration, String)>) -> Value {
    match outage {
        Some((left, because)) => json!({"seconds": left.as_secs_f64().ceil(), "because": because}),
        None => Value::Null,
    }
}

/// By device, what is held between jobs.
fn idle_bytes(shared: &ServedHost) -> Vec<(String, Bytes)> {
    let mut held: Vec<(String, Bytes)> = Vec::new();
    for loaded in shared.all_loaded() {
        let devices = loaded.plan.devices.iter().map(|device| (&device.id.0, device.idle_bytes));
        for (id, bytes) in devices {
            match held.iter_mut().find(|(known, _)| known == id) {
                Some((_, sum)) => *sum += bytes,
                None => held.push((id.clone(), bytes)),
            }
        }
    }
    held
}

fn reading(inventory: &Inventory, idle: &[(String, Bytes)], unix_ms: u64) -> Value {
    let devices = inventory.devices.iter().map(|device| {
        json!({
            "id": device.id,
            "name": device.name,
            "kind": device.kind,
            "uuid": device.uuid,
            "total_bytes": device.total_bytes,
            "free_bytes": device.free_bytes,
            "idle_bytes": held(idle, &device.id),
        })
    });
    json!({
        "unix_ms": unix_ms,
        "host": {
            "name": inventory.host.name,
            "total_bytes": inventory.host.total_bytes,
            "available_bytes": inventory.host.available_bytes,
        },
        "devices": devices.collect::<Vec<_>>(),
        "why_no_devices": inventory.why_no_devices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_reading_says_what_is_free_and_what_is_ours() {
        let profile = Profile::load("virtual-2x2g").expect("a shipped profile");
        let inventory = profile.inventory().expect("this machine");
        let idle = [("virtual1".to_owned(), Bytes::mib(3))];
        let reading = reading(&inventory, &idle, 1_000);
        assert_eq!(reading["unix_ms"], 1_000);
        let devices = reading["devices"].as_array().expect("a list");
        let [first, second] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!((&first["id"], &first["idle_bytes"]), (&json!("virtual0"), &json!(0)));
        assert_eq!(second["idle_bytes"], 3 << 20);
        assert_eq!(second["total_bytes"], 2_u64 << 30);
        assert!(reading["host"]["available_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    }
}
