//! Samplers: the denoising rules and the tables of noise levels, by the names that people know.
//!
//! Which of them a family has stands in its [`ModelDescription`](crate::ModelDescription); how they
//! compute is the executor's.

use serde::{Deserialize, Serialize};

/// A denoising rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Sampler {
    /// Euler's method.
    #[default]
    #[serde(rename = "euler")]
    Euler,
    /// Euler's method to a lower level, then up by fresh noise.
    #[serde(rename = "euler_ancestral")]
    EulerAncestral,
    /// Heun's method: two calls of the model a step.
    #[serde(rename = "heun")]
    Heun,
    /// The midpoint method: two calls a step.
    #[serde(rename = "dpm_2")]
    Dpm2,
    /// The same to a lower level, then up by fresh noise.
    #[serde(rename = "dpm_2_ancestral")]
    Dpm2Ancestral,
    /// DPM-Solver++ of two calls a step, with fresh noise.
    #[serde(rename = "dpmpp_2s_ancestral")]
    Dpmpp2sAncestral,
    /// DPM-Solver++ as a stochastic equation, of two calls a step.
    #[serde(rename = "dpmpp_sde")]
    DpmppSde,
    /// DPM-Solver++ over groups of two steps.
    #[serde(rename = "dpmpp_2s")]
    Dpmpp2s,
    /// DPM-Solver++ over two steps.
    #[serde(rename = "dpmpp_2m")]
    Dpmpp2m,
    /// DPM-Solver++ over three steps.
    #[serde(rename = "dpmpp_3m")]
    Dpmpp3m,
    /// DPM-Solver++ as a stochastic equation, over two steps.
    #[serde(rename = "dpmpp_2m_sde")]
    Dpmpp2mSde,
    /// The same with another weight for the second step.
    #[serde(rename = "dpmpp_2m_sde_heun")]
    Dpmpp2mSdeHeun,
    /// DPM-Solver++ as a stochastic equation, over three steps.
    #[serde(rename = "dpmpp_3m_sde")]
    Dpmpp3mSde,
    /// The linear multistep method.
    #[serde(rename = "lms")]
    Lms,
    /// Exponential integrators over the logarithm of the noise.
    #[serde(rename = "deis")]
    Deis,
    /// Denoising diffusion implicit models.
    #[serde(rename = "ddim")]
    Ddim,
    /// Pseudo-numerical methods, without their first steps by Runge and Kutta.
    #[serde(rename = "plms")]
    Plms,
    /// A predictor and a corrector.
    #[serde(rename = "uni_pc")]
    UniPc,
    /// Latent consistency models.
    #[serde(rename = "lcm")]
    Lcm,
    /// Trajectory consistency.
    #[serde(rename = "tcd")]
    Tcd,
    /// Denoising diffusion probabilistic models.
    #[serde(rename = "ddpm")]
    Ddpm,
}

/// A table of noise levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// The model's own.
    #[default]
    Automatic,
    /// Times of training in equal strides, from the last to the first.
    Normal,
    /// The same with one time more, which is left out.
    SgmUniform,
    /// Levels of training at equal strides from the highest.
    Simple,
    /// Equally far apart in the seventh root.
    Karras,
    /// Equally far apart in the logarithm.
    Exponential,
    /// By the quantiles of a beta distribution: dense at both ends.
    Beta,
    /// Equally far apart in the arc tangent.
    KlOptimal,
    /// Levels of training at whole strides from the lowest.
    DdimUniform,
}

/// How something is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// In requests and on the command line, mostly as ComfyUI has it.
    pub name: &'static str,
    /// In pictures' settings and for people, as AUTOMATIC1111 has it.
    pub label: &'static str,
    /// By other programs.
    pub aliases: &'static [&'static str],
}

impl Names {
    fn are_of(self, text: &str) -> bool {
        let text = plain(text);
        let mut all = [self.name, self.label].into_iter().chain(self.aliases.iter().copied());
        all.any(|name| plain(name) == text)
    }
}

/// A name with blanks, hyphens and letters of either case alike.
fn plain(text: &str) -> String {
    text.trim().to_lowercase().replace([' ', '-'], "_")
}

impl Sampler {
    /// All of them.
    pub const ALL: [Sampler; 21] = [
        Sampler::Euler,
        Sampler::EulerAncestral,
        Sampler::Heun,
        Sampler::Dpm2,
        Sampler::Dpm2Ancestral,
        Sampler::Dpmpp2sAncestral,
        Sampler::DpmppSde,
        Sampler::Dpmpp2s,
        Sampler::Dpmpp2m,
        Sampler::Dpmpp3m,
        Sampler::Dpmpp2mSde,
        Sampler::Dpmpp2mSdeHeun,
        Sampler::Dpmpp3mSde,
        Sampler::Lms,
        Sampler::Deis,
        Sampler::Ddim,
        Sampler::Plms,
        Sampler::UniPc,
        Sampler::Lcm,
        Sampler::Tcd,
        Sampler::Ddpm,
    ];

