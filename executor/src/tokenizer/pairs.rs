//! `vocab.json` and `merges.txt`: the tables of a tokenizer that merges pairs, and the special
//! tokens that come to them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use tokenizers::AddedToken;
use tokenizers::models::bpe::Merges;

use super::bounds::vocabulary;
use super::files::{SpecialToken, TokenEntry, parse_json, read_capped};
use super::{TokenizerError, VOCABULARY_FILE_BYTES_MAX, guarded};

/// The table of tokens, with their ids.
pub(super) const VOCABULARY: &str = "vocab.json";

/// The pairs that are merged.
const MERGES: &str = "merges.txt";

/// Both files.
pub(super) const FILES: [&str; 2] = [VOCABULARY, MERGES];

/// The content of both files of a directory.
///
/// # Errors
/// One of them is missing, too large, or cannot be read.
pub(super) fn read(directory: &Path) -> Result<[Vec<u8>; 2], TokenizerError> {
    let read = |name: &str| read_capped(&directory.join(name), VOCABULARY_FILE_BYTES_MAX);
    match (read(VOCABULARY)?, read(MERGES)?) {
        (Some(vocabulary), Some(merges)) => Ok([vocabulary, merges]),
        _ => Err(TokenizerError::missing_bpe(directory)),
    }
}

/// The tables of that content; the directory is for messages.
///
/// # Errors
/// A file is malformed or has too much, or a merge needs what is no token.
pub(super) fn parse(
    directory: &Path,
    [vocabulary, merges]: [&[u8]; 2],
) -> Result<(HashMap<String, u32>, Merges), TokenizerError> {
    let path = directory.join(VOCABULARY);
    vocabulary::check_json(vocabulary).map_err(|error| error.at(&path))?;
    let vocabulary: HashMap<String, u32> = parse_json(&path, vocabulary)?;
    let merges = parse_merges(&directory.join(MERGES), merges, &vocabulary)?;
    Ok((vocabulary, merges))
}

/// Makes the configured tokens be found whole in a text: first the listed ones, by id, with their
/// own matching rules, then those that only have a role.
pub(super) fn add_special_tokens(
    tokenizer: &mut tokenizers::Tokenizer,
    directory: &Path,
    listed_tokens: &BTreeMap<u32, TokenEntry>,
    roles: &[(&'static str, &SpecialToken)],
) -> Result<(), TokenizerError> {
    let mut added: Vec<AddedToken> = Vec::new();
    added.extend(listed_tokens.values().map(|entry| entry.to_added_token()));
    for (role, token) in roles {
        let listed = added.iter().any(|entry| entry.content == token.content());
        if !listed && tokenizer.token_to_id(token.content()).is_none() {
            return Err(TokenizerError::UnknownSpecialToken {
                directory: directory.to_owned(),
                role,
                token: token.content().to_owned(),
            });
        }
        if !listed {
            added.push(token.to_added_token());
        }
    }
    let listed: Vec<String> = added.iter().map(|token| token.content.clone()).collect();
    guarded(|| tokenizer.add_tokens(added)).map_err(|message| TokenizerError::Malformed {
        path: directory.join("tokenizer_config.json"),
        message,
    })?;
    for (&expected, token) in listed_tokens.keys().zip(listed) {
        let got = tokenizer.token_to_id(&token);
        if got != Some(expected) {
            return Err(TokenizerError::SpecialTokenId {
                directory: directory.to_owned(),
                token,
                expected,
                got,
            });
        }
    }
    Ok(())
}

/// The pairs of `merges.txt`, first the one that is merged first. Each pair and its result must be
/// in the vocabulary.
fn parse_merges(
    path: &Path,
    bytes: &[u8],
    vocabulary: &HashMap<String, u32>,
) -> Result<Merges, TokenizerError> {
    let text = std::str::from_utf8(bytes).map_err(|error| TokenizerError::Malformed {
        path: path.to_owned(),
        message: error.to_string(),
    })?;
    vocabulary::check_merges(text.lines().count()).map_err(|error| error.at(path))?;
    let mut merges = Vec::new();
    let mut joined = String::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with("#version") {
            continue;
        }
        let fail = |message: String| TokenizerError::Merge {
            path: path.to_owned(),
            line: index + 1,
            message,
        };
        let (left, right) = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
            .ok_or_else(|| fail("expected two tokens with one blank between them".to_owned()))?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, &joined] {
            if !vocabulary.contains_key(token) {
                return Err(fail(format!("{token:?} is not in vocab.json")));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}
