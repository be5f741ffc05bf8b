//! Which sampler a job has, of those of its model.

use protocol::limits::STEPS_MAX;
use protocol::{ModelDescription, Sampler, Scheduler};

use super::{JobRequest, RequestError};

/// The sampler of a job, with its table of noise levels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    /// The denoising rule.
    pub sampler: Sampler,
    /// The table.
    pub scheduler: Scheduler,
    /// Levels in its place, one for each step; empty for none.
    pub sigmas: Vec<f32>,
    /// How much fresh noise the rule takes, where somebody says.
    pub eta: Option<f32>,
}

impl JobRequest {
    /// Checks what is asked of the sampler as far as no model is needed for it.
    pub(super) fn check_sampling(&self) -> Result<(), RequestError> {
        let number = |flag, expected, got: String| RequestError::Number { flag, expected, got };
        if let Some(eta) = self.eta.filter(|eta| !(0.0..=1.0).contains(eta)) {
            return Err(number("eta", "a number from 0 to 1", eta.to_string()));
        }
        let Some(sigmas) = &self.sigmas else { return Ok(()) };
        let are_levels = sigmas.iter().all(|sigma| *sigma > 0.0 && *sigma <= 1.0);
        let is_sound = are_levels
            && sigmas.is_sorted_by(|a, b| a > b)
            && (1..=STEPS_MAX as usize).contains(&sigmas.len());
        if !is_sound {
            let expected = "up to 1000 numbers that fall from at most 1 to above 0";
            let shown: Vec<String> = sigmas.iter().take(8).map(f32::to_string).collect();
            return Err(number("sigmas", expected, shown.join(",")));
        }
        if let Some(scheduler) = self.scheduler.filter(|table| *table != Scheduler::Automatic) {
            return Err(RequestError::SigmasAndScheduler(scheduler.names().name));
        }
        match (self.shape.steps, sigmas.len() as u32) {
            (Some(steps), given) if steps != given => {
                Err(RequestError::SigmasAndSteps { steps, given })
            }
            _ => Ok(()),
        }
    }

    /// The sampler on a model; what it is in place of what was asked is told.
    pub(super) fn sampling(
        &self,
        description: &ModelDescription,
        notices: &mut Vec<String>,
    ) -> Result<Sampling, RequestError> {
        let own = description.samplers.first().copied().unwrap_or_default();
        let mut sampler = self.sampler.unwrap_or(own);
        if self.sampler.is_some() && !description.samplers.contains(&sampler) {
            let known = description.samplers.iter().map(|sampler| sampler.names().name).collect();
            let refused = none_of("sampler", sampler.names().name, known, description);
            self.gives_way(refused, own.names().name, notices)?;
            sampler = own;
        }
        let own = description.schedulers.first().copied().unwrap_or_default();
        let mut scheduler = self.scheduler.unwrap_or(own);
        if self.scheduler.is_some() && !description.schedulers.contains(&scheduler) {
            let known = description.schedulers.iter().map(|table| table.names().name).collect();
            let refused = none_of("scheduler", scheduler.names().name, known, description);
            self.gives_way(refused, own.names().name, notices)?;
            scheduler = own;
        }
        let mut eta = self.eta;
        if eta.is_some() && !sampler.has_eta() {
            let with_eta = description.samplers.iter().filter(|sampler| sampler.has_eta());
            let known: Vec<&str> = with_eta.map(|sampler| sampler.names().name).collect();
            let refused = RequestError::EtaWithoutNoise {
                sampler: sampler.names().name,
                known: known.join(", "),
            };
            if !self.sampler_may_be_unused {
                return Err(refused);
            }
            eta = None;
        }
        let sigmas = self.sigmas.clone().unwrap_or_default();
        Ok(Sampling { sampler, scheduler, sigmas, eta })
    }

    /// Whether a name that the model does not have gives way to its own, which is told; else it is
    /// the error.
    fn gives_way(
        &self,
        refused: RequestError,
        own: &str,
        notices: &mut Vec<String>,
    ) -> Result<(), RequestError> {
        match (self.sampler_may_be_unused, &refused) {
            (true, RequestError::NotOfModel { kind, name, .. }) => {
                let sentence = format!("this model has no {kind} {name}: {own} is taken");
                notices.push(sentence);
                Ok(())
            }
            _ => Err(refused),
        }
    }
}

