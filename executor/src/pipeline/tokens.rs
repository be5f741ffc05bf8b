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
    /// What makes ids of its text.
    pub tokenizer: &'a Tokenizer,
    /// The ids that it takes, special ones and padding included.
    pub tokens: usize,
    /// Entries of its table.
    pub vocabulary: usize,
    /// What stands before and behind each prompt.
    pub template: [&'static str; 2],
}

/// A prompt as a text encoder takes it.
pub struct TokenIds {
    /// As many ids as it was asked for, padding included.
    pub ids: Vec<i32>,
    /// How many of them come before the padding.
    pub length: usize,
}

/// A text that is read.
#[derive(Clone, Copy)]
pub struct ReadText<'a> {
    /// Its place among the job's texts.
    pub place: usize,
    /// Which of a picture's prompts it is.
    pub role: PromptRole,
    /// As the user wrote it.
    pub text: &'a str,
}

impl RunningJob<'_> {
    /// The places in the batch of the pictures that have a text.
    fn pictures_of(&self, place: usize) -> Vec<u32> {
        let rows = self.texts.rows.iter();
        let of = rows.flat_map(|row| row.iter().enumerate().filter(|(_, text)| **text == place));
        of.map(|(picture, _)| picture as u32).collect()
    }

    /// The ids of a prompt within its template, padded; tells if it is cut.
    pub fn token_ids(
        &mut self,
        reader: PromptReader<'_>,
        of: ReadText<'_>,
    ) -> Result<TokenIds, Failure> {
        let PromptReader { called, tokenizer, tokens, vocabulary, template } = reader;
        let ReadText { place, role, text } = of;
        let [before, behind] = template;
        let text = format!("{before}{text}{behind}");
        let encoding = tokenizer.encode(&text, tokens).map_err(bad_request)?;
        let left_out = match encoding.truncated {
            true => tokenizer.left_out(&text, tokens).map_err(bad_request)?,
            false => None,
        };
        // What of the template is cut is nothing that the user wrote.
        let left_out = left_out.and_then(|text| of_prompt(&text, behind));
        let ids = within(&encoding.ids, vocabulary)?;
        if let Some(left_out) = left_out {
            self.notice(Notice::PromptCut {
                encoder: called.to_owned(),
                tokens: tokens as u32,
                prompt: role,
                left_out,
                pictures: self.pictures_of(place),
            });
        }
        Ok(TokenIds { ids, length: encoding.length_before_padding })
    }
}

/// The prompt's part of what was left out, which ends with what stands behind it; `None` where that
/// is all.
fn of_prompt(left_out: &str, behind: &str) -> Option<String> {
    let behind = behind.trim_end();
    let prompt = match left_out.strip_suffix(behind) {
        Some(prompt) => prompt.trim_end(),
        // It begins within the template.
        None if behind.ends_with(left_out) => "",
        None => left_out,
    };
    (!prompt.is_empty()).then(|| prompt.to_owned())
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

#[cfg(test)]
mod tests {
    use super::of_prompt;

    #[test]
    fn what_is_left_out_of_a_prompt_is_told_without_its_template() {
        assert_eq!(of_prompt("a tail", ""), Some("a tail".to_owned()));
        assert_eq!(
            of_prompt("a tail<end>\n<start>", "<end>\n<start>\n"),
            Some("a tail".to_owned())
        );
        assert_eq!(of_prompt("<end>\n<start>", "<end>\n<start>\n"), None);
        assert_eq!(of_prompt("start>", "<end>\n<start>\n"), None);
    }
}
