//! The log of both processes on standard error, as [`BERTH_LOG`] asks for it. The planner's lines
//! name `planner` and the executor's `executor`, each with its module.

use std::env::VarError;
use std::io::{IsTerminal, stderr};

use anyhow::{Result, bail};
use tracing_subscriber::EnvFilter;

/// The environment variable that says what is logged.
const BERTH_LOG: &str = "BERTH_LOG";

/// Begins the log.
///
/// # Errors
/// The variable makes no sense.
pub fn begin() -> Result<()> {
    let text = match std::env::var(BERTH_LOG) {
        Ok(text) => text,
        Err(VarError::NotPresent) => String::new(),
        Err(VarError::NotUnicode(_)) => bail!("{BERTH_LOG} is not UTF-8; hint: set it to debug"),
    };
    let filter = match EnvFilter::builder().parse(&text) {
        Ok(filter) => filter,
        Err(error) => bail!(
            "{BERTH_LOG}={text} cannot be read: {error}; hint: set it to debug, or to planner=debug,executor=trace"
        ),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    log.with_ansi(stderr().is_terminal()).init();
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::debug!(version, pid, "berth begins");
    Ok(())
}

/// Whether the user asked for more than errors: then the executor's lines are shown too.
pub fn is_asked() -> bool {
    std::env::var_os(BERTH_LOG).is_some_and(|value| !value.is_empty())
}
