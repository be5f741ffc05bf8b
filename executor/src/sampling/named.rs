//! Samplers by their names, for models of flow matching.

use protocol::{JobShape, Sampler, Scheduler};

use super::curves::Curve;
use super::error::SamplerError;
use super::flow::{FlowTable, SigmaTable};
use super::path::{LatentConvention, NoiseLevel, Path, Prediction};
use super::rules::exponential::{Solver, Weighing, grouped_orders};
use super::rules::straight::{self, Churn};
use super::rules::unipc::UniPc;
use super::trajectory::{ModelCall, Trajectory};

/// The table of a name, or that of given levels.
///
/// # Errors
/// A table that flow matching does not have; levels that do not fall from at most 1 to above 0.
pub fn flow_table(scheduler: Scheduler, sigmas: &[f32]) -> Result<FlowTable, SamplerError> {
    if !sigmas.is_empty() {
        let are_levels = sigmas.iter().all(|sigma| *sigma > 0.0 && *sigma <= 1.0);
        return match are_levels && sigmas.is_sorted_by(|a, b| a > b) {
            true => Ok(FlowTable::Given(sigmas.to_vec())),
            false => Err(SamplerError::Given),
        };
    }
    Ok(match scheduler {
        Scheduler::Automatic => FlowTable::Own,
        Scheduler::Normal => FlowTable::Normal,
        Scheduler::SgmUniform => FlowTable::SgmUniform,
        Scheduler::Simple => FlowTable::Simple,
        Scheduler::Karras => FlowTable::Curved(Curve::Karras),
        Scheduler::Exponential => FlowTable::Curved(Curve::Exponential),
        Scheduler::Beta => FlowTable::Curved(Curve::Beta),
        Scheduler::KlOptimal => FlowTable::Curved(Curve::KlOptimal),
        Scheduler::DdimUniform => {
            let (kind, name) = ("scheduler", scheduler.names().name);
            return Err(SamplerError::NotForFlow { kind, name });
        }
    })
}

/// The calls of a run over a table's levels, from its step `first`. `eta` is how much fresh noise
/// there is where the rule takes some; 1 where nobody says.
///
/// # Errors
/// A rule that flow matching does not have.
pub fn flow_trajectory(
    sampler: Sampler,
    table: &SigmaTable,
    first: usize,
    eta: Option<f64>,
) -> Result<Trajectory, SamplerError> {
    let sigmas: Vec<f64> = table.sigmas.iter().map(|sigma| f64::from(*sigma)).collect();
    let clock = |_: NoiseLevel| 0.0;
    let sigmas = match sampler {
        // Their logarithms must differ, and have ends.
        Sampler::Dpmpp2s
        | Sampler::Dpmpp2m
        | Sampler::Dpmpp2mSde
        | Sampler::Dpmpp2mSdeHeun
        | Sampler::UniPc => strictly_falling(sigmas),
        _ => sigmas,
    };
    let level = |sigma: f64| NoiseLevel::of(LatentConvention::Flow, sigma);
    let path = Path {
        levels: sigmas.into_iter().map(level).collect(),
        times: table.timesteps.iter().map(|time| f64::from(*time)).collect(),
        clock: &clock,
        prediction: Prediction::Flow,
        first,
    };
    Ok(Trajectory { calls: calls(sampler, &path, eta.unwrap_or(1.0))? })
}

fn calls(sampler: Sampler, path: &Path<'_>, eta: f64) -> Result<Vec<ModelCall>, SamplerError> {
    Ok(match sampler {
        Sampler::Euler => straight::euler(path, Churn::NONE),
        Sampler::EulerAncestral => straight::euler_ancestral_flow(path, eta),
        Sampler::Heun => straight::heun(path),
        Sampler::Dpmpp2s => {
            let solver = Solver::plus_plus(2);
            solver.singlestep(path, &grouped_orders(path.steps(), solver.order, solver.ending))
        }
        Sampler::Dpmpp2m => Solver::plus_plus(2).multistep(path),
        Sampler::Dpmpp2mSde => Solver { eta, ..Solver::stochastic(2) }.multistep(path),
        Sampler::Dpmpp2mSdeHeun => {
            Solver { eta, weighing: Weighing::Heun, ..Solver::stochastic(2) }.multistep(path)
        }
        Sampler::UniPc => UniPc::of_order(2).calls(path),
        Sampler::Lcm => straight::consistency(path, false),
        other => {
            let (kind, name) = ("sampler", other.names().name);
            return Err(SamplerError::NotForFlow { kind, name });
        }
    })
}

/// What a job keeps of its latents' shape beside the latents, as counts of such tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// From one call of the model to another.
    pub history: usize,
    /// For what one call draws of fresh noise: 1, or 0 where none is drawn.
    pub noise: usize,
}

/// What a job of flow matching keeps, whatever its table and its `eta` are.
///
/// # Errors
/// A rule that flow matching does not have.
pub fn kept(job: &JobShape) -> Result<Kept, SamplerError> {
    /// After so many steps rules keep no more.
    const STEPS_MAX: usize = 8;
    let steps = (job.steps_run() as usize).min(STEPS_MAX);
    let levels = || (0..steps).map(|step| 1.0 - step as f32 / steps as f32);
    let table = SigmaTable {
        sigmas: levels().chain([0.0]).collect(),
        timesteps: levels().map(|level| 1000.0 * level).collect(),
    };
    let trajectory = flow_trajectory(job.sampler, &table, 0, None)?;
    Ok(Kept { history: trajectory.history_len(), noise: usize::from(trajectory.draws()) })
}

