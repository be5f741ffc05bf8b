//! From prompts to the token ids of the text encoders.

use protocol::Failure;
use protocol::message::PromptText;
use protocol::notice::PromptRole;

use super::Sd3;
use crate::pipeline::RunningJob;
use crate::pipeline::tokens::{PromptReader, ReadText};

/// Token ids of one text.
pub struct TextIds {
    /// CLIP-L's and CLIP-G's.
    pub clip: [Vec<i32>; 2],
    /// T5's, where the model has it.
    pub t5: Option<Vec<i32>>,
}

impl Sd3 {
    /// The ids of all texts of a job. A second prompt is CLIP-G's, as in the pipeline.
    pub(super) fn tokenize(&self, running: &mut RunningJob<'_>) -> Result<Vec<TextIds>, Failure> {
        let text_tokens = running.shape().max_sequence_length as usize;
        let mut ids = Vec::new();
        for (place, text) in running.texts.all.clone().into_iter().enumerate() {
            let (role, first, second) = match text {
                PromptText::Prompt { text, second } => {
                    let own = second.map(|second| (PromptRole::Second, second));
                    (PromptRole::Prompt, text, own.unwrap_or((PromptRole::Prompt, text)))
                }
                PromptText::Negative(text) => {
                    (PromptRole::Negative, text, (PromptRole::Negative, text))
                }
            };
            let read = ReadText { place, role, text: first };
            let read_second = ReadText { place, role: second.0, text: second.1 };
            let clip_l = running.token_ids(self.clip_reader(0)?, read)?.ids;
            let clip_g = running.token_ids(self.clip_reader(1)?, read_second)?.ids;
            let t5 = match self.t5_reader(text_tokens)? {
                Some(reader) => Some(running.token_ids(reader, read)?.ids),
                None => None,
            };
            ids.push(TextIds { clip: [clip_l, clip_g], t5 });
        }
        Ok(ids)
    }

    fn clip_reader(&self, which: usize) -> Result<PromptReader<'_>, Failure> {
        let part = [&self.clip_l, &self.clip_g][which];
        Ok(PromptReader {
            called: ["CLIP-L", "CLIP-G"][which],
            tokenizer: self.tokenizers.clip[which].get()?,
            tokens: part.config.max_position_embeddings,
            vocabulary: part.config.vocab_size,
            template: [""; 2],
        })
    }

    fn t5_reader(&self, tokens: usize) -> Result<Option<PromptReader<'_>>, Failure> {
        let (Some(t5), Some(tokenizer)) = (&self.t5, &self.tokenizers.t5) else { return Ok(None) };
        let tokenizer = tokenizer.get()?;
        let (called, vocabulary) = ("T5", t5.config.vocab_size);
        Ok(Some(PromptReader { called, tokenizer, tokens, vocabulary, template: [""; 2] }))
    }
}
