//! Policy: what is wanted. Flags over the host profile over defaults, resolved to plain values.

use protocol::Bytes;
use serde::Serialize;

use crate::budget::{Cap, CapError, VramCaps, budgets, host_budget, parse_margin};
use crate::inventory::Inventory;
use crate::inventory::profile::PolicyProfile;

/// What a plan is to be best at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Least predicted time from cold start to picture.
    #[default]
    Latency,
    /// Least predicted time of the next job on a warm executor.
    Throughput,
    /// Least bytes on devices and host together.
    Memory,
}

/// What the user or the host profile asks for.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Caps of device memory.
    pub max_vram: VramCaps,
    /// Cap of host memory.
    pub max_ram: Option<Cap>,
    /// Left free on each device and on the host; `None` for the defaults of [`crate::budget`].
    pub margin: Option<Bytes>,
    /// What the plan is to be best at.
    pub optimize: Objective,
}

impl Policy {
    /// Joins flags with a host profile's section.
    pub fn resolve(
        max_vram: Option<&str>,
        max_ram: Option<&str>,
        optimize: Option<Objective>,
        profile: Option<&PolicyProfile>,
    ) -> Result<Policy, CapError> {
        let of_profile = |field: fn(&PolicyProfile) -> Option<&str>| profile.and_then(field);
        let max_vram = max_vram.or(of_profile(|p| p.max_vram.as_deref()));
        let max_ram = max_ram.or(of_profile(|p| p.max_ram.as_deref()));
        let margin = of_profile(|p| p.margin.as_deref());
        let of_text = |text: &str| match text {
            "throughput" => Objective::Throughput,
            "memory" => Objective::Memory,
            _ => Objective::Latency,
        };
        Ok(Policy {
            max_vram: max_vram.map(VramCaps::parse).transpose()?.unwrap_or_default(),
            max_ram: max_ram.map(Cap::parse).transpose()?,
            margin: margin.map(parse_margin).transpose()?,
            optimize: optimize
                .or(of_profile(|p| p.optimize.as_deref()).map(of_text))
                .unwrap_or_default(),
        })
    }

    /// The budgets that this policy gives on an inventory.
    pub fn budgets(&self, inventory: &Inventory) -> Result<Budgets, CapError> {
        Ok(Budgets {
            devices: budgets(&inventory.devices, &self.max_vram, self.margin)?,
            ceilings: budgets(&inventory.devices, &VramCaps::default(), self.margin)?,
            host: host_budget(&inventory.host, self.max_ram, self.margin),
            host_ceiling: host_budget(&inventory.host, None, self.margin),
        })
    }
}

/// What Berth may use of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    /// For each device of the inventory.
    pub devices: Vec<Bytes>,
    /// For each device, what the largest cap would give.
    pub ceilings: Vec<Bytes>,
    /// For the host.
    pub host: Bytes,
    /// For the host, what the largest cap would give.
    pub host_ceiling: Bytes,
}
