//! What text encoders gave for the prompts of earlier jobs, kept in RAM for later ones with the
//! same prompts: these run no text encoder.
//!
//! What was used least recently goes first. Each value lies in shared memory of its own. Executors
//! get a handle of it: a job that brings its embeddings takes no memory for them. What the cache
//! may hold is in no plan ([`Host::conditioning_cache`](crate::engine::host::Host)).
//!
//! Invariants: nothing of it is ever written to a disk, nor are prompts kept; what it holds is
//! within its limit.

mod key;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::{Bytes, Embeddings};

use key::Digest;
pub use key::PromptKeys;

/// Most prompts that are kept: each has a file descriptor, and a process has 1024. Of large text
/// encoders the bytes are used up earlier.
const PROMPTS_MAX: usize = 256;

/// The system gives shared memory by pages of so many bytes.
const PAGE_BYTES: u64 = 4 << 10;

/// What text encoders gave, by prompt.
#[derive(Debug)]
pub struct ConditioningCache {
    limit: Bytes,
    kept: Mutex<KeptPrompts>,
}

/// What a job brings of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// For each of its prompts.
    pub embeddings: Vec<Embeddings>,
    /// The text encoders that GPUs computed for them: others give the same bits everywhere.
    pub on_gpu: Arc<[String]>,
}

/// What it holds, and what was looked for in it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConditioningFigures {
    /// What it holds.
    pub held: Bytes,
    /// Prompts of jobs that brought their embeddings.
    pub hits: u64,
    /// Prompts of jobs that had to run text encoders.
    pub misses: u64,
    /// Prompts that went to make room for others.
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct KeptPrompts {
    prompts: BTreeMap<Digest, KeptPrompt>,
    figures: ConditioningFigures,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct KeptPrompt {
    /// By whatever computed it, wherever.
    encoders: Digest,
    on_gpu: Arc<[String]>,
    embeddings: Embeddings,
    last_used: u64,
}

impl ConditioningCache {
    /// An empty one, which holds so much at most.
    pub fn new(limit: Bytes) -> ConditioningCache {
        ConditioningCache { limit, kept: Mutex::default() }
    }

    /// Whether anything may be kept.
    pub fn is_on(&self) -> bool {
        self.limit > Bytes::ZERO
    }

    /// What is known of all of a job's prompts, computed at the same places; counts.
    pub fn find(&self, keys: &PromptKeys) -> Option<Found> {
        let mut kept = self.kept();
        let count = keys.prompts() as u64;
        let Some(on_gpu) = kept.places(keys) else {
            kept.figures.misses += count;
            return None;
        };
        kept.figures.hits += count;
        kept.clock += 1;
        let now = kept.clock;
        let mut embeddings = Vec::new();
        for key in keys.of(&on_gpu) {
            let prompt = kept.prompts.get_mut(&key).expect("all of them are there");
            prompt.last_used = now;
            embeddings.push(prompt.embeddings.clone());
        }
        Some(Found { embeddings, on_gpu })
    }

    /// Whether [`ConditioningCache::find`] would find them; counts nothing.
    pub fn has(&self, keys: &PromptKeys) -> bool {
        self.kept().places(keys).is_some()
    }

    /// Keeps what text encoders gave for a job's prompts; `on_gpu` names those that GPUs computed.
    pub fn keep(&self, keys: &PromptKeys, on_gpu: &[String], embeddings: Vec<Embeddings>) {
        let on_gpu: Arc<[String]> = on_gpu.into();
        let mut kept = self.kept();
        for (key, embeddings) in keys.of(&on_gpu).zip(embeddings) {
            if size(&embeddings) > self.limit {
                continue;
            }
            kept.remove(&key);
            kept.make_room(self.limit.saturating_sub(size(&embeddings)));
            kept.clock += 1;
            kept.figures.held += size(&embeddings);
            let (encoders, last_used) = (keys.encoders(), kept.clock);
            let on_gpu = Arc::clone(&on_gpu);
            kept.prompts.insert(key, KeptPrompt { encoders, on_gpu, embeddings, last_used });
        }
    }

    /// What it holds, and what was looked for.
    pub fn figures(&self) -> ConditioningFigures {
        self.kept().figures
    }

    fn kept(&self) -> MutexGuard<'_, KeptPrompts> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptPrompts {
    /// Where all of the prompts were computed, the last used of several answers.
    fn places(&self, keys: &PromptKeys) -> Option<Arc<[String]>> {
        let same_encoders = |prompt: &&KeptPrompt| prompt.encoders == keys.encoders();
        let mut known: Vec<&KeptPrompt> = self.prompts.values().filter(same_encoders).collect();
        known.sort_by_key(|prompt| std::cmp::Reverse(prompt.last_used));
        let has_all =
            |on_gpu: &Arc<[String]>| keys.of(on_gpu).all(|key| self.prompts.contains_key(&key));
        known.into_iter().map(|prompt| &prompt.on_gpu).find(|on_gpu| has_all(on_gpu)).cloned()
    }

    /// Until it holds no more than this, and has room for one more prompt.
    fn make_room(&mut self, limit: Bytes) {
        while self.figures.held > limit || self.prompts.len() >= PROMPTS_MAX {
            let oldest = self.prompts.iter().min_by_key(|(_, prompt)| prompt.last_used);
            let Some(key) = oldest.map(|(key, _)| *key) else { return };
            self.remove(&key);
            self.figures.evictions += 1;
        }
    }

    fn remove(&mut self, key: &Digest) {
        if let Some(prompt) = self.prompts.remove(key) {
            self.figures.held = self.figures.held.saturating_sub(size(&prompt.embeddings));
        }
    }
}

/// What they take of the host's memory.
fn size(embeddings: &Embeddings) -> Bytes {
    Bytes((embeddings.values.len() as u64).next_multiple_of(PAGE_BYTES))
}

#[cfg(test)]
mod tests;
