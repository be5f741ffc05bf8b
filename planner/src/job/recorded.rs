//! A picture's settings in place of what a request does not say: the way back from
//! [`super::record`].

mod daemon;

pub use daemon::RecordedOnDaemon;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use protocol::{ModelDescription, Plan, Sampler, Scheduler};

use super::JobRequest;
use super::infotext::picture::of_picture;
use super::infotext::{FileRecord, Reading, Settings, printable};
use super::model::ModelName;
use super::record::{RNG, on_gpu};
use super::seed::Seed;
use crate::fingerprint;
use crate::policy::PolicyText;

/// The settings of a picture.
#[derive(Debug)]
pub struct Recorded {
    picture: PathBuf,
    /// What is understood of them.
    pub settings: Settings,
    /// Keys that are not.
    pub unknown: Vec<(String, String)>,
}

/// What of a run is as it was recorded, and nobody asked otherwise.
#[derive(Debug, Default)]
pub struct RecordedParts {
    /// The only picture of the batch that is wanted, from 0; `None` for all.
    pub position: Option<u32>,
    /// Whether the model is the recorded one.
    model: bool,
    /// Whether the LoRA are the recorded ones.
    loras: bool,
}

impl Recorded {
    /// Reads a picture's settings.
    ///
    /// # Errors
    /// It is no picture that can be read, or has no settings.
    pub fn read(picture: &Path) -> Result<Recorded> {
        let Reading { settings, unknown } = of_picture(picture)?;
        Ok(Recorded { picture: picture.to_owned(), settings, unknown })
    }

    /// The quality of the picture's file, 1 to 100, where its format has one.
    pub fn quality(&self) -> Option<u8> {
        // 0 is no quality: it may stand in a file that was made by hand.
        self.settings.quality.filter(|quality| (1..=100).contains(quality))
    }

    /// Fills in what a request does not say.
    ///
    /// # Errors
    /// A file that is needed is gone or was changed.
    pub fn fill(&self, request: &mut JobRequest) -> Result<RecordedParts> {
        let position = self.fill_picture(request)?;
        let mut kept = RecordedParts { position, ..RecordedParts::default() };
        if self.settings.are_ours() {
            self.fill_model(request, &mut kept)?;
            self.fill_policy(request, &mut kept)?;
        }
        Ok(kept)
    }

    /// What the picture is to be, whatever makes it; its place in a batch of which it alone is
    /// wanted.
    fn fill_picture(&self, request: &mut JobRequest) -> Result<Option<u32>> {
        let settings = &self.settings;
        let prompts = &mut request.prompts;
        // A second prompt belongs to the first.
        if prompts.prompt.is_none() && prompts.prompt_2.is_none() {
            prompts.prompt_2.clone_from(&settings.prompt_2);
        }
        prompts.prompt.get_or_insert_with(|| settings.prompt.clone());
        let shape = &mut request.shape;
        let [width, height] = settings.size.map_or([None; 2], |size| size.map(Some));
        shape.width = shape.width.or(width);
        shape.height = shape.height.or(height);
        shape.steps = shape.steps.or(settings.steps);
        shape.max_sequence_length = shape.max_sequence_length.or(settings.max_sequence_length);
        self.fill_guidance(request);
        self.fill_sampling(request);
        self.fill_start(request)?;
        Ok(self.fill_batch(request))
    }

