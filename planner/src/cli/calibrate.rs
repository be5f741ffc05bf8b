//! `berth calibrate`.

mod self_test;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use etcetera::BaseStrategy;
use protocol::calibration::{Calibration, CalibrationDevice};
use protocol::{Command, DeviceId, Event};
use serde::Serialize;

use super::ExecutorArguments;
use super::listen::Terminal;
use super::setup::open_host;
use crate::calibration::{Figure, StoreError, figures};
use crate::engine::session::{Session, SessionError};
use crate::inventory::{Device, DeviceKind, Inventory};
use crate::policy::{Budgets, Policy};
use crate::render::{self, tables};

/// How fast everything is.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// Measure this device only, as cuda0, beside the host [default: all devices]
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// A host profile, for its virtual devices: a file, or the name of a shipped one [default: this
    /// machine]
    #[arg(long, value_name = "PROFILE")]
    host: Option<String>,
    /// Measure nothing: test whether the kernels of GPUs compute as the host does, and whether
    /// copies between GPUs arrive as they were. Berth does so before it first uses a GPU with a
    /// driver
    #[arg(long)]
    self_test: bool,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    executor: ExecutorArguments,
}

#[derive(Serialize)]
struct CalibrationDocument<'a> {
    schema: u32,
    /// Where the figures are kept now.
    file: &'a Path,
    figures: &'a [Figure],
    /// Devices that were not measured, each with its reason.
    left_out: &'a [String],
}

/// Version of the document.
const SCHEMA: u32 = 1;

impl Calibrate {
    /// Measures, keeps the figures and prints them.
    pub fn run(&self) -> Result<()> {
        let host = open_host(self.host.as_deref())?;
        let calibration = &host.calibration;
        let file = calibration.path().ok_or(StoreError::NoPlace)?;
        let policy = Policy::of(&host.profile.profile.policy)?;
        let inventory = host.uncalibrated()?;
        let budgets = policy.budgets(&inventory)?;
        self.check_device(&inventory)?;
        let directory = storage_directory(file)?;

        let executors = Terminal::new(self.executor.verbose).executors();
        let mut session = Session::start(&self.executor.program(), executors)?;
        let (devices, left_out) = self.devices(&inventory, &budgets, &session)?;
        if self.self_test {
            return self_test::run(&host.self_tests, session, devices, &inventory, self.json);
        }
        eprintln!("berth: measuring takes some seconds; other work on this machine disturbs it");
        let measured = ask(&mut session, devices, inventory.host.cores, directory)?;
        session.end();

        let figures = figures(&inventory, &measured);
        render::tell(&left_out);
        if self.json {
            let left_out = left_out.as_slice();
            let document =
                CalibrationDocument { schema: SCHEMA, file, figures: &figures, left_out };
            render::document::print(&document)?;
        } else {
            render::print(&tables::calibration(&figures))?;
        }
        calibration.record(&inventory, &measured)?;
        eprintln!("berth: kept in {}", file.display());
        Ok(())
    }

    fn check_device(&self, inventory: &Inventory) -> Result<()> {
        match &self.device {
            Some(id) if inventory.device(id).is_none() => {
                let known: Vec<&str> = inventory.devices.iter().map(|d| d.id.as_str()).collect();
                match known.as_slice() {
                    [] => bail!("there is no device {id}; hint: `berth devices` tells why"),
                    known => {
                        bail!("there is no device {id}; hint: name one of {}", known.join(", "))
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// What the executor is to measure, and what it cannot, with reasons. A device that was named
    /// must be measurable.
    fn devices(
        &self,
        inventory: &Inventory,
        budgets: &Budgets,
        session: &Session,
    ) -> Result<(Vec<CalibrationDevice>, Vec<String>)> {
        let (mut devices, mut left_out) = (Vec::new(), Vec::new());
        for (device, budget) in inventory.devices.iter().zip(&budgets.devices) {
            let named = self.device.as_ref() == Some(&device.id);
            if self.device.is_some() && !named {
                continue;
            }
            match why_not(device, session) {
                Some(why) if named => bail!("{} cannot be measured: {why}", device.id),
                Some(why) => left_out.push(format!("{} is not measured: {why}", device.id)),
                None => devices.push(CalibrationDevice {
                    id: DeviceId(device.id.clone()),
                    backend: device.undisturbed_backend(),
                    budget_bytes: *budget,
                    overhead_bytes: device.overhead_bytes,
                    pinned_bytes: device.pinned_bytes,
                }),
            }
        }
        Ok((devices, left_out))
    }
}

/// Why a device cannot be measured, as a clause.
fn why_not(device: &Device, session: &Session) -> Option<String> {
    if device.kind == DeviceKind::Virtual {
        return None;
    }
    if let Some(missing) = &device.missing {
        return Some(missing.clone());
    }
    if device.uuid.is_none() {
        return Some("it is only imagined by its profile".to_owned());
    }
    let why = || session.why_no_cuda.clone().unwrap_or_else(|| "no backend for CUDA".to_owned());
    (!session.computes_on_gpus())
        .then(|| format!("the executor does not compute on GPUs: {}", why()))
}

/// A directory on the storage that models are likely on: the cache's, where there is one, else the
/// calibration file's.
fn storage_directory(file: &Path) -> Result<String> {
    let cache = etcetera::choose_base_strategy().map(|strategy| strategy.cache_dir().join("berth"));
    let own = || file.parent().map(Path::to_owned).context("the calibration file is nowhere");
    let directory: PathBuf = match cache {
        Ok(cache) if std::fs::create_dir_all(&cache).is_ok() => cache,
        _ => own()?,
    };
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    match directory.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("the path {} is not UTF-8", directory.display()),
    }
}

fn ask(
    session: &mut Session,
    devices: Vec<CalibrationDevice>,
    threads: usize,
    directory: String,
) -> Result<Calibration, SessionError> {
    let threads = threads as u32;
    let command = Command::Calibrate { devices, threads, directory };
    session.ask("Calibrate", command, |event| match event {
        Event::Calibrated(measured) => Ok(*measured),
        other => Err(other),
    })
}
