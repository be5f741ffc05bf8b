//! From arguments to what the planner works with.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use protocol::plan::Lora;
use protocol::{GraphOptions, JobShape, ModelDescription, ModelSource, Plan, UsageReport};

use super::model::ModelArguments;
use super::placement::PlacementArguments;
use super::{ExecutorArguments, PolicyArguments, interrupt, log};
use crate::calibration::Calibration;
use crate::engine::reservations::Others;
use crate::engine::session::patience::Patience;
use crate::engine::session::{ExecutorProgram, Session};
use crate::engine::warm::Holding;
use crate::inventory::{Device, DeviceKind, Inventory};
use crate::output::Outputs;
use crate::planning::{self, Request};
use crate::policy::lora::LoraWish;
use crate::policy::tile::check_tile;
use crate::policy::{Budgets, Policy, Wishes};
use crate::profile::layers::{Layered, Places};
use crate::render::progress::ProgressLine;

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

/// The host profile of all layers, and the policy that stands in flags, profile and defaults.
pub struct Setting {
    /// The profile, and where it comes from.
    pub layered: Layered,
    /// What is wanted.
    pub policy: Policy,
    loras: Vec<Lora>,
    /// Components that LoRA are added to while they run, wherever they are placed; the placement
    /// may add more.
    lora_at_run_time: Vec<String>,
    calibration: Calibration,
}

impl PolicyArguments {
    /// Reads the host profile, and joins it with the flags and what else they wish.
    pub fn setting(&self, wishes: Wishes) -> Result<Setting> {
        let layered = Layered::load(&Places::of_this_process(), self.host.as_deref())?;
        let wishes = Wishes {
            max_vram: self.max_vram.clone(),
            max_ram: self.max_ram.clone(),
            optimize: self.optimize.map(|objective| objective.name().to_owned()),
            ..wishes
        };
        let policy = Policy::of(&wishes.over(&layered.profile.policy))?;
        let loras = policy.loras.iter().map(lora).collect::<Result<_>>()?;
        let calibration = Calibration::of_this_machine()?;
        let Layered { files, host, .. } = &layered;
        tracing::debug!(?files, ?host, calibration = ?calibration.path(), "read profiles");
        Ok(Setting { layered, policy, loras, lora_at_run_time: Vec::new(), calibration })
    }

    /// Adds the files of host profiles to what no output may destroy.
    pub fn add_profiles(&self, outputs: &mut Outputs) {
        let named = self.host.as_ref().map(PathBuf::from);
        for path in Places::of_this_process().0.into_iter().chain(named) {
            outputs.reads.add("a host profile", path);
        }
    }
}

/// What a command on a model begins with: everything checked that needs no executor, and an executor that has
/// looked at the model.
pub struct Opening {
    /// Where the model is.
    pub model: ModelSource,
    /// What is wanted.
    pub setting: Setting,
    /// Where the job's outputs go: checked, and pipes are open.
    pub outputs: Outputs,
    /// The running executor.
    pub session: Session,
    /// Where the job's steps are shown.
    pub progress: ProgressLine,
    /// What is in the model.
    pub description: ModelDescription,
}

impl Opening {
    /// Opens a model, or the demo model. `outputs` makes the list of what the command writes, and
    /// of what it alone reads.
    pub fn open(
        model: &ModelArguments,
        policy: &PolicyArguments,
        placement: &PlacementArguments,
        executor: &ExecutorArguments,
        outputs: impl FnOnce(&ModelSource) -> Result<Outputs>,
    ) -> Result<Opening> {
        let model = model.source()?;
        let mut outputs = outputs(&model)?;
        let setting = policy.setting(placement.wishes()?)?;
        // Nonsense of budgets and devices is told before anything starts.
        let inventory = setting.inventory(None)?;
        setting.budgets(&inventory)?;
        setting.checked(setting.policy.pins.named(&inventory))?;
        let program = executor.program();
        add_reads(&mut outputs, &model, &setting, policy, &program);
        outputs.ready()?;
        let progress = ProgressLine::new(executor.verbose);
        let mut session = Session::start(&program, progress.executors(interrupt::watch))?;
        let description = planning::inspect(&mut session, &model)?;
        check_description(&description)?;
        Ok(Opening { model, setting, outputs, session, progress, description })
    }
}