/// Levels of which none is 1, as their logarithms have an end there, or the one before.
fn strictly_falling(mut sigmas: Vec<f64>) -> Vec<f64> {
    /// The highest, by diffusers' `UniPCMultistepScheduler`.
    const HIGHEST: f64 = 1.0 - 1e-6;
    /// Of levels that `f32` cannot tell apart.
    const NEXT: f64 = 1.0 - 1e-7;
    let mut highest = HIGHEST;
    for sigma in &mut sigmas {
        *sigma = sigma.min(highest);
        highest = *sigma * NEXT;
    }
    sigmas
}

#[cfg(test)]
mod tests {
    use super::super::error::{FLOW_SAMPLERS, FLOW_SCHEDULERS};
    use super::*;

    fn table(sigmas: &[f32]) -> SigmaTable {
        let timesteps = sigmas[..sigmas.len() - 1].iter().map(|sigma| 1000.0 * sigma).collect();
        SigmaTable { sigmas: sigmas.to_vec(), timesteps }
    }

    #[test]
    fn every_rule_has_as_many_calls_and_tensors_as_are_planned() {
        for sampler in FLOW_SAMPLERS {
            for (steps, first) in [(1, 0), (2, 0), (2, 1), (3, 0), (20, 0), (20, 7), (1000, 0)] {
                let levels = (0..=steps).map(|step| 1.0 - step as f32 / steps as f32);
                let table = table(&levels.collect::<Vec<_>>());
                let made = flow_trajectory(sampler, &table, first, None).unwrap();
                let job = JobShape {
                    steps: steps as u32,
                    first_step: first as u32,
                    sampler,
                    ..JobShape::small()
                };
                assert_eq!(made.calls.len(), job.calls_run() as usize, "{sampler:?} of {steps}");
                let kept = kept(&job).unwrap();
                assert!(made.history_len() <= kept.history, "{sampler:?} of {steps}");
                assert!(usize::from(made.draws()) <= kept.noise, "{sampler:?} of {steps}");
                let ends = made.calls.iter().filter(|call| call.ends_step).count();
                assert_eq!(ends, steps - first, "{sampler:?} of {steps}");
            }
        }
        let kept = |sampler| {
            let kept = kept(&JobShape { sampler, steps: 4, ..JobShape::small() }).unwrap();
            (kept.history, kept.noise)
        };
        assert_eq!(kept(Sampler::Euler), (0, 0));
        assert_eq!(kept(Sampler::EulerAncestral), (0, 1));
        assert_eq!(kept(Sampler::Heun), (1, 0));
        assert_eq!(kept(Sampler::Dpmpp2m), (1, 0));
        assert_eq!(kept(Sampler::Dpmpp2mSde), (1, 1));
        assert_eq!(kept(Sampler::Dpmpp2s), (2, 0));
        assert_eq!(kept(Sampler::UniPc), (3, 0));
    }

    #[test]
    fn latents_stay_finite_over_levels_that_are_alike() {
        for sampler in FLOW_SAMPLERS {
            let levels = [1.0, 1.0, 0.999_999_9, 0.5, 0.5, 0.5, 1e-4, 1e-4, 0.0];
            let trajectory = flow_trajectory(sampler, &table(&levels), 0, None).unwrap();
            let mut history = vec![vec![0.0; 1]; trajectory.history_len()];
            let mut latents = [0.3];
            for call in &trajectory.calls {
                let mut output = [0.5 - 0.1 * latents[0]];
                call.apply(&mut latents, &mut output, &[0.2], &mut history);
                assert!(latents[0].is_finite() && output[0].is_finite(), "{sampler:?}");
            }
            assert!(latents[0].abs() < 10.0, "{sampler:?}: {}", latents[0]);
        }
    }

    #[test]
    fn a_straight_way_ends_at_its_picture_by_every_rule() {
        // The model knows the picture: whatever the rule is, the last step ends there.
        let levels = [1.0, 0.9, 0.7, 0.4, 0.1, 0.0];
        for sampler in FLOW_SAMPLERS {
            let trajectory = flow_trajectory(sampler, &table(&levels), 0, None).unwrap();
            let mut history = vec![vec![0.0; 1]; trajectory.history_len()];
            let (picture, mut latents) = (0.7_f32, [-1.2_f32]);
            for call in &trajectory.calls {
                let mut output = [(latents[0] - picture) / call.sigma as f32];
                call.apply(&mut latents, &mut output, &[0.8], &mut history);
                assert!((output[0] - picture).abs() < 1e-5, "{sampler:?}: {}", output[0]);
            }
            assert!((latents[0] - picture).abs() < 1e-5, "{sampler:?}: {}", latents[0]);
        }
    }

    #[test]
    fn what_flow_matching_does_not_have_is_refused() {
        let refused = flow_trajectory(Sampler::Ddim, &table(&[1.0, 0.0]), 0, None).unwrap_err();
        assert_eq!(refused, SamplerError::NotForFlow { kind: "sampler", name: "ddim" });
        assert!(refused.to_string().contains("euler, euler_ancestral, heun"), "{refused}");
        for job in Sampler::ALL.map(|sampler| JobShape { sampler, ..JobShape::small() }) {
            assert_eq!(kept(&job).is_ok(), FLOW_SAMPLERS.contains(&job.sampler));
        }
        for scheduler in Scheduler::ALL {
            let is_there = FLOW_SCHEDULERS.contains(&scheduler);
            assert_eq!(flow_table(scheduler, &[]).is_ok(), is_there, "{scheduler:?}");
        }
        for levels in [&[1.5, 0.5][..], &[0.5, 0.5], &[0.2, 0.6], &[1.0, 0.0], &[f32::NAN]] {
            let refused = flow_table(Scheduler::Automatic, levels);
            assert_eq!(refused, Err(SamplerError::Given), "{levels:?}");
        }
    }
}
