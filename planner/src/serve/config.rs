//! What the operator sets of the daemon: a TOML file, and flags over it.
//!
//! ```text
//! flags ──► ConfigLayer ─┐
//! serve.toml ─► ConfigLayer ─┴─ over ──► ServeConfig, with defaults and checks across keys
//! ```
//! Not here: what the models are ([`models`](super::models) looks), the host's profile, and the
//! command line. Defaults stand in this file alone.
//!
//! Invariant: a [`ServeConfig`] is one that the daemon can start by. Paths in it are as they were
//! written; those of the file begin at the root, as a daemon's working directory is anybody's.

mod file;
mod listen;
pub mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use protocol::{Bytes, ModelSource};
use serde::Deserialize;

use super::desk::job::{Class, KeepAlive};
use crate::policy::PolicyText;
use crate::read::{self, ReadError};

pub use listen::ListenAddress;

/// Where it listens: nobody but this machine's own users, on a port that no known program has.
pub const LISTEN: &str = "127.0.0.1:8642";

/// How long an idle model stays loaded: somebody who tries prompts comes back within minutes.
pub const KEEP_ALIVE: KeepAlive = KeepAlive::Ms(10 * 60_000);

/// Most jobs that wait: of some ten seconds each, the last waits for ten minutes.
pub const QUEUE_MAX: usize = 64;

/// How long a job waits for memory that others use, in milliseconds: another program's job may
/// end in that time.
pub const ROOM_WAIT_MS: u64 = 60_000;

/// How long the running job may take once the daemon is to end, in milliseconds.
pub const DRAIN_MS: u64 = 120_000;

/// Most ended jobs that are kept: some weeks of one person's.
pub const KEEP_JOBS: usize = 1000;

/// Most bytes of pictures that are kept: some thousand of a megapixel in PNG.
pub const KEEP_BYTES: Bytes = Bytes::gib(10);

/// Where less is free for pictures, no job is accepted: a hundred large pictures, and the store's
/// next growth.
pub const MIN_FREE: Bytes = Bytes::mib(512);
/// RAM for what text encoders gave: of one that gives 4096 values for each of 512 tokens, the
/// results of 32 prompts.
pub const CONDITIONING_CACHE: Bytes = Bytes::mib(256);

/// The largest configuration that is read: names of thousands of models.
const FILE_BYTES_MAX: Bytes = Bytes::mib(1);

/// What the daemon is started with.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeConfig {
    /// Where it listens, unless the system passes it a socket.
    pub listen: ListenAddress,
    /// Directories of models, in the order in which their names count.
    pub models: Vec<PathBuf>,
    /// Directories of LoRA files.
    pub loras: Vec<PathBuf>,
    /// The model of requests that name none; the demo model where it is `None`.
    pub default_model: Option<String>,
    /// How clients reach it, without a slash at the end; for links in answers.
    pub public_url: Option<String>,
    /// Names by which it may be called beside its addresses, in small letters.
    pub allowed_hosts: Vec<String>,
    /// Origins of other pages that may use it.
    pub allowed_origins: Vec<String>,
    /// The file with tokens.
    pub token_file: Option<PathBuf>,
    /// How long an idle model stays loaded.
    pub keep_alive: KeepAlive,
    /// Whether several models stay loaded where that is the cheapest; else one at a time.
    pub several_loaded: bool,
    /// Whether jobs that are alike run together where that is faster.
    pub join_jobs: bool,
    /// Most jobs that wait.
    pub queue_max: usize,
    /// Milliseconds that a job waits for memory that others use.
    pub room_wait_ms: u64,
    /// Milliseconds that the running job has once the daemon is to end.
    pub drain_ms: u64,
    /// Most ended jobs that are kept.
    pub keep_jobs: usize,
    /// Most bytes of pictures that are kept.
    pub keep_bytes: Bytes,
    /// Where less is free for pictures, no job is accepted.
    pub min_free: Bytes,
    /// RAM in which text encoders' results are kept for later jobs; 0 for none.
    pub conditioning_cache: Bytes,
    /// What one client may have.
    pub quota: ClientQuota,
    /// What OpenAI's clients get where they say nothing.
    pub openai: OpenAiConfig,
    /// What may be used of the machine, over the host profile's.
    pub policy: PolicyText,
    /// Other names of models.
    pub aliases: BTreeMap<String, String>,
    /// Models that have a section of their own, by name.
    pub model: BTreeMap<String, ModelConfig>,
}