    /// What of guidance nobody said. A negative prompt that was recorded has no effect without
    /// guidance of a second run, and is no error then.
    fn fill_guidance(&self, request: &mut JobRequest) {
        let (settings, guidance) = (&self.settings, &mut request.guidance);
        let is_foreign = !settings.are_ours() && settings.guidance_scale.is_none();
        if guidance.cfg_scale.is_none() && is_foreign {
            // Which guidance another program meant is not known: the one that the family has.
            if guidance.guidance_scale.or(guidance.true_cfg_scale).is_none() {
                guidance.cfg_scale = settings.cfg_scale;
            }
        } else {
            guidance.guidance_scale = guidance.guidance_scale.or(settings.guidance_scale);
            if guidance.true_cfg_scale.is_none() {
                guidance.true_cfg_scale = settings.cfg_scale;
                guidance.true_cfg_may_be_unused = true;
            }
            guidance.cfg_normalization |= settings.cfg_normalization;
        }
        let prompts = &mut request.prompts;
        if prompts.negative_prompt.is_none() {
            prompts.negative_prompt.clone_from(&settings.negative_prompt);
            prompts.negative_may_be_unused = true;
        }
    }

    /// The sampler and its table. Another program's, of models that are sampled otherwise, may give
    /// way to the model's own.
    fn fill_sampling(&self, request: &mut JobRequest) {
        let settings = &self.settings;
        let recorded = settings.sampler.as_deref().and_then(Sampler::named_with_table);
        let table = settings.scheduler.as_deref().and_then(Scheduler::named);
        let table = table.or(recorded.and_then(|(_, table)| table));
        let is_asked = request.sampler.is_some()
            || request.scheduler.is_some()
            || request.sigmas.is_some()
            || request.eta.is_some();
        // What somebody asks of it replaces all: a table or noise of another sampler is none of it.
        if is_asked {
            return;
        }
        request.sampler = recorded.map(|(sampler, _)| sampler);
        request.scheduler = table;
        request.sampler_may_be_unused = !settings.are_ours();
        request.eta = settings.eta.filter(|eta| *eta <= 1.0);
        // Levels belong to their number of steps.
        let recorded_steps = settings.sigmas.as_ref().map(|sigmas| sigmas.len() as u32);
        if recorded_steps.is_some() && recorded_steps == request.shape.steps {
            request.sigmas.clone_from(&settings.sigmas);
        }
    }

    /// The picture or the latents to start from.
    fn fill_start(&self, request: &mut JobRequest) -> Result<()> {
        let (settings, start) = (&self.settings, &mut request.start);
        if start.image.is_none() && start.latents.is_none() {
            let find = |what, flag, file: &Option<FileRecord>| {
                file.as_ref().map(|file| self.find(what, flag, file)).transpose()
            };
            start.image = find("picture to start from", "--init-image", &settings.init_image)?;
            // As on the command line, there is one or the other.
            if start.image.is_none() {
                start.latents = find("latents", "--init-latents", &settings.init_latents)?;
            }
        }
        if start.image.is_some() {
            start.strength = start.strength.or(settings.strength);
        }
        Ok(())
    }

    /// The seed, and the batch that the picture was made in: a picture of a batch may differ from
    /// one made alone in its last bits. With another seed or batch its place in that has no
    /// meaning.
    fn fill_batch(&self, request: &mut JobRequest) -> Option<u32> {
        let Settings { seed: Some(seed), batch_size, batch_position, .. } = self.settings else {
            return None;
        };
        let is_whole = request.seed.is_none() && request.shape.batch.is_none();
        if let (true, true, Some(batch), Some(position)) =
            (is_whole, self.settings.are_ours(), batch_size, batch_position)
            && position < batch
        {
            request.shape.batch = Some(batch);
            request.seed = Some(Seed::Given(seed.wrapping_sub(u64::from(position))));
            return Some(position);
        }
        request.seed = request.seed.or(Some(Seed::Given(seed)));
        None
    }

    /// The model's paths. MODEL replaces all of the recorded ones, a part only its own.
    fn fill_model(&self, request: &mut JobRequest, kept: &mut RecordedParts) -> Result<()> {
        let ModelName::Files(asked) = &request.model else { return Ok(()) };
        let recorded = &self.settings.paths;
        kept.model = asked.is_empty();
        if asked.model.is_some() {
            return Ok(());
        }
        let mut source = asked.clone();
        if let Some(path) = &recorded.model {
            source.model = Some(self.find_model("MODEL", path)?);
        }
        for (&flag, path) in &recorded.parts {
            if recorded.leaves_out(flag) {
                source.parts.entry(flag).or_insert_with(|| path.clone());
            } else if source.part(flag).is_none() {
                source.parts.insert(flag, self.find_model(&format!("--{flag}"), path)?);
            }
        }
        request.model = ModelName::Files(source);
        Ok(())
    }

