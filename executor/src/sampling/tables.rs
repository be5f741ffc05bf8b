//! Tables of noise levels over those of training: which levels a run visits, and the model's time
//! at each.
//!
//! diffusers' classes count times in two ways, and its tables differ from k-diffusion's, which
//! ComfyUI and A1111 have: each is here as its program has it.

use super::curves::{Curve, Ends, beta_quantile, linspace};
use super::training::{TIMES, Training};

/// The levels of a run, as noise over signal, and its times.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// One for each step's start, then where the last one ends.
    pub sigmas: Vec<f64>,
    /// One for each step's start.
    pub times: Vec<f64>,
}

/// How a run's times lie among those of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// From the last time to the first.
    Linspace,
    /// Whole strides up from the first, and an offset more.
    Leading,
    /// Strides down from the last.
    Trailing,
}

/// Where the last step ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Final {
    /// At the picture.
    Clean,
    /// At training's lowest level.
    Lowest,
    /// Where the one before does.
    Repeated,
}

/// What is asked of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableRequest {
    /// How times are spaced.
    pub spacing: Spacing,
    /// What is added to leading ones (`steps_offset`).
    pub offset: f64,
    /// How levels lie between their ends; as those of the run's times do where it is `None`.
    pub curve: Option<Curve>,
    /// Where the last step ends.
    pub last: Final,
    /// How times of levels become whole numbers.
    pub times: TimeRounding,
}

/// How a time of a level becomes the one that the model is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeRounding {
    /// As it is: these classes interpolate the model's sinusoids.
    Fraction,
    /// The nearest whole number.
    Nearest,
    /// Without its fraction.
    Truncated,
}

impl TimeRounding {
    /// The time that the model is given.
    pub fn of(self, time: f64) -> f64 {
        match self {
            TimeRounding::Fraction => time,
            TimeRounding::Nearest => time.round_ties_even(),
            TimeRounding::Truncated => time.trunc(),
        }
    }
}

impl Spacing {
    /// Times of so many steps, as DDIM and its kin count them, and with fractions where `rounded`
    /// is not set, as Euler and its kin do.
    pub fn times(self, steps: usize, offset: f64, rounded: bool) -> Vec<f64> {
        let all = TIMES as f64;
        match self {
            Spacing::Linspace => {
                let mut times = linspace(0.0, all - 1.0, steps);
                times.reverse();
                let whole = |time: f64| if rounded { time.round_ties_even() } else { time };
                times.into_iter().map(whole).collect()
            }
            Spacing::Leading => {
                let stride = (TIMES / steps) as f64;
                (0..steps).rev().map(|step| step as f64 * stride + offset).collect()
            }
            Spacing::Trailing => {
                let stride = all / steps as f64;
                let time = |step: usize| (all - step as f64 * stride).round_ties_even() - 1.0;
                (0..steps).map(time).collect()
            }
        }
    }

    /// Times as the multistep solvers of diffusers count them: up to a time `end` after the last
    /// one, and one more than there are steps where the first is left out.
    pub fn solver_times(self, steps: usize, offset: f64, end: usize) -> Vec<f64> {
        match self {
            Spacing::Linspace => {
                let times = linspace(0.0, (end - 1) as f64, steps + 1);
                times.into_iter().skip(1).rev().map(f64::round_ties_even).collect()
            }
            Spacing::Leading => {
                let stride = (end / (steps + 1)) as f64;
                (1..=steps).rev().map(|step| step as f64 * stride + offset).collect()
            }
            Spacing::Trailing => {
                let stride = TIMES as f64 / steps as f64;
                let time =
                    |step: usize| (end as f64 - step as f64 * stride).round_ties_even() - 1.0;
                (0..steps).map(time).collect()
            }
        }
    }
}

impl Training {
    /// A table as diffusers' Euler and its kin make it: the curve goes between the ends of the
    /// spaced times.
    pub fn euler_table(&self, asked: &TableRequest, steps: usize) -> Table {
        let times = asked.spacing.times(steps, asked.offset, false);
        // These classes hold times in f32.
        let times: Vec<f64> = times.into_iter().map(|time| f64::from(time as f32)).collect();
        let spaced: Vec<f64> = times.iter().map(|time| self.sigma_at(*time)).collect();
        let ends = Ends { highest: spaced[0], lowest: spaced[steps - 1] };
        self.table(asked, steps, ends, spaced, times)
    }

