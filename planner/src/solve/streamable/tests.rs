//! What holds of every chain of held sets.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Segments of up to three lanes, some of which stream nothing.
fn segments() -> impl Strategy<Value = Vec<Option<Streamable>>> {
    let segment = (0..3usize, prop::bool::weighted(0.8), 0..4u64, prop::bool::weighted(0.9));
    let segment = segment.prop_map(|(lane, block, quarters, streams)| {
        streams.then_some(Streamable { lane, block, bytes: 256 * quarters })
    });
    vec(segment, 1..40)
}

/// Which segments stay, where all lanes do alike.
fn flags(stays: Vec<LaneSet>) -> Vec<bool> {
    assert!(stays.iter().all(|lanes| [LaneSet::ALL, LaneSet::NONE].contains(lanes)), "{stays:?}");
    stays.into_iter().map(|lanes| lanes == LaneSet::ALL).collect()
}

fn held_in(
    segments: &[Option<Streamable>],
    lane: usize,
    streamed: usize,
    staying: HeldBlocks,
) -> Option<Vec<bool>> {
    Lane::of(segments, lane, staying).streaming(streamed).map(flags)
}

/// Bytes per second of three lanes.
fn rates() -> impl Strategy<Value = Vec<f64>> {
    vec((1..200u32).prop_map(f64::from), 3)
}

/// Indices of the segments of a lane that may be streamed.
fn of_lane(segments: &[Option<Streamable>], lane: usize) -> Vec<usize> {
    let here = |s: &Option<Streamable>| s.is_some_and(|s| s.lane == lane && s.bytes > 0);
    (0..segments.len()).filter(|index| here(&segments[*index])).collect()
}

/// Bytes of a lane's segments that stay, and of those that do not.
fn held_and_streamed(segments: &[Option<Streamable>], lane: usize, stays: &[bool]) -> (u64, u64) {
    let bytes = |stay: bool| {
        let of_lane = of_lane(segments, lane).into_iter().filter(|index| stays[*index] == stay);
        of_lane.map(|index| segments[index].map_or(0, |s| s.bytes)).sum()
    };
    (bytes(true), bytes(false))
}

/// Lengths of the runs of streamed ones between held ones, around the end.
fn runs(stays: &[bool]) -> Vec<usize> {
    let Some(start) = stays.iter().position(|stays| *stays) else { return vec![stays.len()] };
    let around = stays[start..].iter().chain(&stays[..start]);
    let mut runs = Vec::new();
    for stays in around {
        match runs.last_mut() {
            Some(run) if !stays => *run += 1,
            _ => runs.push(0),
        }
    }
    runs
}

proptest! {
    #[test]
    fn each_number_of_streamed_segments_has_its_set(segments in segments(), rates in rates(), paced in any::<bool>()) {
        let sets = sets(&segments, &rates, paced);
        let streamable = (0..3).map(|lane| of_lane(&segments, lane).len()).sum::<usize>();
        prop_assert_eq!(sets.len(), streamable);
        for (index, stays) in sets.iter().enumerate() {
            prop_assert_eq!(stays.len(), segments.len());
            prop_assert_eq!(stays.iter().filter(|stays| !**stays).count(), index + 1);
            for (segment, stays) in segments.iter().zip(stays) {
                prop_assert!(*stays || segment.is_some_and(|s| s.bytes > 0), "nothing is streamed");
            }
        }
    }

    #[test]
    fn blocks_are_spread_evenly_and_others_stay_longest(segments in segments(), rates in rates(), paced in any::<bool>()) {
        for stays in sets(&segments, &rates, paced) {
            for lane in 0..3 {
                let is_block = |index: &usize| segments[*index].is_some_and(|s| s.block);
                let (blocks, others): (Vec<usize>, Vec<usize>) =
                    of_lane(&segments, lane).into_iter().partition(is_block);
                let stay = |indices: &[usize]| indices.iter().map(|i| stays[*i]).collect::<Vec<_>>();
                for stays in [stay(&blocks), stay(&others)] {
                    let runs = runs(&stays);
                    let (least, most) = (runs.iter().min(), runs.iter().max());
                    prop_assert!(most.unwrap() - least.unwrap() <= 1, "{stays:?}");
                }
                let block_stays = stay(&blocks).contains(&true);
                prop_assert!(!block_stays || !stay(&others).contains(&false));
            }
        }
    }

    #[test]
    fn the_lane_that_holds_most_or_streams_least_gives_up_a_segment(segments in segments(), rates in rates(), paced in any::<bool>()) {
        let mut before = vec![true; segments.len()];
        for stays in sets(&segments, &rates, paced) {
            let held = |stays: &[bool], lane| of_lane(&segments, lane).iter().filter(|i| stays[**i]).count();
            let gave: Vec<usize> = (0..3).filter(|lane| held(&stays, *lane) < held(&before, *lane)).collect();
            prop_assert_eq!(gave.len(), 1);
            for lane in (0..3).filter(|lane| held(&before, *lane) > 0) {
                let ([(most, _), (held, _)], [(_, least), (_, streamed)]) = (
                    [gave[0], lane].map(|lane| held_and_streamed(&segments, lane, &before)),
                    [gave[0], lane].map(|lane| held_and_streamed(&segments, lane, &before)),
                );
                let seconds = |bytes: u64, lane: usize| bytes as f64 / rates[lane];
                match paced {
                    true => prop_assert!(seconds(least, gave[0]) <= seconds(streamed, lane) + 1e-8),
                    false => prop_assert!(most >= held),
                }
            }
            before = stays;
        }
    }
}

