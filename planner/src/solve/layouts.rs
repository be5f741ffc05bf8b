//! Candidate layouts of components that are split: which segment goes where, or how rows are
//! shared. Their exact bytes are asked of the executor.
//!
//! No layout depends on a budget, so that what may be chosen with one may be chosen with a larger
//! one. Layers: contiguous segments, at least one for each device. For given shares the one cut
//! that is nearest; for two devices every cut; for three and four those of a grid of proportions;
//! for more some around the proportions that speed, memory and equality suggest, and lopsided ones.
//! Rows and heads: given shares, or a few proportions.

use std::collections::{BTreeSet, VecDeque};

use protocol::limits::ROW_SHARE_MAX;

/// Most layouts of one component over one list of devices, beside the preferred ones.
pub const CUTS_MAX: usize = 64;

/// The finest share that is chosen: one in so many.
const SHARES: u64 = 1000;

/// Shares of two devices are tried in parts of so many.
const ROW_PARTS: u64 = 8;

/// Shares of heads that differ by less than one part of so many are the same: of the largest
/// models, one has 64 heads.
const HEADS_APART: u64 = 128;

/// Of more than four devices the last one may have so many times the segments of each other: what
/// it cannot hold is streamed, while the others hold theirs.
const LOPSIDED: [u64; 7] = [2, 3, 4, 6, 8, 12, 16];

/// Cuts of more than four devices that are made of proportions, the preferred and the lopsided:
/// they come first.
pub const SEEDS: usize = 3 + LOPSIDED.len();

/// Where each device's segments end, but for the last one's: strictly ascending, within 1 to
/// segments - 1.
type Cut = Vec<usize>;

/// The device of each segment, for each cut of segments with these weights among devices.
/// `preferred` proportions, one number for each device, are among them; of the others there are at
/// most `most`.
///
/// # Panics
/// There are fewer segments than devices.
pub fn layers(
    weights: &[u64],
    devices: usize,
    preferred: &[Vec<u64>],
    most: usize,
) -> Vec<Vec<u32>> {
    assert!((2..=weights.len()).contains(&devices), "{} segments", weights.len());
    let all = weights.len() - 1;
    let nearest = |shares: &Vec<u64>| nearest(weights, shares);
    let cuts: Vec<Cut> = match devices {
        2 if all <= most => (1..=all).map(|end| vec![end]).collect(),
        2..=4 => {
            let seeds = preferred.iter().map(nearest);
            let mut seen = BTreeSet::new();
            let grid = grid(devices, most);
            let all = seeds.chain(grid.iter().map(nearest));
            all.filter(|cut| seen.insert(cut.clone())).collect()
        }
        _ => {
            let lopsided = LOPSIDED.map(|times| [vec![1; devices - 1], vec![times]].concat());
            around(preferred.iter().chain(&lopsided).map(nearest), weights.len(), most)
        }
    };
    cuts.iter().map(|cut| lanes(cut, weights.len())).collect()
}

/// The one cut of segments with these weights that is nearest to the shares of the devices.
pub fn layers_of_shares(weights: &[u64], shares: &[u64]) -> Vec<u32> {
    lanes(&nearest(weights, shares), weights.len())
}

/// Row shares, each once: the preferred proportions, and for two devices eighths, if asked for.
pub fn rows(devices: usize, preferred: &[Vec<u64>], in_eighths: bool) -> Vec<Vec<u32>> {
    let mut seen = BTreeSet::new();
    let all = preferred.iter().cloned().chain(eighths(devices, in_eighths));
    all.map(|shares| scaled(&shares)).filter(|shares| seen.insert(shares.clone())).collect()
}

/// Shares of heads and features: equal ones, those with which all devices compute for about as
/// long, the preferred proportions, and for two devices eighths, if asked for. Of those that hardly
/// differ the first: heads are wholes.
pub fn heads(balanced: Vec<u64>, preferred: &[Vec<u64>], in_eighths: bool) -> Vec<Vec<u32>> {
    let devices = balanced.len();
    let first = [vec![1; devices], balanced];
    let all = first.into_iter().chain(preferred.iter().cloned());
    let all = all.chain(eighths(devices, in_eighths));
    let mut kept: Vec<Vec<u32>> = Vec::new();
    for shares in all.map(|shares| scaled(&shares)) {
        if !kept.iter().any(|other| are_near(other, &shares)) {
            kept.push(shares);
        }
    }
    kept
}

