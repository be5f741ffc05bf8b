//! `berth tune`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use protocol::profile::ModelDescription;
use protocol::{Bytes, Phase};

use super::answer::feasible;
use super::listen::Terminal;
use super::model::ModelArguments;
use super::number;
use super::placement::PlacementArguments;
use super::setup::Opening;
use super::shape::ShapeArguments;
use super::{ExecutorArguments, PolicyArguments, interrupt};
use crate::engine::host::Host;
use crate::engine::session::Session;
use crate::engine::supervise::Work;
use crate::engine::warm::{Holding, Warm};
use crate::job::request::Prompts;
use crate::job::seed::Seed;
use crate::job::{JobRequest, PreparedJob, ResolvedJob};
use crate::output::{Destination, Existing, OutputKind, Outputs};
use crate::planning::{PlanError, Request, Survey};
use crate::policy::Objective;
use crate::render::document::{self, TuneDocument};
use crate::render::{self, plot, tables};
use crate::solve::{Solution, shown_ms};
use crate::tune::{self, Measured, PLANS_MAX, Point, Range, Tuning, counted_ms, needed_bytes};

/// Plans that may be asked for: a minute of planning for the largest models.
const POINTS: std::ops::RangeInclusive<u32> = 2..=4096;

/// What is generated where a curve is measured. The time does not depend on it.
const PROMPT: &str = "a lighthouse on a cliff at dusk, in oils";

/// How much faster a job gets with more device memory.
#[derive(Debug, Args)]
pub struct Tune {
    #[command(flatten)]
    model: ModelArguments,
    /// Budgets of each device to look at, as 4GiB..24GiB [default: from the least that fits to all
    /// there is]
    #[arg(long, value_name = "RANGE")]
    budgets: Option<Range>,
    /// Plans to make at most, 2 to 4096: more of them find more steps
    #[arg(long, value_name = "COUNT", default_value_t = PLANS_MAX as u32, allow_negative_numbers = true,
        value_parser = number::within(POINTS))]
    points: u32,
    #[command(flatten)]
    shape: ShapeArguments,
    #[command(flatten)]
    policy: PolicyArguments,
    #[command(flatten)]
    placement: PlacementArguments,
    #[command(flatten)]
    executor: ExecutorArguments,
    /// Also run the plans of the knees, of both ends and of some others, and tell what they took
    #[arg(long)]
    measure: bool,
    /// Also draw the curve
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl Tune {
    /// Plans for many budgets and prints the curve.
    pub fn run(&self) -> Result<()> {
        self.check()?;
        let request = self.request()?;
        let opening = Opening::open(request, &self.policy, &self.executor, |_| self.outputs())?;
        let Opening { asked, host, outputs, .. } = opening;
        let Opening { mut session, mut terminal, description, .. } = opening;
        self.check_objective(asked.policy.optimize)?;
        let resolved = asked.resolve(&description)?;
        let holding = Holding::NOTHING;
        let request = host.request(&asked, &resolved, &description, !self.measure, holding)?;
        if request.inventory.devices.is_empty() {
            bail!(
                "there is no device whose budget could be varied on {}; hint: name a host profile with devices, as --host virtual-2x2g",
                request.inventory.source
            );
        }
        self.check_range(&request)?;
        let tuned = self.tune(&mut session, &request, &description);
        let mut tuning = feasible(self.json, &request.model, tuned)?;
        let mut warm = Warm::new(session);
        if self.measure {
            let runs = Runs { host: &host, asked, resolved, description };
            runs.measure(&mut warm, &mut tuning, &mut terminal)?;
        }
        warm.end();
        interrupt::release();
        self.show(&tuning, outputs)
    }

    /// What these arguments ask for, and what is generated where it is measured.
    fn request(&self) -> Result<JobRequest> {
        let prompt = Some(PROMPT.to_owned());
        Ok(JobRequest {
            model: self.model.name()?,
            prompts: Prompts { prompt, ..Prompts::default() },
            seed: Some(Seed::Given(0)),
            policy: self.policy.over(self.placement.text()?),
            ..self.shape.request()
        })
    }

    /// Where the curve is drawn, and what this alone reads.
    fn outputs(&self) -> Result<Outputs> {
        let mut outputs = Outputs::new();
        if let Some(path) = &self.plot {
            let plot = Destination::of("--plot", path, OutputKind::Text, Existing::Replaced)?;
            let is_svg = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
            if !is_svg && !plot.is_stream() {
                bail!("--plot {} is no SVG file; hint: end its name in .svg", path.display());
            }
            outputs.add(plot);
        }
        if self.json && outputs.take_stdout() {
            bail!("--json prints to standard output, where the plot goes; hint: name a file");
        }
        Ok(outputs)
    }

    /// Nonsense that needs no model to be seen.
    fn check(&self) -> Result<()> {
        if self.policy.max_vram.is_some() {
            bail!(
                "--max-vram is what `tune` varies; hint: give a range of it, as --budgets 4GiB..24GiB"
            );
        }
        Ok(())
    }

    /// Budgets beyond what any device has: of those there is nothing to be seen.
    fn check_range(&self, request: &Request) -> Result<()> {
        let (Some(range), largest) = (self.budgets, largest_budget(request)) else { return Ok(()) };
        if range.low > largest {
            bail!(
                "--budgets begins at {}, and no device has more than {largest} to be used; hint: begin below that, or leave --budgets out",
                range.low
            );
        }
        if range.high > largest {
            render::tell(&[format!(
                "--budgets goes up to {}, and no device has more than {largest} to be used: the curve ends there",
                range.high
            )]);
        }
        Ok(())
    }

    fn check_objective(&self, objective: Objective) -> Result<()> {
        match objective {
            Objective::Memory => bail!(
                "the best plan for memory is the same with every budget; hint: --optimize latency or throughput"
            ),
            Objective::Throughput if self.measure => bail!(
                "--measure runs from a cold start, --optimize throughput counts the job after it; hint: leave out one of them"
            ),
            Objective::Throughput | Objective::Latency => Ok(()),
        }
    }

    /// Plans the curve.
    fn tune(
        &self,
        session: &mut Session,
        request: &Request,
        description: &ModelDescription,
    ) -> Result<Tuning, PlanError> {
        let objective = request.objective;
        let mut survey = Survey::new(session, request)?;
        let mut plan = |cap: Bytes| -> Result<Point<protocol::Plan>, PlanError> {
            let Solution { plan, .. } = survey.plan(session, &capped(request.clone(), cap), 1)?;
            let (needed_bytes, ms) = (needed_bytes(&plan), counted_ms(&plan, objective));
            Ok(Point { budget: cap, needed_bytes, ms, plan })
        };
        let (range, is_least) = range(self.budgets, request, &mut plan)?;
        let curve = tune::curve(range, self.points as usize, |cap| match plan(cap) {
            Ok(point) => Ok(Some(point)),
            Err(PlanError::Infeasible(_)) => Ok(None),
            Err(error) => Err(error),
        })?;
        let steps = curve.steps.iter();
        let points: Vec<(u64, f64)> =
            steps.map(|step| (step.point.budget.0, step.point.ms)).collect();
        Ok(Tuning {
            model: request.model.clone(),
            family: description.family.clone(),
            job: request.job.clone(),
            objective,
            host: request.inventory.source.to_string(),
            range,
            is_least,
            measured: vec![None; curve.steps.len()],
            knees: tune::knees(&points),
            curve,
        })
    }

    fn show(&self, tuning: &Tuning, outputs: Outputs) -> Result<()> {
        let to_stderr = outputs.take_stdout();
        if self.plot.is_some() {
            outputs.write(&[plot::svg(tuning)?.as_bytes()], || ())?;
        }
        match self.json {
            true => document::print(&TuneDocument::new(tuning)),
            false => render::print_beside(to_stderr, &tables::curve(tuning)),
        }
    }
}