proptest! {
    #[test]
    fn what_fits_streams_no_more_than_it_must(
        segments in segments(),
        room in vec(0..3_000u64, 3),
        staying in prop::sample::select(vec![HeldBlocks::Any, HeldBlocks::Largest, HeldBlocks::Between]),
    ) {
        let taken = |stays: &[bool], lane: usize, slots: u64| {
            let streamed = of_lane(&segments, lane).into_iter().filter(|index| !stays[*index]);
            let streamed: Vec<u64> = streamed.map(|index| segments[index].unwrap().bytes).collect();
            let slot = streamed.iter().max().copied().unwrap_or(0);
            held_and_streamed(&segments, lane, stays).0 + slots.min(streamed.len() as u64) * slot
        };
        let fits = |stays: &[bool], slots| (0..3).all(|lane| taken(stays, lane, slots) <= room[lane]);
        let lanes: Vec<Lane> = (0..3).map(|lane| Lane::of(&segments, lane, staying)).collect();
        let sets: Vec<Vec<bool>> = fitting_sets(&lanes, &room, 4).into_iter().map(flags).collect();
        // A device that has nothing of the others' segments is one that decides for itself.
        let apart = |lane| Lane::apart(&segments, lane, staying);
        let apart: Vec<Lane> = (0..3).map(apart).collect();
        let apart = fitting_sets(&apart, &room, 4);
        prop_assert_eq!(apart.len(), sets.len());
        for (stays, apart) in sets.iter().zip(apart) {
            for lane in 0..3 {
                let own = of_lane(&segments, lane);
                prop_assert!(own.iter().all(|index| apart[*index].has(lane) == stays[*index]));
                let others = (0..segments.len()).filter(|index| !own.contains(index));
                prop_assert!(others.into_iter().all(|index| apart[index].has(lane)));
            }
        }
        for stays in &sets {
            prop_assert!(fits(stays, 1));
            let slots = (1..=4).rev().find(|slots| fits(stays, *slots)).unwrap();
            for (lane, room) in room.iter().enumerate() {
                let streamed = of_lane(&segments, lane).iter().filter(|index| !stays[**index]).count();
                if streamed > 0 {
                    let more = held_in(&segments, lane, streamed - 1, staying).unwrap();
                    prop_assert!(taken(&more, lane, slots) > *room, "{stays:?}");
                }
            }
        }
        // Where one slot of everything fits, something is streamed or nothing need be.
        let all = vec![false; segments.len()];
        let whole = vec![true; segments.len()];
        prop_assert!(!sets.is_empty() || fits(&whole, 1) || !fits(&all, 1));
    }

    #[test]
    fn what_is_left_is_filled_up(
        sizes in vec((1..5u64).prop_map(|size| 100 * size + size), 1..30),
        taken in vec(any::<bool>(), 30),
        left in 0..900u64,
    ) {
        let sum = |taken: &[bool]| {
            let taken = sizes.iter().zip(taken).filter(|(_, taken)| **taken);
            taken.map(|(size, _)| *size).sum::<u64>()
        };
        let before = &taken[..sizes.len()];
        let mut after = before.to_vec();
        fill_up(&sizes, &mut after, left);
        let more = sum(&after) - sum(before);
        prop_assert!(more <= left, "{more} of {left}");
        let room = sum(before) + left;
        let others = (0..sizes.len()).filter(|at| !before[*at]);
        for other in others {
            let with = sum(before) + sizes[other];
            prop_assert!(with > room || sum(&after) >= with, "{other} would fill more");
            for own in (0..sizes.len()).filter(|at| before[*at]) {
                let with = with - sizes[own];
                prop_assert!(with > room || sum(&after) >= with, "{other} in place of {own}");
            }
        }
    }

    #[test]
    fn the_largest_blocks_stay_and_every_number_can(segments in segments()) {
        for lane in 0..3 {
            let here = of_lane(&segments, lane);
            for streamed in 0..=here.len() {
                let held = |staying| held_in(&segments, lane, streamed, staying).unwrap();
                let sum = |stays: &[bool]| held_and_streamed(&segments, lane, stays).0;
                let [any, between, largest] =
                    [HeldBlocks::Any, HeldBlocks::Between, HeldBlocks::Largest].map(held);
                for stays in [&any, &between, &largest] {
                    let own = here.iter().filter(|index| !stays[**index]).count();
                    prop_assert_eq!(own, streamed);
                }
                prop_assert!(sum(&largest) >= sum(&between) && sum(&largest) >= sum(&any));
            }
            prop_assert!(Lane::of(&segments, lane, HeldBlocks::Any).streaming(here.len() + 1).is_none());
        }
    }
}

