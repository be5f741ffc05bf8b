//! The self-test of a plan's GPUs, before it is loaded for the first time.

use protocol::limits::DEVICES_MAX;
use protocol::{Failure, Plan};

use super::testers;
use crate::engine::session::SessionError;
use crate::engine::warm::{Decision, Warm};
use crate::planning::{PlanError, Request};
use crate::self_test::{SelfTests, is_wanted};

/// How a job begins with its GPUs as they are known to be; `decide` decides, for a request into
/// which what was found is put. Each plan that is to be loaded has its GPUs tested, if they are not
/// yet by this program and driver; where something is wrong with them another plan is made. One
/// whose test failed is left in `tested`.
///
/// # Errors
/// There is no plan, or the executor fails.
pub fn decide(
    warm: &mut Warm,
    self_tests: &SelfTests,
    request: &mut Request,
    given: Option<&Plan>,
    tested: &mut Option<Plan>,
    decide: &mut dyn FnMut(&mut Warm, &Request) -> Result<Decision, PlanError>,
) -> Result<Decision, PlanError> {
    // A new plan may have GPUs that none before had: there is an end to these.
    for _ in 0..=DEVICES_MAX {
        let decision = decide(warm, request)?;
        let Decision::Load(solution) = &decision else { return Ok(decision) };
        let plan = &solution.plan;
        let program = warm.session.program.clone();
        if is_wanted()
            && let Some(to_test) = self_tests.to_test(plan, &request.inventory, &program)
        {
            *tested = Some(plan.clone());
            let found = testers::test(&mut warm.session, &to_test, &request.inventory.host);
            let found = found.map_err(told)?;
            *tested = None;
            if let Err(message) = self_tests.keep(&to_test, &found) {
                tracing::warn!("{message}");
            }
        }
        let Err(what) = self_tests.check(plan, &request.inventory, given.is_some()) else {
            return Ok(decision);
        };
        tracing::debug!("another plan is made: {what}");
        if given.is_some() {
            return Err(PlanError::Elsewhere(format!(
                "the plan does not fit what the self-test found: {what}; hint: leave out --plan for a plan that does"
            )));
        }
        self_tests.apply(request);
    }
    Err(PlanError::Unsettled("the self-test of its GPUs has no end".to_owned()))
}

/// A failure with what was being done, since nobody asked for that.
fn told(error: SessionError) -> SessionError {
    match error {
        SessionError::Failed(Failure { kind, message }) => {
            let message = format!("the kernels cannot be tested: {message}");
            Failure { kind, message }.into()
        }
        other => other,
    }
}
