//! A component of a loaded plan: its schedules, and the memory of each of its lanes.
//!
//! ```text
//! load_resident ─► (in flight) ─► settle ─► enter: arenas, rings ─► runs ─► leave
//! load_lazy     ─►      "      ─►   "                                        └ lazy weights freed
//! ```

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use protocol::plan::ComponentPlan;
use protocol::usage::ComponentUsage;
use protocol::{Bytes, DeviceId, Failure, Phase};

use super::devices::Devices;
use super::verify::Scheduled;
use crate::backend::{
    CancelFlag, LaneMemory, LockedCopy, NodeCall, Queue, Region, Ring, RingItem, RingPlan, Stopped,
    Ticket, WeightLoad, WeightMove,
};
use crate::schedule::weights::{LaneWeights, slice_bytes};
use crate::schedule::{Instruction, Schedule, Variants, WeightPlace, WeightSlice, arena_bytes};
use crate::weights::WeightFiles;

/// What of a loaded plan runs as one: schedules, memory and weights.
pub struct Component {
    /// As the plan calls it.
    pub name: String,
    /// The phase in which it computes.
    pub phase: Phase,
    /// Whether its weights are on their way before that.
    pub prefetch: bool,
    /// Its schedules, one for each size of its inputs. All lay weights out alike.
    pub variants: Variants,
    /// The device of each lane.
    pub devices: Vec<DeviceId>,
    /// The memory of each lane.
    pub memory: Vec<LaneMemory>,
    /// The ring of each lane that has one, in the component's phase.
    pub rings: Vec<Option<Ring>>,
    /// Of each lane the page-locked copies of its streamed weights, by segment.
    locked: Vec<BTreeMap<usize, LockedCopy>>,
    /// From where its weights are mapped.
    pub files: Arc<WeightFiles>,
    /// What its times were since they were last taken.
    pub times: Times,
    calls: u32,
    /// Of each lane the slots of its ring.
    slots: Vec<u32>,
    /// Weights on their way, each to a lane.
    loads: Vec<(usize, Ticket)>,
    stop: CancelFlag,
}

/// The times of a component, and how often it ran.
#[derive(Debug, Default)]
pub struct Times {
    load_ms: Cell<f64>,
    compute_ms: Cell<f64>,
    calls: Cell<u32>,
    sent: Cell<Bytes>,
}

impl Times {
    /// Adds what a part of loading took.
    fn loaded(&self, start: Instant) {
        add_since(&self.load_ms, start);
    }

    /// Adds what a part of a call took.
    pub fn computed(&self, start: Instant) {
        add_since(&self.compute_ms, start);
    }

    /// Counts a call, and adds what it took.
    pub fn count_call(&self, start: Instant) {
        self.computed(start);
        self.calls.set(self.calls.get() + 1);
    }

    /// Adds weights that were sent to a device.
    fn count_sent(&self, bytes: Bytes) {
        self.sent.set(self.sent.get() + bytes);
    }

    /// What there was, if anything, of the component of this name; starts anew.
    pub fn take(&self, name: &str) -> Option<ComponentUsage> {
        let (load_ms, compute_ms) = (self.load_ms.take(), self.compute_ms.take());
        let (calls, sent_bytes) = (self.calls.take(), self.sent.take());
        let used = ComponentUsage { name: name.to_owned(), calls, load_ms, compute_ms, sent_bytes };
        (calls > 0 || load_ms > 0.0).then_some(used)
    }
}

fn add_since(sum_ms: &Cell<f64>, start: Instant) {
    sum_ms.set(sum_ms.get() + start.elapsed().as_secs_f64() * 1e3);
}

/// Which of a component's held weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldWeights {
    Resident,
    Lazy,
}

impl Component {
    /// A component without memory.
    pub fn new(
        plan: &ComponentPlan,
        Scheduled { calls, variants }: Scheduled,
        files: Arc<WeightFiles>,
    ) -> Component {
        let first = &variants[0];
        let weights = |schedule: &Schedule| {
            let lanes = schedule.lanes.iter();
            lanes.map(|lane| lane.weights.slices.clone()).collect::<Vec<_>>()
        };
        let alike = variants.iter().all(|variant| weights(variant) == weights(first));
        assert!(alike, "the sizes of {} lay weights out differently", plan.name);
        Component {
            name: plan.name.clone(),
            phase: plan.phase,
            prefetch: plan.prefetch,
            devices: plan.parts.iter().map(|part| part.device.clone()).collect(),
            memory: first.lanes.iter().map(|_| LaneMemory::default()).collect(),
            rings: first.lanes.iter().map(|_| None).collect(),
            locked: vec![BTreeMap::new(); first.lanes.len()],
            variants,
            files,
            times: Times::default(),
            calls,
            slots: plan.parts.iter().map(|part| part.slots).collect(),
            loads: Vec::new(),
            stop: CancelFlag::default(),
        }
    }

