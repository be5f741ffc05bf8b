//! From prompts to token ids, before anything is computed: what is cut is told while there is time to
//! stop the job.

use protocol::Failure;
use protocol::notice::{Notice, PromptRole};

use super::Run;
use crate::failure::{bad_model, bad_request, internal};
use crate::tokenizer::Tokenizer;

/// What people call the text encoders, in the order of their tokenizers.
const ENCODERS: [&str; 2] = ["CLIP", "T5"];

impl Run<'_> {
    /// Makes the ids of all prompts, and tells of each that is cut.
    pub(super) fn tokenize(&mut self) -> Result<(), Failure> {
        let job = self.job;
        let t5_prompt = match job.prompt_2.as_deref() {
            Some(second) => (PromptRole::Second, second),
            None => (PromptRole::Prompt, job.prompt.as_str()),
        };
        let negative = (PromptRole::Negative, job.negative_prompt.as_str());
        let prompts = [[(PromptRole::Prompt, job.prompt.as_str()), t5_prompt], [negative; 2]];
        let tokens = [self.layout.clip_hidden[0], self.layout.text_hidden[0]];
        let vocabularies = [self.model().clip().vocab_size, self.model().t5().vocab_size];
        for texts in &prompts[..self.layout.prompts] {
            let mut ids = [Vec::new(), Vec::new()];
            for (encoder, (role, text)) in texts.iter().enumerate() {
                let tokenizer = &self.model().tokenizers()[encoder];
                let left_out = tokenizer.left_out(text, tokens[encoder]).map_err(bad_request)?;
                ids[encoder] = encode(tokenizer, text, tokens[encoder], vocabularies[encoder])?;
                if let Some(left_out) = left_out {
                    self.observer.notice(Notice::PromptCut {
                        encoder: ENCODERS[encoder].to_owned(),
                        tokens: tokens[encoder] as u32,
                        prompt: *role,
                        left_out,
                    });
                }
            }
            self.ids.push(ids);
        }
        Ok(())
    }
}

/// Token ids of a text, all within the encoder's table.
fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    tokens: usize,
    vocabulary: usize,
) -> Result<Vec<i32>, Failure> {
    let encoding = tokenizer.encode(text, tokens).map_err(bad_request)?;
    match encoding.ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(bad_model(format!(
            "the tokenizer gives id {id}, the text encoder knows {vocabulary}; hint: the tokenizer is of another model"
        ))),
        None => encoding
            .ids
            .iter()
            .map(|&id| i32::try_from(id).map_err(|_| internal("a vocabulary beyond 31 bits")))
            .collect(),
    }
}
