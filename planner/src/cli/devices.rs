//! `berth devices`.

use anyhow::Result;
use clap::Args;
use protocol::Bytes;
use serde::Serialize;

use super::PolicyArguments;
use crate::inventory::Inventory;
use crate::policy::Wishes;
use crate::render;

/// What is here.
#[derive(Debug, Args)]
pub struct Devices {
    #[command(flatten)]
    policy: PolicyArguments,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    #[serde(flatten)]
    inventory: &'a Inventory,
    budgets: Vec<Budget<'a>>,
}

#[derive(Serialize)]
struct Budget<'a> {
    id: &'a str,
    budget_bytes: Bytes,
}

/// Version of the document.
const SCHEMA: u32 = 1;

impl Devices {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let setting = self.policy.setting(Wishes::default())?;
        let inventory = setting.inventory()?;
        let budgets = setting.policy.budgets(&inventory)?;
        if !self.json {
            let table = render::tables::inventory(&inventory, &budgets.devices, budgets.host);
            return render::print(&table);
        }
        let ids = inventory.devices.iter().map(|device| device.id.as_str());
        let of_devices = ids.zip(&budgets.devices).chain([("host", &budgets.host)]);
        let budgets = of_devices.map(|(id, &budget_bytes)| Budget { id, budget_bytes }).collect();
        render::document::print(&Document { schema: SCHEMA, inventory: &inventory, budgets })
    }
}