    /// How it is called: by ComfyUI, AUTOMATIC1111, stable-diffusion.cpp and diffusers' classes.
    pub const fn names(self) -> Names {
        let (name, label, aliases): (_, _, &[&str]) = match self {
            Sampler::Euler => (
                "euler",
                "Euler",
                &["k_euler", "EulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler"],
            ),
            Sampler::EulerAncestral => (
                "euler_ancestral",
                "Euler a",
                &["k_euler_a", "k_euler_ancestral", "EulerAncestralDiscreteScheduler"],
            ),
            Sampler::Heun => (
                "heun",
                "Heun",
                &["k_heun", "HeunDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"],
            ),
            Sampler::Dpm2 => ("dpm_2", "DPM2", &["k_dpm_2", "KDPM2DiscreteScheduler"]),
            Sampler::Dpm2Ancestral => {
                ("dpm_2_ancestral", "DPM2 a", &["k_dpm_2_a", "KDPM2AncestralDiscreteScheduler"])
            }
            Sampler::Dpmpp2sAncestral => {
                ("dpmpp_2s_ancestral", "DPM++ 2S a", &["dpm++2s_a", "k_dpmpp_2s_a"])
            }
            Sampler::DpmppSde => (
                "dpmpp_sde",
                "DPM++ SDE",
                &["dpmpp_sde_gpu", "k_dpmpp_sde", "DPMSolverSDEScheduler"],
            ),
            Sampler::Dpmpp2s => ("dpmpp_2s", "DPM++ 2S", &["DPMSolverSinglestepScheduler"]),
            Sampler::Dpmpp2m => {
                ("dpmpp_2m", "DPM++ 2M", &["dpm++2m", "k_dpmpp_2m", "DPMSolverMultistepScheduler"])
            }
            Sampler::Dpmpp3m => ("dpmpp_3m", "DPM++ 3M", &[]),
            Sampler::Dpmpp2mSde => (
                "dpmpp_2m_sde",
                "DPM++ 2M SDE",
                &["dpmpp_2m_sde_gpu", "dpm++2m_sde", "k_dpmpp_2m_sde"],
            ),
            Sampler::Dpmpp2mSdeHeun => {
                ("dpmpp_2m_sde_heun", "DPM++ 2M SDE Heun", &["dpmpp_2m_sde_heun_gpu"])
            }
            Sampler::Dpmpp3mSde => {
                ("dpmpp_3m_sde", "DPM++ 3M SDE", &["dpmpp_3m_sde_gpu", "k_dpmpp_3m_sde"])
            }
            Sampler::Lms => ("lms", "LMS", &["k_lms", "LMSDiscreteScheduler"]),
            Sampler::Deis => ("deis", "DEIS", &["DEISMultistepScheduler"]),
            Sampler::Ddim => ("ddim", "DDIM", &["DDIMScheduler"]),
            Sampler::Plms => ("plms", "PLMS", &["pndm", "PNDMScheduler"]),
            Sampler::UniPc => ("uni_pc", "UniPC", &["uni_pc_bh2", "UniPCMultistepScheduler"]),
            Sampler::Lcm => ("lcm", "LCM", &["LCMScheduler", "FlowMatchLCMScheduler"]),
            Sampler::Tcd => ("tcd", "TCD", &["TCDScheduler"]),
            Sampler::Ddpm => ("ddpm", "DDPM", &["DDPMScheduler"]),
        };
        Names { name, label, aliases }
    }

    /// The one of a name, in letters of either case.
    pub fn named(text: &str) -> Option<Sampler> {
        Sampler::ALL.into_iter().find(|sampler| sampler.names().are_of(text))
    }

    /// The same where a table's label may stand behind it: `DPM++ 2M Karras`.
    pub fn named_with_table(text: &str) -> Option<(Sampler, Option<Scheduler>)> {
        if let Some(sampler) = Sampler::named(text) {
            return Some((sampler, None));
        }
        let text = text.trim();
        text.match_indices(' ').find_map(|(blank, _)| {
            let (sampler, table) = text.split_at(blank);
            Some((Sampler::named(sampler)?, Some(Scheduler::named(table)?)))
        })
    }

