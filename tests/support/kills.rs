//! How often something is killed, and when.

/// How many kills a run has: `some`, or what `BERTH_KILLS_MANY` says.
pub fn many(some: usize) -> usize {
    let many = std::env::var("BERTH_KILLS_MANY");
    many.map_or(some, |many| many.parse().expect("BERTH_KILLS_MANY is a number"))
}

/// The `index`-th of numbers spread evenly over 0 to 1, in no order of theirs: any few of them are
/// spread, too.
pub fn moment(index: usize) -> f64 {
    /// The golden ratio's inverse.
    const STEP: f64 = 0.618_033_988_749_894_9;
    ((index + 1) as f64 * STEP).fract()
}
