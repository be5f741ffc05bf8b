//! From prompts to the token ids of the text encoder.

use protocol::Failure;
use protocol::message::PromptText;
use protocol::notice::PromptRole;

use super::QwenImage;
use crate::failure::{bad_model, bad_request};
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::{PromptReader, ReadText, TokenIds};

/// What stands around a prompt (`QwenImagePipeline.prompt_template_encode`).
const TEMPLATE: [&str; 2] = [
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial \
     relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
];

/// The template's first tokens, whose states the DiT does not get
/// (`prompt_template_encode_start_idx`).
pub const DROPPED: usize = 34;

/// What texts are filled up to, so that a few graphs do for all lengths: what fills them up is
/// hidden, and changes no picture.
pub const TOKENS_MULTIPLE: usize = 32;

/// Token ids of a prompt within the pipeline's template, as Qwen2.5-VL takes them.
pub struct TemplatedPrompt {
    /// Token ids within the template: all that the encoder could take, the text's first.
    pub ids: Vec<i32>,
    /// How many are the text's, template included.
    pub length: usize,
}

impl TemplatedPrompt {
    /// Tokens that the DiT gets.
    pub fn text(&self) -> usize {
        self.length - DROPPED
    }
}

/// What so many tokens are filled up to.
pub fn filled(tokens: usize) -> usize {
    tokens.next_multiple_of(TOKENS_MULTIPLE)
}

/// The lengths that so many tokens at most may be filled up to, the longest first.
pub fn lengths(longest: usize) -> impl Iterator<Item = usize> {
    (1..=filled(longest) / TOKENS_MULTIPLE).rev().map(|count| count * TOKENS_MULTIPLE)
}

impl QwenImage {
    /// The ids of all texts of a job: the prompt, and with guidance the negative one.
    pub(super) fn tokenize(
        &self,
        running: &mut RunningJob<'_>,
    ) -> Result<Vec<TemplatedPrompt>, Failure> {
        if running.job.items.iter().any(|item| item.prompt_2.is_some()) {
            return Err(bad_request(
                "Qwen-Image has one text encoder, and the job a prompt for a second one; hint: leave out --prompt-2",
            ));
        }
        let tokens = DROPPED + running.shape().max_sequence_length as usize;
        let tokenizer = self.tokenizer.get()?;
        let reader = PromptReader {
            called: "Qwen2.5-VL",
            tokenizer,
            tokens,
            vocabulary: self.llm.config.0.vocab_size,
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
            if length <= DROPPED {
                return Err(bad_model(format!(
                    "the tokenizer makes {length} tokens of a prompt within its template, of which the first {DROPPED} \
                     are the template's; hint: the tokenizer is of another model"
                )));
            }
            ids.resize(filled(tokens), tokenizer.pad_id() as i32);
            captions.push(TemplatedPrompt { ids, length });
        }
        Ok(captions)
    }
}