#[test]
fn what_fills_the_room_is_far_from_what_is_taken_or_next_to_what_it_replaces() {
    let filled = |left| {
        let (sizes, mut taken) = ([100, 100, 100, 100, 100, 150, 150], vec![true; 1]);
        taken.resize(sizes.len(), false);
        fill_up(&sizes, &mut taken, left);
        taken.into_iter().map(|taken| if taken { '#' } else { '.' }).collect::<String>()
    };
    assert_eq!(filled(49), "#......");
    assert_eq!(filled(50), ".....#.");
    assert_eq!(filled(100), "#...#..");
    assert_eq!(filled(400), "#..#.##");
}

#[test]
fn blocks_of_different_sizes_stay_in_three_ways() {
    let segment = |bytes| Some(Streamable { lane: 0, block: true, bytes });
    let segments = [vec![segment(200); 4], vec![segment(100); 4]].concat();
    assert_eq!(HeldBlocks::of(&segments).len(), 3);
    assert_eq!(HeldBlocks::of(&segments[..4]), [HeldBlocks::Any]);
    let shown = |staying| -> String {
        let stays = held_in(&segments, 0, 4, staying).unwrap();
        stays.into_iter().map(|stays| if stays { '#' } else { '.' }).collect()
    };
    assert_eq!(shown(HeldBlocks::Any), ".#.#.#.#");
    assert_eq!(shown(HeldBlocks::Largest), "####....");
    assert_eq!(shown(HeldBlocks::Between), ".###...#");
}

/// The sets by rates, or by what is held.
fn sets(segments: &[Option<Streamable>], rates: &[f64], paced: bool) -> Vec<Vec<bool>> {
    let sets = match paced {
        true => paced_sets(segments, rates),
        false => level_sets(segments, rates.len()),
    };
    sets.into_iter().map(flags).collect()
}

#[test]
fn a_flux_like_component_streams_its_blocks_first() {
    let segment = |block, bytes| Some(Streamable { lane: 0, block, bytes });
    let segments =
        [vec![segment(false, 10)], vec![segment(true, 100); 4], vec![segment(false, 10)]];
    let sets = level_sets(&segments.concat(), 1).into_iter().map(flags);
    let shown =
        |stays: Vec<bool>| stays.iter().map(|s| if *s { '#' } else { '.' }).collect::<String>();
    let shown: Vec<String> = sets.map(shown).collect();
    assert_eq!(shown, ["#.####", "#.#.##", "#...##", "#....#", ".....#", "......"]);
    assert!(level_sets(&[None, segment(true, 0)], 1).is_empty());
}
