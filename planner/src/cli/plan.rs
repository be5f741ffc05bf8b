//! `berth plan`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use protocol::StorageType;

use super::answer::feasible;
use super::model::ModelArguments;
use super::placement::PlacementArguments;
use super::preview::PreviewArguments;
use super::setup::{Opening, tell_unused_gpus};
use super::shape::ShapeArguments;
use super::{ExecutorArguments, PolicyArguments, interrupt};
use crate::engine::supervise::{Outcome, Work};
use crate::engine::warm::{Holding, Warm};
use crate::inventory::Inventory;
use crate::job::JobRequest;
use crate::output::{Destination, Existing, OutputKind, Outputs};
use crate::planning::{self, PlanError, Request};
use crate::policy::Objective;
use crate::render::document::{self, PlanDocument, RehearsalDocument};
use crate::render::{self, rates, tables};
use crate::solve::{PlanReport, Solution};

/// Where every byte will go.
#[derive(Debug, Args)]
pub struct Plan {
    #[command(flatten)]
    model: ModelArguments,
    /// Solve and show; touch no device. Without it the plan is also loaded, and its use measured
    #[arg(long)]
    dry_run: bool,
    /// Plan as if each matrix were stored in this type: f32, f16, bf16 or q8_0 (8 bits, as in
    /// GGUF). Needs --dry-run
    #[arg(long, value_name = "TYPE", value_parser = storage_type)]
    weights_as: Option<StorageType>,
    #[command(flatten)]
    shape: ShapeArguments,
    #[command(flatten)]
    preview: PreviewArguments,
    #[command(flatten)]
    policy: PolicyArguments,
    #[command(flatten)]
    placement: PlacementArguments,
    #[command(flatten)]
    executor: ExecutorArguments,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
    /// Also tell why, with what was rejected
    #[arg(long, conflicts_with = "json")]
    explain: bool,
    /// Also write the plan to a TOML file, for `generate --plan`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What a plan is shown beside.
struct PlanContext<'a> {
    objective: Objective,
    inventory: &'a Inventory,
}

impl Plan {
    /// Plans, prints the plan and, if asked to, tries it.
    pub fn run(&self) -> Result<()> {
        if self.weights_as.is_some() && !self.dry_run {
            bail!("--weights-as plans for files that are not there; hint: add --dry-run");
        }
        let request = self.request()?;
        let opening = Opening::open(request, &self.policy, &self.executor, |_| self.outputs())?;
        let Opening { asked, host, outputs, .. } = opening;
        let Opening { mut session, mut terminal, description, .. } = opening;
        let resolved = asked.resolve(&description)?;
        let explain = self.json || self.explain;
        let request = |dry_run, holding: Holding<'_>| {
            let request = host.request(&asked, &resolved, &description, dry_run, holding)?;
            anyhow::Ok(Request { explain, compare_integrated: true, ..request })
        };
        let (model, objective) = (&description.model, asked.policy.optimize);
        if self.dry_run {
            let request = request(true, Holding::NOTHING)?;
            let planned = planning::plan(&mut session, &request, 1);
            session.end();
            interrupt::release();
            let Solution { plan, report, .. } = feasible(self.json, model, planned)?;
            render::tell(&report.notices);
            render::advice::tell(&plan, &report.advice);
            let shown = PlanContext { objective, inventory: &request.inventory };
            return self.show(&plan, &report, &shown, outputs, None);
        }
        tell_unused_gpus(&host, &session)?;
        let inventorize =
            |holding: Holding<'_>| request(false, holding).map_err(PlanError::Inventory);
        let mut hear = |event| terminal.hear(event);
        let mut warm = Warm::new(session);
        let outcome = host.run(&mut warm, &inventorize, &Work::Rehearse, None, &mut hear);
        warm.end();
        let outcome = feasible(self.json, model, outcome)?;
        render::advice::tell(&outcome.plan, &outcome.report.advice);
        let shown = PlanContext { objective, inventory: &outcome.inventory };
        interrupt::release();
        self.show(&outcome.plan, &outcome.report, &shown, outputs, Some(&outcome))
    }

    /// What these arguments ask for.
    fn request(&self) -> Result<JobRequest> {
        Ok(JobRequest {
            model: self.model.name()?,
            policy: self.policy.over(self.placement.text()?),
            preview_every: self.preview.preview,
            weights_as: self.weights_as,
            ..self.shape.request()
        })
    }

    /// Where the plan is written, and what this alone reads.
    fn outputs(&self) -> Result<Outputs> {
        let mut outputs = Outputs::new();
        if let Some(path) = &self.output {
            outputs.add(Destination::of("--output", path, OutputKind::Text, Existing::Replaced)?);
        }
        if self.json && outputs.take_stdout() {
            bail!("--json prints to standard output, where the plan goes; hint: name a file");
        }
        Ok(outputs)
    }

    fn show(
        &self,
        plan: &protocol::Plan,
        report: &PlanReport,
        shown: &PlanContext<'_>,
        outputs: Outputs,
        outcome: Option<&Outcome>,
    ) -> Result<()> {
        let to_stderr = outputs.take_stdout();
        if self.output.is_some() {
            outputs.write(&[toml::to_string_pretty(plan)?.as_bytes()], || ())?;
        }
        let print = |text: &str| render::print_beside(to_stderr, text);
        let PlanContext { objective, inventory } = *shown;
        let document = PlanDocument::new(plan, report, inventory);
        render::tell_failures(outcome.map_or(&[], |outcome| &outcome.failures));
        match (self.json, outcome) {
            (true, None) => document::print(&document),
            (true, Some(Outcome { usage, attempts, failures, .. })) => {
                let (plan, attempts) = (document, *attempts);
                document::print(&RehearsalDocument { plan, usage, attempts, failures })
            }
            (false, _) => {
                print(&tables::plan(plan, report, outcome.map(|outcome| &outcome.usage)))?;
                if let Some(range) = rates::range_text(inventory, plan) {
                    print(&range)?;
                }
                print(&rates::text(inventory, Some(plan)))?;
                if self.explain {
                    print(&format!("\n{}", tables::explanation(plan, report, objective)))?;
                }
                Ok(())
            }
        }
    }
}

/// The storage type of this name.
fn storage_type(name: &str) -> Result<StorageType, String> {
    let known = StorageType::ALL.into_iter().find(|storage| storage.name() == name);
    known.ok_or_else(|| {
        let names = StorageType::ALL.map(StorageType::name).join(", ");
        format!("there is no storage type of that name; hint: one of {names}")
    })
}