    /// How often the model is called in so many steps.
    pub const fn calls(self, steps: u32) -> u32 {
        match self {
            Sampler::Heun
            | Sampler::Dpm2
            | Sampler::Dpm2Ancestral
            | Sampler::Dpmpp2sAncestral
            | Sampler::DpmppSde => steps.saturating_add(steps.saturating_sub(1)),
            Sampler::Plms if steps > 1 => steps.saturating_add(1),
            _ => steps,
        }
    }

    /// Whether it takes how much fresh noise there is (`eta`).
    pub const fn has_eta(self) -> bool {
        matches!(
            self,
            Sampler::EulerAncestral
                | Sampler::Dpm2Ancestral
                | Sampler::Dpmpp2sAncestral
                | Sampler::DpmppSde
                | Sampler::Dpmpp2mSde
                | Sampler::Dpmpp2mSdeHeun
                | Sampler::Dpmpp3mSde
                | Sampler::Ddim
                | Sampler::Tcd
        )
    }
}

impl Scheduler {
    /// All of them.
    pub const ALL: [Scheduler; 9] = [
        Scheduler::Automatic,
        Scheduler::Normal,
        Scheduler::SgmUniform,
        Scheduler::Simple,
        Scheduler::Karras,
        Scheduler::Exponential,
        Scheduler::Beta,
        Scheduler::KlOptimal,
        Scheduler::DdimUniform,
    ];

    /// How it is called.
    pub const fn names(self) -> Names {
        let (name, label, aliases): (_, _, &[&str]) = match self {
            Scheduler::Automatic => ("automatic", "Automatic", &["auto"]),
            Scheduler::Normal => ("normal", "Normal", &["uniform", "discrete", "linspace"]),
            Scheduler::SgmUniform => ("sgm_uniform", "SGM Uniform", &[]),
            Scheduler::Simple => ("simple", "Simple", &[]),
            Scheduler::Karras => ("karras", "Karras", &["use_karras_sigmas"]),
            Scheduler::Exponential => ("exponential", "Exponential", &["use_exponential_sigmas"]),
            Scheduler::Beta => ("beta", "Beta", &["use_beta_sigmas"]),
            Scheduler::KlOptimal => ("kl_optimal", "KL Optimal", &[]),
            Scheduler::DdimUniform => ("ddim_uniform", "DDIM", &[]),
        };
        Names { name, label, aliases }
    }

    /// The one of a name, in letters of either case.
    pub fn named(text: &str) -> Option<Scheduler> {
        Scheduler::ALL.into_iter().find(|table| table.names().are_of(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_means_one_thing() {
        for (index, sampler) in Sampler::ALL.into_iter().enumerate() {
            let Names { name, label, aliases } = sampler.names();
            assert_eq!(serde_json::to_value(sampler).unwrap(), name);
            for text in [name, label].iter().chain(aliases) {
                assert_eq!(Sampler::named(text), Some(Sampler::ALL[index]), "{text}");
                assert_eq!(Sampler::named(&text.to_uppercase()), Some(sampler), "{text}");
            }
        }
        for table in Scheduler::ALL {
            let Names { name, label, aliases } = table.names();
            assert_eq!(serde_json::to_value(table).unwrap(), name);
            for text in [name, label].iter().chain(aliases) {
                assert_eq!(Scheduler::named(text), Some(table), "{text}");
            }
        }
        assert_eq!(Sampler::named("DPM adaptive"), None);
        assert_eq!(Scheduler::named(""), None);
    }

    #[test]
    fn a_tables_label_may_stand_behind_a_sampler() {
        for (text, expected) in [
            ("Euler a", Some((Sampler::EulerAncestral, None))),
            ("dpm++ 2m karras", Some((Sampler::Dpmpp2m, Some(Scheduler::Karras)))),
            ("DPM++ 2M SDE Exponential", Some((Sampler::Dpmpp2mSde, Some(Scheduler::Exponential)))),
            ("DPM++ 2M SDE Heun", Some((Sampler::Dpmpp2mSdeHeun, None))),
            ("Euler SGM Uniform", Some((Sampler::Euler, Some(Scheduler::SgmUniform)))),
            ("Karras", None),
            ("Better Karras", None),
        ] {
            assert_eq!(Sampler::named_with_table(text), expected, "{text}");
        }
    }

    #[test]
    fn rules_of_two_stages_call_twice_but_for_the_last_step() {
        assert_eq!(Sampler::Euler.calls(4), 4);
        assert_eq!(Sampler::Heun.calls(4), 7);
        assert_eq!(Sampler::Heun.calls(1), 1);
        assert_eq!([Sampler::Plms.calls(1), Sampler::Plms.calls(4)], [1, 5]);
        assert_eq!(Sampler::Heun.calls(u32::MAX), u32::MAX);
    }
}