/// What one client may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientQuota {
    /// Most jobs that wait.
    #[serde(deserialize_with = "values::count")]
    pub queued: u32,
    /// Most runs at a time.
    #[serde(deserialize_with = "values::count")]
    pub running: u32,
    /// Most predicted seconds of jobs that wait.
    #[serde(deserialize_with = "values::count")]
    pub queued_seconds: u32,
}

impl Default for ClientQuota {
    /// A quarter of the queue; two; ten minutes.
    fn default() -> ClientQuota {
        ClientQuota { queued: 16, running: 2, queued_seconds: 600 }
    }
}

/// What OpenAI's clients get where they say nothing.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenAiConfig {
    /// How pictures come.
    pub response_format: ResponseFormat,
    /// A model's own steps are taken times this, by `quality`; see [`QUALITIES`].
    #[serde(deserialize_with = "values::quality")]
    pub quality: BTreeMap<String, f64>,
}

/// What `quality` can be: its other words mean one of these.
pub const QUALITIES: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// How pictures come where a request has no `response_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormat {
    /// In the answer, as OpenAI's newer models send them.
    #[default]
    B64Json,
    /// As addresses, which clients of its older models read.
    Url,
}

/// The section of one model.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Where it is; one that the directories of models have where it is `None`.
    #[serde(deserialize_with = "values::source")]
    pub source: Option<ModelSource>,
    /// How long it stays loaded, in place of the daemon's.
    #[serde(deserialize_with = "values::some_keep_alive")]
    pub keep_alive: Option<KeepAlive>,
    /// Sizes that it is placed for, in pixels: the largest counts.
    #[serde(deserialize_with = "values::sizes")]
    pub plan_for: Vec<[u32; 2]>,
    /// Whether it is loaded at the start.
    pub preload: bool,
    /// Its jobs' class where a request says none.
    pub priority: Option<Class>,
    /// What A1111's `cfg_scale` means for it.
    pub sdapi_cfg: SdapiCfg,
}

/// What A1111's `cfg_scale`, which its clients always send, means for a model that was made to run
/// without classifier-free guidance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SdapiCfg {
    /// It has no effect.
    #[default]
    None,
    /// It is the scale of classifier-free guidance, which takes twice the time.
    True,
}

