//! What the embeddings of a prompt depend on, as a number.

use protocol::notice::FileState;
use protocol::{Job, Phase};
use sha2::{Digest as _, Sha256};

use super::super::described::DescribedModel;
use super::ConditioningCache;
use crate::engine::files::states_of;
use crate::job::{PreparedJob, ResolvedJob};

/// A SHA-256.
pub type Digest = [u8; 32];

/// What the prompts of a job are known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptKeys {
    /// Of all that is the same for any prompt.
    encoders: Digest,
    /// Of each text, in the order of [`Job::texts`].
    texts: Vec<Digest>,
}

impl ConditioningCache {
    /// What a job's prompts are known by; `None` where nothing is kept, or where they cannot be
    /// known.
    pub fn keys(
        &self,
        asked: &PreparedJob,
        resolved: &ResolvedJob,
        model: &DescribedModel,
        job: &Job,
    ) -> Option<PromptKeys> {
        self.is_on().then(|| PromptKeys::of_job(asked, resolved, model, job)).flatten()
    }
}

impl PromptKeys {
    /// Those of a job; `None` where nothing is known of the files, or where they are not those that
    /// would run.
    pub fn of_job(
        asked: &PreparedJob,
        resolved: &ResolvedJob,
        model: &DescribedModel,
        job: &Job,
    ) -> Option<PromptKeys> {
        if resolved.options.weights_as.is_some() {
            return None;
        }
        let mut hasher = Hasher::default();
        for file in files(model)? {
            hasher.file(file);
        }
        hasher.texts(["LoRA"]);
        // Which of them touch a text encoder is not known here: any may.
        for lora in resolved.options.loras.iter().filter(|lora| lora.weight != 0.0) {
            let [state] = &states_of(&[lora.path.clone().into()])?[..] else { return None };
            hasher.file(state);
            hasher.texts([&*lora.weight.to_bits().to_string()]);
        }
        hasher.texts(resolved.options.lora_runtime.iter().map(String::as_str));
        hasher.texts([
            &*resolved.options.exact_matmul.to_string(),
            &*resolved.shape.max_sequence_length.to_string(),
            // Whoever says where text encoders compute gets what they give there.
            asked.request.policy.backend.as_deref().unwrap_or_default(),
        ]);
        let texts = job.texts(resolved.shape.true_cfg).all;
        let texts = texts.iter().map(|text| Hasher::default().with(text.read()).digest());
        Some(PromptKeys { encoders: hasher.digest(), texts: texts.collect() })
    }

    /// How many prompts there are.
    pub fn prompts(&self) -> usize {
        self.texts.len()
    }

    /// Of all that is the same for any prompt.
    pub fn encoders(&self) -> Digest {
        self.encoders
    }

    /// The key of each prompt, as GPUs compute these text encoders for it.
    pub fn of<'k>(&'k self, on_gpu: &'k [String]) -> impl Iterator<Item = Digest> + 'k {
        self.texts.iter().map(move |text| {
            let mut hasher = Hasher::default();
            hasher.0.update(self.encoders);
            hasher.0.update(text);
            hasher.with(on_gpu.iter().map(String::as_str)).digest()
        })
    }

    /// Keys of these prompts, for tests.
    #[cfg(test)]
    pub fn made_up(encoders: u8, prompts: &[&str]) -> PromptKeys {
        let texts = prompts.iter().map(|text| Hasher::default().with([*text]).digest());
        PromptKeys { encoders: [encoders; 32], texts: texts.collect() }
    }
}

/// The files that decide what the text encoders give: their weights, configurations, tokenizers.
fn files(model: &DescribedModel) -> Option<Vec<&FileState>> {
    let components = &model.description.components;
    let has = |path: &str, of_encoders: bool| {
        let mut of = components
            .iter()
            .filter(|component| (component.phase == Phase::Condition) == of_encoders);
        of.any(|component| component.files.iter().any(|file| file == path))
    };
    let is_of_encoders = |state: &&FileState| has(&state.path, true) || !has(&state.path, false);
    Some(model.states()?.iter().filter(is_of_encoders).collect())
}

/// Adds texts so that no two lists give the same.
#[derive(Default)]
struct Hasher(Sha256);

impl Hasher {
    fn texts<'t>(&mut self, texts: impl IntoIterator<Item = &'t str>) {
        for text in texts {
            self.0.update((text.len() as u64).to_le_bytes());
            self.0.update(text);
        }
        self.0.update(u64::MAX.to_le_bytes());
    }

    fn file(&mut self, FileState { path, device, inode, size, modified_ns }: &FileState) {
        self.texts([path.as_str()]);
        self.0.update(device.to_le_bytes());
        self.0.update(inode.to_le_bytes());
        self.0.update(size.0.to_le_bytes());
        self.0.update(modified_ns.to_le_bytes());
    }

    fn with<'t>(mut self, texts: impl IntoIterator<Item = &'t str>) -> Hasher {
        self.texts(texts);
        self
    }

    fn digest(self) -> Digest {
        self.0.finalize().into()
    }
}
