//! `--settings`: a picture's settings in place of arguments that are not given.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use protocol::{ModelDescription, Plan};

use super::Generate;
use super::record::{RNG, SAMPLER, on_gpu};
use crate::cli::seed::Seed;
use crate::cli::settings::of_picture;
use crate::fingerprint;
use crate::infotext::{FileRecord, ModelPaths, Reading, Settings, printable};
use crate::policy::Wishes;

/// The settings of a picture.
#[derive(Debug)]
pub struct Recorded {
    picture: PathBuf,
    /// What is understood of them.
    pub settings: Settings,
    /// Keys that are not.
    pub unknown: Vec<(String, String)>,
}

/// What of a run is as it was recorded, and no flag changed.
#[derive(Debug, Default)]
pub struct Kept {
    /// The only picture of the batch that is wanted, from 0; `None` for all.
    pub position: Option<u32>,
    /// Whether the model is the recorded one.
    model: bool,
    /// Whether the LoRA are the recorded ones.
    loras: bool,
    /// Components that a LoRA is to be added to while they run.
    pub lora_at_run_time: Vec<String>,
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

    /// Fills in what the command does not say by itself, and tells what of the settings it cannot.
    ///
    /// # Errors
    /// A file that is needed is gone or was changed.
    pub fn fill(&self, command: &mut Generate) -> Result<Kept> {
        let settings = &self.settings;
        self.tell_unknown();
        let prompt = || Some(settings.prompt.clone());
        // A second prompt belongs to the first.
        if command.prompt.is_none() && command.prompt_2.is_none() {
            command.prompt_2.clone_from(&settings.prompt_2);
        }
        command.prompt = command.prompt.take().or_else(prompt);
        let shape = &mut command.shape;
        let [width, height] = settings.size.map_or([None; 2], |size| size.map(Some));
        shape.width = shape.width.or(width);
        shape.height = shape.height.or(height);
        shape.steps = shape.steps.or(settings.steps);
        shape.max_sequence_length = shape.max_sequence_length.or(settings.max_sequence_length);
        // 0 is no quality: it may stand in a file that was made by hand.
        command.pictures.recorded_quality =
            settings.quality.filter(|quality| (1..=100).contains(quality));
        self.fill_guidance(command);
        self.fill_start(command)?;
        let position = self.fill_batch(command);
        let mut kept = Kept { position, ..Kept::default() };
        if settings.are_ours() {
            self.fill_model(command, &mut kept)?;
            self.fill_policy(command, &mut kept)?;
        }
        Ok(kept)
    }

    /// What of guidance no flag says. A negative prompt that was recorded has no effect without
    /// guidance of a second run, and is no error then.
    fn fill_guidance(&self, command: &mut Generate) {
        let (settings, shape) = (&self.settings, &mut command.shape);
        if shape.cfg_scale.is_none() && !settings.are_ours() && settings.guidance_scale.is_none() {
            // Which guidance another program meant is not known: the one that the family has.
            if shape.guidance_scale.or(shape.true_cfg_scale).is_none() {
                shape.cfg_scale = settings.cfg_scale;
            }
        } else {
            shape.guidance_scale = shape.guidance_scale.or(settings.guidance_scale);
            shape.true_cfg_scale = shape.true_cfg_scale.or(settings.cfg_scale);
        }
        command.recorded_negative.clone_from(&settings.negative_prompt);
    }

    /// The picture or the latents to start from.
    fn fill_start(&self, command: &mut Generate) -> Result<()> {
        let settings = &self.settings;
        if command.shape.init_image.is_none() && command.init_latents.is_none() {
            let find = |what, flag, file: &Option<FileRecord>| {
                file.as_ref().map(|file| self.find(what, flag, file)).transpose()
            };
            let image = find("picture to start from", "--init-image", &settings.init_image)?;
            // As on the command line, there is one or the other.
            if image.is_none() {
                command.init_latents = find("latents", "--init-latents", &settings.init_latents)?;
            }
            command.shape.init_image = image;
        }
        if command.shape.init_image.is_some() {
            command.shape.strength = command.shape.strength.or(settings.strength);
        }
        Ok(())
    }

    /// The seed, and the batch that the picture was made in: a picture of a batch may differ from
    /// one made alone in its last bits. With another seed or batch its place in that has no
    /// meaning.
    fn fill_batch(&self, command: &mut Generate) -> Option<u32> {
        let Settings { seed: Some(seed), batch_size, batch_position, .. } = self.settings else {
            return None;
        };
        let is_whole = command.seed.is_none() && command.shape.batch.is_none();
        if let (true, true, Some(batch), Some(position)) =
            (is_whole, self.settings.are_ours(), batch_size, batch_position)
            && position < batch
        {
            command.shape.batch = Some(batch);
            command.seed = Some(Seed::Given(seed.wrapping_sub(u64::from(position))));
            return Some(position);
        }
        command.seed = command.seed.or(Some(Seed::Given(seed)));
        None
    }

