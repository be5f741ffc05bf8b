//! The knees of a curve: where a little more memory buys most time. Steps of two kinds, the ends
//! left out:
//!
//! - A cliff: faster than the step before it by [`CLIFF_GAIN`] at least, and by a larger factor
//!   than its budget is larger.
//! - A bend: draw the steps by the logarithms of budget and time, so that equal lengths are equal
//!   factors, and a chord from the first to the last. The step that lies deepest below it is a
//!   bend, if it is faster by [`BEND_GAIN`] at least than the chord says for its budget. It parts
//!   the chord in two, for which the same holds.
//!
//! Of more than [`KNEES_MAX`], those with the largest gain.

/// Knees at most.
pub const KNEES_MAX: usize = 5;

/// How much faster a bend must be than the chord above it, as a part of the chord's time: less is
/// within what a predicted time is off by.
pub const BEND_GAIN: f64 = 0.03;

/// How much faster a cliff must be than the step before it, as a part of that one's time.
pub const CLIFF_GAIN: f64 = 0.05;

/// Indices of the knees among steps `(budget_bytes, ms)`, whose budgets rise and times fall; in
/// order.
pub fn knees(steps: &[(u64, f64)]) -> Vec<usize> {
    let [(first, _), .., _] = steps else { return Vec::new() };
    // The logarithm of nothing is none: no device memory counts as half of the least that is any.
    let floor = if *first == 0 { steps[1].0 as f64 / 2.0 } else { *first as f64 };
    let points: Vec<[f64; 2]> =
        steps.iter().map(|(bytes, ms)| [(*bytes as f64).max(floor).ln(), ms.ln()]).collect();
    let mut knees = cliffs(&points);
    for (gain, knee) in bends(&points) {
        match knees.iter_mut().find(|(_, known)| *known == knee) {
            Some((known, _)) => *known = known.max(gain),
            None => knees.push((gain, knee)),
        }
    }
    knees.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut knees: Vec<usize> = knees.into_iter().take(KNEES_MAX).map(|(_, knee)| knee).collect();
    knees.sort_unstable();
    knees
}

/// How much faster something is, as a part of the time that it is below by this in the logarithm.
fn gain(depth: f64) -> f64 {
    -(-depth).exp_m1()
}

/// The cliffs, each with its gain.
fn cliffs(points: &[[f64; 2]]) -> Vec<(f64, usize)> {
    let mut cliffs = Vec::new();
    for (index, pair) in points.windows(2).enumerate().take(points.len() - 2) {
        let ([x1, y1], [x2, y2]) = (pair[0], pair[1]);
        let fall = y1 - y2;
        if gain(fall) >= CLIFF_GAIN && fall >= x2 - x1 {
            cliffs.push((gain(fall), index + 1));
        }
    }
    cliffs
}

/// The bends, each with its gain.
fn bends(points: &[[f64; 2]]) -> Vec<(f64, usize)> {
    let mut bends = Vec::new();
    // Both ends, and the bends so far.
    let mut parts = vec![0, points.len() - 1];
    while bends.len() < KNEES_MAX {
        let deepest = parts.windows(2).filter_map(|part| deepest(points, part[0], part[1]));
        let best = deepest.reduce(|best, one| if one.0 > best.0 { one } else { best });
        let Some((depth, bend)) = best.filter(|(depth, _)| gain(*depth) >= BEND_GAIN) else {
            break;
        };
        bends.push((gain(depth), bend));
        parts.push(bend);
        parts.sort_unstable();
    }
    bends
}

/// The step deepest below the chord from one step to another, and how deep; `None` where there is
/// none between.
fn deepest(points: &[[f64; 2]], from: usize, to: usize) -> Option<(f64, usize)> {
    let ([x1, y1], [x2, y2]) = (points[from], points[to]);
    let slope = (y2 - y1) / (x2 - x1);
    let depth = |index: usize| y1 + slope * (points[index][0] - x1) - points[index][1];
    let depths = (from + 1..to).map(|index| (depth(index), index));
    depths.reduce(|best, one| if one.0 > best.0 { one } else { best })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bend_is_a_knee() {
        // A gentle fall in ever more memory, and before it a steep one in small steps.
        let steep = (0..10).map(|i| (100 + 3 * i, 100.0 * 0.96_f64.powi(i as i32)));
        let gentle = (1..10).map(|i| (127 + 100 * i, 69.0 * 0.995_f64.powi(i as i32)));
        let steps: Vec<(u64, f64)> = steep.chain(gentle).collect();
        assert_eq!(knees(&steps), [9]);
    }

    #[test]
    fn a_cliff_is_a_knee_wherever_it_is() {
        // On its own chord, after a bend that is none.
        let steps = [(100, 100.0), (200, 80.0), (390, 65.0), (400, 57.0), (800, 45.0)];
        assert_eq!(knees(&steps), [3]);
        // As much faster, for much more memory.
        let steps = [(100, 100.0), (200, 80.0), (390, 65.0), (500, 57.0), (800, 45.0)];
        assert_eq!(knees(&steps), [0_usize; 0]);
        // Three times as fast for twice the memory; not a sixth faster for that.
        assert_eq!(knees(&[(2, 90.0), (4, 30.0), (8, 27.0), (16, 25.0)]), [1]);
    }

    #[test]
    fn a_steady_fall_has_none() {
        let steady: Vec<(u64, f64)> = (0..10).map(|i| (1 << i, 1000.0 * 0.7_f64.powi(i))).collect();
        assert_eq!(knees(&steady), [0_usize; 0]);
        assert_eq!(knees(&[]), [0_usize; 0]);
        assert_eq!(knees(&[(4, 3.0)]), [0_usize; 0]);
        assert_eq!(knees(&[(4, 3.0), (5, 1.0)]), [0_usize; 0]);
        // Bent, but by less than a prediction is off.
        assert_eq!(knees(&[(1, 100.0), (2, 98.5), (4, 98.0)]), [0_usize; 0]);
    }

    #[test]
    fn a_curve_may_begin_without_device_memory() {
        assert_eq!(knees(&[(0, 1000.0), (4, 10.0), (400, 9.0)]), [1]);
    }

    proptest! {
        #[test]
        fn knees_are_few_inside_and_worth_it(
            falls in prop::collection::vec((1_u64..1 << 34, 0.3_f64..0.999), 1..40),
        ) {
            let (mut bytes, mut ms) = (1 << 20, 1e5);
            let steps: Vec<(u64, f64)> = falls
                .into_iter()
                .map(|(more, factor)| {
                    bytes += more;
                    ms *= factor;
                    (bytes, ms)
                })
                .collect();
            let knees = knees(&steps);
            prop_assert!(knees.len() <= KNEES_MAX);
            prop_assert!(knees.is_sorted_by(|a, b| a < b));
            for knee in knees {
                prop_assert!(knee > 0 && knee + 1 < steps.len());
                // No chord rises above the first step.
                prop_assert!(steps[knee].1 <= steps[0].1 * (1.0 - BEND_GAIN) * (1.0 + 1e-9));
            }
        }
    }
}
