//! Rings: which segments of a component in a layout are streamed, and through how many slots.
//!
//! Of all that are made, those stay that no other one covers: one that takes no more memory
//! anywhere and no more time.

mod exchanges;
mod fitting;
mod own_slots;
mod sets;
mod tried;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use protocol::profile::ComponentProfile;
use protocol::{Bytes, Residency};
use rayon::prelude::*;

use super::super::Problem;
use super::super::component_ms::ComponentMs;
use super::super::lanes::{LaneSet, SlotCounts};
use super::super::place::{PlacePart, WeightResidency};
use super::super::search::Allowance;
use super::super::time::{StreamedTiming, Timing};
use crate::policy::pins::{Params, Pin};
use fitting::{Fitted, Fitting, may_pay, ring_parts, slots_within};
pub use own_slots::{StreamingSplit, rings_with_own_slots};
use sets::{LOCKED_WAYS, SMALLER_ROOMS, StreamedSet, add_fitting, sets, streamable, waits};

/// The most stream slots on each device that are tried where nobody says how many.
pub const LOOKAHEAD_MAX: u32 = 16;

/// More slots must save so much of a component's time, else fewer are as good: a part of it.
const SLOT_GAIN: f64 = 5e-4;

/// Numbers of slots that are timed beside each other. Over two devices four take less time, but
/// over eight, where few numbers save time, a third more.
const BESIDE: usize = 2;

/// Rings in a block, of some ten thousands in all.
const BLOCK_RINGS: usize = 16;

/// The most that rings take of a device is cut into so many steps. Rings on the same steps of all
/// devices are compared as one block at first. Of 4, 8, 16 and 32 this is the fastest, for 34,012
/// rings over two devices.
const CELLS: u64 = 8;

/// Up to so many segments every number of streamed ones is tried.
const STEPS_ALL: usize = 64;

/// Which numbers of streamed segments are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// Every number; of very many segments, the fine steps.
    All,
    /// Every number up to 16, then steps of about an eighth.
    Fine,
    /// Powers of two.
    Coarse,
    /// All of them: what takes the least memory.
    Last,
}

impl Steps {
    /// The numbers from 1 to `most`, which is among them.
    fn numbers(self, most: usize) -> Vec<usize> {
        let next = |number: usize| match self {
            Steps::All if most <= STEPS_ALL => number + 1,
            Steps::All | Steps::Fine => number + (number / 8).max(1),
            Steps::Coarse => 2 * number,
            Steps::Last => most,
        };
        let first = if self == Steps::Last { most } else { 1 };
        let mut numbers: Vec<usize> =
            std::iter::successors(Some(first), |number| Some(next(*number)))
                .take_while(|number| *number < most)
                .collect();
        if most > 0 {
            numbers.push(most);
        }
        numbers
    }
}

/// Segments that stay, slots for the others, and what that takes.
#[derive(Debug)]
pub struct Ring {
    /// The number of its layout in its list.
    pub layout: usize,
    stays: Arc<[LaneSet]>,
    locked: Option<Arc<[bool]>>,
    slots: SlotCounts,
    /// What the component takes so.
    pub ms: ComponentMs,
    /// Whether any weights stay.
    pub holds: bool,
    /// On each device held weights and slots, and these with the arena; then what is page-locked.
    /// Nothing, of a ring that is compared with no other.
    bytes: Vec<Bytes>,
}

impl Ring {
    /// When its weights are there, with those that stay resident or lazy.
    pub fn with(&self, residency: Residency) -> WeightResidency {
        let (stays, locked) = (Arc::clone(&self.stays), self.locked.clone());
        WeightResidency::Some { residency, stays, locked, slots: self.slots }
    }

    /// The only ring of a layout.
    fn alone(
        timing: &Timing<'_>,
        (stays, locked): (Arc<[LaneSet]>, Option<Arc<[bool]>>),
        slots: SlotCounts,
        ms: ComponentMs,
    ) -> Ring {
        let bytes = Vec::new();
        let holds = holds(ring_parts(timing.spread(), &stays, locked.as_deref()));
        Ring { layout: 0, stays, locked, slots, ms, holds, bytes }
    }

