//! Candidate layouts of components that are pinned to a list of devices: which segment goes where, or how rows are
//! shared. Their exact bytes are asked of the executor.
//!
//! Layers: contiguous segments, at least one for each device. For given shares the one cut that is nearest; for two
//! devices every cut; for more a bounded number around the proportions that memory, speed and equality suggest.
//! Rows: given shares, or the same proportions.

use std::collections::{BTreeSet, VecDeque};

use protocol::limits::ROW_SHARE_MAX;

/// Most layouts of one component over more than two devices, or over two where it has more segments: one half of them for
/// any budget, the other one for the present ones.
pub const CUTS_MAX: usize = 64;

/// The finest share that is chosen: one in so many.
const SHARES: u64 = 1000;

/// Where each device's segments end, but for the last one's: strictly ascending, within 1 to segments - 1.
type Cut = Vec<usize>;

/// Proportions that are tried first: one number for each device.
pub struct Preferences<'a> {
    /// Those that no budget changes, as speed.
    pub lasting: &'a [Vec<u64>],
    /// Those that follow the present budgets.
    pub adapted: &'a [Vec<u64>],
}

/// The cuts of segments with these weights among devices, each with whether the present budgets made it.
///
/// # Panics
/// There are fewer segments than devices.
pub fn layers(
    weights: &[u64],
    devices: usize,
    preferences: &Preferences<'_>,
) -> Vec<(Vec<u32>, bool)> {
    assert!((2..=weights.len()).contains(&devices), "{} segments", weights.len());
    let all = weights.len() - 1;
    let mut cuts: Vec<(Cut, bool)> = Vec::new();
    if devices == 2 && all <= CUTS_MAX {
        cuts.extend((1..=all).map(|end| (vec![end], false)));
    } else {
        let mut seen = BTreeSet::new();
        let mut add = |preferences: &[Vec<u64>], adapted| {
            let seeds = preferences.iter().map(|shares| nearest(weights, shares));
            let found = around(seeds, weights.len(), CUTS_MAX / 2, &mut seen);
            cuts.extend(found.into_iter().map(|cut| (cut, adapted)));
        };
        add(preferences.lasting, false);
        add(preferences.adapted, true);
    }
    cuts.iter().map(|(cut, adapted)| (lanes(cut, weights.len()), *adapted)).collect()
}

/// The one cut of segments with these weights that is nearest to the shares of the devices.
pub fn layers_of_shares(weights: &[u64], shares: &[u64]) -> Vec<u32> {
    lanes(&nearest(weights, shares), weights.len())
}

/// Row shares in the given proportions, each once, with whether the present budgets made them.
pub fn rows(preferences: &Preferences<'_>) -> Vec<(Vec<u32>, bool)> {
    let lasting = preferences.lasting.iter().map(|shares| (scaled(shares), false));
    let adapted = preferences.adapted.iter().map(|shares| (scaled(shares), true));
    let mut seen = BTreeSet::new();
    lasting.chain(adapted).filter(|(shares, _)| seen.insert(shares.clone())).collect()
}

/// Shares as whole numbers in lowest terms, of about [`SHARES`] together and none below 1.
fn scaled(shares: &[u64]) -> Vec<u32> {
    let total: u128 = shares.iter().map(|share| u128::from(*share)).sum::<u128>().max(1);
    let one = |share: &u64| {
        let scaled = (u128::from(*share) * u128::from(SHARES) + total / 2) / total;
        scaled.clamp(1, u128::from(ROW_SHARE_MAX)) as u32
    };
    let shares: Vec<u32> = shares.iter().map(one).collect();
    let common = shares.iter().copied().fold(0, gcd);
    shares.iter().map(|share| share / common).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The cut whose ends are nearest to where the shares of the weights end, each device with a segment at least. Shares
/// of nothing are equal ones.
fn nearest(weights: &[u64], shares: &[u64]) -> Cut {
    let equal = vec![1; shares.len()];
    let shares = if shares.iter().all(|share| *share == 0) { &equal } else { shares };
    let all: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    let total: u128 = weights.iter().map(|bytes| u128::from(*bytes)).sum();
    let mut ends = vec![0u128];
    for bytes in weights {
        ends.push(ends[ends.len() - 1] + u128::from(*bytes));
    }
    let (mut cut, mut given) = (Vec::new(), 0u128);
    for (index, share) in shares.iter().enumerate().take(shares.len() - 1) {
        given += u128::from(*share);
        let first = cut.last().map_or(1, |end| end + 1);
        let last = weights.len() - (shares.len() - 1 - index);
        // Multiplied out, as the share of the total need not be whole.
        let distance = |end: usize| (ends[end] * all).abs_diff(total * given);
        cut.push((first..=last).min_by_key(|end| distance(*end)).expect("room for each device"));
    }
    cut
}

/// At most `most` cuts that were not seen yet: the seeds, then those that differ from them by one end moved by one
/// segment, and so on.
fn around(
    seeds: impl Iterator<Item = Cut>,
    segments: usize,
    most: usize,
    seen: &mut BTreeSet<Cut>,
) -> Vec<Cut> {
    let mut queue: VecDeque<Cut> = seeds.collect();
    let mut passed = BTreeSet::new();
    let mut cuts = Vec::new();
    while let Some(cut) = queue.pop_front().filter(|_| cuts.len() < most) {
        if !passed.insert(cut.clone()) {
            continue;
        }
        for index in 0..cut.len() {
            for end in [cut[index] - 1, cut[index] + 1] {
                let below = if index == 0 { 0 } else { cut[index - 1] };
                let above = cut.get(index + 1).copied().unwrap_or(segments);
                if below < end && end < above {
                    let mut moved = cut.clone();
                    moved[index] = end;
                    queue.push_back(moved);
                }
            }
        }
        if seen.insert(cut.clone()) {
            cuts.push(cut);
        }
    }
    cuts
}

/// The device of each segment.
fn lanes(cut: &Cut, segments: usize) -> Vec<u32> {
    (0..segments).map(|segment| cut.iter().filter(|end| **end <= segment).count() as u32).collect()
}

#[cfg(test)]
mod tests;
