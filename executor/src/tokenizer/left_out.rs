//! What of a text does not fit into a sequence, as text.

use super::{Tokenizer, TokenizerError, guarded};

impl Tokenizer {
    /// The end of `text` that [`Tokenizer::encode`] drops where it cuts it for a sequence of
    /// `max_length` ids; `None` where it drops nothing but blanks.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn left_out(
        &self,
        text: &str,
        max_length: usize,
    ) -> Result<Option<String>, TokenizerError> {
        let encoding = guarded(|| self.inner.encode_char_offsets(text, false))
            .map_err(|message| TokenizerError::Encode { message })?;
        let room = max_length.saturating_sub(self.special_count);
        let Some(&(start, _)) = encoding.get_offsets().get(room) else { return Ok(None) };
        let end: String = text.chars().skip(start).collect();
        let end = end.trim();
        Ok((!end.is_empty()).then(|| end.to_owned()))
    }
}
