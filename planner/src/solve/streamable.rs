//! Which segments of a streamed component stay on their devices, for each number of them.
//!
//! Streamed segments are copied while others compute. A run of streamed segments without a held one
//! between them waits for the link at its end; held ones spread evenly give the link the most even
//! load. The ring wraps from the last segment into the next call's first one, so the spread is even
//! around that end too. Where blocks have different sizes there is more than one way: slots have
//! room for the largest streamed one.

use std::cell::OnceCell;
use std::cmp::Reverse;

use super::lanes::LaneSet;

/// How often something is exchanged to fill what room is left.
const EXCHANGES_MAX: usize = 4;

/// A segment that may stay or be streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streamable {
    /// The index of its device; all the same where several have a part of it each.
    pub lane: usize,
    /// Whether it is a block, one of several alike. Others stay for as long as any segment of the
    /// lane does.
    pub block: bool,
    /// Its weights there. What has none stays.
    pub bytes: u64,
}

/// Which blocks of a device stay, where they are of different sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBlocks {
    /// Any, spread evenly: the link has as much to do at any time.
    Any,
    /// The largest: slots are as small as they can be.
    Largest,
    /// Of the larger ones a number half-way between.
    Between,
}

impl HeldBlocks {
    /// The ways that make a difference for these segments.
    pub fn of(segments: &[Option<Streamable>]) -> &'static [HeldBlocks] {
        let mut blocks = segments.iter().flatten().filter(|s| s.block && s.bytes > 0);
        let first = blocks.next().map(|block| block.bytes);
        match blocks.all(|block| Some(block.bytes) == first) {
            true => &[HeldBlocks::Any],
            false => &[HeldBlocks::Any, HeldBlocks::Largest, HeldBlocks::Between],
        }
    }
}

/// For each number of streamed segments, from one to all that have weights, which segments stay.
/// `None` stands for a segment that is never streamed, as the host's; it stays. The segment that
/// goes next is of the lane that holds most; each lane's held blocks are spread evenly among its
/// streamed ones.
pub fn level_sets(segments: &[Option<Streamable>], lanes: usize) -> Vec<Vec<LaneSet>> {
    growing_sets(segments, lanes, |lane, held| Reverse(lane.taken(held).held_bytes))
}

/// The same, where the segment that goes next is of the lane whose streamed ones take the least
/// time at its rate, in bytes per second.
pub fn paced_sets(segments: &[Option<Streamable>], rates: &[f64]) -> Vec<Vec<LaneSet>> {
    // Nanoseconds as whole numbers have an order.
    let nanoseconds = |lane: &Lane, held| {
        (1e9 * lane.taken(held).streamed_bytes as f64 / rates[lane.index].max(1.0)) as u64
    };
    growing_sets(segments, rates.len(), nanoseconds)
}

/// For each number of slots up to `slots_max`, the set in which each lane streams as few segments
/// as it has room for, in bytes of weights and slots: each set once, as far as there is room.
pub fn fitting_sets(lanes: &[Lane], room: &[u64], slots_max: u64) -> Vec<Vec<LaneSet>> {
    let fitting = fitting_lanes(lanes, room);
    let mut sets: Vec<Vec<LaneSet>> = Vec::new();
    for slots in 1..=slots_max {
        let Some(stays) = fitting_set(&fitting, |_| slots) else { return sets };
        if !stays_whole(&stays) && sets.last() != Some(&stays) {
            sets.push(stays);
        }
    }
    sets
}

/// Lanes, each with its room in bytes of weights and slots.
pub fn fitting_lanes<'l>(lanes: &'l [Lane], room: &[u64]) -> Vec<FittingLane<'l>> {
    lanes.iter().zip(room).map(|(lane, room)| lane.fitting(*room)).collect()
}