/// The keys of one file, or the flags: what is `None` is not said there.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigLayer {
    /// See [`ServeConfig::listen`], as all that follow.
    pub listen: Option<ListenAddress>,
    /// Directories.
    #[serde(deserialize_with = "values::paths")]
    pub models: Option<Vec<PathBuf>>,
    /// Directories.
    #[serde(deserialize_with = "values::paths")]
    pub loras: Option<Vec<PathBuf>>,
    /// A name, or an alias.
    #[serde(deserialize_with = "values::some_text")]
    pub default_model: Option<String>,
    /// As [`values::read_public_url`] takes it.
    #[serde(deserialize_with = "values::public_url")]
    pub public_url: Option<String>,
    /// As [`values::read_host`] takes each.
    #[serde(deserialize_with = "values::hosts")]
    pub allowed_hosts: Option<Vec<String>>,
    /// As [`values::read_origin`] takes each.
    #[serde(deserialize_with = "values::origins")]
    pub allowed_origins: Option<Vec<String>>,
    /// A path.
    #[serde(deserialize_with = "values::some_path")]
    pub token_file: Option<PathBuf>,
    /// As [`values::read_keep_alive`] takes it.
    #[serde(deserialize_with = "values::some_keep_alive")]
    pub keep_alive: Option<KeepAlive>,
    /// `true` or `false`.
    pub several_loaded: Option<bool>,
    /// `true` or `false`.
    pub join_jobs: Option<bool>,
    /// At least 1.
    #[serde(deserialize_with = "values::some_count")]
    pub queue_max: Option<usize>,
    /// As [`values::read_ms`] takes it.
    #[serde(rename = "room_wait", deserialize_with = "values::some_ms")]
    pub room_wait_ms: Option<u64>,
    /// Likewise.
    #[serde(rename = "drain", deserialize_with = "values::some_ms")]
    pub drain_ms: Option<u64>,
    /// At least 1.
    #[serde(deserialize_with = "values::some_count")]
    pub keep_jobs: Option<usize>,
    /// A size with its unit.
    #[serde(deserialize_with = "values::some_bytes")]
    pub keep_bytes: Option<Bytes>,
    /// A size with its unit.
    #[serde(deserialize_with = "values::some_bytes")]
    pub min_free: Option<Bytes>,
    /// A size with its unit, or 0.
    #[serde(deserialize_with = "values::some_bytes_or_none")]
    pub conditioning_cache: Option<Bytes>,
    /// A section.
    pub quota: Option<ClientQuota>,
    /// A section.
    pub openai: Option<OpenAiConfig>,
    /// A section; its keys are laid over those below one by one.
    #[serde(deserialize_with = "values::policy")]
    pub policy: PolicyText,
    /// A section; laid over the one below name by name.
    #[serde(deserialize_with = "values::aliases")]
    pub aliases: BTreeMap<String, String>,
    /// Sections `[model.NAME]`, likewise.
    #[serde(deserialize_with = "values::models")]
    pub model: BTreeMap<String, ModelConfig>,
    /// Whether it may be reached from elsewhere by anybody: `--no-token`, never of a file.
    #[serde(skip)]
    pub no_token: bool,
}

/// A configuration that the daemon cannot start by.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {cause}; hint: --config names a TOML file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: ReadError,
    },
    /// The file says what cannot be.
    #[error("{origin}:{line}: {}{message}", key.as_ref().map(|key| format!("`{key}`: ")).unwrap_or_default())]
    Invalid {
        /// The file.
        origin: String,
        /// From 1.
        line: usize,
        /// What stands before the line's `=`.
        key: Option<String>,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// Keys or flags that contradict each other, as a sentence with a hint.
    #[error("{0}")]
    Conflict(String),
}

