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
/// goes next is of the lane that holds most; each lane's held blocks are spread evenly among its
/// streamed ones.
pub fn level_sets(segments: &[Option<Streamable>], lanes: usize) -> Vec<Vec<bool>> {
    growing_sets(segments, lanes, |lane, held| std::cmp::Reverse(lane.held_bytes(held)))
}

/// The same, where the segment that goes next is of the lane whose streamed ones take the least
/// time at its rate, in bytes per second.
pub fn paced_sets(segments: &[Option<Streamable>], rates: &[f64]) -> Vec<Vec<bool>> {
    // Nanoseconds as whole numbers have an order.
    let nanoseconds = |lane: &Lane, held| {
        (1e9 * lane.streamed_bytes(held) as f64 / rates[lane.index].max(1.0)) as u64
    };
    growing_sets(segments, rates.len(), nanoseconds)
}

/// Sets with one more streamed segment each: of the lane with the least of `key`, of those that
/// hold any; the first among equals. The key is of a lane with so many held segments.
fn growing_sets<K: Ord>(
    segments: &[Option<Streamable>],
    lanes: usize,
    key: impl Fn(&Lane, usize) -> K,
) -> Vec<Vec<bool>> {
    let lanes: Vec<Lane> = (0..lanes).map(|lane| Lane::of(segments, lane)).collect();
    let mut held: Vec<usize> = lanes.iter().map(Lane::count).collect();
    let mut keys: Vec<K> = lanes.iter().zip(&held).map(|(lane, held)| key(lane, *held)).collect();
    let (mut stays, mut sets) = (vec![true; segments.len()], Vec::new());
    loop {
        let holding = lanes.iter().filter(|lane| held[lane.index] > 0);
        let Some(next) = holding.min_by_key(|lane| &keys[lane.index]) else {
            return sets;
        };
        held[next.index] -= 1;
        keys[next.index] = key(next, held[next.index]);
        next.hold(held[next.index], &mut stays);
        sets.push(stays.clone());
    }
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
    lane.hold(held, &mut stays);
    Some(stays)
}

/// The segments of one device that may be streamed, each with its index and weights.
struct Lane {
    index: usize,
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
            index: lane,
            blocks: blocks.into_iter().map(sized).collect(),
            others: others.into_iter().map(sized).collect(),
        }
    }

    fn count(&self) -> usize {
        self.blocks.len() + self.others.len()
    }

    /// The weights of each segment, and whether they stay when `held` segments do: what is no block
    /// is streamed last.
    fn stays(&self, held: usize) -> impl Iterator<Item = ((usize, u64), bool)> {
        let of_blocks = held.saturating_sub(self.others.len());
        spread(&self.blocks, of_blocks).chain(spread(&self.others, held - of_blocks))
    }

    /// Notes which of its segments stay when `held` do.
    fn hold(&self, held: usize, stays: &mut [bool]) {
        self.stays(held).for_each(|((index, _), own)| stays[index] = own);
    }

    /// Weights that stay when `held` segments do.
    fn held_bytes(&self, held: usize) -> u64 {
        self.stays(held).filter(|(_, stays)| *stays).map(|((_, bytes), _)| bytes).sum()
    }

    /// Weights that are streamed when `held` segments stay.
    fn streamed_bytes(&self, held: usize) -> u64 {
        self.stays(held).filter(|(_, stays)| !*stays).map(|((_, bytes), _)| bytes).sum()
    }
}

/// The entries, and whether each is one of `held` that are spread evenly among them: the i-th of n
/// is where `i·held/n` steps over a whole number, so that gaps differ by at most one, around the
/// end too.
fn spread<T: Copy>(entries: &[T], held: usize) -> impl Iterator<Item = (T, bool)> {
    let count = entries.len();
    let mut beyond_whole = 0;
    entries.iter().map(move |entry| {
        beyond_whole += held;
        let is_held = beyond_whole >= count;
        beyond_whole -= if is_held { count } else { 0 };
        (*entry, is_held)
    })
}

#[cfg(test)]
mod tests;