/// The set in which each lane streams as few segments as it has room for beside its slots; `None`
/// where one has no room for these.
pub fn fitting_set(
    lanes: &[FittingLane<'_>],
    slots: impl Fn(usize) -> u64,
) -> Option<Vec<LaneSet>> {
    let segments = lanes.first().map_or(0, |fitting| fitting.lane.segments);
    let mut stays = vec![LaneSet::ALL; segments];
    let fits = lanes.iter().enumerate().all(|(at, lane)| lane.hold_with(slots(at), &mut stays));
    fits.then_some(stays)
}

/// Whether nothing of a component is streamed.
pub fn stays_whole(stays: &[LaneSet]) -> bool {
    stays.iter().all(|lanes| *lanes == LaneSet::ALL)
}

/// Sets with one more streamed segment each: of the lane with the least of `key`, of those that
/// hold any; the first among equals. The key is of a lane with so many held segments.
fn growing_sets<K: Ord>(
    segments: &[Option<Streamable>],
    lanes: usize,
    key: impl Fn(&Lane, usize) -> K,
) -> Vec<Vec<LaneSet>> {
    let lanes: Vec<Lane> =
        (0..lanes).map(|lane| Lane::of(segments, lane, HeldBlocks::Any)).collect();
    let mut held: Vec<usize> = lanes.iter().map(Lane::count).collect();
    let mut keys: Vec<K> = lanes.iter().zip(&held).map(|(lane, held)| key(lane, *held)).collect();
    let (mut stays, mut sets) = (vec![LaneSet::ALL; segments.len()], Vec::new());
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

/// A segment's index and its weights.
type Sized = (usize, u64);

/// The segments of one device that may be streamed.
pub struct Lane {
    index: usize,
    /// The devices for which it decides: all, where it has segments that no other one has, or where
    /// those with a part of them do alike.
    decides: LaneSet,
    staying: HeldBlocks,
    /// How many segments the component has.
    segments: usize,
    /// One group of all blocks, or a group for each size, the largest first.
    blocks: Vec<Group>,
    others: Group,
    /// What it takes with each number of its segments held, made when it is asked for.
    taken: Vec<OnceCell<Taken>>,
}

/// Segments of which those that stay are spread evenly.
struct Group {
    entries: Vec<Sized>,
    /// Of all of them.
    bytes: u64,
    smallest: u64,
    largest: u64,
}

impl Group {
    fn new(entries: Vec<Sized>) -> Group {
        let sizes = || entries.iter().map(|(_, bytes)| *bytes);
        let (bytes, smallest) = (sizes().sum(), sizes().min().unwrap_or(0));
        Group { bytes, smallest, largest: sizes().max().unwrap_or(0), entries }
    }

    fn count(&self) -> usize {
        self.entries.len()
    }

    /// The entries, and whether each is one of `held` that stay.
    fn spread(&self, held: usize) -> impl Iterator<Item = (Sized, bool)> {
        self.entries.iter().copied().zip(evenly(held, self.count()))
    }

    /// What it takes when `held` of them stay.
    fn taken(&self, held: usize) -> Taken {
        let streamed = (self.count() - held) as u64;
        let is_alike = self.smallest == self.largest;
        let held_bytes = match streamed {
            0 => self.bytes,
            _ if is_alike => held as u64 * self.largest,
            _ => self.spread(held).map(|((_, bytes), stays)| if stays { bytes } else { 0 }).sum(),
        };
        let slot_bytes = match streamed {
            0 => 0,
            _ if is_alike || held == 0 => self.largest,
            _ => {
                let sizes = self.spread(held).map(|((_, bytes), own)| if own { 0 } else { bytes });
                sizes.max().unwrap_or(0)
            }
        };
        Taken { held_bytes, streamed_bytes: self.bytes - held_bytes, streamed, slot_bytes }
    }
}

/// What a lane with some of its segments held takes.
#[derive(Clone, Default)]
struct Taken {
    held_bytes: u64,
    streamed_bytes: u64,
    /// How many segments are streamed.
    streamed: u64,
    /// The largest of those that are streamed.
    slot_bytes: u64,
}

impl Taken {
    fn with_slots(&self, slots: u64) -> u64 {
        self.held_bytes + slots.min(self.streamed) * self.slot_bytes
    }
}

impl Lane {
    /// Of a device whose segments no other device has.
    pub fn of(segments: &[Option<Streamable>], lane: usize, staying: HeldBlocks) -> Lane {
        let here = segments.iter().enumerate().filter_map(|(index, segment)| {
            segment.filter(|s| s.lane == lane && s.bytes > 0).map(|s| (index, s))
        });
        let (blocks, others): (Vec<_>, Vec<_>) = here.partition(|(_, segment)| segment.block);
        let sized = |(index, segment): (usize, Streamable)| (index, segment.bytes);
        let mut blocks: Vec<Sized> = blocks.into_iter().map(sized).collect();
        let blocks = match staying {
            HeldBlocks::Any => vec![Group::new(blocks)],
            HeldBlocks::Largest | HeldBlocks::Between => {
                blocks.sort_by_key(|(_, bytes)| Reverse(*bytes));
                let alike = blocks.chunk_by(|(_, a), (_, b)| a == b);
                alike.map(|group| Group::new(group.to_vec())).collect()
            }
        };
        let others = Group::new(others.into_iter().map(sized).collect());
        let count = blocks.iter().map(Group::count).sum::<usize>() + others.count();
        let (decides, segments) = (LaneSet::ALL, segments.len());
        let taken = vec![OnceCell::new(); count + 1];
        Lane { index: lane, decides, staying, segments, blocks, others, taken }
    }

    /// Of a device that has a part of each segment and decides by itself which of them stay.
    pub fn apart(segments: &[Option<Streamable>], lane: usize, staying: HeldBlocks) -> Lane {
        Lane { decides: LaneSet::from(lane), ..Lane::of(segments, lane, staying) }
    }

    /// With `room` bytes for its weights and slots.
    pub fn fitting(&self, room: u64) -> FittingLane<'_> {
        FittingLane { lane: self, room }
    }

    /// Which segments stay when it streams `streamed` of its own. Those of other lanes all stay.
    /// `None` where it has fewer than that.
    pub fn streaming(&self, streamed: usize) -> Option<Vec<LaneSet>> {
        let held = self.count().checked_sub(streamed)?;
        let mut stays = vec![LaneSet::ALL; self.segments];
        self.hold(held, &mut stays);
        Some(stays)
    }

    fn count(&self) -> usize {
        self.taken.len() - 1
    }

    /// How many of each group stay when `held` segments do: what is no block is streamed last.
    fn held_of_groups(&self, held: usize) -> impl Iterator<Item = (&Group, usize)> {
        let of_others = held.min(self.others.count());
        let mut left = held - of_others;
        let mut behind = self.count() - self.others.count();
        let of_blocks = self.blocks.iter().map(move |group| {
            let evenly = (group.count() * left).div_ceil(behind.max(1));
            behind -= group.count();
            let most = left.min(group.count());
            let own = match self.staying {
                HeldBlocks::Any | HeldBlocks::Largest => most,
                HeldBlocks::Between => (evenly.min(most) + most).div_ceil(2),
            };
            let own = own.max(left.saturating_sub(behind));
            left -= own;
            (group, own)
        });
        of_blocks.chain([(&self.others, of_others)])
    }

    /// The weights of each segment, and whether they stay when `held` segments do.
    fn stays(&self, held: usize) -> impl Iterator<Item = (Sized, bool)> {
        self.held_of_groups(held).flat_map(|(group, held)| group.spread(held))
    }

    /// How many of its segments may stay within `room` bytes at most.
    fn most_within(&self, room: u64) -> usize {
        let most = |room: u64, smallest: u64, count: usize| {
            (room / smallest.max(1)).min(count as u64) as usize
        };
        let others = &self.others;
        match room.checked_sub(others.bytes) {
            None => most(room, others.smallest, others.count()),
            Some(room) => {
                let smallest = self.blocks.iter().map(|group| group.smallest).min().unwrap_or(0);
                others.count() + most(room, smallest, self.count() - others.count())
            }
        }
    }

    /// Notes which of its segments stay when `held` do.
    fn hold(&self, held: usize, stays: &mut [LaneSet]) {
        self.stays(held).for_each(|((index, _), own)| stays[index].set(self.decides, own));
    }

    /// What it takes when `held` segments stay.
    fn taken(&self, held: usize) -> &Taken {
        self.taken[held].get_or_init(|| self.taken_with(held))
    }

    fn taken_with(&self, held: usize) -> Taken {
        self.held_of_groups(held).fold(Taken::default(), |all, (group, held)| {
            let own = group.taken(held);
            Taken {
                held_bytes: all.held_bytes + own.held_bytes,
                streamed_bytes: all.streamed_bytes + own.streamed_bytes,
                streamed: all.streamed + own.streamed,
                slot_bytes: all.slot_bytes.max(own.slot_bytes),
            }
        })
    }
}

/// A lane with its room.
pub struct FittingLane<'l> {
    lane: &'l Lane,
    room: u64,
}

