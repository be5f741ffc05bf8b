//! `berth devices`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use protocol::Bytes;
use serde::Serialize;

use super::listen::Terminal;
use super::setup::is_gpu_here;
use super::{ExecutorArguments, PolicyArguments};
use crate::engine::session::{Session, SessionError};
use crate::inventory::Inventory;
use crate::output::{Destination, Existing, OutputKind, Outputs};
use crate::policy::{Policy, PolicyText};
use crate::profile::layers::Layered;
use crate::profile::{DEVICES_MAX, written};
use crate::render::{self, rates};

/// What is here.
#[derive(Debug, Args)]
pub struct Devices {
    #[command(flatten)]
    policy: PolicyArguments,
    #[command(flatten)]
    executor: ExecutorArguments,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
    /// Print a host profile of what is here, to be changed by hand
    #[arg(long, conflicts_with = "json")]
    profile: bool,
    /// Write the profile to a file
    #[arg(long, value_name = "FILE", requires = "profile")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct DevicesDocument<'a> {
    schema: u32,
    #[serde(flatten)]
    inventory: &'a Inventory,
    /// Why no GPU is used though NVML shows one.
    why_no_cuda: Option<String>,
    /// Which cuBLASLt multiplies on GPUs, or why none does.
    cublas: Option<String>,
    budgets: Vec<Budget<'a>>,
    /// The host profiles that took part, lowest first.
    profiles: Vec<&'a str>,
}

#[derive(Serialize)]
struct Budget<'a> {
    id: &'a str,
    budget_bytes: Bytes,
}

/// Version of the document.
const SCHEMA: u32 = 1;

impl Devices {
    /// Prints what is here, as tables or documents.
    pub fn run(&self) -> Result<()> {
        let outputs = self.outputs()?;
        let host = self.policy.open_host()?;
        let text = self.policy.over(PolicyText::default());
        let policy = Policy::of(&text.over(&host.profile.profile.policy))?;
        let inventory = host.inventory(None)?;
        if self.profile {
            return self.write_profile(&inventory, outputs);
        }
        let budgets = host.budgets(&policy, &inventory)?;
        let [why_no_cuda, cublas] = self.cuda(&inventory)?;
        let Layered { files, host, .. } = &host.profile;
        let profiles: Vec<&str> = files.iter().chain(host).map(String::as_str).collect();
        if !self.json {
            let mut table = render::tables::inventory(&inventory, &budgets.devices, budgets.host);
            if !profiles.is_empty() {
                table.push_str(&format!("\nprofiles: {}", profiles.join(", ")));
            }
            if let Some(why) = why_no_cuda {
                table.push_str(&format!("\nno GPU is used: {why}"));
            }
            if let Some(cublas) = cublas {
                table.push_str(&format!("\ncuBLASLt: {cublas}"));
            }
            table.push_str(&format!("\n{}", rates::text(&inventory, None)));
            return render::print(&table);
        }
        let ids = inventory.devices.iter().map(|device| device.id.as_str());
        let of_devices = ids.zip(&budgets.devices).chain([("host", &budgets.host)]);
        let budgets = of_devices.map(|(id, &budget_bytes)| Budget { id, budget_bytes }).collect();
        render::document::print(&DevicesDocument {
            schema: SCHEMA,
            inventory: &inventory,
            why_no_cuda,
            cublas,
            budgets,
            profiles,
        })
    }

    /// Why an executor cannot compute on the GPUs that are here, where it cannot; where it can,
    /// what it says of cuBLASLt. It starts CUDA, this process does not. Nothing where no GPU is
    /// here.
    fn cuda(&self, inventory: &Inventory) -> Result<[Option<String>; 2]> {
        if !inventory.devices.iter().any(is_gpu_here) {
            return Ok([None, None]);
        }
        let executors = Terminal::new(self.executor.verbose).executors();
        match Session::start_telling(&self.executor.program(), executors) {
            Ok(session) => {
                let said = [session.why_no_cuda.clone(), session.cublas.clone()];
                session.end();
                Ok(said)
            }
            Err(SessionError::Cancelled) => Err(SessionError::Cancelled.into()),
            Err(error) => Ok([Some(error.to_string()), None]),
        }
    }

    /// Where the profile is written, checked.
    fn outputs(&self) -> Result<Outputs> {
        let mut outputs = Outputs::new();
        if let Some(path) = &self.output {
            outputs.add(Destination::of("--output", path, OutputKind::Text, Existing::Replaced)?);
        }
        self.policy.add_profiles(&mut outputs);
        outputs.ready()?;
        Ok(outputs)
    }

    fn write_profile(&self, inventory: &Inventory, outputs: Outputs) -> Result<()> {
        let text = written::text(inventory);
        let text =
            text.with_context(|| format!("a profile lists at most {DEVICES_MAX} devices"))?;
        if self.output.is_none() {
            return render::print(text.trim_end());
        }
        outputs.write(&[text.as_bytes()], || ())?;
        Ok(())
    }
}
