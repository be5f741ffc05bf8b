//! Which segments of a streamed component stay on their devices, for each number of them.
//!
//! Streamed segments are copied while others compute. A run of streamed segments without a held one
//! between them waits for the link at its end; held ones spread evenly give the link the most even
//! load. The ring wraps from the last segment into the next call's first one, so the spread is even
//! around that end too.

/// A segment that may stay or be streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streamable {
    /// The index of its device; all the same for a row split.
    pub lane: usize,
    /// Whether it is a block, one of several alike. Others stay for as long as any segment of the
    /// lane does.
    pub block: bool,
    /// Its weights there. What has none stays.
    pub bytes: u64,
}

/// For each number of streamed segments, from one to all that have weights, which segments stay.
/// `None` stands for a segment that is never streamed, as the host's; it stays. The segment that
/// goes next is of the lane that is filled furthest, held weights and slots against its budget;
/// each lane's held blocks are spread evenly among its streamed ones.
pub fn held_sets(
    segments: &[Option<Streamable>],
    budgets: &[u64],
    lookahead: u32,
) -> Vec<Vec<bool>> {
    let lanes: Vec<Lane> = (0..budgets.len()).map(|lane| Lane::of(segments, lane)).collect();
    let mut held: Vec<usize> = lanes.iter().map(Lane::count).collect();
    let mut sets = Vec::new();
    while let Some(fullest) = fullest(&lanes, &held, budgets, lookahead) {
        held[fullest] -= 1;
        let mut stays = vec![true; segments.len()];
        for (lane, held) in lanes.iter().zip(&held) {
            for (index, _) in lane.streamed(*held) {
                stays[index] = false;
            }
        }
        sets.push(stays);
    }
    sets
}

/// Which segments stay when so many of one lane's are streamed, and all of the other lanes' stay;
/// `None` where the lane has fewer.
pub fn held_in_lane(
    segments: &[Option<Streamable>],
    lane: usize,
    streamed: usize,
) -> Option<Vec<bool>> {
    let lane = Lane::of(segments, lane);
    let held = lane.count().checked_sub(streamed)?;
    let mut stays = vec![true; segments.len()];
    for (index, _) in lane.streamed(held) {
        stays[index] = false;
    }
    Some(stays)
}

/// The lane with held segments whose weights fill most of its budget; the first among equals.
fn fullest(lanes: &[Lane], held: &[usize], budgets: &[u64], lookahead: u32) -> Option<usize> {
    let filled = |lane: usize| lanes[lane].bytes(held[lane], lookahead);
    let mut best: Option<usize> = None;
    for lane in (0..lanes.len()).filter(|lane| held[*lane] > 0) {
        let fuller = |other: usize| {
            // a / x > b / y without division; an empty budget is filled by anything.
            let [a, b] = [lane, other].map(|lane| u128::from(filled(lane)));
            let [x, y] = [lane, other].map(|lane| u128::from(budgets[lane].max(1)));
            a * y > b * x
        };
        if best.is_none_or(fuller) {
            best = Some(lane);
        }
    }
    best
}

/// The segments of one device that may be streamed, each with its index and weights.
struct Lane {
    blocks: Vec<(usize, u64)>,
    others: Vec<(usize, u64)>,
}

impl Lane {
    fn of(segments: &[Option<Streamable>], lane: usize) -> Lane {
        let here = segments.iter().enumerate().filter_map(|(index, segment)| {
            segment.filter(|s| s.lane == lane && s.bytes > 0).map(|s| (index, s))
        });
        let (blocks, others): (Vec<_>, Vec<_>) = here.partition(|(_, segment)| segment.block);
        let sized = |(index, segment): (usize, Streamable)| (index, segment.bytes);
        Lane {
            blocks: blocks.into_iter().map(sized).collect(),
            others: others.into_iter().map(sized).collect(),
        }
    }

    fn count(&self) -> usize {
        self.blocks.len() + self.others.len()
    }

    /// The segments that are streamed when `held` of them stay: what is no block goes last.
    fn streamed(&self, held: usize) -> Vec<(usize, u64)> {
        let of_blocks = held.saturating_sub(self.others.len());
        let blocks = without(&self.blocks, of_blocks);
        blocks.chain(without(&self.others, held - of_blocks)).copied().collect()
    }

    /// Weights that stay, and slots for the others.
    fn bytes(&self, held: usize, lookahead: u32) -> u64 {
        let all = || self.blocks.iter().chain(&self.others).map(|(_, bytes)| *bytes);
        let streamed = self.streamed(held);
        let streamed_bytes = || streamed.iter().map(|(_, bytes)| *bytes);
        let slots = u64::from(lookahead).min(streamed.len() as u64);
        let ring = slots * streamed_bytes().max().unwrap_or(0);
        all().sum::<u64>() - streamed_bytes().sum::<u64>() + ring
    }
}

/// The entries that are left when `held` of them, spread evenly, are taken out: the i-th of n is
/// taken where `i·held/n` steps over a whole number, so that gaps differ by at most one, around the
/// end too.
fn without<T>(entries: &[T], held: usize) -> impl Iterator<Item = &T> {
    let count = entries.len();
    let taken = move |index: usize| (index + 1) * held / count > index * held / count;
    entries.iter().enumerate().filter(move |(index, _)| !taken(*index)).map(|(_, entry)| entry)
}

#[cfg(test)]
mod tests;
