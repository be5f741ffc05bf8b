//! Whether a job can run, and what it will take: the short answer that a plan gives before anything
//! is loaded.

use serde::{Deserialize, Serialize};

use crate::planning::PlanError;
use crate::solve::Solution;

/// What a job will take on a host as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Quote {
    /// Whether a plan fits.
    pub feasible: bool,
    /// From now to the last picture, in milliseconds: from a cold start, or on the warm executor.
    /// `None` where nothing fits.
    pub predicted_ms: Option<f64>,
    /// The same job once more, on the executor that this one leaves warm, in milliseconds.
    pub next_ms: Option<f64>,
    /// Whether an executor holds the plan's weights already.
    pub warm: bool,
    /// Why nothing fits, with hints at what would.
    pub because: Option<String>,
}

impl Quote {
    /// The quote of a plan; `warm` where an executor holds its weights already.
    pub fn of(solution: &Solution, warm: bool) -> Quote {
        let ms = &solution.plan.predicted_ms;
        Quote {
            feasible: true,
            predicted_ms: Some(if warm { ms.next_total } else { ms.total }),
            next_ms: Some(ms.next_total),
            warm,
            because: None,
        }
    }

    /// The quote of a job for which no plan fits; `None` for an error of another kind, which says
    /// nothing of the job.
    pub fn infeasible(error: &PlanError) -> Option<Quote> {
        match error {
            PlanError::Infeasible(_) | PlanError::NoRoom(_) => Some(Quote {
                feasible: false,
                predicted_ms: None,
                next_ms: None,
                warm: false,
                because: Some(error.to_string()),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::session::SessionError;
    use crate::planning::DoesNotFit;
    use crate::render::testing::plan;
    use crate::solve::Infeasible;

    #[test]
    fn a_plan_quotes_its_own_times() {
        let plan = plan();
        let (total, next) = (plan.predicted_ms.total, plan.predicted_ms.next_total);
        let solution = Solution::given(plan);
        let cold = Quote::of(&solution, false);
        assert_eq!(
            (cold.feasible, cold.predicted_ms, cold.next_ms),
            (true, Some(total), Some(next))
        );
        assert_eq!(Quote::of(&solution, true).predicted_ms, Some(next));
    }

    #[test]
    fn only_what_does_not_fit_is_infeasible() {
        let infeasible = Infeasible {
            because: "cuda0 is short".to_owned(),
            max_vram: None,
            max_ram: None,
            together: false,
            margin_flag: None,
        };
        let error = DoesNotFit { job: plan().job, infeasible, largest: None };
        let quote = Quote::infeasible(&PlanError::Infeasible(Box::new(error))).expect("a quote");
        assert!(!quote.feasible && quote.because.is_some_and(|b| b.contains("cuda0 is short")));
        assert_eq!(Quote::infeasible(&PlanError::Session(SessionError::Cancelled)), None);
    }
}
