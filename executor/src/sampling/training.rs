//! The noise levels that a model of noise or velocity was trained on, and its time axis.

use super::path::NoiseLevel;

/// Times of training.
pub const TIMES: usize = 1000;

/// How the variances of training grow with time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Betas {
    /// In equal strides.
    Linear([f64; 2]),
    /// Their square roots in equal strides.
    ScaledLinear([f64; 2]),
    /// As the signal's square falls like a squared cosine (`squaredcos_cap_v2`).
    SquaredCosine,
}

/// What is done so that the last time is pure noise (Lin et al., 2023).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroSnr {
    /// Nothing.
    No,
    /// No signal is left there.
    Whole,
    /// So little is left there that a level can be computed with: 2^-24 of its square.
    Floor,
}

/// The levels of training.
#[derive(Debug, Clone, PartialEq)]
pub struct Training {
    /// For each time the product of alphas, the signal's square.
    pub products: Vec<f32>,
    /// For each time noise over signal.
    pub sigmas: Vec<f32>,
}

impl Training {
    /// Computes them as diffusers does, in f32 where it does.
    pub fn of(betas: Betas, zero_snr: ZeroSnr) -> Training {
        let mut betas = betas.values();
        if zero_snr != ZeroSnr::No {
            betas = without_signal(&betas);
        }
        let mut products = products(&betas);
        if zero_snr == ZeroSnr::Floor {
            *products.last_mut().expect("there are times") = 2.0_f32.powi(-24);
        }
        let sigma = |product: &f32| ((1.0 - product) / product).sqrt();
        let sigmas = products.iter().map(sigma).collect();
        Training { products, sigmas }
    }

    /// Noise over signal at a time between two of training: by a line between both.
    pub fn sigma_at(&self, time: f64) -> f64 {
        self.between(time, |sigma| sigma, |value| value)
    }

    /// The same by a line between the logarithms, as k-diffusion has it.
    pub fn log_sigma_at(&self, time: f64) -> f64 {
        self.between(time, f64::ln, f64::exp)
    }

    fn between(&self, time: f64, of: impl Fn(f64) -> f64, back: impl Fn(f64) -> f64) -> f64 {
        let time = time.clamp(0.0, (self.sigmas.len() - 1) as f64);
        let low = (time as usize).min(self.sigmas.len() - 2);
        let [low_sigma, high_sigma] = [low, low + 1].map(|place| f64::from(self.sigmas[place]));
        let part = time - low as f64;
        match part {
            0.0 => low_sigma,
            1.0 => high_sigma,
            _ => back((1.0 - part) * of(low_sigma) + part * of(high_sigma)),
        }
    }

    /// The time of a level, by a line between the logarithms, with a fraction.
    pub fn time_of(&self, sigma: f64) -> f64 {
        // Logarithms are f32, as numpy takes them of f32.
        let log = |place: usize| f64::from(self.sigmas[place].ln());
        let sought = sigma.max(1e-10).ln();
        let below = self.sigmas.partition_point(|known| f64::from(known.ln()) <= sought);
        let low = below.saturating_sub(1).min(self.sigmas.len() - 2);
        let part = (log(low) - sought) / (log(low) - log(low + 1));
        low as f64 + part.clamp(0.0, 1.0)
    }

    /// The time of a level in one of the two conventions of such models.
    pub fn time_of_level(&self, level: NoiseLevel) -> f64 {
        self.time_of(level.noise / level.signal)
    }
}

impl Betas {
    fn values(self) -> Vec<f32> {
        match self {
            Betas::Linear([first, last]) => linspace_f32(first as f32, last as f32),
            Betas::ScaledLinear(ends) => {
                let [first, last] = ends.map(|end| end.sqrt() as f32);
                linspace_f32(first, last).into_iter().map(|root| root * root).collect()
            }
            Betas::SquaredCosine => {
                /// Most that one time adds.
                const BETA_MAX: f64 = 0.999;
                let signal = |time: usize| {
                    let part = time as f64 / TIMES as f64;
                    ((part + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2)
                };
                let beta = |time| (1.0 - signal(time + 1) / signal(time)).min(BETA_MAX) as f32;
                (0..TIMES).map(beta).collect()
            }
        }
    }
}

/// As torch's `linspace`: the first half counts from the start, the second one from the end.
fn linspace_f32(first: f32, last: f32) -> Vec<f32> {
    let stride = (last - first) / (TIMES - 1) as f32;
    let value = |place: usize| match place < TIMES / 2 {
        true => stride.mul_add(place as f32, first),
        false => (-stride).mul_add((TIMES - 1 - place) as f32, last),
    };
    (0..TIMES).map(value).collect()
}

/// Products of 1 - beta up to each time, in f64, rounded.
fn products(betas: &[f32]) -> Vec<f32> {
    let products = betas.iter().scan(1.0_f64, |product, beta| {
        *product *= f64::from(1.0 - beta);
        Some(*product as f32)
    });
    products.collect()
}

/// Betas whose last time is pure noise: the signal is shifted and scaled so that its first value
/// stays.
fn without_signal(betas: &[f32]) -> Vec<f32> {
    let mut roots: Vec<f32> = products(betas).into_iter().map(f32::sqrt).collect();
    let (first, last) = (roots[0], roots[roots.len() - 1]);
    roots.iter_mut().for_each(|root| *root = (*root - last) * (first / (first - last)));
    let squares: Vec<f32> = roots.into_iter().map(|root| root * root).collect();
    let ratios = squares.windows(2).map(|pair| pair[1] / pair[0]);
    std::iter::once(squares[0]).chain(ratios).map(|alpha| 1.0 - alpha).collect()
}