    /// Whether the weights that `before` holds in all phases lie where this one's schedule has
    /// them.
    ///
    /// # Errors
    /// They do not, as a sentence. A plan that passed `check_keeps` does not ask for that.
    pub fn check_keeps(&self, before: &Component) -> Result<(), String> {
        let places = |component: &Component| {
            let lanes = component.variants[0].lanes.iter();
            lanes.map(|lane| resident(&lane.weights)).collect::<Vec<_>>()
        };
        if self.devices == before.devices && places(self) == places(before) {
            return Ok(());
        }
        Err(format!("{} would hold its weights elsewhere than they lie", self.name))
    }

    /// Takes over the weights that `before` holds in all phases, with the loads that are on their
    /// way to them.
    pub fn keep_weights_of(&mut self, before: &mut Component) {
        for (memory, held) in self.memory.iter_mut().zip(&mut before.memory) {
            memory.resident = held.resident.take();
        }
        self.locked = std::mem::take(&mut before.locked);
        self.loads = std::mem::take(&mut before.loads);
        self.stop = before.stop.clone();
    }

    /// Allocates for the weights that are held in all phases, and starts to load them.
    pub fn load_resident(&mut self, devices: &Devices) -> Result<(), Failure> {
        self.allocate_locked(devices)?;
        self.load(devices, HeldWeights::Resident)
    }

    /// Allocates for the page-locked copies of streamed weights; once.
    fn allocate_locked(&mut self, devices: &Devices) -> Result<(), Failure> {
        for (lane, copies) in self.locked.iter_mut().enumerate() {
            let weights = &self.variants[0].lanes[lane].weights;
            if weights.locked.is_empty() || !copies.is_empty() {
                continue;
            }
            let backend = devices.backend(&self.devices[lane]);
            let host = devices.backend(&DeviceId::host()).memory();
            let name = format!("page-locked weights of {}", self.name);
            let region = backend.allocate_locked(host, &name, weights.locked_bytes())?;
            let mut start = Bytes::ZERO;
            for &segment in &weights.locked {
                let (region, filled) = (Arc::clone(&region), Arc::default());
                copies.insert(segment, LockedCopy { region, start, filled });
                start += weights.segment_bytes[segment];
            }
        }
        Ok(())
    }

    /// Allocates for the weights that are held in the component's phase, and starts to load them;
    /// once.
    pub fn load_lazy(&mut self, devices: &Devices) -> Result<(), Failure> {
        self.load(devices, HeldWeights::Lazy)
    }

    fn load(&mut self, devices: &Devices, held: HeldWeights) -> Result<(), Failure> {
        let start = Instant::now();
        let loaded = self.start_load(devices, held);
        // The host's backend has copied then.
        self.times.loaded(start);
        loaded
    }

    fn start_load(&mut self, devices: &Devices, held: HeldWeights) -> Result<(), Failure> {
        for lane in 0..self.memory.len() {
            let weights = &self.variants[0].lanes[lane].weights;
            let (bytes, present) = match held {
                HeldWeights::Resident => (weights.resident_bytes, &self.memory[lane].resident),
                HeldWeights::Lazy => (weights.lazy_bytes, &self.memory[lane].lazy),
            };
            if bytes == Bytes::ZERO || present.is_some() {
                continue;
            }
            let backend = devices.backend(&self.devices[lane]);
            let name = format!("{} weights", self.name);
            let region = backend.allocate(&name, bytes)?;
            let load = WeightLoad {
                files: Arc::clone(&self.files),
                moves: self.moves(lane, |place| match (place, held) {
                    (WeightPlace::Resident(offset), HeldWeights::Resident) => Some(offset),
                    (WeightPlace::Lazy(offset), HeldWeights::Lazy) => Some(offset),
                    _ => None,
                }),
                region: Arc::clone(&region),
                base: Bytes::ZERO,
                stop: self.stop.clone(),
                once: true,
                locked: None,
            };
            let event = devices
                .tracer()
                .and_then(|tracer| tracer.load(&self.devices[lane], &load.writes()));
            self.times.count_sent(load.len());
            self.loads.push((lane, backend.load(load, Queue::Loads).with_event(event)));
            match held {
                HeldWeights::Resident => self.memory[lane].resident = Some(region),
                HeldWeights::Lazy => self.memory[lane].lazy = Some(region),
            }
        }
        Ok(())
    }

    /// Where the weights of a lane go, of those to which `offset` gives a place.
    fn moves(
        &self,
        lane: usize,
        offset: impl Fn(WeightPlace) -> Option<Bytes>,
    ) -> Arc<[WeightMove]> {
        let schedule = &self.variants[0];
        let slices = schedule.lanes[lane].weights.slices.iter();
        let moves = slices.filter_map(|slice| {
            let tensor = schedule.graph.weights[slice.weight.0].tensor;
            let start = tensor.row_bytes().as_usize() * slice.rows.start;
            let bytes = slice_bytes(&schedule.graph, slice.weight, &slice.rows).as_usize();
            let bytes = start..start + bytes;
            offset(slice.place).map(|offset| WeightMove { tensor, bytes, offset })
        });
        moves.collect()
    }