    /// LoRA, tiles and arithmetic, as recorded: over the host profile, below what is asked.
    fn fill_policy(&self, request: &mut JobRequest, kept: &mut RecordedParts) -> Result<()> {
        let settings = &self.settings;
        let mut loras = Vec::new();
        if request.policy.lora.is_none() {
            for lora in &settings.loras {
                let path = self.find("LoRA", "--lora", &lora.file)?;
                loras.push(format!("{}:{}", path.display(), lora.weight));
            }
            kept.loras = true;
            request.lora_at_run_time.clone_from(&settings.lora_at_run_time);
        }
        let recorded = PolicyText {
            lora: Some(loras),
            vae_tile: Some(settings.vae_tile.clone().unwrap_or_else(|| "off".to_owned())),
            exact_matmul: Some(settings.exact_matmul),
            ..PolicyText::default()
        };
        request.policy = std::mem::take(&mut request.policy).over(&recorded);
        Ok(())
    }

    /// A file by the path that was typed, or beside the picture: the first with the recorded
    /// content.
    fn find(&self, what: &str, flag: &str, file: &FileRecord) -> Result<PathBuf> {
        let picture = self.picture.display();
        let mut changed = None;
        for path in self.candidates(&file.path).into_iter().filter(|path| path.is_file()) {
            let Some(expected) = &file.sha256 else { return Ok(path) };
            let read = || format!("cannot read the {what} {}", path.display());
            if fingerprint::sha256_of_file(&path).with_context(read)? == *expected {
                return Ok(path);
            }
            changed.get_or_insert(path);
        }
        match changed {
            Some(path) => bail!(
                "the {what} {} is not the one that {picture} was made with: its content is another; hint: to take it nonetheless, name it with {flag}",
                path.display()
            ),
            None => bail!(
                "the {what} {} that {picture} was made with is not there, nor beside the picture; hint: name it with {flag}",
                printable(&file.path)
            ),
        }
    }

    /// A model by the path that was typed, or beside the picture. Its content is looked at later.
    fn find_model(&self, what: &str, path: &str) -> Result<String> {
        let found = self.candidates(path).into_iter().find(|path| path.exists());
        match found {
            Some(path) => Ok(path.display().to_string()),
            None => bail!(
                "the model {} that {} was made with is not there, nor beside the picture; hint: name it as {what}",
                printable(path),
                self.picture.display()
            ),
        }
    }

    /// Where a file may be, in the order in which it is looked for.
    fn candidates(&self, path: &str) -> [PathBuf; 3] {
        let beside = self.picture.parent().unwrap_or(Path::new(""));
        let name = Path::new(path).file_name().unwrap_or_default();
        [PathBuf::from(path), beside.join(path), beside.join(name)]
    }

    /// Whether the model is the recorded one, by its fingerprint; what is to be told where it is
    /// not.
    ///
    /// # Errors
    /// It is named by the settings alone, and is another one now.
    pub fn check_model(
        &self,
        kept: &RecordedParts,
        description: &ModelDescription,
        fingerprint: Option<&str>,
    ) -> Result<Option<String>> {
        let Some(recorded) = self.settings.fingerprint.as_deref() else { return Ok(None) };
        if fingerprint == Some(recorded) || !self.settings.are_ours() {
            return Ok(None);
        }
        let picture = self.picture.display();
        // A built-in model cannot be named: another version of Berth has another one.
        if kept.model && !self.settings.paths.is_empty() {
            bail!(
                "the model {} is not the one that {picture} was made with: its files are others; hint: to take it nonetheless, name it as MODEL",
                description.model
            );
        }
        Ok(Some(format!("{picture} was made with another model: the new picture will differ")))
    }

