//! An axis of a plot: its unit, its scale, and where it has ticks.
//!
//! Logarithmic where its values span more than [`LOG_FROM`], so that equal lengths are equal
//! factors; else linear, and then from 0 on where heights are compared.

use protocol::Bytes;

/// How many times its least value an axis' largest is for it to be logarithmic.
const LOG_FROM: f64 = 4.0;

/// Ticks at most.
const TICKS_MAX: usize = 9;

/// Room before the first value and after the last, as a part of the axis.
const PADDING: f64 = 0.08;

/// A unit: its name, and how much one of it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    pub name: &'static str,
    pub size: f64,
    /// Whether it is of bytes: those are halved and doubled, other units divided by ten.
    binary: bool,
}

impl Unit {
    /// For sizes up to this.
    pub fn of_bytes(largest: Bytes) -> Unit {
        let unit = |name, size: Bytes| Unit { name, size: size.0 as f64, binary: true };
        match largest {
            bytes if bytes >= Bytes::gib(2) => unit("GiB", Bytes::gib(1)),
            bytes if bytes >= Bytes::mib(2) => unit("MiB", Bytes::mib(1)),
            _ => unit("KiB", Bytes::kib(1)),
        }
    }

    /// For times up to this, in milliseconds.
    pub fn of_ms(largest: f64) -> Unit {
        let unit = |name, size| Unit { name, size, binary: false };
        match largest {
            ms if ms >= 300_000.0 => unit("minutes", 60_000.0),
            ms if ms >= 2000.0 => unit("seconds", 1000.0),
            _ => unit("milliseconds", 1.0),
        }
    }
}

impl Unit {
    /// A value in bytes or milliseconds, to three digits, with the unit as people abbreviate it.
    pub fn shown(&self, value: f64) -> String {
        let value = value / self.size;
        let digits = match value {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        let short = match self.name {
            "minutes" => "min",
            "seconds" => "s",
            "milliseconds" => "ms",
            name => name,
        };
        format!("{value:.digits$} {short}")
    }
}

/// An axis over a range of values, in their unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    unit: Unit,
    is_log: bool,
    /// First and last position.
    ends: [f64; 2],
}

impl Axis {
    /// An axis from the least value to the largest, both above 0, with some room on both sides. A
    /// linear one begins at 0 where that is asked for.
    pub fn new(unit: Unit, least: f64, largest: f64, from_zero: bool) -> Axis {
        let is_log = largest > LOG_FROM * least;
        let place = |value: f64| if is_log { (value / unit.size).ln() } else { value / unit.size };
        let [first, last] = [place(least), place(largest)];
        // A single value has room as its own size has.
        let length = if last > first { last - first } else { last.abs().max(1.0) };
        let [first, last] = [first - PADDING * length, last + PADDING * length];
        Axis { unit, is_log, ends: [if from_zero && !is_log { 0.0 } else { first }, last] }
    }

    /// First and last position.
    pub fn ends(&self) -> [f64; 2] {
        self.ends
    }

    /// What its numbers count.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The position of a value in bytes or milliseconds; what is before the axis is at its start.
    pub fn at(&self, value: f64) -> f64 {
        let value = value / self.unit.size;
        let at = if self.is_log { value.ln() } else { value };
        at.max(self.ends[0])
    }

    /// Positions of ticks, with the numbers that stand there.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.is_log { self.log_ticks() } else { self.linear_ticks() };
        let tick = |value: f64| {
            let at = if self.is_log { value.ln() } else { value };
            // Exact for fractions of two; of ten rounded to what is meant.
            (at, format!("{}", (value * 1e6).round() / 1e6))
        };
        values.into_iter().map(tick).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        // Numbers of a tick between one power of the base and the next, from many to few.
        let (base, sets): (f64, &[&[f64]]) = match self.unit.binary {
            true => (2.0, &[&[1.0, 1.25, 1.5, 1.75], &[1.0, 1.5], &[1.0]]),
            false => (
                10.0,
                &[
                    &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
                    &[1.0, 2.0, 3.0, 5.0],
                    &[1.0, 2.0, 5.0],
                    &[1.0],
                ],
            ),
        };
        let [low, high] = self.ends.map(f64::exp);
        let powers = low.log(base).floor() as i32..=high.log(base).ceil() as i32;
        let ticks = |set: &[f64], every: usize| -> Vec<f64> {
            let powers = powers.clone().filter(|power| power.rem_euclid(every as i32) == 0);
            let all = powers.flat_map(|power| set.iter().map(move |m| m * base.powi(power)));
            all.filter(|value| (low..=high).contains(value)).collect()
        };
        let sets = sets.iter().map(|set| ticks(set, 1));
        let sparse = (2..8).map(|every| ticks(&[1.0], every));
        let few = |ticks: &Vec<f64>| ticks.len() <= TICKS_MAX;
        sets.chain(sparse).find(few).unwrap_or_default()
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let [low, high] = self.ends;
        let (base, parts): (f64, &[f64]) =
            if self.unit.binary { (2.0, &[1.0]) } else { (10.0, &[1.0, 2.0, 5.0]) };
        let least = (high - low) / TICKS_MAX as f64;
        let power = base.powf(least.log(base).floor());
        let steps = parts.iter().map(|part| part * power).chain([base * power]);
        let step = steps.into_iter().find(|step| *step >= least).unwrap_or(base * power);
        let [first, last] = [(low / step).ceil() as i64, (high / step).floor() as i64];
        (first..=last).map(|index| index as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_few_and_on_the_axis() {
        let gib = |gib: f64| gib * 1_073_741_824.0;
        let unit = Unit::of_bytes(Bytes::gib(24));
        assert_eq!(
            numbers(&Axis::new(unit, gib(2.0), gib(24.0), true)),
            ["2", "3", "4", "6", "8", "12", "16", "24"]
        );
        assert_eq!(
            numbers(&Axis::new(unit, gib(6.0), gib(12.0), false)),
            ["6", "7", "8", "9", "10", "11", "12"]
        );
        let unit = Unit::of_ms(40_000.0);
        assert_eq!(numbers(&Axis::new(unit, 2500.0, 40_000.0, true)), ["3", "5", "10", "20", "30"]);
        assert_eq!(
            numbers(&Axis::new(unit, 20_000.0, 40_000.0, false)),
            ["20", "25", "30", "35", "40"]
        );
        assert_eq!(
            numbers(&Axis::new(unit, 20_000.0, 40_000.0, true)),
            ["0", "5", "10", "15", "20", "25", "30", "35", "40"]
        );
        for (least, largest) in [(1.0, 1e9), (3.0, 3.0), (5.0, 5.0001), (0.001, 0.02), (7.0, 29.0)]
        {
            for unit in [Unit::of_ms(largest), Unit::of_bytes(Bytes(largest as u64))] {
                let axis = Axis::new(unit, least, largest, false);
                let [low, high] = axis.ends();
                let ticks = axis.ticks();
                assert!(
                    (1..=TICKS_MAX + 1).contains(&ticks.len()),
                    "{least} to {largest}: {ticks:?}"
                );
                assert!(ticks.iter().all(|(at, _)| (low..=high).contains(at)), "{ticks:?}");
                let [first, last] = [axis.at(least), axis.at(largest)];
                assert!(low < first && first <= last && last < high, "{least} to {largest}");
            }
        }
    }

    #[test]
    fn nothing_stands_at_the_start() {
        let axis = Axis::new(Unit::of_bytes(Bytes::mib(64)), 2e6, 6e7, false);
        assert_eq!(axis.at(0.0), axis.ends()[0]);
    }
}