    fn fill_model(&self, command: &mut Generate, kept: &mut Kept) -> Result<()> {
        let (before, paths) = (command.model.typed(), &self.settings.paths);
        kept.model = before == ModelPaths::default();
        if before.model.is_some() {
            return Ok(());
        }
        let find = |what: &str, given: &Option<String>, path: &Option<String>| {
            let path = path.as_ref().filter(|_| given.is_none());
            path.map(|path| self.find_model(what, path)).transpose()
        };
        command.model.fill(ModelPaths {
            model: find("MODEL", &before.model, &paths.model)?,
            diffusion_model: find(
                "--diffusion-model",
                &before.diffusion_model,
                &paths.diffusion_model,
            )?,
            vae: find("--vae", &before.vae, &paths.vae)?,
            clip_l: find("--clip-l", &before.clip_l, &paths.clip_l)?,
            t5xxl: find("--t5xxl", &before.t5xxl, &paths.t5xxl)?,
            tokenizer_dir: find("--tokenizer-dir", &before.tokenizer_dir, &paths.tokenizer_dir)?,
        });
        Ok(())
    }

    /// LoRA, tiles and arithmetic, as recorded: over the host profile, below the flags.
    fn fill_policy(&self, command: &mut Generate, kept: &mut Kept) -> Result<()> {
        let settings = &self.settings;
        let mut loras = Vec::new();
        if command.placement.lora.is_empty() {
            for lora in &settings.loras {
                let path = self.find("LoRA", "--lora", &lora.file)?;
                loras.push(format!("{}:{}", path.display(), lora.weight));
            }
            kept.loras = true;
            kept.lora_at_run_time.clone_from(&settings.lora_at_run_time);
        }
        command.placement.recorded = Wishes {
            lora: Some(loras),
            vae_tile: Some(settings.vae_tile.clone().unwrap_or_else(|| "off".to_owned())),
            exact_matmul: Some(settings.exact_matmul),
            ..Wishes::default()
        };
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

    /// Whether the model is the recorded one, by its fingerprint.
    ///
    /// # Errors
    /// It is named by the settings alone, and is another one now.
    pub fn check_model(
        &self,
        kept: &Kept,
        description: &ModelDescription,
        fingerprint: Option<&str>,
    ) -> Result<()> {
        let Some(recorded) = self.settings.fingerprint.as_deref() else { return Ok(()) };
        if fingerprint == Some(recorded) || !self.settings.are_ours() {
            return Ok(());
        }
        let picture = self.picture.display();
        // A built-in model cannot be named: another version of Berth has another one.
        if kept.model && self.settings.paths != ModelPaths::default() {
            bail!(
                "the model {} is not the one that {picture} was made with: its files are others; hint: to take it nonetheless, name it as MODEL",
                description.model
            );
        }
        tell(&format!("{picture} was made with another model: the new picture will differ"));
        Ok(())
    }

    /// Tells what of the run could not be as recorded, though no flag asked for it.
    pub fn tell_differences(&self, kept: &Kept, plan: &Plan) {
        if !self.settings.are_ours() || !kept.model {
            return;
        }
        let picture = self.picture.display();
        let differ = |what: String| tell(&format!("{picture} {what}: the new picture may differ"));
        let version = self.settings.version.clone().unwrap_or_default();
        if version != Settings::this_version() {
            differ(format!("was made by {}", printable(&version)));
        }
        if on_gpu(plan) != self.settings.on_gpu {
            let on = |names: &[String]| match names {
                [] => "no GPU".to_owned(),
                names => format!("a GPU for {}", printable(&names.join(", "))),
            };
            let (was, is) = (on(&self.settings.on_gpu), on(&on_gpu(plan)));
            differ(format!("was made with {was}, this run used {is}"));
        }
        let beside = &plan.options.lora_runtime;
        let is_recorded = |name| kept.lora_at_run_time.contains(name);
        if kept.loras && !self.settings.loras.is_empty() && !beside.iter().all(is_recorded) {
            differ(format!(
                "had its LoRA added to the weights of components that it was added to at run time now ({})",
                beside.join(", ")
            ));
        }
    }

    /// Tells what of the settings is not used.
    fn tell_unknown(&self) {
        let Settings { sampler, rng, strength, init_image, .. } = &self.settings;
        let mut unused: Vec<String> = self.unknown.iter().map(|(key, _)| key.clone()).collect();
        if sampler.as_ref().is_some_and(|sampler| sampler != SAMPLER) {
            unused.push("Sampler".to_owned());
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
        if !unused.is_empty() {
            let more = unused.len().saturating_sub(SHOWN_KEYS);
            unused.truncate(SHOWN_KEYS);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let (picture, unused) = (self.picture.display(), unused.join(", "));
            tell(&format!("of the settings of {picture}, these are not used: {unused}{more}"));
        }
    }
}

/// Keys that are named of those that are not used.
const SHOWN_KEYS: usize = 12;

fn tell(sentence: &str) {
    eprintln!("berth: {sentence}");
}
