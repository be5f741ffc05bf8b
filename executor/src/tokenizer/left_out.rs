//! What of a text does not fit into a sequence, as text.

use super::{Tokenizer, TokenizerError, guarded};

impl Tokenizer {
    /// The end of `text` that [`Tokenizer::encode`] drops for a sequence of `max_length` ids; `None`
    /// where it drops nothing but blanks.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn left_out(
        &self,
        text: &str,
        max_length: usize,
    ) -> Result<Option<String>, TokenizerError> {
        if !self.encode(text, max_length)?.truncated {
            return Ok(None);
        }
        let encoding = guarded(|| self.inner.encode_char_offsets(text, false))
            .map_err(|message| TokenizerError::Encode { message })?;
        let first = encoding.get_offsets().get(max_length - self.special_count);
        let end: String = text.chars().skip(first.map_or(0, |offsets| offsets.0)).collect();
        let end = end.trim();
        Ok((!end.is_empty()).then(|| end.to_owned()))
    }
}
