//! What holds of every candidate layout.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Segments of each device; an error where they are not contiguous and in order.
fn counts(lanes: &[u32], devices: usize) -> Vec<usize> {
    assert!(lanes.is_sorted(), "{lanes:?}");
    (0..devices as u32).map(|lane| lanes.iter().filter(|at| **at == lane).count()).collect()
}

proptest! {
    #[test]
    fn every_device_has_contiguous_segments(
        weights in vec(0..5u64, 8..90),
        devices in 2..8usize,
        numbers in vec(0..100u64, 24),
    ) {
        let preferred: Vec<Vec<u64>> = numbers.chunks(8).map(|n| n[..devices].to_vec()).collect();
        let layouts = layers(&weights, devices, &preferred, CUTS_MAX);
        prop_assert!((1..=CUTS_MAX + preferred.len()).contains(&layouts.len()));
        let distinct: BTreeSet<&Vec<u32>> = layouts.iter().collect();
        prop_assert_eq!(distinct.len(), layouts.len());
        for lanes in &layouts {
            prop_assert_eq!(lanes.len(), weights.len());
            let counts = counts(lanes, devices);
            prop_assert!(counts.iter().all(|count| *count > 0) && counts.iter().sum::<usize>() == weights.len());
        }
        for preference in &preferred {
            prop_assert!(layouts.contains(&layers_of_shares(&weights, preference)));
        }
    }

    #[test]
    fn the_nearest_cut_is_nearest(weights in vec(0..50u64, 2..40), shares in vec(0..20u64, 2)) {
        let all = shares.iter().sum::<u64>();
        prop_assume!(all > 0);
        let target = weights.iter().sum::<u64>() as f64 * shares[0] as f64 / all as f64;
        let distance = |end: usize| (weights[..end].iter().sum::<u64>() as f64 - target).abs();
        let chosen = counts(&layers_of_shares(&weights, &shares), 2)[0];
        for end in 1..weights.len() {
            prop_assert!(distance(chosen) <= distance(end) + 1e-9, "{end} is nearer than {chosen}");
        }
    }

    #[test]
    fn row_shares_are_small_and_in_proportion(shares in vec(0..u64::MAX, 3..8)) {
        let found = rows(shares.len(), &[shares.clone(), shares.clone()], true);
        prop_assert_eq!(found.len(), 1, "each once");
        let total = shares.iter().map(|s| *s as f64).sum::<f64>();
        let sum = f64::from(found[0].iter().sum::<u32>());
        for (share, found) in shares.iter().zip(&found[0]) {
            prop_assert!((1..=ROW_SHARE_MAX).contains(found));
            prop_assert!((f64::from(*found) / sum - *share as f64 / total).abs() < 0.01);
        }
    }
}

#[test]
fn two_devices_have_every_cut_three_and_four_a_grid_and_more_what_is_near() {
    let two = layers(&[1; 5], 2, &[vec![1, 1]], CUTS_MAX);
    let ends: Vec<usize> = two.iter().map(|lanes| counts(lanes, 2)[0]).collect();
    assert_eq!(ends, [1, 2, 3, 4]);
    assert_eq!(layers(&[7, 7], 2, &[], 1), [[0, 1]]);
    for (devices, steps) in [(3, 12), (4, 9)] {
        let all = layers(&[1; 180], devices, &[], CUTS_MAX);
        let largest = all.iter().map(|lanes| counts(lanes, devices)[0]).max().unwrap();
        let smallest = all.iter().map(|lanes| counts(lanes, devices)[0]).min().unwrap();
        assert_eq!((smallest, largest), (180 / steps, 180 - (devices - 1) * (180 / steps)));
    }
    // A small component has all of them.
    assert_eq!(layers(&[1; 6], 3, &[], CUTS_MAX).len(), 10);
    let eight = layers(&[1; 80], 8, &[vec![1; 8]], CUTS_MAX);
    assert_eq!((eight.len(), counts(&eight[0], 8)), (CUTS_MAX, vec![10; 8]));
}

#[test]
fn shares_are_of_the_weights_and_none_is_empty() {
    assert_eq!(layers_of_shares(&[1, 1, 1, 1, 4], &[1, 1]), [0, 0, 0, 0, 1]);
    assert_eq!(layers_of_shares(&[1; 8], &[3, 1]), [0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(layers_of_shares(&[1; 4], &[1, 1_048_576, 1]), [0, 1, 1, 2]);
    assert_eq!(layers_of_shares(&[1; 3], &[1, 0, 0]), [0, 1, 2]);
    assert_eq!(layers_of_shares(&[1; 4], &[0, 0]), [0, 0, 1, 1]);
    let found = rows(2, &[vec![2, 2], vec![1, 0]], true);
    let expected = [[1, 1], [1000, 1], [1, 7], [1, 3], [3, 5], [5, 3], [3, 1], [7, 1]];
    assert_eq!(found, expected);
}

#[test]
fn shares_of_heads_that_hardly_differ_are_one() {
    // A little more memory on one of two devices that are alike.
    let shares = heads(vec![500, 500], &[vec![7, 7], vec![1000, 1010], vec![1, 1]], true);
    let expected = [[1, 1], [1, 7], [1, 3], [3, 5], [5, 3], [3, 1], [7, 1]];
    assert_eq!(shares, expected.map(Vec::from));
    // What balances their times comes second, and what lies between is tried too.
    let shares = heads(vec![700_000, 300_000], &[vec![71, 29], vec![2, 1]], true);
    assert_eq!(shares[..4], [[1, 1], [7, 3], [71, 29], [667, 333]].map(Vec::from));
    // Of more devices only what is preferred, and of two where eighths are not asked for.
    assert_eq!(
        heads(vec![7, 3], &[vec![2, 1]], false),
        [[1, 1], [7, 3], [667, 333]].map(Vec::from)
    );
    let three = heads(vec![3, 2, 1], &[vec![1, 1, 1], vec![3, 2, 1]], true);
    assert_eq!(three, [[1, 1, 1], [500, 333, 167]].map(Vec::from));
}
