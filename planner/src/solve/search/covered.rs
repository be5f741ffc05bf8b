//! Which choices need not be searched among: those of one device, or of the host, that another one
//! there covers. It takes no more time in any respect, and no more bytes in any phase. With the
//! other one instead, a combination is no worse.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::super::place::{Place, PlacePart};
use super::super::timeline::Prefetch;
use super::choice::{Choice, Simplicity};

/// Choices that are looked at as one first.
const BLOCK_CHOICES: usize = 16;

/// How many sums of bytes are compared of a place's part: see [`bytes`].
const BYTES: usize = 6;

/// How many figures are compared of a choice: bytes of its device and of the host, and nine others.
const RESPECTS: usize = 2 * BYTES + 9;

/// What a choice takes, in every respect in which one that covers it takes no more. What tells most
/// choices apart comes first.
type Takes = [u64; RESPECTS];

/// The choices without those that another one covers. What covers another choice comes before it in
/// their order, or is its equal.
pub fn undominated(choices: impl Iterator<Item = Choice>, places: &[Place]) -> Vec<Choice> {
    let mut all: Vec<Choice> = choices.collect();
    let mut of_devices: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
    for (number, choice) in all.iter().enumerate() {
        if let [device] = places[choice.index].spread.devices.as_slice() {
            of_devices.entry(*device).or_default().push(number);
        }
    }
    let of_devices: Vec<Vec<usize>> = of_devices.into_values().collect();
    let covered = of_devices.into_par_iter().with_max_len(1).flat_map_iter(|numbers| {
        let mut kept: Vec<ChoiceBlock> = Vec::new();
        let is_covered = |number: &usize| {
            let choice = &all[*number];
            let takes = takes(choice, &places[choice.index]);
            let is_covered = kept.iter().any(|block| block.cover(&takes));
            if !is_covered {
                match kept.last_mut() {
                    Some(block) if block.choices.len() < BLOCK_CHOICES => block.add(takes),
                    _ => kept.push(ChoiceBlock { least: takes, choices: vec![takes] }),
                }
            }
            is_covered
        };
        numbers.into_iter().filter(is_covered).collect::<Vec<_>>()
    });
    let covered: Vec<usize> = covered.collect();
    let mut stays = vec![true; all.len()];
    covered.into_iter().for_each(|number| stays[number] = false);
    let mut stays = stays.into_iter();
    all.retain(|_| stays.next() == Some(true));
    all
}

/// Choices that follow one another. What takes less than all of them in any respect is covered by
/// none: one look in place of many.
struct ChoiceBlock {
    choices: Vec<Takes>,
    /// The least that any takes in each respect.
    least: Takes,
}

impl ChoiceBlock {
    fn add(&mut self, takes: Takes) {
        self.choices.push(takes);
        for (least, own) in self.least.iter_mut().zip(takes) {
            *least = own.min(*least);
        }
    }

    /// Whether one of them takes no more.
    fn cover(&self, takes: &Takes) -> bool {
        takes_no_more(&self.least, takes)
            && self.choices.iter().any(|other| takes_no_more(other, takes))
    }
}

fn takes_no_more(a: &Takes, b: &Takes) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

fn takes(choice: &Choice, place: &Place) -> Takes {
    let interval = choice.interval;
    let Simplicity { copies, locked, parts, fullness } = choice.tie_break.simplicity;
    // The later a load may be on its way, the more it takes.
    let late = match interval.early {
        Prefetch::Any => 0,
        Prefetch::PhaseBefore => 1,
        Prefetch::No => 2,
    };
    // Of what it computes less than another one, it need hide no loads.
    let stores = interval.compute - interval.hides;
    let [mut there, mut host] = [[0; BYTES]; 2];
    for part in place.parts.iter() {
        let of = if part.device.is_some() { &mut there } else { &mut host };
        for (sum, own) in of.iter_mut().zip(bytes(part)) {
            *sum += own;
        }
    }
    let (load, compute, again) = (interval.load, interval.compute, choice.tie_break.again);
    let others = [load, compute, stores, late, again, copies, locked, parts, fullness];
    let mut takes = [0; RESPECTS];
    for (take, own) in takes.iter_mut().zip(there.into_iter().chain(others).chain(host)) {
        *take = own;
    }
    takes
}

/// What is held in the component's own phase, without and with what is mapped, in every phase, in
/// the one before its own, of activations, and what is page-locked.
fn bytes(part: &PlacePart) -> [u64; BYTES] {
    let held = part.held_bytes();
    let each = [
        held,
        held + part.mapped_bytes,
        part.resident_bytes,
        part.resident_bytes + part.early_bytes,
        part.compute_bytes,
        part.locked_bytes,
    ];
    each.map(|bytes| bytes.0)
}
