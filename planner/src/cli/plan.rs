//! `berth plan`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::placement::PlacementArguments;
use super::setup::{Opening, check_shape};
use super::shape::ShapeArguments;
use super::{ExecutorArguments, PolicyArguments};
use crate::output::{self, Pending};
use crate::planning::{self, PlanError};
use crate::render::document::{self, PlanDocument, RehearsalDocument};
use crate::render::{self, tables};
use crate::solve::{PlanReport, Solution};
use crate::supervise::{Outcome, Work, supervise};

/// Where every byte will go.
#[derive(Debug, Args)]
pub struct Plan {
    /// A directory in diffusers format [default: the built-in demo model]
    model: Option<PathBuf>,
    /// Solve and show; touch no device. Without it the plan is also loaded, and its use measured
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    shape: ShapeArguments,
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
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Plan {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        check_shape(&self.shape)?;
        if let Some(path) = &self.output {
            output::check(path)?;
        }
        let source = self.shape.source()?;
        let opening =
            Opening::open(self.model.as_deref(), &self.policy, &self.placement, &self.executor)?;
        let Opening { setting, program, mut session, mut progress, description, .. } = opening;
        let job = self.shape.job(&description, source.as_ref())?;
        let request = setting.request(&description, job.clone(), self.dry_run)?;
        if self.dry_run {
            let planned = planning::plan(&mut session, &request, 1);
            session.end();
            let Solution { plan, report } = document::feasible(self.json, &request.model, planned)?;
            render::tell(&report.notices);
            return self.show(&plan, &report, None);
        }
        let inventorize =
            || setting.request(&description, job.clone(), false).map_err(PlanError::Inventory);
        let outcome =
            supervise(&program, session, &inventorize, &Work::Rehearse, None, &mut progress);
        progress.clear();
        let outcome = document::feasible(self.json, &request.model, outcome)?;
        self.show(&outcome.plan, &outcome.report, Some(&outcome))
    }

    fn show(
        &self,
        plan: &protocol::Plan,
        report: &PlanReport,
        outcome: Option<&Outcome>,
    ) -> Result<()> {
        if let Some(path) = &self.output {
            Pending::write(path, toml::to_string_pretty(plan)?.as_bytes())?.finish()?;
        }
        let document = PlanDocument::new(plan, report);
        match (self.json, outcome) {
            (true, None) => document::print(&document),
            (true, Some(Outcome { usage, attempts, .. })) => {
                document::print(&RehearsalDocument { plan: document, usage, attempts: *attempts })
            }
            (false, _) => {
                render::print(&tables::plan(plan, outcome.map(|outcome| &outcome.usage)))?;
                if self.explain {
                    render::print(&tables::explanation(plan, report))?;
                }
                Ok(())
            }
        }
    }
}
