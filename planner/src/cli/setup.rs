//! What every command on a model begins with: everything checked that needs no executor, then an
//! executor that has looked at the model.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use protocol::ModelDescription;

use super::listen::Terminal;
use super::{ExecutorArguments, PolicyArguments, log};
use crate::engine::host::Host;
use crate::engine::session::patience::Patience;
use crate::engine::session::{ExecutorProgram, Session};
use crate::inventory::{Device, DeviceKind};
use crate::job::{JobRequest, PreparedJob};
use crate::output::Outputs;
use crate::planning;
use crate::policy::PolicyText;
use crate::profile::layers::LayerFiles;

impl ExecutorArguments {
    /// The program to start.
    pub fn program(&self) -> ExecutorProgram {
        let patience = Patience::seconds(self.patience);
        ExecutorProgram {
            path: self.executor.clone(),
            verbose: self.verbose || log::is_asked(),
            patience: if self.patient { patience.endless() } else { patience },
        }
    }
}

impl PolicyArguments {
    /// The host of the profile that is named, or this one. What of it is ignored is told on
    /// standard error.
    pub fn open_host(&self) -> Result<Host> {
        open_host(self.host.as_deref())
    }

    /// These flags over other ones.
    pub fn over(&self, below: PolicyText) -> PolicyText {
        PolicyText {
            max_vram: self.max_vram.clone(),
            max_ram: self.max_ram.clone(),
            optimize: self.optimize.map(|objective| objective.name().to_owned()),
            ..below
        }
    }

    /// Adds the files of host profiles to what no output may destroy.
    pub fn add_profiles(&self, outputs: &mut Outputs) {
        let named = self.host.as_ref().map(PathBuf::from);
        for path in LayerFiles::of_this_process().0.into_iter().chain(named) {
            outputs.reads.add("a host profile", path);
        }
    }
}

/// The host of a profile, or this one.
pub fn open_host(profile: Option<&str>) -> Result<Host> {
    let host = Host::open(profile)?;
    if let Some(ignored) = &host.ignored {
        eprintln!("berth: {ignored}");
    }
    Ok(host)
}

/// What a command on a model works with.
pub struct Opening {
    /// What is asked, and what it means on this host.
    pub asked: PreparedJob,
    /// Where it is done.
    pub host: Host,
    /// Where the job's outputs go: checked, and pipes are open.
    pub outputs: Outputs,
    /// The running executor.
    pub session: Session,
    /// Where the job's steps are shown.
    pub terminal: Terminal,
    /// What is in the model.
    pub description: ModelDescription,
}

impl Opening {
    /// Opens a request's model, or the demo model. `outputs` makes the list of what the command
    /// writes, and of what it alone reads.
    pub fn open(
        request: JobRequest,
        policy: &PolicyArguments,
        executor: &ExecutorArguments,
        outputs: impl FnOnce(&PreparedJob) -> Result<Outputs>,
    ) -> Result<Opening> {
        let host = policy.open_host()?;
        let asked = request.prepare(&BTreeMap::new(), &host.profile.profile.policy)?;
        let mut outputs = outputs(&asked)?;
        host.check(&asked.policy)?;
        let program = executor.program();
        add_reads(&mut outputs, &asked, policy, &program);
        outputs.ready()?;
        let terminal = Terminal::new(executor.verbose);
        let mut session = Session::start(&program, terminal.executors())?;
        let description = planning::inspect(&mut session, &asked.model, false)?;
        check_description(&description)?;
        Ok(Opening { asked, host, outputs, session, terminal, description })
    }
}

/// Adds what all commands on a model read to what no output may destroy.
fn add_reads(
    outputs: &mut Outputs,
    asked: &PreparedJob,
    policy: &PolicyArguments,
    program: &ExecutorProgram,
) {
    let model = &asked.model;
    for (flag, path) in model.part_paths() {
        outputs.reads.add(&format!("--{flag}"), path);
    }
    let start = &asked.request.start;
    for (what, path) in [
        ("the model", model.model.as_ref().map(PathBuf::from)),
        ("the executor", program.path.clone()),
        ("the picture to start from", start.image.clone()),
        ("the latents to begin from", start.latents.clone()),
    ] {
        if let Some(path) = path {
            outputs.reads.add(what, path);
        }
    }
    for lora in &asked.loras {
        outputs.reads.add("a LoRA", &lora.path);
    }
    policy.add_profiles(outputs);
}

/// Tells on standard error of GPUs that are here and that an executor does not use.
pub fn tell_unused_gpus(host: &Host, session: &Session) -> Result<()> {
    if let Some(why) = session.why_no_cuda.as_ref().filter(|_| !session.computes_on_gpus())
        && host.uncalibrated()?.devices.iter().any(is_gpu_here)
    {
        eprintln!("berth: no GPU is used: {why}");
    }
    Ok(())
}

/// Whether a device is a GPU of this machine, which CUDA might compute on.
pub fn is_gpu_here(device: &Device) -> bool {
    device.kind == DeviceKind::Cuda && device.ordinal.is_some()
}

/// An error if a model lacks anything or anything is wrong with it, naming the first of it.
fn check_description(description: &ModelDescription) -> Result<()> {
    let faults: Vec<&String> = description.problems.iter().chain(&description.lacks).collect();
    match faults.as_slice() {
        [] => Ok(()),
        [fault] => bail!("{fault}"),
        [first, more @ ..] => {
            bail!("{first}\nand {} more; hint: `berth inspect` lists them", more.len())
        }
    }
}