    /// Waits until all weights are there that are on their way.
    pub fn settle(&mut self, devices: &Devices, cancel: &CancelFlag) -> Result<(), Stopped> {
        let start = Instant::now();
        while let Some((lane, ticket)) = self.loads.last() {
            ticket.wait_unless(cancel)?;
            if let Some(tracer) = devices.tracer() {
                tracer.loaded(&self.devices[*lane], ticket.event());
            }
            self.loads.pop();
        }
        self.times.loaded(start);
        Ok(())
    }

    /// The arena that each device must have for it.
    pub fn arenas(&self) -> impl Iterator<Item = (&DeviceId, Bytes)> {
        let lanes = self.devices.iter().enumerate();
        lanes.map(|(lane, device)| (device, arena_bytes(&self.variants, lane)))
    }

    /// Takes the arenas, and starts to fill the rings.
    pub fn enter(
        &mut self,
        devices: &Devices,
        arenas: &BTreeMap<DeviceId, Arc<Region>>,
        cancel: &CancelFlag,
    ) -> Result<(), Failure> {
        for lane in 0..self.memory.len() {
            let device = &self.devices[lane];
            self.memory[lane].arena = arenas.get(device).cloned();
            let weights = &self.variants[0].lanes[lane].weights;
            let slots = self.slots[lane];
            if slots == 0 {
                continue;
            }
            let (backend, slot_bytes) = (devices.backend(device), weights.slot_bytes);
            let bytes = Bytes(slot_bytes.0 * u64::from(slots));
            let name = format!("{} slots", self.name);
            let region = backend.allocate(&name, bytes)?;
            let items = weights.items.iter().enumerate().map(|(item, &segment)| RingItem {
                moves: self.moves(lane, |place| match place {
                    WeightPlace::Slot { item: of, offset } if of == item => Some(offset),
                    _ => None,
                }),
                bytes: weights.segment_bytes[segment],
                locked: self.locked[lane].get(&segment).cloned(),
            });
            let plan = RingPlan {
                region,
                files: Arc::clone(&self.files),
                items: items.collect(),
                calls: self.calls,
            };
            let ring = Ring::start(backend, plan, cancel, devices.tracer().cloned());
            self.rings[lane] = Some(ring);
        }
        self.prepare(devices)
    }

    /// The memory of a lane, with the slot of its present segment where it has a ring.
    pub fn memory_now(&self, lane: usize) -> Cow<'_, LaneMemory> {
        let memory = &self.memory[lane];
        match &self.rings[lane] {
            None => Cow::Borrowed(memory),
            Some(ring) => Cow::Owned(LaneMemory { slot: ring.slot(), ..memory.clone() }),
        }
    }

    /// Lets devices load what its nodes take beside memory.
    fn prepare(&self, devices: &Devices) -> Result<(), Failure> {
        for schedule in &self.variants {
            for instruction in &schedule.program {
                if let Instruction::Run(run) = instruction
                    && !run.is_empty()
                {
                    let (memory, files) = (&*self.memory_now(run.lane), &self.files);
                    let call = NodeCall { schedule, run, memory, files };
                    devices.backend(&self.devices[run.lane]).prepare(&call)?;
                }
            }
        }
        Ok(())
    }

    /// Frees what it has for its phase.
    pub fn leave(&mut self, devices: &Devices) {
        let lanes = self.memory.iter_mut().zip(&mut self.rings).zip(&self.devices);
        for ((memory, ring), device) in lanes {
            let slots = ring.take().map(|ring| {
                self.times.count_sent(ring.sent_bytes());
                ring.region().span()
            });
            if devices.tracer().is_some() {
                let lazy = memory.lazy.iter().map(|lazy| lazy.span());
                slots.into_iter().chain(lazy).for_each(|bytes| devices.free(device, bytes));
            }
            memory.arena = None;
            memory.lazy = None;
        }
    }

    /// Frees what it has for its phase, in the middle of it or of a load before it.
    pub fn abandon(&mut self, devices: &Devices) {
        if self.memory.iter().any(|memory| memory.lazy.is_some()) {
            self.stop_loads();
        }
        self.leave(devices);
    }

    /// Ends all loads, and forgets what they were for: resident weights too are loaded anew then.
    fn stop_loads(&mut self) {
        if self.loads.is_empty() {
            return;
        }
        self.stop.set();
        for (_, ticket) in self.loads.drain(..) {
            // How a load ended that nobody waits for is of no interest.
            let _ = ticket.wait();
        }
        self.stop = CancelFlag::default();
        self.memory.iter_mut().for_each(|memory| memory.resident = None);
    }
}

/// The slices of a lane that are held in all phases, with their places.
fn resident(weights: &LaneWeights) -> Vec<WeightSlice> {
    let is_held = |slice: &&WeightSlice| matches!(slice.place, WeightPlace::Resident(_));
    weights.slices.iter().filter(is_held).cloned().collect()
}

impl Drop for Component {
    fn drop(&mut self) {
        self.stop_loads();
    }
}
