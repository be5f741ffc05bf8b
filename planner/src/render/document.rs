//! The JSON documents: stable, versioned, one object each.

mod tune;

use std::collections::BTreeMap;

use protocol::plan::VaeTile;
use protocol::{Bytes, JobShape, ModelSource, Plan, UsageReport};
use serde::Serialize;

use super::rates::{self, RangeMs, Rates};
use crate::inventory::Inventory;
use crate::job::FailedAttempt;
use crate::job::infotext::{Reading, Settings};
use crate::planning::{DoesNotFit, NoRoom};
use crate::solve::{Advice, Faster, Integrated, PlanReport, Rejected};

pub use tune::TuneDocument;

/// `plan --json`, and the `plan` field of `generate --json`.
#[derive(Debug, Serialize)]
pub struct PlanDocument<'a> {
    feasible: bool,
    #[serde(flatten)]
    plan: &'a Plan,
    /// Pieces of the VAE, as in the plan's options; `null` for the whole picture at once.
    vae_tile: Option<VaeTile>,
    rejected: &'a [Rejected],
    /// What kept the job from being faster, a sentence each.
    bounds: &'a [String],
    /// How the figures are known that the predictions rest on: the host's, then each device's.
    rates: Vec<Rates>,
    /// Between which times the total should be, where rates are a datasheet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_range_ms: Option<RangeMs>,
    /// What the user should know of the files, a sentence each.
    notices: &'a [String],
    /// What each integrated device changes: what the plan would take without it, or with it.
    integrated: &'a [Integrated],
    /// Where the job is predicted to take more than ten minutes: what would be faster.
    faster: &'a [Faster],
}

impl<'a> PlanDocument<'a> {
    /// The document of a plan that was made for an inventory.
    pub fn new(plan: &'a Plan, report: &'a PlanReport, inventory: &Inventory) -> PlanDocument<'a> {
        let PlanReport { rejected, bounds, notices, advice, .. } = report;
        let Advice { integrated, faster } = advice;
        let (rates, vae_tile) = (rates::rates(inventory), plan.options.vae_tile);
        let feasible = true;
        PlanDocument {
            feasible,
            plan,
            vae_tile,
            rejected,
            bounds,
            rates,
            predicted_range_ms: rates::range_ms(inventory, plan),
            notices,
            integrated,
            faster,
        }
    }
}

/// `generate --server --json`.
#[derive(Debug, Serialize)]
pub struct RemoteDocument<'a> {
    /// What the daemon says of its job.
    pub job: &'a serde_json::Value,
    /// The pictures' files.
    pub images: Vec<String>,
    /// The seed of each.
    pub seeds: Vec<u64>,
}

/// `plan --json` where nothing fits.
#[derive(Debug, Serialize)]
pub struct InfeasibleDocument<'a> {
    schema: u32,
    feasible: bool,
    model: &'a ModelSource,
    job: &'a JobShape,
    because: &'a str,
    nearest: Nearest,
}

/// What would fit; absent figures are `null`.
#[derive(Debug, Default, Serialize)]
struct Nearest {
    max_vram_bytes: Option<Bytes>,
    max_ram_bytes: Option<Bytes>,
    /// Whether it takes both budgets; else either does.
    together: bool,
    width: Option<u32>,
    height: Option<u32>,
}

impl<'a> InfeasibleDocument<'a> {
    /// Of a plan that was given: nothing else was looked for. `message` is the error's.
    pub fn of_given(
        model: &'a ModelSource,
        error: &'a NoRoom,
        message: &'a str,
    ) -> InfeasibleDocument<'a> {
        InfeasibleDocument {
            schema: protocol::plan::SCHEMA,
            feasible: false,
            model,
            job: &error.job,
            because: message.lines().next().unwrap_or_default(),
            nearest: Nearest::default(),
        }
    }

    /// Of a job for which no plan fits.
    pub fn new(model: &'a ModelSource, error: &'a DoesNotFit) -> InfeasibleDocument<'a> {
        InfeasibleDocument {
            schema: protocol::plan::SCHEMA,
            feasible: false,
            model,
            job: &error.job,
            because: &error.infeasible.because,
            nearest: Nearest {
                max_vram_bytes: error.infeasible.max_vram,
                max_ram_bytes: error.infeasible.max_ram,
                together: error.infeasible.together,
                width: error.largest.map(|[width, _]| width),
                height: error.largest.map(|[_, height]| height),
            },
        }
    }
}

/// `plan --json` of a plan that was also loaded.
#[derive(Debug, Serialize)]
pub struct RehearsalDocument<'a> {
    /// What was tried.
    #[serde(flatten)]
    pub plan: PlanDocument<'a>,
    /// What it used when it was loaded.
    pub usage: &'a UsageReport,
    /// Plans that were tried.
    pub attempts: u64,
    /// What became of all of them but the last.
    pub failures: &'a [FailedAttempt],
}

/// What `generate --json` prints.
#[derive(Debug, Serialize)]
pub struct GenerateDocument<'a> {
    /// What the pictures were made by.
    pub plan: PlanDocument<'a>,
    /// What the run used.
    pub usage: &'a UsageReport,
    /// Plans that were tried.
    pub attempts: u64,
    /// What became of all of them but the last.
    pub failures: &'a [FailedAttempt],
    /// What the user should know of the job, a sentence each.
    pub warnings: Vec<String>,
    /// The files written.
    pub images: Vec<String>,
    /// The seed of each of them.
    pub seeds: Vec<u64>,
}

/// `inspect FILE --json` of a picture.
#[derive(Debug, Serialize)]
pub struct SettingsDocument<'a> {
    picture: &'a str,
    settings: &'a Settings,
    /// Keys and values that are not understood.
    unknown: BTreeMap<&'a str, &'a str>,
}

impl<'a> SettingsDocument<'a> {
    /// The document of a picture's settings.
    pub fn new(picture: &'a str, Reading { settings, unknown }: &'a Reading) -> Self {
        let unknown = unknown.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        SettingsDocument { picture, settings, unknown: unknown.collect() }
    }
}

/// Prints a document on standard output.
pub fn print(document: &impl Serialize) -> anyhow::Result<()> {
    super::print(&serde_json::to_string_pretty(document)?)
}
