//! Which rings are worth a look where budgets are given: those that there is room for, and that may
//! take no longer than is allowed.

use std::ops::RangeInclusive;
use std::sync::Arc;

use protocol::{Bytes, Residency};

use super::super::super::Problem;
use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::place::{ComponentLayout, PlacePart};
use super::super::super::search::Allowance;
use super::super::super::time::Timing;
use super::{LOOKAHEAD_MAX, Steps, Within};

/// What the earlier sets of a run had room for. Each of them streams less than the next one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fitted {
    sets: u32,
    /// As many slots as any of them leaves room for.
    slots: u32,
}

impl Fitted {
    /// The numbers of slots to try with the next set, which has room for `most`. Usually only those
    /// that no earlier set had room for. The first, second, fourth, eighth set, and so on, has all
    /// numbers, as a plan may need the memory elsewhere.
    pub(super) fn slots_beside(&mut self, most: u32) -> RangeInclusive<u32> {
        self.sets += 1;
        let least = if self.sets.is_power_of_two() { 1 } else { self.slots + 1 };
        self.slots = self.slots.max(most);
        least..=most
    }
}

/// Which sets of one layout are looked at for given budgets.
pub(super) struct Fitting<'a> {
    pub problem: &'a Problem<'a>,
    pub timing: &'a Timing<'a>,
    pub allowance: Option<&'a Allowance>,
    /// Of all that fit the one that may take the least, with that in milliseconds.
    pub least: Option<(f64, Arc<[LaneSet]>)>,
}

impl Fitting<'_> {
    /// The sets that fit with one slot, and may take no longer than is allowed: the first 16 of
    /// them, then fewer and fewer. Each set streams more than the one before it, and is seldom the
    /// best where one that streams less fits.
    pub(super) fn of(&mut self, mut growing: Vec<Arc<[LaneSet]>>) -> Vec<Arc<[LaneSet]>> {
        growing.retain(|stays| self.has(stays));
        let numbers = Steps::Fine.numbers(growing.len());
        let mut number = 0;
        growing.retain(|_| {
            number += 1;
            numbers.binary_search(&number).is_ok()
        });
        growing
    }

    /// Whether a set fits, and may take no longer than is allowed.
    fn has(&mut self, stays: &Arc<[LaneSet]>) -> bool {
        let Some(least) = least(self.problem, self.timing, stays) else { return false };
        let least_ms = least.map(ComponentMs::alone);
        let least_ms = least_ms.into_iter().fold(f64::INFINITY, f64::min);
        if self.least.as_ref().is_none_or(|(other, _)| least_ms < *other) {
            self.least = Some((least_ms, Arc::clone(stays)));
        }
        self.allowance.is_none_or(|allowance| least.iter().any(|ms| allowance.has(*ms)))
    }
}

/// Whether a set fits, and may take no longer than is allowed.
pub(super) fn may_pay(
    problem: &Problem<'_>,
    timing: &Timing<'_>,
    within: Within<'_>,
    stays: &[LaneSet],
) -> bool {
    let least = least(problem, timing, stays);
    least.is_some_and(|least| least.into_iter().any(|ms| within.allows(|| ms)))
}

/// The least that a set takes with as many slots as it has room for, with all that it streams from
/// files, all from page-locked copies, and as much as may be from these; `None` where it does not
/// fit.
fn least(
    problem: &Problem<'_>,
    timing: &Timing<'_>,
    stays: &[LaneSet],
) -> Option<[ComponentMs; 3]> {
    let slots = slots_within(problem, ring_parts(timing.spread(), stays, None));
    if slots == 0 {
        return None;
    }
    let sums = timing.streamed_sums(stays, None);
    let streamed_bytes = sums.bytes();
    let from_files = sums.least(slots);
    let from_copies = sums.all_locked().least(slots);
    // Parts are page-locked on one device, and on several where there is no room for all.
    let spread = timing.spread();
    let in_parts =
        spread.devices.len() == 1 || streamed_bytes > problem.locked_max(&spread.devices);
    let between = if in_parts { from_files.least_of_each(from_copies) } else { from_copies };
    Some([from_files, from_copies, between])
}

/// What a component takes by part where some segments stay, lazy, and of the others some are
/// page-locked: with as many slots as segments are streamed.
pub(super) fn ring_parts(
    spread: &ComponentLayout,
    stays: &[LaneSet],
    locked: Option<&[bool]>,
) -> impl Iterator<Item = PlacePart> {
    let slots = SlotCounts::alike(u32::MAX);
    let part = move |index: usize| {
        PlacePart::with_ring(spread, index, Residency::Lazy, (stays, locked), slots)
    };
    (0..spread.parts.len()).map(part)
}

/// The most slots with which what a component takes fits; 0 where none do, or more is page-locked
/// than may be.
pub(super) fn slots_within(
    problem: &Problem<'_>,
    parts: impl IntoIterator<Item = PlacePart>,
) -> u32 {
    let (mut locked_bytes, mut most) = (Bytes::ZERO, LOOKAHEAD_MAX);
    for part in parts {
        locked_bytes += part.locked_bytes;
        most = most.min(slots_of_part(problem, &part));
        if most == 0 || problem.budgets.pinned.is_some_and(|most| locked_bytes > most) {
            return 0;
        }
    }
    most
}

/// The most slots with which a part fits its device's budget; 0 where it does not.
fn slots_of_part(problem: &Problem<'_>, part: &PlacePart) -> u32 {
    let Some(device) = part.device else { return LOOKAHEAD_MAX };
    let Some(room) = problem.room_for_weights(device, part.compute_bytes) else { return 0 };
    let Some(left) = room.0.checked_sub(part.lazy_bytes.0) else { return 0 };
    // It has no more slots than segments that are streamed.
    if part.staging_bytes().0 <= left {
        return LOOKAHEAD_MAX;
    }
    u32::try_from(left / part.slot_bytes.0).unwrap_or(LOOKAHEAD_MAX)
}
