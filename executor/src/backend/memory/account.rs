//! A device's memory as an account: what is allocated, the most that was, and the hard capacity.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::{Bytes, DeviceId};

/// An allocation that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} is out of memory: {region}{}{}{}",
    requested_bytes.map_or(String::new(), |bytes| format!(" needs {} B", bytes.0)),
    free_bytes.map_or(String::new(), |free| format!(", {} B are free", free.0)),
    if *limited { " within the process's own limits (ulimit -v, ulimit -d)" } else { "" }
)]
pub struct OutOfMemory {
    /// The device, or `host`.
    pub device: DeviceId,
    /// What was to be allocated; or what a driver was to do, that took memory for it.
    pub region: String,
    /// What one allocation asked for; `None` where a driver does not tell what it takes.
    pub requested_bytes: Option<Bytes>,
    /// Bytes that were free; `None` where nobody knows.
    pub free_bytes: Option<Bytes>,
    /// Whether that is by the process's own limits.
    pub limited: bool,
}

impl OutOfMemory {
    /// What a driver takes of a GPU's memory at a time, at least: the pages by which it maps it.
    pub const DRIVER_BYTES: Bytes = Bytes::mib(2);

    /// A driver that needed memory for itself, for what `what` tells.
    pub fn of_driver(device: DeviceId, what: String, free_bytes: Option<Bytes>) -> OutOfMemory {
        OutOfMemory { device, region: what, requested_bytes: None, free_bytes, limited: false }
    }
}

/// The account of one device.
#[derive(Debug)]
pub struct Memory {
    device: DeviceId,
    fail_allocation: Option<u32>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    capacity: Bytes,
    used: Bytes,
    peak: Bytes,
    allocations: u32,
}

impl Counts {
    fn free(&self) -> Bytes {
        self.capacity.saturating_sub(self.used)
    }
}

impl Memory {
    /// An empty account. The allocation numbered `fail_allocation`, from 1, fails whatever is free.
    pub fn new(device: DeviceId, capacity: Bytes, fail_allocation: Option<u32>) -> Arc<Memory> {
        let counts = Mutex::new(Counts { capacity, ..Counts::default() });
        Arc::new(Memory { device, fail_allocation, counts })
    }

    /// Takes bytes from the account until the charge is dropped.
    pub fn charge(self: &Arc<Self>, region: &str, bytes: Bytes) -> Result<Charge, OutOfMemory> {
        let mut counts = self.counts();
        counts.allocations += 1;
        let free = counts.free();
        if bytes > free || self.fail_allocation == Some(counts.allocations) {
            return Err(OutOfMemory {
                device: self.device.clone(),
                region: region.to_owned(),
                requested_bytes: Some(bytes),
                // A device that someone else filled shows less than its account says.
                free_bytes: Some(free.min(bytes.saturating_sub(Bytes(1)))),
                limited: false,
            });
        }
        if bytes > Bytes::ZERO {
            tracing::debug!(device = %self.device, region, %bytes, "allocates");
        }
        counts.used += bytes;
        counts.peak = counts.peak.max(counts.used);
        Ok(Charge { memory: Arc::clone(self), bytes })
    }

    /// What the account says if the system itself refused an allocation within the capacity, of
    /// which it shows so much as free, if anything.
    pub fn refused(&self, region: &str, bytes: Bytes, free: Option<Bytes>) -> OutOfMemory {
        OutOfMemory {
            device: self.device.clone(),
            region: region.to_owned(),
            requested_bytes: Some(bytes),
            free_bytes: free.map(|free| free.min(bytes.saturating_sub(Bytes(1)))),
            limited: false,
        }
    }

    /// The same of the host's own memory, with what the process's limits left of it.
    pub fn refused_within(&self, region: &str, bytes: Bytes, left: Option<Bytes>) -> OutOfMemory {
        OutOfMemory { limited: left.is_some(), ..self.refused(region, bytes, left) }
    }