/// Adds what all commands on a model read to what no output may destroy.
fn add_reads(
    outputs: &mut Outputs,
    model: &ModelSource,
    setting: &Setting,
    policy: &PolicyArguments,
    program: &ExecutorProgram,
) {
    let parts = model.parts().into_iter().filter_map(|(flag, path)| Some((flag, path?)));
    for (flag, path) in parts {
        outputs.reads.add(&format!("--{flag}"), path);
    }
    let model = model.model.iter().map(|path| ("the model", path.into()));
    let loras = setting.loras.iter().map(|lora| ("a LoRA", PathBuf::from(&lora.path)));
    let executor = program.path.iter().map(|path| ("the executor", path.clone()));
    for (what, path) in model.chain(loras).chain(executor) {
        outputs.reads.add(what, path);
    }
    policy.add_profiles(outputs);
}

impl Setting {
    /// What is, now, with what was measured of it; for a model also with its corrections.
    pub fn inventory(&self, model: Option<&ModelSource>) -> Result<Inventory> {
        self.inventory_beside(model, Holding::NOTHING)
    }

    /// The same for an executor that holds something: that is free for its next plan.
    fn inventory_beside(
        &self,
        model: Option<&ModelSource>,
        holding: Holding<'_>,
    ) -> Result<Inventory> {
        let mut inventory = self.uncalibrated_beside(holding)?;
        let model = model.map(ModelSource::to_string);
        self.calibration.apply(&mut inventory, model.as_deref());
        Ok(inventory)
    }

    /// What is, now, as devices and profile say it.
    pub fn uncalibrated(&self) -> Result<Inventory> {
        self.uncalibrated_beside(Holding::NOTHING)
    }

    fn uncalibrated_beside(&self, holding: Holding<'_>) -> Result<Inventory> {
        let profile = &self.layered.profile;
        let mut inventory = profile.inventory()?;
        let is_here = profile.memory_is_here();
        holding.give_back(&mut inventory, is_here);
        Others::of_this_host(holding.reservation).take_from(&mut inventory, is_here);
        let free = inventory.devices.iter().map(|device| (&device.id, device.free_bytes));
        let free: Vec<String> = free.map(|(id, bytes)| format!("{id} {bytes}")).collect();
        tracing::debug!(host = %inventory.host.available_bytes, devices = ?free, "free now");
        Ok(inventory)
    }

    /// Tells on standard error of GPUs that are here and that an executor does not use.
    pub fn tell_unused_gpus(&self, session: &Session) -> Result<()> {
        if let Some(why) = session.why_no_cuda.as_ref().filter(|_| !session.computes_on_gpus())
            && self.uncalibrated()?.devices.iter().any(is_gpu_here)
        {
            eprintln!("berth: no GPU is used: {why}");
        }
        Ok(())
    }

    /// What may be used of it.
    pub fn budgets(&self, inventory: &Inventory) -> Result<Budgets> {
        self.checked(self.policy.budgets(inventory))
    }

