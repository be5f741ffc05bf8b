//! Texts of files in messages.

/// The start of a text from a file, short enough for a message.
pub(super) fn excerpt(text: &str) -> String {
    /// Longer than any tensor name of a known model.
    const EXCERPT_CHARS_MAX: usize = 120;
    text.chars().take(EXCERPT_CHARS_MAX).collect()
}
