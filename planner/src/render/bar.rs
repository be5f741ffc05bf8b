//! A bar of a memory's budget, in characters. The same on every terminal and in every file.
//!
//! Invariants: a bar has [`CELLS`] cells; as many are filled as the share of the budget that is
//! used, to the nearest cell, but one at least where anything is.

/// Cells of a bar: 5 % of the budget each.
pub const CELLS: usize = 20;

/// What fills a cell for each use of memory: weights, compute, staging, fixed.
pub const FILLS: [char; 4] = ['█', '▓', '▒', '░'];

/// A cell that is free.
pub const FREE: char = '·';

/// What the characters mean.
pub fn legend() -> String {
    let [weights, compute, staging, fixed] = FILLS;
    format!(
        "memory, as parts of each budget: {weights} weights  {compute} compute  {staging} staging  {fixed} fixed  {FREE} free"
    )
}

/// The bar of a budget in which `uses` are taken, in the order of [`FILLS`].
pub fn bar(uses: [u64; 4], budget: u64) -> String {
    let mut text = String::new();
    let mut sum = 0_u128;
    let mut filled = 0;
    for (bytes, fill) in uses.into_iter().zip(FILLS) {
        sum += u128::from(bytes);
        let end = cells(sum, budget).max(filled);
        text.extend(std::iter::repeat_n(fill, end - filled));
        filled = end;
    }
    if filled == 0 && sum > 0 {
        let largest = (0..uses.len()).rev().max_by_key(|index| uses[*index]);
        text.push(FILLS[largest.expect("there are uses")]);
        filled = 1;
    }
    text.extend(std::iter::repeat_n(FREE, CELLS - filled));
    text
}

/// Cells up to a sum of bytes, to the nearest; all of them where there is no budget.
fn cells(sum: u128, budget: u64) -> usize {
    let budget = u128::from(budget);
    if sum == 0 {
        return 0;
    }
    if sum >= budget {
        return CELLS;
    }
    ((2 * sum * CELLS as u128 + budget) / (2 * budget)) as usize
}

/// How much of a budget is used, in whole percent, rounded down: 100 % is all of it.
pub fn percent(used: u64, budget: u64) -> String {
    if used == 0 {
        return "0%".to_owned();
    }
    match u128::from(used) * 100 / u128::from(budget.max(1)) {
        0 => "<1%".to_owned(),
        percent => format!("{percent}%"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uses_stand_in_their_order() {
        assert_eq!(bar([50, 25, 15, 10], 100), "██████████▓▓▓▓▓▒▒▒░░");
        assert_eq!(bar([50, 0, 0, 0], 100), "██████████··········");
        assert_eq!(bar([0; 4], 100), "····················");
        assert_eq!(bar([0; 4], 0), "····················");
    }

    #[test]
    fn a_trace_is_seen_and_a_full_budget_is_full() {
        assert_eq!(bar([1, 2, 2, 0], 1_000_000), "▓···················");
        assert_eq!(bar([0, 0, 0, 7], 7), "░░░░░░░░░░░░░░░░░░░░");
        assert_eq!(bar([u64::MAX; 4], u64::MAX), "████████████████████");
    }

    #[test]
    fn percents_are_rounded_down() {
        for (used, budget, text) in [
            (0, 0, "0%"),
            (0, 9, "0%"),
            (1, 1000, "<1%"),
            (999, 1000, "99%"),
            (1000, 1000, "100%"),
            (u64::MAX, u64::MAX, "100%"),
        ] {
            assert_eq!(percent(used, budget), text);
        }
    }

    proptest! {
        #[test]
        fn the_filled_cells_are_the_share(
            uses in prop::array::uniform4(0..1_u64 << 40),
            free in 0..1_u64 << 40,
        ) {
            let used: u64 = uses.iter().sum();
            let text = bar(uses, used + free);
            prop_assert_eq!(text.chars().count(), CELLS);
            let filled = text.chars().filter(|c| *c != FREE).count();
            let share = used as f64 / (used + free).max(1) as f64 * CELLS as f64;
            let least = if used > 0 { 1.0 } else { 0.0 };
            prop_assert!((filled as f64 - share.max(least)).abs() <= 0.5 + 1e-9, "{}", text);
            prop_assert!(free > 0 || used == 0 || filled == CELLS);
            // Each use has its own share too, up to a cell for its two edges.
            for (bytes, fill) in uses.into_iter().zip(FILLS) {
                let has = text.chars().filter(|c| *c == fill).count() as f64;
                let share = bytes as f64 / (used + free).max(1) as f64 * CELLS as f64;
                prop_assert!((has - share).abs() <= 1.0 + 1e-9, "{}: {} of {}", text, has, share);
            }
        }
    }
}