    /// A table as diffusers' multistep solvers make it: the curve goes over all of training, and
    /// plain times end before `end`.
    pub fn solver_table(&self, asked: &TableRequest, steps: usize, end: usize) -> Table {
        let times = asked.spacing.solver_times(steps, asked.offset, end);
        let spaced = times.iter().map(|time| self.sigma_at(*time)).collect();
        self.table(asked, steps, self.ends(), spaced, times)
    }

    /// The ends of training.
    pub fn ends(&self) -> Ends {
        let [lowest, highest] = [0, self.sigmas.len() - 1].map(|at| f64::from(self.sigmas[at]));
        Ends { highest, lowest }
    }

    fn table(
        &self,
        asked: &TableRequest,
        steps: usize,
        ends: Ends,
        spaced: Vec<f64>,
        times: Vec<f64>,
    ) -> Table {
        let (mut sigmas, times) = match asked.curve {
            Some(curve) => {
                let sigmas = ends.along(curve, steps);
                let times = sigmas.iter().map(|sigma| asked.times.of(self.time_of(*sigma)));
                let times = times.collect();
                (sigmas, times)
            }
            None => (spaced, times),
        };
        sigmas.push(match asked.last {
            Final::Clean => 0.0,
            Final::Lowest => self.ends().lowest,
            Final::Repeated => sigmas[steps - 1],
        });
        Table { sigmas, times }
    }

    /// A table by one of the names of ComfyUI and A1111, with the final 0 where it has one. The
    /// time of a level is [`Training::time_of`].
    pub fn named_sigmas(&self, name: NamedTable, steps: usize) -> Vec<f64> {
        let last = (TIMES - 1) as f64;
        let at = |times: Vec<f64>| times.into_iter().map(|time| self.log_sigma_at(time)).collect();
        let stride = TIMES as f64 / steps as f64;
        let mut sigmas: Vec<f64> = match name {
            NamedTable::Normal => at(linspace(last, 0.0, steps)),
            NamedTable::SgmUniform => at(linspace(last, 0.0, steps + 1)[..steps].to_vec()),
            NamedTable::Karras => self.ends().along(Curve::Karras, steps),
            NamedTable::Exponential => self.ends().along(Curve::Exponential, steps),
            NamedTable::Simple => (0..steps)
                .map(|step| f64::from(self.sigmas[TIMES - 1 - (step as f64 * stride) as usize]))
                .collect(),
            NamedTable::DdimUniform => {
                let places = (1..TIMES).step_by((TIMES / steps).max(1));
                let mut sigmas: Vec<f64> = places.map(|at| f64::from(self.sigmas[at])).collect();
                sigmas.reverse();
                sigmas
            }
            NamedTable::BetaOfSigmas => self.ends().along(Curve::Beta, steps),
            NamedTable::BetaOfTimes => {
                let quantile = |step: usize| beta_quantile(1.0 - step as f64 / steps as f64);
                let place = |step| (quantile(step) * last).round_ties_even() as usize;
                let mut places: Vec<usize> = (0..steps).map(place).collect();
                places.dedup();
                places.into_iter().map(|at| f64::from(self.sigmas[at])).collect()
            }
            NamedTable::KlOptimal => self.ends().along(Curve::KlOptimal, steps),
            // It ends at the lowest level, and has no 0.
            NamedTable::KlOptimalToLowest => return self.ends().kl_optimal(steps),
        };
        sigmas.push(0.0);
        sigmas
    }
}

/// Tables as ComfyUI and A1111 name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedTable {
    /// Times in equal strides from the last to the first.
    Normal,
    /// The same with one time more, which is left out.
    SgmUniform,
    /// By `Curve::Karras` over all levels of training.
    Karras,
    /// By `Curve::Exponential` over them.
    Exponential,
    /// Levels of training at equal strides from the last.
    Simple,
    /// Levels of training at whole strides from the second: it may have other than so many.
    DdimUniform,
    /// By `Curve::Beta` over them: A1111's.
    BetaOfSigmas,
    /// Times by that distribution, each once: ComfyUI's.
    BetaOfTimes,
    /// By `Curve::KlOptimal` over them: ComfyUI's.
    KlOptimal,
    /// The same without a 0 at the end: A1111's.
    KlOptimalToLowest,
}