    fn all_ms(&self) -> f64 {
        self.ms.load + self.calls_ms()
    }

    /// Its calls, the first one cold.
    fn calls_ms(&self) -> f64 {
        self.ms.first_read + self.ms.compute
    }
}

/// Which rings are made.
#[derive(Clone, Copy)]
pub enum Within<'a> {
    /// Those for any budgets.
    Memory,
    /// Of these the ones that the problem's budgets have room for and that take no longer than is
    /// allowed: no plan with these budgets has another one.
    Plan(&'a Allowance),
    /// Those that the problem's budgets have room for, and that take no longer than is allowed; the
    /// fastest one where none is within that. `None` allows any time.
    Budgets(Option<&'a Allowance>),
    /// The same, but no set is passed over because one that streams less fits.
    Allowance(&'a Allowance),
}

impl Within<'_> {
    /// Whether other sets and numbers of slots are tried with other budgets.
    fn depends_on_budgets(self) -> bool {
        !matches!(self, Within::Memory | Within::Plan(_))
    }

    fn allows(self, ms: impl FnOnce() -> ComponentMs) -> bool {
        match self {
            Within::Memory | Within::Budgets(None) => true,
            Within::Plan(allowance)
            | Within::Budgets(Some(allowance))
            | Within::Allowance(allowance) => allowance.has(ms()),
        }
    }
}

/// The rings of a component in the layouts of one list, each with its number and its steps.
pub fn rings(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    within: Within<'_>,
    layouts: Vec<(usize, &Timing<'_>, Steps)>,
) -> Vec<Ring> {
    let own = layouts
        .into_par_iter()
        .flat_map_iter(|layout| rings_of(problem, component, pin, within, layout));
    undominated(own.collect())
}

/// The same in one layout.
pub fn rings_of(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    within: Within<'_>,
    layout: (usize, &Timing<'_>, Steps),
) -> Vec<Ring> {
    match pin.params {
        Some(Params::Device | Params::Disk) => Vec::new(),
        _ => undominated(rings_in(problem, component, pin, within, layout)),
    }
}

/// All rings in one layout.
fn rings_in(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    within: Within<'_>,
    (layout, timing, steps): (usize, &Timing<'_>, Steps),
) -> Vec<Ring> {
    let spread = timing.spread();
    if spread.is_on_host() && pin.params.is_none() {
        return Vec::new();
    }
    let segments = streamable(component, spread);
    let mut runs = sets(problem, spread, &segments, pin, steps);
    if within.depends_on_budgets() {
        let smaller = if matches!(within, Within::Allowance(_)) { SMALLER_ROOMS } else { 0 };
        add_fitting(problem, component, spread, &segments, &mut runs, smaller);
    }
    let mut runs = runs.all;
    let among = |growing: &[Arc<[LaneSet]>], within| {
        rings_among(problem, pin, within, growing, (layout, timing, steps))
    };
    if let Within::Plan(_) = within {
        let may_pay = |stays: &Arc<[LaneSet]>| may_pay(problem, timing, within, stays);
        runs.retain(|growing| growing.iter().any(may_pay));
    }
    let Within::Budgets(allowance) = within else {
        let runs = runs.par_iter().with_max_len(1);
        return runs.flat_map_iter(|growing| among(growing, within)).collect();
    };
    let mut fitting = Fitting { problem, timing, allowance, least: None };
    let runs = runs.into_iter().map(|growing| fitting.of(growing));
    let rings: Vec<Ring> = runs.flat_map(|growing| among(&growing, within)).collect();
    match fitting.least {
        Some((_, stays)) if rings.is_empty() => {
            let rings = among(&[stays], Within::Budgets(None)).into_iter();
            rings.min_by(|a, b| a.all_ms().total_cmp(&b.all_ms())).into_iter().collect()
        }
        _ => rings,
    }
}

/// The rings of these sets. Each set streams more than the one before it.
fn rings_among(
    problem: &Problem<'_>,
    pin: &Pin,
    within: Within<'_>,
    growing: &[Arc<[LaneSet]>],
    (layout, timing, steps): (usize, &Timing<'_>, Steps),
) -> Vec<Ring> {
    let mut rings = Vec::new();
    let mut before = [Fitted::default(); LOCKED_WAYS];
    let locked_max =
        within.depends_on_budgets().then(|| problem.locked_max(&timing.spread().devices));
    let sets = waits(timing, growing, pin, steps, locked_max).into_iter();
    for StreamedSet { stays, locked, way } in sets {
        let parts = ring_parts(timing.spread(), &stays, locked.as_deref());
        let parts: Vec<PlacePart> = parts.collect();
        let holds = holds(parts.iter().copied());
        let locked_bytes: Bytes = parts.iter().map(|part| part.locked_bytes).sum();
        let most = match within {
            Within::Memory => LOOKAHEAD_MAX,
            Within::Plan(_) | Within::Budgets(_) | Within::Allowance(_) => {
                slots_within(problem, parts.iter().copied())
            }
        };
        let tried = match within {
            Within::Budgets(_) => before[way].slots_beside(most),
            // Which numbers of slots save time beside others is the same with any budget.
            Within::Memory | Within::Plan(_) | Within::Allowance(_) => 1..=LOOKAHEAD_MAX,
        };
        let least = || timing.streamed_sums(&stays, locked.as_deref()).least(most);
        if most == 0 || tried.is_empty() || !within.allows(least) {
            continue;
        }
        let streamed = timing.streamed(&stays, locked.as_deref());
        let slots = slots(&streamed, pin.lookahead, tried, within).into_iter();
        // Of a pinned number the search says whether it fits.
        let fits = |slots: u32| pin.lookahead.is_some() || slots <= most;
        let slots = slots.filter(|(slots, ms)| fits(*slots) && within.allows(|| *ms));
        rings.extend(slots.map(|(slots, ms)| {
            let mut bytes = Vec::with_capacity(2 * parts.len() + 1);
            for part in &parts {
                let part = PlacePart { slots: part.slots.min(slots), ..*part };
                let held = part.lazy_bytes + part.staging_bytes();
                bytes.extend([held, held + part.compute_bytes]);
            }
            bytes.push(locked_bytes);
            let (stays, locked) = (Arc::clone(&stays), locked.clone());
            let slots = SlotCounts::alike(slots);
            Ring { layout, stays, locked, slots, ms, holds, bytes }
        }));
    }
    rings
}

/// Whether weights stay on any device: those that do are lazy here.
fn holds(mut parts: impl Iterator<Item = PlacePart>) -> bool {
    parts.any(|part| part.lazy_bytes > Bytes::ZERO)
}

/// The rings that no other one covers, in their order. One covers another over the same devices
/// that takes no more of any of them, and no longer, though it may load more before its calls;
/// times less than 0.05 % apart are the same.
fn undominated(rings: Vec<Ring>) -> Vec<Ring> {
    let parts = rings.first().map_or(0, |ring| ring.bytes.len());
    let bytes: Vec<Bytes> = rings.iter().flat_map(|ring| ring.bytes.iter().copied()).collect();
    let of = |index: usize| &bytes[index * parts..(index + 1) * parts];
    let takes_no_more = |a: &[Bytes], b: &[Bytes]| a.iter().zip(b).all(|(a, b)| a <= b);
    let covers = |a: usize, b: usize| {
        let loads_ms = (rings[a].ms.load - rings[b].ms.load).max(0.0);
        takes_no_more(of(a), of(b))
            && time_step(rings[a].calls_ms() + loads_ms) <= time_step(rings[b].calls_ms())
    };
    let mut order: Vec<usize> = (0..rings.len()).collect();
    order.sort_by_cached_key(|index| {
        (time_step(rings[*index].calls_ms()), of(*index).iter().copied().sum::<Bytes>())
    });
    let mut most = vec![Bytes::ZERO; parts];
    for index in 0..rings.len() {
        most.iter_mut().zip(of(index)).for_each(|(most, bytes)| *most = (*most).max(*bytes));
    }
    let cell = |index: usize| -> Vec<u64> {
        let steps = |(bytes, most): (&Bytes, &Bytes)| bytes.0 / (most.0 / CELLS + 1);
        of(index).iter().zip(&most).map(steps).collect()
    };
    let mut blocks: Vec<Block> = Vec::new();
    // The block of each cell that is not full yet.
    let mut open: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
    for index in order {
        let covered = blocks.iter().any(|block| {
            takes_no_more(&block.least, of(index))
                && block.rings.iter().any(|other| covers(*other, index))
        });
        if covered {
            continue;
        }
        let cell = cell(index);
        let at = *open.entry(cell.clone()).or_insert_with(|| {
            blocks.push(Block { rings: Vec::new(), least: of(index).to_vec() });
            blocks.len() - 1
        });
        blocks[at].add(index, of(index));
        if blocks[at].rings.len() == BLOCK_RINGS {
            open.remove(&cell);
        }
    }
    let mut kept: Vec<usize> = blocks.into_iter().flat_map(|block| block.rings).collect();
    kept.sort_unstable();
    let mut kept = kept.into_iter().peekable();
    let rings = rings.into_iter().enumerate();
    rings.filter(|(index, _)| kept.next_if_eq(index).is_some()).map(|(_, ring)| ring).collect()
}

/// Rings that take about as much and are about as fast, by their numbers. What takes less of any
/// device than all of them is covered by none: one look in place of many.
struct Block {
    rings: Vec<usize>,
    /// The least that any takes of each device.
    least: Vec<Bytes>,
}

impl Block {
    fn add(&mut self, ring: usize, bytes: &[Bytes]) {
        self.rings.push(ring);
        for (least, bytes) in self.least.iter_mut().zip(bytes) {
            *least = (*least).min(*bytes);
        }
    }
}

/// The step of a scale that a time is on: steps are 2^-12 to 2^-11 of the time apart, by the upper
/// bits of a float, which are in the order of its values.
fn time_step(ms: f64) -> u64 {
    ms.max(0.0).to_bits() >> (f64::MANTISSA_DIGITS - 1 - 11)
}

/// Numbers of slots, each with the component's time: those that save time beside fewer, up to the
/// one that saves as much as the most. Where not even the most are within what is allowed, only
/// these.
fn slots(
    timing: &StreamedTiming<'_>,
    pinned: Option<u32>,
    tried: RangeInclusive<u32>,
    within: Within<'_>,
) -> Vec<(u32, ComponentMs)> {
    if let Some(slots) = pinned {
        return vec![(slots, timing.ms(SlotCounts::alike(slots)))];
    }
    let most = timing.slots_max().clamp(1, *tried.end());
    let least = most.min(*tried.start());
    let total = |ms: &ComponentMs| ms.first_read + ms.compute;
    let each_ms = |numbers: [u32; BESIDE]| timing.each_ms(numbers.map(SlotCounts::alike));
    let [with_most, with_least] = each_ms([most, least]);
    if !within.allows(|| with_most) {
        return vec![(most, with_most)];
    }
    let enough = total(&with_most) * (1.0 + SLOT_GAIN);
    let mut chosen: Vec<(u32, ComponentMs)> = Vec::new();
    let more = (least + 1..=most).step_by(BESIDE);
    let more = more.flat_map(|first| each_ms(std::array::from_fn(|at| first + at as u32)));
    for (slots, ms) in (least..=most).zip(std::iter::once(with_least).chain(more)) {
        let saves = |(_, fewer): &(u32, ComponentMs)| total(&ms) < total(fewer) * (1.0 - SLOT_GAIN);
        let is_enough = total(&ms) <= enough;
        if chosen.last().is_none_or(saves) {
            chosen.push((slots, ms));
        }
        if is_enough {
            break;
        }
    }
    chosen
}
