//! `scheduler_config.json` of a flow-matching model, read and checked once.

use serde::Deserialize;

use super::error::{MU_MAX, SamplerError};

/// Longest `scheduler_config.json` that is parsed, in bytes; published ones have about 500.
pub const CONFIG_BYTES_MAX: usize = 1 << 16;

/// Largest static shift, and the inverse of the smallest: beyond them the shift formula loses more
/// than five digits in `f32`. Published models have up to 12.
const SHIFT_MAX: f64 = 100.0;

/// Largest `num_train_timesteps`; published models have 1000.
const TRAIN_TIMESTEPS_MAX: u32 = 1_000_000;

/// Smallest `shift_terminal` above 0, so that stretched levels stay positive in `f32`. Published
/// models have 0.02 or more.
const TERMINAL_MIN: f64 = 1e-4;

/// How dynamic shifting uses its `mu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TimeShift {
    /// `e^mu` is the weight.
    Exponential,
    /// `mu` itself is the weight.
    Linear,
}

/// What the `mu` of dynamic shifting follows from: no key of the file, but a rule of pipelines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ShiftRule {
    /// The picture's tokens, by the file's own numbers.
    #[default]
    Linear,
    /// Its tokens and the steps, by numbers that were fitted.
    Empirical,
}

/// The checked settings of diffusers' `FlowMatchEulerDiscreteScheduler`. Only
/// [`FlowMatchConfig::parse`] makes it of a text; the default has the class defaults of diffusers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FlowMatchConfig(pub(super) Settings);

/// `scheduler_config.json` as it stands; a missing key has the default of diffusers' class, an
/// unknown one is ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    #[serde(rename = "_class_name")]
    class_name: Option<String>,
    pub(super) num_train_timesteps: u32,
    pub(super) shift: f64,
    pub(super) use_dynamic_shifting: bool,
    pub(super) base_shift: f64,
    pub(super) max_shift: f64,
    pub(super) base_image_seq_len: u32,
    pub(super) max_image_seq_len: u32,
    pub(super) time_shift_type: TimeShift,
    /// Absent after [`FlowMatchConfig::parse`] where the file says 0, as diffusers reads it.
    pub(super) shift_terminal: Option<f64>,
    #[serde(skip)]
    pub(super) shift_rule: ShiftRule,
    invert_sigmas: bool,
    use_karras_sigmas: bool,
    use_exponential_sigmas: bool,
    use_beta_sigmas: bool,
    stochastic_sampling: bool,
    /// What the levels are made of before they are shifted: no key of the file.
    #[serde(skip)]
    pub(super) grid: LevelGrid,
}

/// The levels of a run before they are shifted, equally far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LevelGrid {
    /// From 1 down to 1 / steps: what pipelines give that make the levels themselves.
    #[default]
    Given,
    /// From the highest level of training down to the lowest, which a static shift has moved
    /// already: what `set_timesteps` makes where a pipeline gives none.
    Trained,
}

impl Default for Settings {
    /// The class defaults of diffusers 0.42.
    fn default() -> Settings {
        Settings {
            class_name: None,
            num_train_timesteps: 1000,
            shift: 1.0,
            use_dynamic_shifting: false,
            base_shift: 0.5,
            max_shift: 1.15,
            base_image_seq_len: 256,
            max_image_seq_len: 4096,
            time_shift_type: TimeShift::Exponential,
            shift_terminal: None,
            shift_rule: ShiftRule::Linear,
            invert_sigmas: false,
            use_karras_sigmas: false,
            use_exponential_sigmas: false,
            use_beta_sigmas: false,
            stochastic_sampling: false,
            grid: LevelGrid::Given,
        }
    }
}

