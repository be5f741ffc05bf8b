//! From prompts to the token ids of the text encoder.

use protocol::Failure;
use protocol::notice::PromptRole;

use super::ZImage;
use super::dit::TOKENS_MULTIPLE;
use crate::failure::bad_request;
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::{PromptReader, TokenIds};

/// What Qwen3's chat template makes of one message of a user that an answer is to follow, with
/// thinking allowed (`ZImagePipeline._encode_prompt`).
const TEMPLATE: [&str; 2] = ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"];

/// A caption's tokens, filled up as the DiT takes them.
pub struct Caption {
    /// Token ids: all that the encoder could take, the text's first.
    pub ids: Vec<i32>,
    /// How many are the text's.
    pub length: usize,
}

impl Caption {
    /// Its tokens as the DiT takes them.
    pub fn tokens(&self) -> usize {
        caption_tokens(self.length)
    }
}

/// What so many tokens are filled up to.
pub fn caption_tokens(length: usize) -> usize {
    length.next_multiple_of(TOKENS_MULTIPLE)
}

impl ZImage {
    /// The ids of all prompts: the conditional one, and with guidance the unconditional one.
    pub(super) fn tokenize(&self, running: &mut RunningJob<'_>) -> Result<Vec<Caption>, Failure> {
        let job = running.job;
        if job.prompt_2.is_some() {
            return Err(bad_request(
                "Z-Image has one text encoder, and the job a prompt for a second one; hint: leave out --prompt-2",
            ));
        }
        let tokens = running.shape().max_sequence_length as usize;
        let reader = PromptReader {
            called: "Qwen3",
            tokenizer: &self.tokenizer,
            tokens,
            vocabulary: self.llm.config.vocab_size,
            template: TEMPLATE,
        };
        let texts = [
            (PromptRole::Prompt, job.prompt.as_str()),
            (PromptRole::Negative, job.negative_prompt.as_str()),
        ];
        let prompts = ZImage::prompts(running.shape()) as usize;
        let mut captions = Vec::new();
        for &(role, text) in &texts[..prompts] {
            let TokenIds { mut ids, length } = running.token_ids(reader, role, text)?;
            // No sequence has none: a caption is at least what its template begins with.
            ids.resize(caption_tokens(tokens), self.tokenizer.pad_id() as i32);
            captions.push(Caption { ids, length });
        }
        Ok(captions)
    }
}
