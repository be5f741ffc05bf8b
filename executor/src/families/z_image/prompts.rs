//! From prompts to the token ids of the text encoder.

use protocol::Failure;
use protocol::message::PromptText;
use protocol::notice::PromptRole;

use super::ZImage;
use super::dit::TOKENS_MULTIPLE;
use crate::failure::bad_request;
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::{PromptReader, ReadText, TokenIds};

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
    /// The ids of all texts of a job: the prompt, and with guidance the negative one.
    pub(super) fn tokenize(&self, running: &mut RunningJob<'_>) -> Result<Vec<Caption>, Failure> {
        if running.job.items.iter().any(|item| item.prompt_2.is_some()) {
            return Err(bad_request(
                "Z-Image has one text encoder, and the job a prompt for a second one; hint: leave out --prompt-2",
            ));
        }
        let tokens = running.shape().max_sequence_length as usize;
        let tokenizer = self.tokenizer.get()?;
        let reader = PromptReader {
            called: "Qwen3",
            tokenizer,
            tokens,
            vocabulary: self.llm.config.vocab_size,
            template: TEMPLATE,
        };
        let mut captions = Vec::new();
        for (place, text) in running.texts.all.clone().into_iter().enumerate() {
            let (role, text) = match text {
                PromptText::Prompt { text, .. } => (PromptRole::Prompt, text),
                PromptText::Negative(text) => (PromptRole::Negative, text),
            };
            let of = ReadText { place, role, text };
            let TokenIds { mut ids, length } = running.token_ids(reader, of)?;
            // No sequence has none: a caption is at least what its template begins with.
            ids.resize(caption_tokens(tokens), tokenizer.pad_id() as i32);
            captions.push(Caption { ids, length });
        }
        Ok(captions)
    }
}
