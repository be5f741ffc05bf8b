//! The arguments that pin places by hand. What is not pinned is chosen.

use anyhow::{Result, bail};
use clap::Args;

use crate::policy::PolicyText;
use crate::policy::aliases::CONDITIONERS_ON_CPU;
use crate::policy::tile::DEFAULT_TILE;

/// What is pinned.
#[derive(Debug, Default, Args)]
pub struct PlacementArguments {
    /// Devices that components compute on: dit=cuda0&cuda1,vae=cuda1,cond=cpu, with shares as
    /// dit=cuda0:3&cuda1:1; `all`, names of components and of their kinds; the start of a device's
    /// name will do [default: chosen]
    #[arg(long, value_name = "LIST")]
    backend: Option<String>,
    /// Where weights are while their component does not compute: cpu (in RAM, streamed to the
    /// device), disk (loaded for their phase only) or device (resident), as dit=cpu,vae=disk
    /// [default: chosen]
    #[arg(long, value_name = "LIST")]
    params_backend: Option<String>,
    /// How a component is split over a list of devices: layer, row, tensor, items or pipeline, as
    /// dit=row [default: layer]
    #[arg(long, value_name = "LIST")]
    split_mode: Option<String>,
    /// Stream slots on each device, 1 to 64: how far ahead weights are copied, as 4 or dit=4
    /// [default: chosen]
    #[arg(long, value_name = "LIST", allow_negative_numbers = true)]
    lookahead: Option<String>,
    /// Pieces in which the VAE works: auto, off, or pixels with an overlap, as 512, 512x768 or
    /// 512:0.25 [default: auto, the best]
    #[arg(long, value_name = "TILE", allow_negative_numbers = true)]
    vae_tile: Option<String>,
    /// What happens to the pages of weight files: keep, sequential (read ahead, dropped behind the
    /// reader) or drop (given back as soon as weights are on their device) [default: keep]
    #[arg(long, value_name = "POLICY")]
    mmap_policy: Option<String>,
    /// A LoRA file to apply, with its weight, as style.safetensors:0.8; may be repeated [default
    /// weight: 1]
    #[arg(long, value_name = "FILE[:WEIGHT]")]
    lora: Vec<String>,
    /// Load each weight in its own phase, none while an earlier one computes
    #[arg(long)]
    no_prefetch: bool,
    /// Multiply all weights as f32, their values to the bit; without it the CPU multiplies those of
    /// 8, 6, 5 and 4 bits as integers, with activations rounded to 8 bits for it, and bf16 as bf16
    /// with AVX-512 on AMD's processors; with AMX all of these as bf16. That is two to five times
    /// as fast
    #[arg(long)]
    exact_matmul: bool,
    #[command(flatten)]
    former: FormerArguments,
}

/// The heading of flags that another program has.
const FORMER: &str = "Flags of stable-diffusion.cpp";

/// Flags of stable-diffusion.cpp, for command lines that were made for it.
#[derive(Debug, Default, Args)]
struct FormerArguments {
    /// As --backend te=cpu
    #[arg(long = CONDITIONERS_ON_CPU, help_heading = FORMER)]
    conditioners_on_cpu: bool,
    /// As --backend vae=cpu
    #[arg(long, help_heading = FORMER)]
    vae_on_cpu: bool,
    /// Refused: there is no ControlNet to be placed
    #[arg(long, help_heading = FORMER)]
    control_net_cpu: bool,
    /// As --params-backend all=cpu
    #[arg(long = "offload-to-cpu", help_heading = FORMER)]
    params_on_cpu: bool,
    /// As --vae-tile 512:0.25
    #[arg(long, help_heading = FORMER)]
    vae_tiling: bool,
}

impl PlacementArguments {
    /// What they say of policy, the former flags written as the present ones.
    pub fn text(&self) -> Result<PolicyText> {
        let FormerArguments {
            conditioners_on_cpu,
            vae_on_cpu,
            control_net_cpu,
            params_on_cpu,
            vae_tiling,
        } = self.former;
        if control_net_cpu {
            bail!("--control-net-cpu: there is no ControlNet to be placed; hint: leave it out");
        }
        if vae_tiling && self.vae_tile.is_some() {
            bail!(
                "--vae-tiling is --vae-tile {DEFAULT_TILE}, and another tile is given; hint: keep one"
            );
        }
        let joined = |given: &Option<String>, more: &[(bool, &str)]| {
            let more = more.iter().filter(|(asked, _)| *asked).map(|(_, text)| *text);
            let all: Vec<&str> = given.as_deref().into_iter().chain(more).collect();
            (!all.is_empty()).then(|| all.join(","))
        };
        Ok(PolicyText {
            backend: joined(
                &self.backend,
                &[(conditioners_on_cpu, "te=cpu"), (vae_on_cpu, "vae=cpu")],
            ),
            params_backend: joined(&self.params_backend, &[(params_on_cpu, "all=cpu")]),
            split_mode: self.split_mode.clone(),
            lookahead: self.lookahead.clone(),
            vae_tile: joined(&self.vae_tile, &[(vae_tiling, DEFAULT_TILE)]),
            mmap_policy: self.mmap_policy.clone(),
            lora: (!self.lora.is_empty()).then(|| self.lora.clone()),
            no_prefetch: self.no_prefetch.then_some(true),
            exact_matmul: self.exact_matmul.then_some(true),
            ..PolicyText::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn former() -> FormerArguments {
        FormerArguments::default()
    }

    fn text(arguments: PlacementArguments) -> PolicyText {
        arguments.text().expect("good arguments")
    }

    #[test]
    fn former_flags_are_written_as_the_present_ones() {
        let none = text(PlacementArguments::default());
        assert_eq!(none, PolicyText::default());
        let all = text(PlacementArguments {
            backend: Some("dit=cuda0".to_owned()),
            former: FormerArguments {
                conditioners_on_cpu: true,
                vae_on_cpu: true,
                params_on_cpu: true,
                vae_tiling: true,
                ..former()
            },
            ..PlacementArguments::default()
        });
        assert_eq!(all.backend.as_deref(), Some("dit=cuda0,te=cpu,vae=cpu"));
        assert_eq!(all.params_backend.as_deref(), Some("all=cpu"));
        assert_eq!(all.vae_tile.as_deref(), Some("512:0.25"));
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let former = FormerArguments { control_net_cpu: true, ..former() };
        let arguments = PlacementArguments { former, ..PlacementArguments::default() };
        let error = arguments.text().expect_err("there is no ControlNet").to_string();
        assert!(error.contains("no ControlNet"), "{error}");
        let former = FormerArguments { vae_tiling: true, ..self::former() };
        let vae_tile = Some("64".to_owned());
        let arguments = PlacementArguments { vae_tile, former, ..PlacementArguments::default() };
        let error = arguments.text().expect_err("two tiles").to_string();
        assert!(error.contains("--vae-tiling is --vae-tile 512:0.25"), "{error}");
    }
}
