//! The tokenizers of every published CLIP-L and CLIP-G (openai/clip-vit-large-patch14, MIT), for
//! files that hold a text encoder alone. They differ in how texts are padded.

use std::path::Path;

use super::files::{TokenizerConfig, parse_json};
use super::{Tokenizer, TokenizerError, TokenizerKind, clip};

const VOCABULARY: &[u8] = include_bytes!("builtin/vocab.json");
const MERGES: &[u8] = include_bytes!("builtin/merges.txt");
const CONFIG: &[u8] = include_bytes!("builtin/tokenizer_config.json");

/// `tokenizer_2/tokenizer_config.json` of the models that have CLIP-G.
const CONFIG_G: &[u8] = include_bytes!("builtin/tokenizer_2_config.json");

/// The one that repeats the end token behind a text.
pub(super) fn clip() -> Result<Tokenizer, TokenizerError> {
    build(CONFIG)
}

/// The one that fills sequences up with `!`.
pub(super) fn clip_g() -> Result<Tokenizer, TokenizerError> {
    build(CONFIG_G)
}

fn build(config: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let place = Path::new("the built-in tokenizer");
    let config: TokenizerConfig = parse_json(place, config)?;
    let inner = clip::build_of(place, VOCABULARY, MERGES, &config)?;
    Tokenizer::checked(inner, TokenizerKind::CLIP, &config, place)
}