impl FittingLane<'_> {
    /// Notes which of its segments stay where it streams as few as it has room for beside its
    /// `slots`; `false` where it has no room for these.
    fn hold_with(&self, slots: u64, stays: &mut [LaneSet]) -> bool {
        let FittingLane { lane, room } = *self;
        let mut held = (0..=lane.most_within(room)).rev();
        let Some(held) = held.find(|held| lane.taken(*held).with_slots(slots) <= room) else {
            return false;
        };
        let (entries, mut own): (Vec<Sized>, Vec<bool>) = lane.stays(held).unzip();
        let sizes: Vec<u64> = entries.iter().map(|(_, bytes)| *bytes).collect();
        // Slots get no larger: what is streamed in place of another one is smaller than that.
        let blocks = lane.count() - lane.others.count();
        let left = room - lane.taken(held).with_slots(slots);
        fill_up(&sizes[..blocks], &mut own[..blocks], left);
        for ((index, _), own) in entries.into_iter().zip(own) {
            stays[index].set(lane.decides, own);
        }
        true
    }
}

/// Takes one more of some sizes, or one in place of a smaller one, so that the least of `left` is
/// left; then again, a few times. Of those that leave as little the two that are nearest to each
/// other.
pub fn fill_up(sizes: &[u64], taken: &mut [bool], mut left: u64) {
    let mut counts: Vec<SizeCount> = Vec::new();
    for (size, is_taken) in sizes.iter().zip(&*taken) {
        SizeCount::of(&mut counts, *size).number[usize::from(*is_taken)] += 1;
    }
    for _ in 0..EXCHANGES_MAX {
        let sizes_of = |is_taken: bool| {
            let some = counts.iter().filter(move |count| count.number[usize::from(is_taken)] > 0);
            some.map(|count| count.size)
        };
        let exchanges = sizes_of(false)
            .flat_map(|more| sizes_of(true).chain([0]).map(move |less| (more, less)));
        let fits = |(more, less): &(u64, u64)| more > less && more - less <= left;
        let fullest = exchanges.filter(fits).max_by_key(|(more, less)| more - less);
        let Some((more, less)) = fullest else { return };
        exchange(sizes, taken, more, less);
        left -= more - less;
        for (size, was_taken) in [(more, false), (less, true)] {
            if size > 0 {
                let number = &mut SizeCount::of(&mut counts, size).number;
                number[usize::from(was_taken)] -= 1;
                number[usize::from(!was_taken)] += 1;
            }
        }
    }
}

