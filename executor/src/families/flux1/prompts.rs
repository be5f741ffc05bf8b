//! From prompts to the token ids of both text encoders.

use protocol::Failure;
use protocol::notice::PromptRole;

use super::Flux1;
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::PromptReader;

/// Token ids of one prompt.
pub struct PromptIds {
    /// CLIP's.
    pub clip: Vec<i32>,
    /// T5's.
    pub t5: Vec<i32>,
}

impl Flux1 {
    /// The ids of all prompts: the conditional one, and with true classifier-free guidance the
    /// unconditional one.
    pub(super) fn tokenize(&self, running: &mut RunningJob<'_>) -> Result<Vec<PromptIds>, Failure> {
        let job = running.job;
        let prompt = (PromptRole::Prompt, job.prompt.as_str());
        let second = match job.prompt_2.as_deref() {
            Some(second) => (PromptRole::Second, second),
            None => prompt,
        };
        let negative = (PromptRole::Negative, job.negative_prompt.as_str());
        let texts = [[prompt, second], [negative; 2]];
        let [clip, t5] = self.readers(running.shape().max_sequence_length as usize);
        let prompts = Flux1::prompts(running.shape()) as usize;
        let mut ids = Vec::new();
        for [(clip_role, clip_text), (t5_role, t5_text)] in &texts[..prompts] {
            ids.push(PromptIds {
                clip: running.token_ids(clip, *clip_role, clip_text)?.ids,
                t5: running.token_ids(t5, *t5_role, t5_text)?.ids,
            });
        }
        Ok(ids)
    }

    fn readers(&self, text_tokens: usize) -> [PromptReader<'_>; 2] {
        let [clip, t5] = &*self.tokenizers;
        [
            PromptReader {
                called: "CLIP",
                tokenizer: clip,
                tokens: self.clip.config.max_position_embeddings,
                vocabulary: self.clip.config.vocab_size,
                template: [""; 2],
            },
            PromptReader {
                called: "T5",
                tokenizer: t5,
                tokens: text_tokens,
                vocabulary: self.t5.config.vocab_size,
                template: [""; 2],
            },
        ]
    }
}
