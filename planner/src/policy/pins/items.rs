//! Items dealt out to devices: by shares, by speed, or alike; and to the groups of a pipeline.

use protocol::dealt;
use protocol::profile::StepItems;

/// The most items of a step for which every way to deal them out to two devices is tried.
const ALL_COUNTS_MAX: u32 = 16;

/// The numbers of items that devices may have, each once, so that all give the same bits as one
/// device would: by each of some proportions and alike, and over two devices others. None where
/// there are fewer items than devices.
pub fn item_counts(items: StepItems, devices: usize, proportions: &[Vec<u64>]) -> Vec<Vec<u32>> {
    let all = items.count();
    if (all as usize) < devices {
        return Vec::new();
    }
    let equal = vec![1; devices];
    let proportions = proportions.iter().chain([&equal]);
    let mut counts: Vec<Vec<u32>> = proportions.map(|shares| dealt(all, shares)).collect();
    if devices == 2 && all <= ALL_COUNTS_MAX {
        counts.extend((1..all).map(|first| vec![first, all - first]));
    }
    once(items, counts)
}

/// The most groups of items that follow one another through a pipeline: of eight over two devices
/// each waits for an eighth of the time that it computes, and each takes all weights through the
/// processors anew.
const GROUPS_MAX: u32 = 8;

/// The numbers of items that the groups of a pipeline may have, each once, so that all give the
/// same bits as one device would: as many groups as there may be, and as many as devices. None
/// where there are no two.
pub fn group_counts(items: StepItems, devices: usize) -> Vec<Vec<u32>> {
    let in_pass = items.batch / items.run_min.max(1);
    let most = items.passes.saturating_mul(in_pass).min(GROUPS_MAX) as usize;
    let groups = [most, devices.min(most)].into_iter().filter(|groups| *groups >= 2);
    once(items, groups.map(|groups| dealt(items.count(), &vec![1; groups])).collect())
}

/// The numbers of items of devices with these shares; none where they cannot be had so.
pub fn item_counts_of(items: StepItems, shares: &[u32]) -> Vec<Vec<u32>> {
    if (items.count() as usize) < shares.len() {
        return Vec::new();
    }
    let shares: Vec<u64> = shares.iter().map(|share| u64::from(*share)).collect();
    once(items, vec![dealt(items.count(), &shares)])
}

fn once(items: StepItems, counts: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let mut kept: Vec<Vec<u32>> = Vec::new();
    for counts in counts {
        if items.has_same_bits(&counts) && !kept.contains(&counts) {
            kept.push(counts);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(passes: u32, batch: u32, run_min: u32) -> StepItems {
        StepItems { passes, batch, run_min }
    }

    #[test]
    fn items_are_dealt_by_share_one_to_each_at_least() {
        let by = |count, shares: &[u32]| item_counts_of(items(1, count, 1), shares);
        assert_eq!(by(3, &[2, 1]), [[2, 1]]);
        assert_eq!(by(4, &[2, 1]), [[3, 1]]);
        assert_eq!(by(6, &[2, 1]), [[4, 2]]);
        assert_eq!(by(3, &[1, 1]), [[2, 1]]);
        assert_eq!(by(3, &[1000, 1, 1]), [[1, 1, 1]]);
        assert!(by(1, &[1, 1]).is_empty());
    }

    #[test]
    fn two_devices_may_have_any_of_few_items() {
        let counts = item_counts(items(2, 2, 1), 2, &[vec![1, 1], vec![3, 1]]);
        assert_eq!(counts, [[2, 2], [3, 1], [1, 3]]);
        assert_eq!(item_counts(items(1, 3, 1), 3, &[vec![5, 1, 1]]), [[1, 1, 1]]);
    }

    #[test]
    fn groups_are_alike_as_many_as_may_be_and_as_devices() {
        assert_eq!(group_counts(items(1, 4, 1), 2), [vec![1; 4], vec![2, 2]]);
        assert_eq!(group_counts(items(2, 1, 1), 3), [[1, 1]]);
        assert_eq!(group_counts(items(1, 3, 1), 2), [vec![1; 3], vec![2, 1]]);
        assert_eq!(group_counts(items(2, 8, 1), 2), [vec![2; 8], vec![8; 2]]);
        assert!(group_counts(items(1, 1, 1), 2).is_empty());
        // Products of few rows are summed up in another order.
        assert_eq!(group_counts(items(1, 20, 9), 2), [[10, 10]]);
        assert_eq!(group_counts(items(2, 10, 9), 4), [[10, 10]]);
        assert!(group_counts(items(1, 10, 9), 2).is_empty());
    }

    #[test]
    fn items_that_would_differ_in_the_last_bits_are_not_dealt_so() {
        assert!(item_counts(items(1, 10, 9), 2, &[vec![1, 1]]).is_empty());
        assert_eq!(item_counts(items(2, 10, 9), 2, &[vec![3, 1]]), [[10, 10]]);
        assert_eq!(item_counts(items(1, 18, 9), 2, &[vec![1, 1], vec![2, 1]]), [[9, 9]]);
    }
}
