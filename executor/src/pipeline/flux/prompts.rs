//! From prompts to token ids, before anything is computed: what is cut is told while there is time
//! to stop the job.

use protocol::Failure;
use protocol::notice::{Notice, PromptRole};

use super::Run;
use crate::failure::{bad_model, bad_request, internal};

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
                let most = tokens[encoder];
                let encoding = tokenizer.encode(text, most).map_err(bad_request)?;
                let left_out = match encoding.truncated {
                    true => tokenizer.left_out(text, most).map_err(bad_request)?,
                    false => None,
                };
                ids[encoder] = within(&encoding.ids, vocabularies[encoder])?;
                if let Some(left_out) = left_out {
                    self.observer.notice(Notice::PromptCut {
                        encoder: ENCODERS[encoder].to_owned(),
                        tokens: most as u32,
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

/// Token ids, all within the encoder's table.
fn within(ids: &[u32], vocabulary: usize) -> Result<Vec<i32>, Failure> {
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(bad_model(format!(
            "the tokenizer gives id {id}, the text encoder knows {vocabulary}; hint: the tokenizer is of another model"
        )));
    }
    let narrow = |&id: &u32| i32::try_from(id).map_err(|_| internal("a vocabulary beyond 31 bits"));
    ids.iter().map(narrow).collect()
}
