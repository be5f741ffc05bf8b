//! Policy: what is wanted. Flags over the host profile over defaults, resolved to plain values.
//!
//! [`PolicyText`] is what somebody wrote, [`Policy`] what it means by itself. What that means on a
//! machine and for a model is said by [`Policy::budgets`] and [`pins::Pins::resolve`].

pub mod aliases;
pub mod lora;
pub mod pins;
pub mod tile;

use protocol::Bytes;
use protocol::plan::MappingPolicy;
use serde::{Deserialize, Serialize};

use crate::budget::{
    Cap, CapError, Margins, VramCaps, budgets, default_pinned_budget, host_budget, parse_limit,
    pinned_budget,
};
use crate::inventory::Inventory;
use lora::{LoraError, LoraRequest, parse_loras};
use pins::{PinError, Pins};
use tile::{TileError, TileRequest, parse_tile};

/// What a plan is to be best at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Least predicted time from cold start to picture.
    #[default]
    Latency,
    /// Least predicted time of the next job on a warm executor.
    Throughput,
    /// Least bytes on devices and host together, with weights that the host reads in place from
    /// their files.
    Memory,
}

/// What the user or a host profile asks for, each key as it is written on the command line. As a
/// document it has the keys of a profile's `[policy]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyText {
    /// `--max-vram`: [`VramCaps::parse`].
    pub max_vram: Option<String>,
    /// `--max-ram`: [`Cap::parse`].
    pub max_ram: Option<String>,
    /// `--optimize`: an [`Objective`]'s name.
    pub optimize: Option<String>,
    /// Page-locked host memory: [`parse_limit`]. Host profiles only.
    pub max_pinned: Option<String>,
    /// What stays free on devices and on the host: [`Margins::parse`]. Host profiles only.
    pub margin: Option<String>,
    /// Where components compute: [`Pins::parse`].
    pub backend: Option<String>,
    /// `--params-backend`: [`Pins::parse`].
    pub params_backend: Option<String>,
    /// `--split-mode`: [`Pins::parse`].
    pub split_mode: Option<String>,
    /// Slots of each ring: [`Pins::parse`].
    pub lookahead: Option<String>,
    /// Where components may compute: [`Pins::within`]. Host profiles only.
    pub allow: Option<String>,
    /// Where components must not compute: [`Pins::within`]. Host profiles only.
    pub forbid: Option<String>,
    /// `--vae-tile`: [`parse_tile`].
    pub vae_tile: Option<String>,
    /// `--mmap-policy`: a [`MappingPolicy`]'s name.
    pub mmap_policy: Option<String>,
    /// `--lora`, in order: [`parse_loras`].
    pub lora: Option<Vec<String>>,
    /// Whether no phase's loads start in the phase before.
    pub no_prefetch: Option<bool>,
    /// Whether weights are multiplied in f32, and no activations rounded for it.
    pub exact_matmul: Option<bool>,
}

/// A policy text that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A cap or a margin.
    #[error(transparent)]
    Cap(#[from] CapError),
    /// A place.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The pieces of the VAE.
    #[error(transparent)]
    Tile(#[from] TileError),
    /// An adapter file is not named as it must be.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// None of the names that there are.
    #[error("`{text}` is not one of {known}")]
    Unnamed {
        /// What was written.
        text: String,
        /// What could have been.
        known: String,
    },
}

/// What is wanted, with defaults filled in.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Caps of device memory.
    pub max_vram: VramCaps,
    /// Cap of host memory.
    pub max_ram: Option<Cap>,
    /// Limit of page-locked host memory.
    pub max_pinned: Option<Cap>,
    /// Left free on devices and on the host.
    pub margins: Margins,
    /// What the plan is to be best at.
    pub optimize: Objective,
    /// What is pinned of places.
    pub pins: Pins,
    /// Pieces of the VAE.
    pub vae_tile: TileRequest,
    /// What happens to the pages of weight files.
    pub mapping_policy: MappingPolicy,
    /// LoRA files in the order in which they are applied.
    pub loras: Vec<LoraRequest>,
    /// Whether weights may be on their way before their phase.
    pub prefetch: bool,
    /// Whether products with all weights are formed in f32.
    pub exact_matmul: bool,
}

impl PolicyText {
    /// This text, and `below` for the keys that it does not have. A flag replaces the whole of a
    /// profile's key.
    pub fn over(self, below: &PolicyText) -> PolicyText {
        let or = |above: Option<String>, below: &Option<String>| above.or_else(|| below.clone());
        PolicyText {
            max_vram: or(self.max_vram, &below.max_vram),
            max_ram: or(self.max_ram, &below.max_ram),
            optimize: or(self.optimize, &below.optimize),
            max_pinned: or(self.max_pinned, &below.max_pinned),
            margin: or(self.margin, &below.margin),
            backend: or(self.backend, &below.backend),
            params_backend: or(self.params_backend, &below.params_backend),
            split_mode: or(self.split_mode, &below.split_mode),
            lookahead: or(self.lookahead, &below.lookahead),
            allow: or(self.allow, &below.allow),
            forbid: or(self.forbid, &below.forbid),
            vae_tile: or(self.vae_tile, &below.vae_tile),
            mmap_policy: or(self.mmap_policy, &below.mmap_policy),
            lora: self.lora.or_else(|| below.lora.clone()),
            no_prefetch: self.no_prefetch.or(below.no_prefetch),
            exact_matmul: self.exact_matmul.or(below.exact_matmul),
        }
    }