impl ConfigLayer {
    /// Reads a file, or where none is named the user's own, which need not be there.
    ///
    /// # Errors
    /// It cannot be read, or a key is unknown or wrong: with its line.
    pub fn load(named: Option<&Path>) -> Result<ConfigLayer, ConfigError> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => match default_file() {
                Some(path) => path,
                None => return Ok(ConfigLayer::default()),
            },
        };
        match read::text(&path, FILE_BYTES_MAX) {
            Ok(text) => ConfigLayer::parse(&text, &path.display().to_string()),
            Err(cause) if cause.is_missing() && named.is_none() => Ok(ConfigLayer::default()),
            Err(cause) => Err(ConfigError::Read { path, cause }),
        }
    }

    /// Reads a file's text; `origin` names it in errors.
    ///
    /// # Errors
    /// A key is unknown or wrong: with its line.
    pub fn parse(text: &str, origin: &str) -> Result<ConfigLayer, ConfigError> {
        file::parse(text, origin)
    }

    /// This layer, and `below` for what it does not say.
    pub fn over(self, below: ConfigLayer) -> ConfigLayer {
        let mut aliases = below.aliases;
        aliases.extend(self.aliases);
        let mut model = below.model;
        model.extend(self.model);
        ConfigLayer {
            listen: self.listen.or(below.listen),
            models: self.models.or(below.models),
            loras: self.loras.or(below.loras),
            default_model: self.default_model.or(below.default_model),
            public_url: self.public_url.or(below.public_url),
            allowed_hosts: self.allowed_hosts.or(below.allowed_hosts),
            allowed_origins: self.allowed_origins.or(below.allowed_origins),
            token_file: self.token_file.or(below.token_file),
            keep_alive: self.keep_alive.or(below.keep_alive),
            several_loaded: self.several_loaded.or(below.several_loaded),
            join_jobs: self.join_jobs.or(below.join_jobs),
            queue_max: self.queue_max.or(below.queue_max),
            room_wait_ms: self.room_wait_ms.or(below.room_wait_ms),
            drain_ms: self.drain_ms.or(below.drain_ms),
            keep_jobs: self.keep_jobs.or(below.keep_jobs),
            keep_bytes: self.keep_bytes.or(below.keep_bytes),
            min_free: self.min_free.or(below.min_free),
            conditioning_cache: self.conditioning_cache.or(below.conditioning_cache),
            quota: self.quota.or(below.quota),
            openai: self.openai.or(below.openai),
            policy: self.policy.over(&below.policy),
            aliases,
            model,
            no_token: self.no_token || below.no_token,
        }
    }

    /// The configuration, with defaults for what no layer says.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`].
    pub fn finish(self) -> Result<ServeConfig, ConfigError> {
        let listen = self.listen.unwrap_or_else(ListenAddress::standard);
        let allowed_origins = self.allowed_origins.unwrap_or_default();
        if self.token_file.is_some() && self.no_token {
            return conflict("--no-token beside a token file; hint: leave one of them out");
        }
        if !listen.is_local() && self.token_file.is_none() && !self.no_token {
            return conflict(format!(
                "{listen} can be reached from other machines, and no token is asked for; \
                 hint: set token_file, or say --no-token if everybody may use it"
            ));
        }
        if self.token_file.is_some() && allowed_origins.iter().any(|origin| origin == "*") {
            return conflict(
                "`*` in allowed_origins lets every page use a browser's token; hint: name the origins",
            );
        }
        Ok(ServeConfig {
            listen,
            models: self.models.unwrap_or_default(),
            loras: self.loras.unwrap_or_default(),
            default_model: self.default_model,
            public_url: self.public_url,
            allowed_hosts: self.allowed_hosts.unwrap_or_default(),
            allowed_origins,
            token_file: self.token_file,
            keep_alive: self.keep_alive.unwrap_or(KEEP_ALIVE),
            several_loaded: self.several_loaded.unwrap_or(true),
            join_jobs: self.join_jobs.unwrap_or(true),
            queue_max: self.queue_max.unwrap_or(QUEUE_MAX),
            room_wait_ms: self.room_wait_ms.unwrap_or(ROOM_WAIT_MS),
            drain_ms: self.drain_ms.unwrap_or(DRAIN_MS),
            keep_jobs: self.keep_jobs.unwrap_or(KEEP_JOBS),
            keep_bytes: self.keep_bytes.unwrap_or(KEEP_BYTES),
            min_free: self.min_free.unwrap_or(MIN_FREE),
            conditioning_cache: self.conditioning_cache.unwrap_or(CONDITIONING_CACHE),
            quota: self.quota.unwrap_or_default(),
            openai: self.openai.unwrap_or_default(),
            policy: self.policy,
            aliases: self.aliases,
            model: self.model,
        })
    }
}

fn conflict<T>(message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(message.into()))
}

/// The user's own configuration; `None` without a home.
pub fn default_file() -> Option<PathBuf> {
    let directories = etcetera::choose_base_strategy().ok()?;
    Some(directories.config_dir().join("berth").join("serve.toml"))
}

#[cfg(test)]
mod tests;
