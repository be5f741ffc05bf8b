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

fn budgets() -> impl Strategy<Value = Vec<u64>> {
    vec(0..20_000u64, 3)
}

/// Indices of the segments of a lane that may be streamed.
fn of_lane(segments: &[Option<Streamable>], lane: usize) -> Vec<usize> {
    let here = |s: &Option<Streamable>| s.is_some_and(|s| s.lane == lane && s.bytes > 0);
    (0..segments.len()).filter(|index| here(&segments[*index])).collect()
}

/// What a lane takes: held weights, and a ring of the largest of the others.
fn taken(segments: &[Option<Streamable>], lane: usize, stays: &[bool], lookahead: u64) -> u64 {
    let (mut held, mut slot, mut streamed) = (0, 0, 0);
    for index in of_lane(segments, lane) {
        let bytes = segments[index].map_or(0, |s| s.bytes);
        if stays[index] {
            held += bytes;
        } else {
            slot = bytes.max(slot);
            streamed += 1;
        }
    }
    held + slot * lookahead.min(streamed)
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
    fn each_number_of_streamed_segments_has_its_set(segments in segments(), budgets in budgets(), lookahead in 1..5u32) {
        let sets = held_sets(&segments, &budgets, lookahead);
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
    fn blocks_are_spread_evenly_and_others_stay_longest(segments in segments(), budgets in budgets(), lookahead in 1..5u32) {
        for stays in held_sets(&segments, &budgets, lookahead) {
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
    fn the_fullest_lane_gives_up_a_segment(segments in segments(), budgets in budgets(), lookahead in 1..5u32) {
        let mut before = vec![true; segments.len()];
        for stays in held_sets(&segments, &budgets, lookahead) {
            let held = |stays: &[bool], lane| of_lane(&segments, lane).iter().filter(|i| stays[**i]).count();
            let gave: Vec<usize> = (0..3).filter(|lane| held(&stays, *lane) < held(&before, *lane)).collect();
            prop_assert_eq!(gave.len(), 1);
            let filled = |lane: usize| {
                let bytes = taken(&segments, lane, &before, u64::from(lookahead));
                bytes as f64 / budgets[lane].max(1) as f64
            };
            for lane in (0..3).filter(|lane| held(&before, *lane) > 0) {
                prop_assert!(filled(gave[0]) >= filled(lane), "lane {lane}");
            }
            before = stays;
        }
    }
}

#[test]
fn a_flux_like_component_streams_its_blocks_first() {
    let segment = |block, bytes| Some(Streamable { lane: 0, block, bytes });
    let segments =
        [vec![segment(false, 10)], vec![segment(true, 100); 4], vec![segment(false, 10)]];
    let sets = held_sets(&segments.concat(), &[1000], 2);
    let shown =
        |stays: &Vec<bool>| stays.iter().map(|s| if *s { '#' } else { '.' }).collect::<String>();
    let shown: Vec<String> = sets.iter().map(shown).collect();
    assert_eq!(shown, ["#.####", "#.#.##", "#...##", "#....#", ".....#", "......"]);
    assert!(held_sets(&[None, segment(true, 0)], &[1000], 2).is_empty());
}
