//! Noise levels between two ends, by the formulas that people know by name.

/// From one number to another in equal strides, as numpy's `linspace` does it.
pub fn linspace(first: f64, last: f64, count: usize) -> Vec<f64> {
    let stride = (last - first) / (count.max(2) - 1) as f64;
    let mut grid: Vec<f64> = (0..count).map(|i| i as f64 * stride + first).collect();
    // numpy sets the end itself, since the strides may miss it by a rounding.
    if let [_, .., end] = grid.as_mut_slice() {
        *end = last;
    }
    grid
}

/// The highest level and the lowest one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ends {
    /// Where a run begins.
    pub highest: f64,
    /// Its last level above 0.
    pub lowest: f64,
}

/// How levels lie between their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// Equally far apart in the seventh root (Karras et al., 2022, equation 5).
    Karras,
    /// Equally far apart in the logarithm.
    Exponential,
    /// At equally likely places of the beta distribution of 0.6 and 0.6: dense at both ends.
    Beta,
    /// Equally far apart in the arc tangent (Sabour et al., 2024, "Align Your Steps", theorem
    /// 3.1).
    KlOptimal,
}

impl Ends {
    /// So many levels, the first and the last of which are the ends.
    pub fn along(self, curve: Curve, count: usize) -> Vec<f64> {
        match curve {
            Curve::Karras => self.karras(count),
            Curve::Exponential => self.exponential(count),
            Curve::Beta => self.beta(count),
            Curve::KlOptimal => self.kl_optimal(count - 1),
        }
    }

    fn karras(self, count: usize) -> Vec<f64> {
        const RHO: f64 = 7.0;
        let [highest, lowest] = [self.highest, self.lowest].map(|end| end.powf(1.0 / RHO));
        linspace(0.0, 1.0, count)
            .into_iter()
            .map(|part| (highest + part * (lowest - highest)).powf(RHO))
            .collect()
    }

    fn exponential(self, count: usize) -> Vec<f64> {
        linspace(self.highest.ln(), self.lowest.ln(), count).into_iter().map(f64::exp).collect()
    }

    fn beta(self, count: usize) -> Vec<f64> {
        let level = |part| self.lowest + beta_quantile(1.0 - part) * (self.highest - self.lowest);
        linspace(0.0, 1.0, count).into_iter().map(level).collect()
    }

    /// [`Curve::KlOptimal`] by so many strides, with the end after the last one.
    pub fn kl_optimal(self, strides: usize) -> Vec<f64> {
        let [highest, lowest] = [self.highest, self.lowest].map(f64::atan);
        let level = |place: usize| {
            let part = place as f64 / strides.max(1) as f64;
            (part * lowest + (1.0 - part) * highest).tan()
        };
        (0..=strides).map(level).collect()
    }
}

/// The parameter of the symmetric beta distribution.
const SHAPE: f64 = 0.6;

/// Where the beta distribution has so much of its weight below.
pub fn beta_quantile(part: f64) -> f64 {
    if part <= 0.0 || part >= 1.0 {
        return part.clamp(0.0, 1.0);
    }
    if part == 0.5 {
        return 0.5;
    }
    // Bisection over the smaller half: near 0 places stay exact.
    if part > 0.5 {
        return 1.0 - beta_quantile(1.0 - part);
    }
    let (mut low, mut high) = (0.0_f64, 0.5_f64);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if beta_share(middle) < part { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// How much of its weight is below a place of at most a half: the regularised incomplete beta
/// function, by its power series.
fn beta_share(place: f64) -> f64 {
    // x^a / a * sum (1 - b)_n / (n! (a + n)) * a x^n, over the same at 1.
    let series = |place: f64| {
        let (mut term, mut sum) = (1.0, 1.0 / SHAPE);
        for n in 1..200 {
            term *= (f64::from(n) - SHAPE) / f64::from(n) * place;
            sum += term / (SHAPE + f64::from(n));
        }
        place.powf(SHAPE) * sum
    };
    // The distribution is symmetric: half of its weight is below a half.
    0.5 * series(place) / series(0.5)
}
