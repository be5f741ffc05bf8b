//! From a prompt to token ids, before anything is computed: what is cut is told while there is time
//! to stop the job.

use protocol::Failure;
use protocol::notice::{Notice, PromptRole};

use super::RunningJob;
use crate::failure::{bad_model, bad_request, internal};
use crate::tokenizer::Tokenizer;

/// How a text encoder reads prompts.
#[derive(Clone, Copy)]
pub struct PromptReader<'a> {
    /// What people call the text encoder.
    pub called: &'static str,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The ids that it takes, special ones and padding included.
    pub tokens: usize,
    /// Entries of its table.
    pub vocabulary: usize,
}

impl RunningJob<'_> {
    /// The ids of a prompt, padded; tells if it is cut.
    pub fn token_ids(
        &mut self,
        reader: PromptReader<'_>,
        role: PromptRole,
        text: &str,
    ) -> Result<Vec<i32>, Failure> {
        let PromptReader { called, tokenizer, tokens, vocabulary } = reader;
        let encoding = tokenizer.encode(text, tokens).map_err(bad_request)?;
        let left_out = match encoding.truncated {
            true => tokenizer.left_out(text, tokens).map_err(bad_request)?,
            false => None,
        };
        let ids = within(&encoding.ids, vocabulary)?;
        if let Some(left_out) = left_out {
            self.notice(Notice::PromptCut {
                encoder: called.to_owned(),
                tokens: tokens as u32,
                prompt: role,
                left_out,
            });
        }
        Ok(ids)
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
