//! Who may ask: tokens of a file, and how often an address may guess.
//!
//! Secrets are compared as hashes of one length, against all that there are, in a time that tells
//! nothing of them. A cookie holds another hash of a token, which is none itself.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderMap, StatusCode};
use protocol::Bytes;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::asker::{Caller, Peer};
use super::errors::EdgeError;
use super::wrong::WrongTokens;
use crate::read::{self, ReadError};
use crate::serve::desk::event::Asker;

/// Fewest characters of a token.
pub const TOKEN_CHARACTERS_MIN: usize = 32;

/// The login cookie's name.
pub const LOGIN_COOKIE: &str = "berth_login";

/// Random bytes of a new token: 64 hexadecimal digits.
const TOKEN_BYTES: usize = 32;

/// Largest token file.
const FILE_BYTES_MAX: Bytes = Bytes::mib(1);

/// Longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Permissions of others than the file's user.
const OTHERS: u32 = 0o077;

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// Others may read it.
    #[error("others may read the token file {}; hint: chmod 600 {}", .0.display(), .0.display())]
    Public(PathBuf),
    /// A line is none.
    #[error("line {line} of the token file is not name:token or name:token:admin: {why}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// There is no token in it.
    #[error("the token file {} has no token; hint: add a line of berth serve --new-token NAME", .0.display())]
    Empty(PathBuf),
}

/// One that may ask.
struct Token {
    name: String,
    secret: [u8; 32],
    cookie: [u8; 32],
    admin: bool,
}

/// All that may ask.
pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Reads a token file: a line each, `name:token` or `name:token:admin`; empty lines and those
    /// that begin with `#` do not count.
    ///
    /// # Errors
    /// All of [`TokenError`].
    pub fn read(path: &Path) -> Result<Tokens, TokenError> {
        let unreadable = |cause: String| TokenError::Read { path: path.to_owned(), cause };
        let mode = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.mode();
        if mode & OTHERS != 0 {
            return Err(TokenError::Public(path.to_owned()));
        }
        let text = read::text(path, FILE_BYTES_MAX)
            .map_err(|error: ReadError| unreadable(error.to_string()))?;
        let tokens = Tokens::parse(&text)?;
        if tokens.0.is_empty() {
            return Err(TokenError::Empty(path.to_owned()));
        }
        Ok(tokens)
    }

    fn parse(text: &str) -> Result<Tokens, TokenError> {
        let mut tokens: Vec<Token> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| TokenError::Line { line: index + 1, why: why.to_owned() };
            let token = Token::parse(line).map_err(wrong)?;
            if tokens.iter().any(|other| other.name == token.name) {
                return Err(wrong("its name is used twice"));
            }
            tokens.push(token);
        }
        Ok(Tokens(tokens))
    }

    /// The token of this secret. All are compared, whichever it is.
    fn find(&self, hash: &[u8; 32], of: impl Fn(&Token) -> &[u8; 32]) -> Option<&Token> {
        let mut found = 0_u32;
        for (index, token) in (1..).zip(&self.0) {
            let same: Choice = of(token).ct_eq(hash);
            found.conditional_assign(&index, same);
        }
        self.0.get((found as usize).checked_sub(1)?)
    }
}