    /// What of the run could not be as recorded though nobody asked otherwise, a sentence each.
    pub fn differences(&self, kept: &RecordedParts, plan: &Plan) -> Vec<String> {
        let settings = &self.settings;
        if !settings.are_ours() || !kept.model {
            return Vec::new();
        }
        let mut differences = Vec::new();
        let version = settings.version.clone().unwrap_or_default();
        if version != Settings::this_version() {
            differences.push(format!("was made by {}", printable(&version)));
        }
        if on_gpu(plan) != settings.on_gpu {
            let on = |names: &[String]| match names {
                [] => "no GPU".to_owned(),
                names => format!("a GPU for {}", printable(&names.join(", "))),
            };
            let (was, is) = (on(&settings.on_gpu), on(&on_gpu(plan)));
            differences.push(format!("was made with {was}, this run used {is}"));
        }
        let beside = &plan.options.lora_runtime;
        let is_recorded = |name| settings.lora_at_run_time.contains(name);
        if kept.loras && !settings.loras.is_empty() && !beside.iter().all(is_recorded) {
            differences.push(format!(
                "had its LoRA added to the weights of components that it was added to at run time now ({})",
                beside.join(", ")
            ));
        }
        let picture = self.picture.display();
        let sentence = |what| format!("{picture} {what}: the new picture may differ");
        differences.into_iter().map(sentence).collect()
    }

    /// What of the settings is not used, as a sentence; `None` where all of it is.
    pub fn unused(&self) -> Option<String> {
        let Settings { sampler, scheduler, rng, strength, init_image, .. } = &self.settings;
        let mut unused: Vec<String> = self.unknown.iter().map(|(key, _)| key.clone()).collect();
        let is_known = |sampler: &String| Sampler::named_with_table(sampler).is_some();
        if sampler.as_ref().is_some_and(|sampler| !is_known(sampler)) {
            unused.push("Sampler".to_owned());
        }
        if scheduler.as_ref().is_some_and(|table| Scheduler::named(table).is_none()) {
            unused.push("Schedule type".to_owned());
        }
        if rng.as_ref().is_some_and(|rng| rng != RNG) {
            unused.push("RNG".to_owned());
        }
        if strength.is_some() && init_image.is_none() && !self.settings.are_ours() {
            unused.push("Denoising strength".to_owned());
        }
        if !self.settings.are_ours() && self.settings.model.is_some() {
            unused.push("Model".to_owned());
        }
        if unused.is_empty() {
            return None;
        }
        let more = unused.len().saturating_sub(SHOWN_KEYS);
        unused.truncate(SHOWN_KEYS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (picture, unused) = (self.picture.display(), unused.join(", "));
        Some(format!("of the settings of {picture}, these are not used: {unused}{more}"))
    }
}

/// Keys that are named of those that are not used.
const SHOWN_KEYS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::request::{GuidanceRequest, Prompts, ShapeRequest};

    /// Settings as Berth records them of the demo model, in a batch.
    fn recorded() -> Recorded {
        let settings = Settings {
            prompt: "a red circle".to_owned(),
            negative_prompt: Some("blue".to_owned()),
            steps: Some(2),
            cfg_scale: Some(1.5),
            guidance_scale: Some(3.5),
            seed: Some(8),
            size: Some([64, 48]),
            batch_size: Some(3),
            batch_position: Some(1),
            version: Some(Settings::this_version()),
            ..Settings::default()
        };
        Recorded { picture: PathBuf::from("a.png"), settings, unknown: Vec::new() }
    }

