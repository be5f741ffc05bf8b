//! A picture's settings for a job on a daemon, which has models, LoRA and a placement of its own.

use std::path::Path;

use anyhow::Result;
use protocol::{Sampler, Scheduler};

use super::super::JobRequest;
use super::super::infotext::printable;
use super::super::model::ModelName;
use super::Recorded;
use crate::demo;

/// What of a job on a daemon comes of a picture's settings.
#[derive(Debug, Default)]
pub struct RecordedOnDaemon {
    /// The only picture of the batch that is wanted, from 0; `None` for all.
    pub position: Option<u32>,
    /// What cannot be as it was recorded, a sentence each.
    pub notices: Vec<String>,
}

impl Recorded {
    /// Fills in what a request to a daemon does not say. The daemon has `models`, by name; files
    /// to start from are this machine's.
    ///
    /// # Errors
    /// A file that is needed is gone or was changed.
    pub fn fill_for_daemon(
        &self,
        request: &mut JobRequest,
        models: &[String],
    ) -> Result<RecordedOnDaemon> {
        let position = self.fill_picture(request)?;
        self.leave_out_what_has_no_effect(request);
        let mut notices: Vec<String> = self.unused().into_iter().collect();
        notices.extend(self.leave_out_a_foreign_sampler(request));
        if self.settings.are_ours() {
            notices.extend(self.name_model(request, models));
            self.name_loras(request);
            notices.extend(self.not_the_daemons());
        }
        Ok(RecordedOnDaemon { position, notices })
    }

    /// A daemon refuses a negative prompt without effect: a recorded one was not asked for.
    fn leave_out_what_has_no_effect(&self, request: &mut JobRequest) {
        let guidance = &request.guidance;
        let scales = [guidance.true_cfg_scale, guidance.cfg_scale];
        let is_guided = scales.into_iter().flatten().any(|scale| scale > 1.0);
        if request.prompts.negative_may_be_unused && !is_guided {
            request.prompts.negative_prompt = None;
        }
    }

    /// A daemon refuses a sampler that its model does not have: another program's was not asked
    /// for, and is told where it is not the usual one.
    fn leave_out_a_foreign_sampler(&self, request: &mut JobRequest) -> Option<String> {
        if !request.sampler_may_be_unused {
            return None;
        }
        let (sampler, table) = (request.sampler.take(), request.scheduler.take());
        (request.eta, request.sampler_may_be_unused) = (None, false);
        let is_usual = sampler.unwrap_or_default() == Sampler::default()
            && table.unwrap_or_default() == Scheduler::default();
        (!is_usual).then(|| {
            let picture = self.picture.display();
            format!(
                "the sampler of {picture} is another program's, and the daemon's model may not have \
                 it: the model's own is taken; hint: name it with --sampler and --scheduler"
            )
        })
    }

    /// The daemon's model of the recorded name, where nobody asks for another.
    fn name_model(&self, request: &mut JobRequest, models: &[String]) -> Option<String> {
        let ModelName::Files(asked) = &request.model else { return None };
        if !asked.is_empty() {
            return None;
        }
        let recorded = self.settings.model.as_deref()?;
        // Its name in the settings may be a file's, the daemon's is that without its ending; what
        // was at no path is built in.
        let stem = Path::new(recorded).file_stem().and_then(|stem| stem.to_str());
        let built_in = self.settings.paths.is_empty().then_some(demo::SERVED_NAME);
        let mut names = [built_in, Some(recorded), stem].into_iter().flatten();
        match names.find(|name| models.iter().any(|model| model == name)) {
            Some(name) => {
                request.model = ModelName::Name(name.to_owned());
                None
            }
            None => Some(format!(
                "{} was made with {}, which the daemon has not by that name: the new picture will differ; hint: name \
                 one of {} as MODEL",
                self.picture.display(),
                printable(recorded),
                models.join(", ")
            )),
        }
    }

    /// LoRA by the names that a daemon gives them: those of their files without endings.
    fn name_loras(&self, request: &mut JobRequest) {
        if request.policy.lora.is_some() || self.settings.loras.is_empty() {
            return;
        }
        let named = self.settings.loras.iter().map(|lora| {
            let stem = Path::new(&lora.file.path).file_stem().unwrap_or_default();
            format!("{}:{}", stem.to_string_lossy(), lora.weight)
        });
        request.policy.lora = Some(named.collect());
    }