/// The budgets to look at, of which the largest has a plan; and whether less than the least has
/// none.
fn range(
    asked: Option<Range>,
    request: &Request,
    plan: &mut impl FnMut(Bytes) -> Result<Point<protocol::Plan>, PlanError>,
) -> Result<(Range, bool), PlanError> {
    let all = largest_budget(request);
    let high = asked.map_or(all, |range| range.high.min(all));
    // Nothing in the range fits where this does not.
    plan(high)?;
    let low = asked.map_or(Bytes::ZERO, |range| range.low.min(high));
    match plan(low) {
        Ok(_) => Ok((Range { low, high }, low == Bytes::ZERO)),
        Err(PlanError::Infeasible(error)) => {
            let least = error.infeasible.max_vram.filter(|least| (low..=high).contains(least));
            Ok((Range { low: least.unwrap_or(low), high }, true))
        }
        Err(error) => Err(error),
    }
}

/// The largest budget of all devices.
fn largest_budget(request: &Request) -> Bytes {
    request.budgets.devices.iter().copied().max().unwrap_or_default()
}

/// A request with one more cap on each device.
fn capped(mut request: Request, cap: Bytes) -> Request {
    for budget in &mut request.budgets.devices {
        *budget = cap.min(*budget);
    }
    request
}

/// What it takes to run the plans of a curve.
struct Runs<'a> {
    host: &'a Host,
    asked: PreparedJob,
    resolved: ResolvedJob,
    description: ModelDescription,
}

impl Runs<'_> {
    /// Runs some of the steps' plans on one executor, each with nothing loaded before; their
    /// pictures are dropped.
    fn measure(&self, warm: &mut Warm, tuning: &mut Tuning, terminal: &mut Terminal) -> Result<()> {
        let work = Work::Generate(Box::new(self.asked.job(&self.resolved)?));
        let runs = tuning.runs();
        let total: f64 = runs.iter().map(|step| tuning.curve.steps[*step].point.ms).sum();
        render::tell(&[format!("running {} plans, {} as predicted", runs.len(), shown_ms(total))]);
        for step in runs {
            let point = &tuning.curve.steps[step].point;
            let Runs { host, asked, resolved, description } = self;
            let request = |holding: Holding<'_>| {
                let request = host.request(asked, resolved, description, false, holding);
                let request = request.map_err(|error| PlanError::Inventory(error.into()))?;
                Ok(capped(request, point.budget))
            };
            let mut hear = |event| terminal.hear(event);
            let outcome = host.run(warm, &request, &work, None, &mut hear)?;
            warm.unload()?;
            if outcome.attempts > 1 || outcome.plan.components != point.plan.components {
                render::tell(&[format!(
                    "with {} another plan ran than the curve has: less was free, or the first one failed",
                    point.budget
                )]);
                continue;
            }
            let ms = outcome.usage.measured_ms;
            let denoise_step_ms = ms.phases[Phase::Denoise];
            tuning.measured[step] = Some(Measured { total_ms: ms.total, denoise_step_ms });
        }
        Ok(())
    }
}