    #[test]
    fn a_request_that_says_nothing_asks_for_what_was_recorded() {
        let mut request = JobRequest::default();
        let kept = recorded().fill(&mut request).unwrap();
        assert_eq!((kept.position, kept.model, kept.loras), (Some(1), true, true));
        let policy = PolicyText {
            lora: Some(Vec::new()),
            vae_tile: Some("off".to_owned()),
            exact_matmul: Some(false),
            ..PolicyText::default()
        };
        let expected = JobRequest {
            prompts: Prompts {
                prompt: Some("a red circle".to_owned()),
                prompt_2: None,
                negative_prompt: Some("blue".to_owned()),
                negative_may_be_unused: true,
            },
            shape: ShapeRequest {
                width: Some(64),
                height: Some(48),
                steps: Some(2),
                batch: Some(3),
                max_sequence_length: None,
            },
            guidance: GuidanceRequest {
                guidance_scale: Some(3.5),
                true_cfg_scale: Some(1.5),
                true_cfg_may_be_unused: true,
                cfg_normalization: false,
                cfg_scale: None,
            },
            // The first of the batch.
            seed: Some(Seed::Given(7)),
            policy,
            ..JobRequest::default()
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn a_sampler_is_taken_as_a_whole() {
        let mut recorded = recorded();
        recorded.settings = Settings {
            sampler: Some("Euler a".to_owned()),
            scheduler: Some("Karras".to_owned()),
            eta: Some(0.5),
            sigmas: Some(vec![1.0, 0.25]),
            ..recorded.settings
        };
        let fill = |recorded: &Recorded, mut request: JobRequest| {
            recorded.fill(&mut request).unwrap();
            request
        };
        let request = fill(&recorded, JobRequest::default());
        assert_eq!(request.sampler, Some(Sampler::EulerAncestral));
        assert_eq!((request.scheduler, request.eta), (Some(Scheduler::Karras), Some(0.5)));
        assert_eq!(request.sigmas.as_deref(), Some(&[1.0, 0.25][..]));
        assert!(!request.sampler_may_be_unused);
        // With other steps the levels have no meaning, with another sampler nothing of it has.
        let shape = ShapeRequest { steps: Some(3), ..ShapeRequest::default() };
        let request = fill(&recorded, JobRequest { shape, ..JobRequest::default() });
        assert_eq!((request.sigmas, request.eta), (None, Some(0.5)));
        let sampler = Some(Sampler::Heun);
        let request = fill(&recorded, JobRequest { sampler, ..JobRequest::default() });
        assert_eq!((request.sampler, request.scheduler, request.eta), (sampler, None, None));
        // Another program's may be of other models, and has a table behind the name.
        recorded.settings.sampler = Some("DPM++ 2M Karras".to_owned());
        recorded.settings.scheduler = None;
        recorded.settings.version = Some("v1.9.0".to_owned());
        let request = fill(&recorded, JobRequest::default());
        assert_eq!(request.sampler, Some(Sampler::Dpmpp2m));
        assert_eq!(request.scheduler, Some(Scheduler::Karras));
        assert!(request.sampler_may_be_unused);
        assert_eq!(recorded.unused(), None);
        recorded.settings.sampler = Some("DPM adaptive".to_owned());
        assert!(recorded.unused().unwrap().contains("Sampler"));
    }

    #[test]
    fn what_a_request_says_stays() {
        let asked = JobRequest {
            prompts: Prompts {
                prompt: Some("a cat".to_owned()),
                negative_prompt: Some(String::new()),
                ..Prompts::default()
            },
            seed: Some(Seed::Random),
            policy: PolicyText { vae_tile: Some("auto".to_owned()), ..PolicyText::default() },
            ..JobRequest::default()
        };
        let mut request = asked.clone();
        let kept = recorded().fill(&mut request).unwrap();
        assert_eq!((kept.position, request.seed, request.shape.batch), (None, asked.seed, None));
        assert_eq!(request.prompts, asked.prompts);
        assert_eq!(request.policy.vae_tile.as_deref(), Some("auto"));
        assert_eq!(request.policy.exact_matmul, Some(false));
    }
}