/// How many have a size: those that are not taken, and those that are.
struct SizeCount {
    size: u64,
    number: [usize; 2],
}

impl SizeCount {
    /// Of a size, a new one where there is none.
    fn of(counts: &mut Vec<SizeCount>, size: u64) -> &mut SizeCount {
        let at = counts.iter().position(|count| count.size == size).unwrap_or_else(|| {
            counts.push(SizeCount { size, number: [0; 2] });
            counts.len() - 1
        });
        &mut counts[at]
    }
}

/// Takes one of a size, in place of the nearest one of another size; if that is 0 of none, the one
/// that is farthest from those that are taken.
fn exchange(sizes: &[u64], taken: &mut [bool], more: u64, less: u64) {
    let of = |size: u64, is_taken: bool| {
        let at = sizes.iter().zip(&*taken).enumerate();
        let at = at.filter(move |(_, (own, taken))| **own == size && **taken == is_taken);
        at.map(|(at, _)| at).collect::<Vec<usize>>()
    };
    let others = of(more, false);
    if less > 0 {
        let own = of(less, true);
        let pairs = others.iter().flat_map(|other| own.iter().map(|own| (*other, *own)));
        if let Some((other, own)) = pairs.min_by_key(|(other, own)| own.abs_diff(*other)) {
            (taken[other], taken[own]) = (true, false);
        }
        return;
    }
    let distance = |other: &usize| {
        let own = taken.iter().enumerate().filter(|(_, taken)| **taken);
        own.map(|(own, _)| own.abs_diff(*other)).min()
    };
    if let Some(other) = others.into_iter().max_by_key(distance) {
        taken[other] = true;
    }
}

/// Whether each entry is in `part` of `of` parts of all entries, spread evenly: the i-th of n is
/// where `i·part/of` steps over a whole number, so that gaps differ by at most one, around the end
/// too. There is no end to them.
pub fn evenly(part: usize, of: usize) -> impl Iterator<Item = bool> {
    let mut beyond_whole = 0;
    std::iter::repeat_with(move || {
        beyond_whole += part;
        let is_of_part = beyond_whole >= of;
        beyond_whole -= if is_of_part { of } else { 0 };
        is_of_part
    })
}

#[cfg(test)]
mod tests;