/// Whether no device has a share that differs by one part in [`HEADS_APART`] of all.
fn are_near(a: &[u32], b: &[u32]) -> bool {
    let [all_a, all_b] = [a, b].map(|shares| shares.iter().copied().map(u64::from).sum::<u64>());
    let differ = |(a, b): (&u32, &u32)| {
        (u64::from(*a) * all_b).abs_diff(u64::from(*b) * all_a) * HEADS_APART >= all_a * all_b
    };
    !a.iter().zip(b).any(differ)
}

/// For two devices proportions in steps of an eighth.
fn eighths(devices: usize, in_eighths: bool) -> impl Iterator<Item = Vec<u64>> {
    let parts = if devices == 2 && in_eighths { 1..ROW_PARTS } else { 0..0 };
    parts.map(|part| vec![part, ROW_PARTS - part])
}

/// Proportions of so many devices in equal steps, each device with one step at least: as fine as
/// they can be so that there are no more than `most`.
fn grid(devices: usize, most: usize) -> Vec<Vec<u64>> {
    let parts = devices as u64;
    let is_fine = |steps: &u64| compositions_count(*steps, parts) <= most as u64;
    let finest = (parts..).take_while(is_fine).last();
    finest.map_or_else(Vec::new, |steps| compositions(steps, devices))
}

/// How many [`compositions`] a number has: the ways to choose where each part but the last ends.
fn compositions_count(total: u64, parts: u64) -> u64 {
    (1..parts).fold(1, |count, end| count * (total - end) / end)
}

/// All ways to write a number as an ordered sum of so many parts, each at least 1.
fn compositions(total: u64, parts: usize) -> Vec<Vec<u64>> {
    if parts == 1 {
        return vec![vec![total]];
    }
    let firsts = 1..=total.saturating_sub(parts as u64 - 1);
    let with = |first: u64| {
        let rests = compositions(total - first, parts - 1).into_iter();
        rests.map(move |rest| [vec![first], rest].concat())
    };
    firsts.flat_map(with).collect()
}

/// Shares as whole numbers in lowest terms, of about [`SHARES`] together and none below 1.
fn scaled(shares: &[u64]) -> Vec<u32> {
    let total: u128 = shares.iter().map(|share| u128::from(*share)).sum::<u128>().max(1);
    let one = |share: &u64| {
        let scaled = (u128::from(*share) * u128::from(SHARES) + total / 2) / total;
        scaled.clamp(1, u128::from(ROW_SHARE_MAX)) as u32
    };
    in_lowest_terms(shares.iter().map(one).collect())
}

/// The same shares by the smallest whole numbers.
pub fn in_lowest_terms(shares: Vec<u32>) -> Vec<u32> {
    let common = shares.iter().copied().fold(0, gcd).max(1);
    shares.into_iter().map(|share| share / common).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The cut whose ends are nearest to where the shares of the weights end, each device with a
/// segment at least. Shares of nothing are equal ones.
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

/// At most so many cuts: the seeds, then those that differ from them by one end moved by one
/// segment, and so on.
fn around(seeds: impl Iterator<Item = Cut>, segments: usize, most: usize) -> Vec<Cut> {
    let mut queue: VecDeque<Cut> = seeds.collect();
    let mut seen = BTreeSet::new();
    let mut cuts = Vec::new();
    while let Some(cut) = queue.pop_front().filter(|_| cuts.len() < most) {
        if !seen.insert(cut.clone()) {
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
        cuts.push(cut);
    }
    cuts
}

/// The device of each segment.
fn lanes(cut: &Cut, segments: usize) -> Vec<u32> {
    (0..segments).map(|segment| cut.iter().filter(|end| **end <= segment).count() as u32).collect()
}

#[cfg(test)]
mod tests;