    /// Whose account it is.
    pub fn device(&self) -> &DeviceId {
        &self.device
    }

    /// Bytes that can be allocated now.
    pub fn free(&self) -> Bytes {
        self.counts().free()
    }

    /// Gives the account another capacity; what is allocated stays.
    pub fn resize(&self, capacity: Bytes) {
        self.counts().capacity = capacity;
    }

    /// Leaves at most so much to this process, what it has allocated included: someone else took
    /// the rest.
    pub fn shrink(&self, capacity: Bytes) {
        let mut counts = self.counts();
        counts.capacity = counts.capacity.min(capacity);
    }

    /// Bytes allocated now.
    pub fn used(&self) -> Bytes {
        self.counts().used
    }

    /// The most bytes allocated at one time since the last [`Memory::restart_peak`].
    pub fn peak(&self) -> Bytes {
        self.counts().peak
    }

    /// Starts a new peak from what is allocated now.
    pub fn restart_peak(&self) {
        let mut counts = self.counts();
        counts.peak = counts.used;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes taken from an account; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    memory: Arc<Memory>,
    bytes: Bytes,
}

impl Charge {
    /// How much it is.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut counts = self.memory.counts();
        counts.used = counts.used - self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_beyond_the_capacity_is_refused() {
        let memory = Memory::new(DeviceId("virtual0".into()), Bytes(100), None);
        let held = memory.charge("weights", Bytes(60)).unwrap();
        let refused = memory.charge("arena", Bytes(41)).unwrap_err();
        assert_eq!(
            [refused.requested_bytes, refused.free_bytes],
            [Some(Bytes(41)), Some(Bytes(40))]
        );
        let second = memory.charge("arena", Bytes(40)).unwrap();
        assert_eq!((memory.used(), memory.peak()), (Bytes(100), Bytes(100)));
        drop(held);
        memory.restart_peak();
        assert_eq!((memory.used(), memory.peak()), (Bytes(40), Bytes(40)));
        drop(second);
        assert_eq!(memory.used(), Bytes::ZERO);
    }

    #[test]
    fn what_someone_else_took_is_no_more_free_and_what_is_held_stays() {
        let memory = Memory::new(DeviceId("virtual0".into()), Bytes(100), None);
        let held = memory.charge("weights", Bytes(60)).unwrap();
        memory.shrink(Bytes(70));
        assert_eq!((memory.used(), memory.free()), (Bytes(60), Bytes(10)));
        let refused = memory.charge("arena", Bytes(11)).unwrap_err();
        assert_eq!(
            [refused.requested_bytes, refused.free_bytes],
            [Some(Bytes(11)), Some(Bytes(10))]
        );
        // More may be taken than this process left; nothing is given back to it.
        memory.shrink(Bytes(50));
        memory.shrink(Bytes(90));
        assert_eq!((memory.used(), memory.free()), (Bytes(60), Bytes::ZERO));
        drop(held);
        assert!(memory.charge("arena", Bytes(51)).is_err());
        assert!(memory.charge("arena", Bytes(50)).is_ok());
    }

    #[test]
    fn a_driver_that_needs_memory_tells_what_for_and_not_how_much() {
        let what = "cuModuleLoadDataEx of add failed".to_owned();
        let told = OutOfMemory::of_driver(DeviceId("cuda0".into()), what, Some(Bytes(7)));
        let says = "cuda0 is out of memory: cuModuleLoadDataEx of add failed, 7 B are free";
        assert_eq!(told.to_string(), says);
    }

    #[test]
    fn the_numbered_allocation_fails_once() {
        let memory = Memory::new(DeviceId("virtual0".into()), Bytes(100), Some(2));
        let _first = memory.charge("weights", Bytes(10)).unwrap();
        assert!(memory.charge("arena", Bytes(10)).is_err());
        assert!(memory.charge("arena", Bytes(10)).is_ok());
    }
}
