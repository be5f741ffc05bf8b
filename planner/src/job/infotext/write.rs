//! From a value to text.

use super::pairs::{push, split};
use super::read::plain_prompts;
use super::{FileRecord, NEGATIVE_LINE, Settings, key};

/// The text that stands in a picture's file.
pub fn write(settings: &Settings) -> String {
    let mut text = plain(&settings.prompt);
    let negative = settings.negative_prompt.as_deref();
    if let Some(negative) = negative {
        text += &format!("\n{NEGATIVE_LINE} {}", plain(negative));
    }
    let (read, read_negative) = plain_prompts(&text);
    let mut line = line(settings);
    if read != settings.prompt || read_negative.as_deref() != negative {
        line.text(key::PROMPT, Some(settings.prompt.clone()));
        line.text(key::NEGATIVE_PROMPT, settings.negative_prompt.clone());
    }
    text + "\n" + &line.0
}

/// Keys and values of everything but the prompt and the negative prompt, in the order of the text.
pub fn pairs(settings: &Settings) -> Vec<(String, String)> {
    split(&line(settings).0)
}

fn line(settings: &Settings) -> Line {
    let mut line = Line::default();
    line.text(key::STEPS, settings.steps.map(|steps| steps.to_string()));
    line.text(key::SAMPLER, settings.sampler.clone());
    line.text(key::SCHEDULER, settings.scheduler.clone());
    line.text(key::SIGMAS, settings.sigmas.as_deref().map(spaced));
    line.text(key::ETA, settings.eta.map(|eta| eta.to_string()));
    line.text(key::CFG_SCALE, settings.cfg_scale.map(|scale| scale.to_string()));
    line.text(key::CFG_NORMALIZATION, settings.cfg_normalization.then(|| "yes".to_owned()));
    line.text(key::GUIDANCE_SCALE, settings.guidance_scale.map(|scale| scale.to_string()));
    line.text(key::SEED, settings.seed.map(|seed| seed.to_string()));
    line.text(key::SIZE, settings.size.map(|[width, height]| format!("{width}x{height}")));
    write_model(&mut line, settings);
    line.text(key::RNG, settings.rng.clone());
    line.text(key::STRENGTH, settings.strength.map(|strength| strength.to_string()));
    line.file(key::INIT_IMAGE, key::INIT_IMAGE_SHA256, settings.init_image.as_ref());
    line.file(key::INIT_LATENTS, key::INIT_LATENTS_SHA256, settings.init_latents.as_ref());
    line.text(key::BATCH_SIZE, settings.batch_size.map(|size| size.to_string()));
    line.text(key::BATCH_POSITION, settings.batch_position.map(|place| place.to_string()));
    line.text(key::MAX_SEQUENCE_LENGTH, settings.max_sequence_length.map(|n| n.to_string()));
    write_loras(&mut line, settings);
    line.text(key::VAE_TILE, settings.vae_tile.clone());
    line.text(key::EXACT_MATMUL, settings.exact_matmul.then(|| "yes".to_owned()));
    line.names(key::ON_GPU, &settings.on_gpu);
    line.text(key::PROMPT_2, settings.prompt_2.clone());
    line.text(key::QUALITY, settings.quality.map(|quality| quality.to_string()));
    line.text(key::VERSION, settings.version.clone());
    line
}

/// Numbers with blanks between them: commas stand between pairs.
fn spaced(numbers: &[f32]) -> String {
    let shown: Vec<String> = numbers.iter().map(f32::to_string).collect();
    shown.join(" ")
}

fn write_model(line: &mut Line, settings: &Settings) {
    let paths = &settings.paths;
    line.text(key::MODEL, settings.model.clone());
    line.text(key::FINGERPRINT, settings.fingerprint.clone());
    line.text(key::WEIGHTS, settings.weights.clone());
    line.text(key::MODEL_PATH, paths.model.clone());
    for (flag, path) in &paths.parts {
        line.text(&format!("{}{}", flag.label(), key::PART_PATH), Some(path.clone()));
    }
}

fn write_loras(line: &mut Line, settings: &Settings) {
    for (number, lora) in (1..).zip(&settings.loras) {
        let key = format!("{}{number}", key::LORA);
        // As `--lora` takes it.
        line.text(&key, Some(format!("{}:{}", lora.file.path, lora.weight)));
        line.text(&(key + key::LORA_SHA256), lora.file.sha256.clone());
    }
    line.names(key::LORA_AT_RUN_TIME, &settings.lora_at_run_time);
}

/// A prompt as it may stand in lines of its own. Other programs take control characters for ends of
/// the text.
fn plain(prompt: &str) -> String {
    prompt.replace(|c: char| c.is_control() && c != '\n', " ")
}

/// The last line on its way.
#[derive(Default)]
struct Line(String);

impl Line {
    fn text(&mut self, key: &str, value: Option<String>) {
        if let Some(value) = value {
            push(&mut self.0, key, &value);
        }
    }

    fn names(&mut self, key: &str, names: &[String]) {
        self.text(key, (!names.is_empty()).then(|| names.join(" ")));
    }

    fn file(&mut self, path: &str, sha256: &str, file: Option<&FileRecord>) {
        self.text(path, file.map(|file| file.path.clone()));
        self.text(sha256, file.and_then(|file| file.sha256.clone()));
    }
}