fn none_of(
    kind: &'static str,
    name: &'static str,
    known: Vec<&'static str>,
    description: &ModelDescription,
) -> RequestError {
    let known = known.join(", ");
    RequestError::NotOfModel { kind, name, family: description.family.clone(), known }
}

#[cfg(test)]
mod tests {
    use protocol::profile::GuidanceScale;

    use super::*;
    use crate::job::request::ShapeRequest;
    use crate::serve::edge::openai::testing::description;

    fn of(request: &JobRequest) -> Result<(Sampling, Vec<String>), String> {
        let mut notices = Vec::new();
        request.check_sampling().map_err(|error| error.to_string())?;
        let sampling = request.sampling(&description(GuidanceScale::Embedded, 1.0), &mut notices);
        Ok((sampling.map_err(|error| error.to_string())?, notices))
    }

    #[test]
    fn what_is_not_asked_is_the_models() {
        let (sampling, notices) = of(&JobRequest::default()).unwrap();
        assert_eq!((sampling, notices.len()), (Sampling::default(), 0));
    }

    #[test]
    fn what_a_model_does_not_have_is_refused_with_what_it_has() {
        let asked = JobRequest { sampler: Some(Sampler::Ddim), ..JobRequest::default() };
        let error = of(&asked).unwrap_err();
        assert!(error.contains("ddim") && error.contains("euler, euler_ancestral, dpmpp_2m"));
        let (sampling, notices) = of(&JobRequest { sampler_may_be_unused: true, ..asked }).unwrap();
        assert_eq!((sampling, notices.len()), (Sampling::default(), 1));
        let scheduler = Some(Scheduler::DdimUniform);
        let error = of(&JobRequest { scheduler, ..JobRequest::default() }).unwrap_err();
        assert!(error.contains("name one of automatic, karras"), "{error}");
    }

    #[test]
    fn fresh_noise_is_of_samplers_that_take_some() {
        let asked = JobRequest { eta: Some(0.5), ..JobRequest::default() };
        let error = of(&asked).unwrap_err();
        assert!(error.contains("euler") && error.ends_with("euler_ancestral"), "{error}");
        let sampler = Some(Sampler::EulerAncestral);
        let (sampling, _) = of(&JobRequest { sampler, ..asked.clone() }).unwrap();
        assert_eq!(sampling.eta, Some(0.5));
        let (sampling, _) = of(&JobRequest { sampler_may_be_unused: true, ..asked }).unwrap();
        assert_eq!(sampling.eta, None);
        for eta in [-0.1, 1.1, f32::NAN] {
            let request = JobRequest { sampler, eta: Some(eta), ..JobRequest::default() };
            assert!(of(&request).unwrap_err().contains("--eta must be a number from 0 to 1"));
        }
    }

    #[test]
    fn levels_fall_and_are_as_many_as_steps() {
        let asked =
            |sigmas: &[f32]| JobRequest { sigmas: Some(sigmas.to_vec()), ..JobRequest::default() };
        assert_eq!(of(&asked(&[1.0, 0.5])).unwrap().0.sigmas, [1.0, 0.5]);
        for sigmas in [&[][..], &[0.5, 0.5], &[0.2, 0.4], &[1.1], &[1.0, 0.0], &[f32::NAN]] {
            let error = of(&asked(sigmas)).unwrap_err();
            assert!(error.contains("--sigmas must be up to 1000 numbers that fall"), "{error}");
        }
        let shape = ShapeRequest { steps: Some(3), ..ShapeRequest::default() };
        let error = of(&JobRequest { shape, ..asked(&[1.0, 0.5]) }).unwrap_err();
        assert!(error.contains("2 levels for --steps 3"), "{error}");
        let scheduler = Some(Scheduler::Karras);
        let error = of(&JobRequest { scheduler, ..asked(&[1.0, 0.5]) }).unwrap_err();
        assert!(error.contains("--scheduler karras"), "{error}");
    }
}
