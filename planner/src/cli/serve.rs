//! `berth serve`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use signal_hook::consts::SIGHUP;

use super::{ExecutorArguments, PolicyArguments, interrupt};
use crate::calibration::state_directory;
use crate::policy::PolicyText;
use crate::render;
use crate::serve::config::{ConfigError, ConfigLayer, ListenAddress, ServeConfig};
use crate::serve::daemon::{self, ServeStart};
use crate::serve::desk::event::{DeskEvent, OperatorSignal};
use crate::serve::edge::tokens::new_token;

/// Where jobs and pictures are, within the directory of what Berth keeps.
const STATE: &str = "serve";

/// Make pictures for whoever asks over HTTP.
#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen: ADDRESS:PORT, of which port 0 is any that is free, or unix:/PATH [default:
    /// 127.0.0.1:8642]
    #[arg(long, value_name = "ADDRESS", value_parser = ListenAddress::read)]
    listen: Option<ListenAddress>,
    /// A directory of models, each a directory or a file, known by its name; may be repeated
    #[arg(long, value_name = "DIR")]
    models: Vec<PathBuf>,
    /// The daemon's configuration [default: serve.toml in the user's directory for Berth]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where jobs and pictures are kept [default: serve in the directory of what Berth keeps]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Who may ask: a file with a line NAME:TOKEN for each, :admin behind those that may end
    /// others' jobs [default: everybody on this machine]
    #[arg(long, value_name = "FILE", conflicts_with = "no_token")]
    token_file: Option<PathBuf>,
    /// Let everybody ask, also from other machines
    #[arg(long)]
    no_token: bool,
    /// Print a line with a new token for the token file, and end
    #[arg(long, value_name = "NAME", exclusive = true)]
    new_token: Option<String>,
    #[command(flatten)]
    policy: PolicyArguments,
    #[command(flatten)]
    executor: ExecutorArguments,
}

impl Serve {
    /// Serves until a signal ends it.
    pub fn run(&self) -> Result<ExitCode> {
        if let Some(name) = &self.new_token {
            render::print(&new_token(name)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let (flags, file) = (self.flags()?, self.config.clone());
        let read = {
            let flags = flags.clone();
            move || configuration(&flags, file.as_deref())
        };
        let config = read()?;
        let host = self.policy.open_host()?;
        let state = self.state()?;
        let queue = channel();
        let signals = queue.0.clone();
        interrupt::hand_over(Box::new(move |signal| {
            let what = if signal == SIGHUP { OperatorSignal::Reload } else { OperatorSignal::Stop };
            // Where nobody listens any more, the daemon is about to end.
            let _ = signals.send(DeskEvent::Signal(what));
        }));
        daemon::run(ServeStart {
            config,
            no_token: self.no_token,
            reload: Box::new(read),
            host,
            program: self.executor.program(),
            state,
            queue,
        })
    }

    /// What these arguments say of the configuration. Paths stay right wherever the daemon is.
    fn flags(&self) -> Result<ConfigLayer> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .with_context(|| format!("cannot make {} an absolute path", path.display()))
        };
        let models = self.models.iter().map(absolute).collect::<Result<Vec<_>>>()?;
        Ok(ConfigLayer {
            listen: self.listen.clone(),
            models: (!models.is_empty()).then_some(models),
            token_file: self.token_file.as_ref().map(absolute).transpose()?,
            policy: self.policy.over(PolicyText::default()),
            no_token: self.no_token,
            ..ConfigLayer::default()
        })
    }

    fn state(&self) -> Result<PathBuf> {
        let default = || state_directory().map(|directory| directory.join(STATE));
        let state = self.state.clone().or_else(default);
        let state = state.ok_or_else(|| {
            anyhow!("there is no directory for jobs and pictures; hint: --state names one")
        })?;
        Ok(std::path::absolute(&state)?)
    }
}

/// The flags over the file.
fn configuration(flags: &ConfigLayer, file: Option<&Path>) -> Result<ServeConfig, ConfigError> {
    flags.clone().over(ConfigLayer::load(file)?).finish()
}