    /// What a daemon decides by itself.
    fn not_the_daemons(&self) -> Option<String> {
        let (tile, exact) = (self.settings.vae_tile.is_some(), self.settings.exact_matmul);
        (tile || exact).then(|| {
            let picture = self.picture.display();
            format!("{picture} was made with tiles or exact arithmetic, which the daemon decides: the new picture may differ")
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::ModelSource;

    use super::super::super::infotext::{FileRecord, LoraRecord, Settings};
    use super::super::super::request::Prompts;
    use super::super::super::seed::Seed;
    use super::*;

    fn recorded(settings: Settings) -> Recorded {
        let settings = Settings {
            prompt: "a circle".to_owned(),
            version: Some(Settings::this_version()),
            ..settings
        };
        Recorded { picture: "a.png".into(), settings, unknown: Vec::new() }
    }

    #[test]
    fn a_model_and_loras_are_those_of_the_daemon() {
        let file = FileRecord { path: "/there/style.safetensors".to_owned(), sha256: None };
        let recorded = recorded(Settings {
            model: Some("dev.gguf".to_owned()),
            paths: ModelSource::of("/m/dev.gguf"),
            loras: vec![LoraRecord { file, weight: 0.5 }],
            seed: Some(7),
            negative_prompt: Some("a square".to_owned()),
            cfg_scale: Some(1.0),
            ..Settings::default()
        });
        let mut request = JobRequest::default();
        let models = ["demo".to_owned(), "dev".to_owned()];
        let filled = recorded.fill_for_daemon(&mut request, &models).unwrap();
        assert_eq!(filled.notices, Vec::<String>::new());
        assert_eq!(request.model, ModelName::Name("dev".to_owned()));
        assert_eq!(request.policy.lora, Some(vec!["style:0.5".to_owned()]));
        assert_eq!(request.seed, Some(Seed::Given(7)));
        let Prompts { prompt, negative_prompt, .. } = request.prompts;
        assert_eq!((prompt.as_deref(), negative_prompt), (Some("a circle"), None));
        // One that it has not is told; one that is asked for is taken.
        let mut request = JobRequest::default();
        let filled = recorded.fill_for_daemon(&mut request, &models[..1]).unwrap();
        assert!(filled.notices[0].contains("dev.gguf") && filled.notices[0].contains("demo"));
        let asked = ModelName::Name("other".to_owned());
        let mut request = JobRequest { model: asked.clone(), ..JobRequest::default() };
        assert!(recorded.fill_for_daemon(&mut request, &models).unwrap().notices.is_empty());
        assert_eq!(request.model, asked);
    }

    #[test]
    fn the_built_in_model_is_the_daemons() {
        let recorded =
            recorded(Settings { model: Some("demo-0123456789".to_owned()), ..Settings::default() });
        let mut request = JobRequest::default();
        let filled = recorded.fill_for_daemon(&mut request, &["demo".to_owned()]).unwrap();
        assert_eq!(filled.notices, Vec::<String>::new());
        assert_eq!(request.model, ModelName::Name("demo".to_owned()));
    }

    #[test]
    fn another_programs_sampler_is_left_out_and_ours_is_kept() {
        let sampled = |version: &str| Recorded {
            settings: Settings {
                sampler: Some("Euler a".to_owned()),
                scheduler: Some("Karras".to_owned()),
                version: Some(version.to_owned()),
                ..Settings::default()
            },
            ..recorded(Settings::default())
        };
        let mut request = JobRequest::default();
        let filled = sampled("v1.9.0").fill_for_daemon(&mut request, &[]).unwrap();
        assert_eq!((request.sampler, request.scheduler), (None, None));
        assert!(!request.sampler_may_be_unused && filled.notices.len() == 1, "{filled:?}");
        assert!(filled.notices[0].contains("--sampler"), "{:?}", filled.notices);
        let mut request = JobRequest::default();
        let ours = sampled(&Settings::this_version());
        ours.fill_for_daemon(&mut request, &["demo".to_owned()]).unwrap();
        assert_eq!(request.sampler, Some(Sampler::EulerAncestral));
        assert_eq!(request.scheduler, Some(Scheduler::Karras));
    }

    #[test]
    fn a_negative_prompt_that_has_an_effect_is_kept() {
        let recorded = recorded(Settings {
            negative_prompt: Some("a square".to_owned()),
            cfg_scale: Some(4.0),
            vae_tile: Some("64".to_owned()),
            ..Settings::default()
        });
        let mut request = JobRequest::default();
        let filled = recorded.fill_for_daemon(&mut request, &[]).unwrap();
        assert_eq!(request.prompts.negative_prompt.as_deref(), Some("a square"));
        assert!(filled.notices[0].contains("tiles"), "{:?}", filled.notices);
    }
}