    /// All that is written in it.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let keys = [
            &self.max_vram,
            &self.max_ram,
            &self.optimize,
            &self.max_pinned,
            &self.margin,
            &self.backend,
            &self.params_backend,
            &self.split_mode,
            &self.lookahead,
            &self.allow,
            &self.forbid,
            &self.vae_tile,
            &self.mmap_policy,
        ];
        keys.into_iter().flatten().chain(self.lora.iter().flatten()).map(String::as_str)
    }
}

impl Policy {
    /// Reads a policy text.
    ///
    /// # Errors
    /// One of its keys cannot be read.
    pub fn of(text: &PolicyText) -> Result<Policy, PolicyError> {
        let PolicyText { max_vram, max_ram, max_pinned, optimize, margin, .. } = text;
        Ok(Policy {
            max_vram: max_vram.as_deref().map(VramCaps::parse).transpose()?.unwrap_or_default(),
            max_ram: max_ram.as_deref().map(Cap::parse).transpose()?,
            max_pinned: max_pinned.as_deref().map(parse_limit).transpose()?,
            margins: margin.as_deref().map(Margins::parse).transpose()?.unwrap_or_default(),
            optimize: optimize.as_deref().map(parse_objective).transpose()?.unwrap_or_default(),
            pins: Pins::parse(
                text.backend.as_deref(),
                text.params_backend.as_deref(),
                text.split_mode.as_deref(),
                text.lookahead.as_deref(),
            )?
            .within(text.allow.as_deref(), text.forbid.as_deref())?,
            vae_tile: text.vae_tile.as_deref().map(parse_tile).transpose()?.unwrap_or_default(),
            mapping_policy: text
                .mmap_policy
                .as_deref()
                .map(parse_mapping_policy)
                .transpose()?
                .unwrap_or_default(),
            loras: parse_loras(text.lora.as_deref().unwrap_or_default())?,
            prefetch: !text.no_prefetch.unwrap_or(false),
            exact_matmul: text.exact_matmul.unwrap_or(false),
        })
    }

    /// The budgets that this policy gives on an inventory. What an integrated device takes is taken
    /// of the host: its budget is never above the host's.
    pub fn budgets(&self, inventory: &Inventory) -> Result<Budgets, CapError> {
        let Inventory { devices, host, .. } = inventory;
        let budget = host_budget(host, self.max_ram, &self.margins);
        let ceiling = host_budget(host, None, &self.margins).max(budget);
        let shared = |budgets: Vec<Bytes>, of_host: Bytes| -> Vec<Bytes> {
            let each = budgets.into_iter().zip(devices);
            each.map(|(bytes, device)| if device.integrated { bytes.min(of_host) } else { bytes })
                .collect()
        };
        let capped = shared(budgets(devices, &self.max_vram, &self.margins)?, budget);
        let largest = shared(budgets(devices, &VramCaps::default(), &self.margins)?, ceiling);
        // A negative cap leaves less free than the margin, which the largest cap keeps.
        let largest =
            largest.into_iter().zip(&capped).map(|(largest, budget)| largest.max(*budget));
        Ok(Budgets {
            ceilings: largest.collect(),
            devices: capped,
            host: budget,
            host_ceiling: ceiling,
            pinned: Some(match self.max_pinned {
                Some(limit) => pinned_budget(host, limit, budget),
                None => default_pinned_budget(host),
            }),
            idle: None,
        })
    }
}

impl Objective {
    /// All of them, in the order in which they are told.
    pub const ALL: [Objective; 3] = [Objective::Latency, Objective::Throughput, Objective::Memory];

    /// The objective's name as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Objective::Latency => "latency",
            Objective::Throughput => "throughput",
            Objective::Memory => "memory",
        }
    }
}

/// Reads an objective's name.
///
/// # Errors
/// There is none of this name.
pub fn parse_objective(text: &str) -> Result<Objective, PolicyError> {
    named(text, Objective::ALL, Objective::name)
}

/// Reads a mapping policy's name.
///
/// # Errors
/// There is none of this name.
pub fn parse_mapping_policy(text: &str) -> Result<MappingPolicy, PolicyError> {
    let all = [MappingPolicy::Keep, MappingPolicy::Sequential, MappingPolicy::Drop];
    named(text, all, MappingPolicy::name)
}

fn named<T: Copy>(
    text: &str,
    all: [T; 3],
    name: impl Fn(T) -> &'static str,
) -> Result<T, PolicyError> {
    let found = all.into_iter().find(|value| name(*value) == text);
    found.ok_or_else(|| PolicyError::Unnamed {
        text: text.chars().take(80).collect(),
        known: all.map(name).join(", "),
    })
}

/// What Berth may use of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    /// For each device of the inventory.
    pub devices: Vec<Bytes>,
    /// For each device, what the largest cap would give.
    pub ceilings: Vec<Bytes>,
    /// What may be used of RAM.
    pub host: Bytes,
    /// For the host, what the largest cap would give.
    pub host_ceiling: Bytes,
    /// Page-locked memory of the host, part of its budget; `None` for no limit of its own.
    pub pinned: Option<Bytes>,
    /// What a plan may hold between two jobs; `None` for as much as while one runs.
    pub idle: Option<IdleBudgets>,
}

/// Limits of what a plan holds between two jobs: models that are loaded beside it need their own
/// arenas then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleBudgets {
    /// For each device of the inventory.
    pub devices: Vec<Bytes>,
    /// Of RAM.
    pub host: Bytes,
}

#[cfg(test)]
mod tests;