    /// With an error, the files whose policy it may be about: each was readable by itself.
    fn checked<T, E>(&self, result: Result<T, E>) -> Result<T>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let files = &self.layered.files;
        match result {
            Err(error) if !files.is_empty() => {
                Err(error).with_context(|| format!("the flags over {}", files.join(", ")))
            }
            result => Ok(result?),
        }
    }

    /// The LoRA files that are wanted, by absolute paths.
    pub fn loras(&self) -> &[Lora] {
        &self.loras
    }

    /// From now on LoRA are added to these components while they run. Names that the model does not
    /// have do not count, and none does without a LoRA.
    pub fn add_lora_at_run_time(&mut self, names: &[String], description: &ModelDescription) {
        let has = |name: &&String| {
            !self.loras.is_empty() && description.components.iter().any(|c| c.name == **name)
        };
        self.lora_at_run_time = names.iter().filter(has).cloned().collect();
    }

    /// What was measured before, and where it is kept.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Learns from a run by a plan that was made with this setting, for this inventory. What goes wrong is told on
    /// standard error: the run itself is done.
    pub fn learn(&self, inventory: &Inventory, plan: &Plan, usage: &UsageReport) {
        if let Err(error) = self.calibration.learn(inventory, plan, usage) {
            eprintln!("berth: nothing is learned from this run: {error}");
        }
    }

    /// The request of a plan. Devices that this executor cannot compute on count in a plan that is only
    /// shown, and only where a profile names them.
    pub fn request(
        &self,
        description: &ModelDescription,
        job: JobShape,
        dry_run: bool,
        holding: Holding<'_>,
    ) -> Result<Request> {
        check_tile(self.policy.vae_tile, description.side_multiple_pixels)?;
        let inventory = self.inventory_beside(Some(&description.model), holding)?;
        let budgets = self.budgets(&inventory)?;
        let imagined = dry_run && self.layered.names_devices;
        let mut devices = inventory.devices.iter();
        if let (false, Some((id, why))) =
            (dry_run, devices.find_map(|d| Some((&d.id, d.missing.as_ref()?))))
        {
            bail!(
                "{id} of the host profile: {why}; hint: `berth devices --host this-machine` lists what is here, `plan --dry-run` plans for what is not"
            );
        }
        let objective = self.policy.optimize;
        Ok(Request {
            model: description.model.clone(),
            side_multiple_pixels: description.side_multiple_pixels,
            job,
            inventory,
            budgets,
            objective,
            failed: Vec::new(),
            left_out: Vec::new(),
            pins: self.policy.pins.clone(),
            prefetch: self.policy.prefetch,
            tile: self.policy.vae_tile,
            explain: false,
            compare_integrated: false,
            guidance_embeds: description.guidance_embeds,
            options: GraphOptions {
                exact_matmul: self.policy.exact_matmul,
                loras: self.loras.clone(),
                lora_runtime: self.lora_at_run_time.clone(),
                ..GraphOptions::default()
            },
            mapping_policy: self.policy.mapping_policy,
            imagined,
            keeps: None,
        })
    }
}

/// Whether a device is a GPU of this machine, which CUDA might compute on.
pub fn is_gpu_here(device: &Device) -> bool {
    device.kind == DeviceKind::Cuda && device.ordinal.is_some()
}

/// The LoRA file that is wished, by its absolute path: the executor may have another working directory.
fn lora(LoraWish { path, weight }: &LoraWish) -> Result<Lora> {
    let absolute = std::path::absolute(path)
        .with_context(|| format!("cannot make {path} an absolute path"))?;
    if !absolute.is_file() {
        bail!(
            "there is no LoRA file at {path}; hint: name a safetensors file, as style.safetensors:0.8"
        );
    }
    match absolute.to_str() {
        Some(path) => Ok(Lora { path: path.to_owned(), weight: *weight }),
        None => bail!("the path {path} is not UTF-8"),
    }
}

/// An error if a model lacks anything or anything is wrong with it, naming the first of it.
pub fn check_description(description: &ModelDescription) -> Result<()> {
    let faults: Vec<&String> = description.problems.iter().chain(&description.lacks).collect();
    match faults.as_slice() {
        [] => Ok(()),
        [fault] => bail!("{fault}"),
        [first, more @ ..] => {
            bail!("{first}\nand {} more; hint: `berth inspect` lists them", more.len())
        }
    }
}
