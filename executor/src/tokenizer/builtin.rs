//! The tokenizer of every published CLIP-L (openai/clip-vit-large-patch14, MIT), for files that
//! hold the text encoder alone.

use std::path::Path;

use super::files::{TokenizerConfig, parse_json};
use super::{Tokenizer, TokenizerError, TokenizerKind, clip};

const VOCABULARY: &[u8] = include_bytes!("builtin/vocab.json");
const MERGES: &[u8] = include_bytes!("builtin/merges.txt");
const CONFIG: &[u8] = include_bytes!("builtin/tokenizer_config.json");

/// Builds it.
pub(super) fn clip() -> Result<Tokenizer, TokenizerError> {
    let place = Path::new("the built-in tokenizer");
    let config: TokenizerConfig = parse_json(place, CONFIG)?;
    let inner = clip::build_of(place, VOCABULARY, MERGES, &config)?;
    Tokenizer::checked(inner, TokenizerKind::CLIP, &config, place)
}
