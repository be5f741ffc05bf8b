//! From prompts to the token ids of both text encoders.

use protocol::Failure;
use protocol::message::PromptText;
use protocol::notice::PromptRole;

use super::Flux1;
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::{PromptReader, ReadText};

/// Token ids of one prompt.
pub struct PromptIds {
    /// CLIP's.
    pub clip: Vec<i32>,
    /// T5's.
    pub t5: Vec<i32>,
}

impl Flux1 {
    /// The ids of all texts of a job.
    pub(super) fn tokenize(&self, running: &mut RunningJob<'_>) -> Result<Vec<PromptIds>, Failure> {
        let [clip, t5] = self.readers(running.shape().max_sequence_length as usize)?;
        let mut ids = Vec::new();
        for (place, text) in running.texts.all.clone().into_iter().enumerate() {
            let roles = match text {
                PromptText::Prompt { second: None, .. } => [PromptRole::Prompt; 2],
                PromptText::Prompt { .. } => [PromptRole::Prompt, PromptRole::Second],
                PromptText::Negative(_) => [PromptRole::Negative; 2],
            };
            let [short, long] = text.read();
            let of = |role, text| ReadText { place, role, text };
            ids.push(PromptIds {
                clip: running.token_ids(clip, of(roles[0], short))?.ids,
                t5: running.token_ids(t5, of(roles[1], long))?.ids,
            });
        }
        Ok(ids)
    }

    fn readers(&self, text_tokens: usize) -> Result<[PromptReader<'_>; 2], Failure> {
        let [clip, t5] = &*self.tokenizers;
        Ok([
            PromptReader {
                called: "CLIP",
                tokenizer: clip.get()?,
                tokens: self.clip.config.max_position_embeddings,
                vocabulary: self.clip.config.vocab_size,
                template: [""; 2],
            },
            PromptReader {
                called: "T5",
                tokenizer: t5.get()?,
                tokens: text_tokens,
                vocabulary: self.t5.config.vocab_size,
                template: [""; 2],
            },
        ])
    }
}