impl FlowMatchConfig {
    /// Reads the text of a `scheduler_config.json`.
    ///
    /// # Errors
    /// Text that is too long or no such document; another sampler's class; a rule that is not
    /// implemented (Karras, exponential or beta levels, inverted levels, stochastic steps); a
    /// number that nothing can be computed with.
    pub fn parse(text: &str) -> Result<FlowMatchConfig, SamplerError> {
        if text.len() > CONFIG_BYTES_MAX {
            let message = format!("{} bytes, at most {CONFIG_BYTES_MAX} are read", text.len());
            return Err(SamplerError::Malformed { message });
        }
        let mut settings: Settings = serde_json::from_str(text)
            .map_err(|error| SamplerError::Malformed { message: error.to_string() })?;
        settings.shift_terminal = settings.shift_terminal.filter(|terminal| *terminal != 0.0);
        settings.check_rules()?;
        settings.check_numbers()?;
        Ok(FlowMatchConfig(settings))
    }

    /// The same, where a dynamic shift follows the picture's tokens and the steps, by numbers that
    /// were fitted.
    pub fn with_empirical_shift(self) -> FlowMatchConfig {
        FlowMatchConfig(Settings { shift_rule: ShiftRule::Empirical, ..self.0 })
    }

    /// The same for a pipeline that leaves the levels to the scheduler.
    pub fn over_trained_levels(self) -> FlowMatchConfig {
        FlowMatchConfig(Settings { grid: LevelGrid::Trained, ..self.0 })
    }

    /// The factor by which levels are shifted towards noise, whatever the size of the picture;
    /// `None` where it follows that.
    pub fn static_shift(&self) -> Option<f64> {
        (!self.0.use_dynamic_shifting).then_some(self.0.shift)
    }

    /// Levels on the model's time axis.
    pub fn num_train_timesteps(&self) -> u32 {
        self.0.num_train_timesteps
    }
}

impl Settings {
    fn check_rules(&self) -> Result<(), SamplerError> {
        if let Some(class) = &self.class_name
            && class != "FlowMatchEulerDiscreteScheduler"
        {
            return Err(SamplerError::OtherClass { class: class.clone() });
        }
        let refused = [
            ("invert_sigmas", self.invert_sigmas),
            ("use_karras_sigmas", self.use_karras_sigmas),
            ("use_exponential_sigmas", self.use_exponential_sigmas),
            ("use_beta_sigmas", self.use_beta_sigmas),
            ("stochastic_sampling", self.stochastic_sampling),
        ];
        match refused.into_iter().find(|(_, set)| *set) {
            Some((key, _)) => Err(SamplerError::Unsupported { key }),
            None => Ok(()),
        }
    }

    /// Ranges are written so that a NaN is outside them.
    fn check_numbers(&self) -> Result<(), SamplerError> {
        let require = |holds: bool, key, got: f64, expected| {
            if holds { Ok(()) } else { Err(SamplerError::OutOfRange { key, got, expected }) }
        };
        let train = self.num_train_timesteps;
        require(
            (1..=TRAIN_TIMESTEPS_MAX).contains(&train),
            "num_train_timesteps",
            f64::from(train),
            "1 to 1000000",
        )?;
        require(
            (1.0 / SHIFT_MAX..=SHIFT_MAX).contains(&self.shift),
            "shift",
            self.shift,
            "0.01 to 100",
        )?;
        for (key, mu) in [("base_shift", self.base_shift), ("max_shift", self.max_shift)] {
            require((-MU_MAX..=MU_MAX).contains(&mu), key, mu, "-16 to 16")?;
        }
        require(
            self.max_image_seq_len > self.base_image_seq_len,
            "max_image_seq_len",
            f64::from(self.max_image_seq_len),
            "more than base_image_seq_len",
        )?;
        let terminal = self.shift_terminal.unwrap_or(TERMINAL_MIN);
        let accepted = TERMINAL_MIN..=1.0 - TERMINAL_MIN;
        require(
            accepted.contains(&terminal),
            "shift_terminal",
            terminal,
            "0 (none), or 0.0001 to 0.9999",
        )
    }
}