impl Token {
    fn parse(line: &str) -> Result<Token, &'static str> {
        let (name, rest) = line.split_once(':').ok_or("it has no colon")?;
        let (secret, admin) = match rest.strip_suffix(":admin") {
            Some(secret) => (secret, true),
            None => (rest, false),
        };
        if !is_name(name) {
            return Err("its name must be 1 to 64 letters, digits, dots, dashes or underscores");
        }
        if secret.chars().count() < TOKEN_CHARACTERS_MIN {
            return Err("its token has less than 32 characters");
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) || secret.contains(':') {
            return Err("its token has blanks, colons or other signs than ASCII");
        }
        let (name, cookie) = (name.to_owned(), cookie_hash(secret.as_bytes()));
        Ok(Token {
            name,
            cookie: sha256(hex(&cookie).as_bytes()),
            secret: sha256(secret.as_bytes()),
            admin,
        })
    }

    fn caller(&self) -> Caller {
        let asker = Asker { client: self.name.clone(), admin: self.admin };
        Caller { asker, by_token: true }
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// A line for the token file, with a new token.
///
/// # Errors
/// The name cannot be one, or the system gives no random bytes.
pub fn new_token(name: &str) -> io::Result<String> {
    if !is_name(name) {
        let message = "a token's name must be 1 to 64 letters, digits, dots, dashes or underscores";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{name}:{}", hex(&bytes)))
}

/// Lets requests in, or not.
pub struct Guardian {
    tokens: RwLock<Option<Arc<Tokens>>>,
    wrong: Mutex<WrongTokens>,
}

impl Guardian {
    /// One that knows these tokens; without any, everybody may do everything.
    pub fn new(tokens: Option<Tokens>) -> Guardian {
        Guardian { tokens: RwLock::new(tokens.map(Arc::new)), wrong: Mutex::default() }
    }

    /// From now on it knows these, and no others.
    pub fn set_tokens(&self, tokens: Tokens) {
        let mut place = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::new(tokens));
    }

    /// Who sends a request with these headers.
    ///
    /// # Errors
    /// Nobody who may (401), or from an address that guesses (429).
    pub fn admit(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        now: Instant,
    ) -> Result<Caller, EdgeError> {
        let Some(tokens) = self.tokens() else {
            let asker = Asker { client: peer.name(), admin: true };
            return Ok(Caller { asker, by_token: false });
        };
        let mut secrets = secrets(headers);
        let cookie = cookie(headers);
        let nothing = secrets.is_empty() && cookie.is_none();
        self.guess(peer.address, now, nothing, || {
            let by_secret = secrets
                .drain(..)
                .find_map(|secret| tokens.find(&sha256(secret.as_bytes()), |token| &token.secret));
            let by_cookie = || {
                let hash = sha256(cookie.as_deref()?.as_bytes());
                tokens.find(&hash, |token| &token.cookie)
            };
            by_secret.or_else(by_cookie).map(Token::caller)
        })
    }

    /// The cookie of a token, for a login.
    ///
    /// # Errors
    /// As [`Guardian::admit`].
    pub fn login(&self, secret: &str, peer: &Peer, now: Instant) -> Result<String, EdgeError> {
        let tokens = self.tokens();
        self.guess(peer.address, now, false, || {
            let found = tokens.as_ref()?.find(&sha256(secret.as_bytes()), |token| &token.secret);
            found.map(|_| hex(&cookie_hash(secret.as_bytes())))
        })
    }

    /// Whether any are known.
    pub fn has_tokens(&self) -> bool {
        self.tokens().is_some()
    }

    fn tokens(&self) -> Option<Arc<Tokens>> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks whether a secret is right, unless its address was wrong too often. `nothing`: none was
    /// sent, which is no guess.
    fn guess<T>(
        &self,
        address: Option<IpAddr>,
        now: Instant,
        nothing: bool,
        look: impl FnOnce() -> Option<T>,
    ) -> Result<T, EdgeError> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seconds) = wrong.refused_s(address, now) {
            let message = "too many wrong tokens from this address; hint: wait a minute";
            let mut error = EdgeError::new(StatusCode::TOO_MANY_REQUESTS, "bad_token", message);
            error.retry_after_s = Some(seconds);
            return Err(error);
        }
        look().ok_or_else(|| {
            let message = match nothing {
                true => "a token is needed; hint: send Authorization: Bearer TOKEN",
                false => {
                    wrong.add(address, now);
                    "that token is not known; hint: berth serve --new-token NAME makes one"
                }
            };
            EdgeError::new(StatusCode::UNAUTHORIZED, "bad_token", message)
        })
    }
}

/// Tokens as clients send them: Bearer, Basic's password, `api-key`, `x-api-key`.
fn secrets(headers: &HeaderMap) -> Vec<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut secrets = Vec::new();
    if let Some((scheme, rest)) = text(AUTHORIZATION.as_str()).and_then(|t| t.split_once(' ')) {
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            secrets.push(rest.to_owned());
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair = base64::decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let password = pair.as_deref().and_then(|pair| pair.split_once(':'));
            secrets.push(password.map_or_else(String::new, |(_, password)| password.to_owned()));
        }
    }
    secrets.extend(["api-key", "x-api-key"].into_iter().filter_map(text).map(str::to_owned));
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    let ours = pairs.into_iter().find(|(name, _)| name.trim() == LOGIN_COOKIE);
    ours.map(|(_, value)| value.trim().to_owned())
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What a cookie holds of a token. No token can be made of it.
fn cookie_hash(secret: &[u8]) -> [u8; 32] {
    Sha256::new_with_prefix(b"berth login cookie\0").chain_update(secret).finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
