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
        let preferences: Vec<Vec<u64>> = numbers.chunks(8).map(|n| n[..devices].to_vec()).collect();
        let made_of = |adapted| layers(&weights, devices, &Preferences { lasting: &preferences[..2], adapted });
        let marked = made_of(&preferences[2..]);
        let layouts: Vec<Vec<u32>> = marked.iter().map(|(lanes, _)| lanes.clone()).collect();
        prop_assert!((1..=CUTS_MAX).contains(&layouts.len()));
        let distinct: BTreeSet<&Vec<u32>> = layouts.iter().collect();
        prop_assert_eq!(distinct.len(), layouts.len());
        for lanes in &layouts {
            prop_assert_eq!(lanes.len(), weights.len());
            let counts = counts(lanes, devices);
            prop_assert!(counts.iter().all(|count| *count > 0) && counts.iter().sum::<usize>() == weights.len());
        }
        for preference in &preferences {
            prop_assert!(layouts.contains(&layers_of_shares(&weights, preference)));
        }
        // What other budgets would not change is there with them too.
        let lasting: Vec<_> = marked.iter().filter(|(_, adapted)| !adapted).collect();
        let others = made_of(&[]);
        prop_assert_eq!(lasting, others.iter().collect::<Vec<_>>());
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
    fn row_shares_are_small_and_in_proportion(shares in vec(0..u64::MAX, 2..8)) {
        let twice = [shares.clone(), shares.clone()];
        let found = rows(&Preferences { lasting: &twice, adapted: &twice });
        prop_assert_eq!(found.len(), 1, "each once");
        prop_assert!(!found[0].1);
        let found = [&found[0].0];
        let total = shares.iter().map(|s| *s as f64).sum::<f64>();
        let sum = f64::from(found[0].iter().sum::<u32>());
        for (share, found) in shares.iter().zip(found[0]) {
            prop_assert!((1..=ROW_SHARE_MAX).contains(found));
            prop_assert!((f64::from(*found) / sum - *share as f64 / total).abs() < 0.01);
        }
    }
}

#[test]
fn two_devices_have_every_cut_and_more_have_neighbours_of_proportions() {
    let cut = |weights: &[u64], devices, lasting: &[Vec<u64>], adapted: &[Vec<u64>]| {
        layers(weights, devices, &Preferences { lasting, adapted })
    };
    let two = cut(&[1; 5], 2, &[vec![1, 1]], &[]);
    let ends: Vec<usize> = two.iter().map(|(lanes, _)| counts(lanes, 2)[0]).collect();
    assert_eq!(ends, [1, 2, 3, 4]);
    let three = cut(&[1; 60], 3, &[vec![1, 1, 1]], &[vec![4, 1, 1]]);
    assert_eq!(three.len(), CUTS_MAX);
    let (even, rest) = three.split_at(CUTS_MAX / 2);
    assert!(even.iter().all(|(_, adapted)| !adapted) && rest.iter().all(|(_, adapted)| *adapted));
    assert_eq!(counts(&even[0].0, 3), [20, 20, 20]);
    assert_eq!(counts(&rest[0].0, 3), [40, 10, 10]);
    // A small component has all of them.
    assert_eq!(cut(&[1; 6], 3, &[vec![1, 1, 1]], &[vec![3, 2, 1]]).len(), 10);
    assert_eq!(cut(&[7, 7], 2, &[], &[]), [(vec![0, 1], false)]);
}

#[test]
fn shares_are_of_the_weights_and_none_is_empty() {
    assert_eq!(layers_of_shares(&[1, 1, 1, 1, 4], &[1, 1]), [0, 0, 0, 0, 1]);
    assert_eq!(layers_of_shares(&[1; 8], &[3, 1]), [0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(layers_of_shares(&[1; 4], &[1, 1_048_576, 1]), [0, 1, 1, 2]);
    assert_eq!(layers_of_shares(&[1; 3], &[1, 0, 0]), [0, 1, 2]);
    assert_eq!(layers_of_shares(&[1; 4], &[0, 0]), [0, 0, 1, 1]);
    let preferences =
        Preferences { lasting: &[vec![2, 2], vec![3, 1]], adapted: &[vec![5, 5], vec![1, 0]] };
    let expected = [(vec![1, 1], false), (vec![3, 1], false), (vec![1000, 1], true)];
    assert_eq!(rows(&preferences), expected);
}
