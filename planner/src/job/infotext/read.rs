//! From text to a value, and what of the text is not understood.

use protocol::PartFlag;
use protocol::limits::{LORAS_MAX, STEPS_MAX};

use super::pairs::{PAIRS_MIN, split};
use super::{FileRecord, LoraRecord, NEGATIVE_LINE, Settings, key};

/// Longest text that is read, in bytes. Three prompts of the largest size, each quoted beside its
/// plain form, take a third of it.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// Why a text holds no settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InfotextError {
    /// The text is longer than any settings.
    #[error("its settings have {0} bytes, at most {TEXT_BYTES_MAX} are read")]
    TooLong(usize),
    /// It has no line of settings.
    #[error("its text does not end with a line of settings, as `Steps: 4, Seed: 1, Size: 64x64`")]
    NoLine,
}

/// What a text says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// What is understood of it.
    pub settings: Settings,
    /// Keys and values that are not, in order.
    pub unknown: Vec<(String, String)>,
}

/// Reads the text of a picture's file.
///
/// # Errors
/// All of [`InfotextError`].
pub fn read(text: &str) -> Result<Reading, InfotextError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(InfotextError::TooLong(text.len()));
    }
    // A prompt that is empty leaves an empty line before the last one.
    let text = text.trim_end();
    let (prompts, line) = text.rsplit_once('\n').unwrap_or(("", text));
    let pairs = split(line);
    if pairs.len() < PAIRS_MIN {
        return Err(InfotextError::NoLine);
    }
    let (prompt, negative_prompt) = plain_prompts(prompts);
    let mut reading = Reading {
        settings: Settings { prompt, negative_prompt, ..Settings::default() },
        unknown: Vec::new(),
    };
    for (key, value) in pairs {
        if take(&mut reading.settings, &key, &value).is_none() {
            reading.unknown.push((key, value));
        }
    }
    Ok(reading)
}

/// The prompt and the negative prompt of the lines before the last one, as AUTOMATIC1111 reads
/// them: without blanks at the ends of lines.
pub fn plain_prompts(text: &str) -> (String, Option<String>) {
    let mut prompt: Vec<&str> = Vec::new();
    let mut negative: Option<Vec<&str>> = None;
    for line in text.trim().split('\n').map(str::trim) {
        match (&mut negative, line.strip_prefix(NEGATIVE_LINE)) {
            (Some(lines), None) => lines.push(line),
            (Some(lines), Some(text)) => lines.push(text.trim()),
            (none, Some(text)) => *none = Some(vec![text.trim()]),
            (None, None) => prompt.push(line),
        }
    }
    (prompt.join("\n"), negative.map(|lines| lines.join("\n")))
}

/// Puts a value where its key says; `None` where key or value are not understood.
fn take(settings: &mut Settings, key: &str, value: &str) -> Option<()> {
    let text = || Some(value.to_owned());
    match key {
        // A line of the prompt may have been taken for a negative one: what is exact replaces both.
        key::PROMPT => (settings.prompt, settings.negative_prompt) = (text()?, None),
        key::NEGATIVE_PROMPT => settings.negative_prompt = text(),
        key::PROMPT_2 => settings.prompt_2 = text(),
        key::STEPS => settings.steps = Some(value.parse().ok()?),
        key::SAMPLER => settings.sampler = text(),
        key::SCHEDULER => settings.scheduler = text(),
        key::SIGMAS => settings.sigmas = Some(sigmas(value)?),
        key::ETA => settings.eta = Some(scale(value)?),
        key::CFG_SCALE => settings.cfg_scale = Some(scale(value)?),
        key::CFG_NORMALIZATION => settings.cfg_normalization = value == "yes",
        key::GUIDANCE_SCALE => settings.guidance_scale = Some(scale(value)?),
        key::SEED => settings.seed = Some(value.parse().ok()?),
        key::RNG => settings.rng = text(),
        key::SIZE => settings.size = Some(size(value)?),
        key::BATCH_SIZE => settings.batch_size = Some(value.parse().ok()?),
        key::BATCH_POSITION => settings.batch_position = Some(value.parse().ok()?),
        key::MAX_SEQUENCE_LENGTH => settings.max_sequence_length = Some(value.parse().ok()?),
        key::INIT_IMAGE => file(&mut settings.init_image).path = text()?,
        key::INIT_IMAGE_SHA256 => file(&mut settings.init_image).sha256 = text(),
        key::STRENGTH => {
            let strength: f64 = value.parse().ok()?;
            settings.strength = Some((0.0..=1.0).contains(&strength).then_some(strength)?);
        }
        key::INIT_LATENTS => file(&mut settings.init_latents).path = text()?,
        key::INIT_LATENTS_SHA256 => file(&mut settings.init_latents).sha256 = text(),
        key::LORA_AT_RUN_TIME => settings.lora_at_run_time = names(value),
        key::MODEL => settings.model = text(),
        key::MODEL_PATH => settings.paths.model = text(),
        key::FINGERPRINT => settings.fingerprint = text(),
        key::WEIGHTS => settings.weights = text(),
        key::VAE_TILE => settings.vae_tile = text(),
        key::EXACT_MATMUL => settings.exact_matmul = value == "yes",
        key::ON_GPU => settings.on_gpu = names(value),
        key::QUALITY => settings.quality = Some(value.parse().ok()?),
        key::VERSION => settings.version = text(),
        key => match part_of(key) {
            Some(flag) => {
                settings.paths.parts.insert(flag, text()?);
            }
            None => take_lora(&mut settings.loras, key.strip_prefix(key::LORA)?, value)?,
        },
    }
    Some(())
}

/// The part whose file a key names.
fn part_of(key: &str) -> Option<PartFlag> {
    let label = key.strip_suffix(key::PART_PATH)?;
    PartFlag::ALL.iter().copied().find(|flag| flag.label() == label)
}

/// A file that may stand without its hash, or its hash before it.
fn file(record: &mut Option<FileRecord>) -> &mut FileRecord {
    record.get_or_insert_default()
}

/// Takes `LoRA 1: path:weight` and `LoRA 1 SHA-256: …`, which come in order.
fn take_lora(loras: &mut Vec<LoraRecord>, key: &str, value: &str) -> Option<()> {
    if let Some(number) = key.strip_suffix(key::LORA_SHA256) {
        let number: usize = number.parse().ok()?;
        loras.get_mut(number.checked_sub(1)?)?.file.sha256 = Some(value.to_owned());
        return Some(());
    }
    let number: usize = key.parse().ok()?;
    let (path, weight) = value.rsplit_once(':')?;
    let weight = weight.parse().ok().filter(|weight: &f32| weight.is_finite())?;
    if number != loras.len() + 1 || number > LORAS_MAX {
        return None;
    }
    let file = FileRecord { path: path.to_owned(), sha256: None };
    loras.push(LoraRecord { file, weight });
    Some(())
}

fn scale(value: &str) -> Option<f32> {
    value.parse().ok().filter(|scale: &f32| scale.is_finite() && *scale >= 0.0)
}

fn sigmas(value: &str) -> Option<Vec<f32>> {
    let sigmas = value.split_whitespace().take(STEPS_MAX as usize).map(scale);
    sigmas.collect::<Option<Vec<_>>>().filter(|sigmas| !sigmas.is_empty())
}

fn size(value: &str) -> Option<[u32; 2]> {
    let (width, height) = value.split_once('x')?;
    Some([width.parse().ok()?, height.parse().ok()?])
}

fn names(value: &str) -> Vec<String> {
    value.split_whitespace().map(str::to_owned).collect()
}
