//! From prompts to the token ids of the text encoder.

use protocol::Failure;
use protocol::message::PromptText;
use protocol::notice::PromptRole;

use super::Flux2;
use crate::failure::bad_request;
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::{PromptReader, ReadText, TokenIds};

/// What Qwen3's chat template makes of one message of a user that an answer without thinking is to
/// follow (`Flux2KleinPipeline._get_qwen3_prompt_embeds`).
const TEMPLATE: [&str; 2] =
    ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"];

impl Flux2 {
    /// The ids of all texts of a job.
    pub(super) fn tokenize(&self, running: &mut RunningJob<'_>) -> Result<Vec<TokenIds>, Failure> {
        if running.job.items.iter().any(|item| item.prompt_2.is_some()) {
            return Err(bad_request(
                "FLUX.2 klein has one text encoder, and the job a prompt for a second one; hint: leave out \
                 --prompt-2",
            ));
        }
        let tokenizer = self.tokenizer.get()?;
        let reader = PromptReader {
            called: "Qwen3",
            tokenizer,
            tokens: running.shape().max_sequence_length as usize,
            vocabulary: self.llm.config.vocab_size,
            template: TEMPLATE,
        };
        let mut ids = Vec::new();
        for (place, text) in running.texts.all.clone().into_iter().enumerate() {
            let (role, text) = match text {
                PromptText::Prompt { text, .. } => (PromptRole::Prompt, text),
                PromptText::Negative(text) => (PromptRole::Negative, text),
            };
            ids.push(running.token_ids(reader, ReadText { place, role, text })?);
        }
        Ok(ids)
    }
}
