//! `berth jobs`: what a daemon does.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use super::server::{ServerArguments, daemon};
use crate::client::DaemonClient;
use crate::render::{self, document, jobs};
use crate::serve::config::LISTEN;

/// What a daemon does, has done, and will do.
#[derive(Debug, Args)]
pub struct Jobs {
    #[command(flatten)]
    server: ServerArguments,
    /// Print a JSON document in place of the table
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<JobsCommand>,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// The newest jobs; so too without a command
    List {
        /// At most so many
        #[arg(long, value_name = "COUNT", default_value_t = 20,
            value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
    },
    /// All of one job
    Show {
        /// As the list has it
        id: String,
    },
    /// End a job that waits or runs
    Cancel {
        /// As the list has it
        id: String,
    },
    /// The daemon's models, and which are loaded
    Models,
}

impl Jobs {
    /// Asks the daemon and shows its answer.
    pub fn run(&self) -> Result<()> {
        let daemon = match self.server.daemon()? {
            Some(daemon) => daemon,
            // Where `berth serve` listens with no configuration.
            None => daemon(&format!("http://{LISTEN}"))?,
        };
        match self.command.as_ref().unwrap_or(&JobsCommand::List { limit: 20 }) {
            JobsCommand::List { limit } => self.list(&daemon, *limit),
            JobsCommand::Show { id } => {
                let job = daemon.get(&format!("/v1/jobs/{}", checked(id)?))?;
                document::print(&job)
            }
            JobsCommand::Cancel { id } => {
                let job = daemon.post(&format!("/v1/jobs/{}/cancel", checked(id)?), &json!({}))?;
                if self.json {
                    return document::print(&job);
                }
                render::print(&format!("{id} is cancelled"))
            }
            JobsCommand::Models => {
                let models = daemon.get("/v1/models")?;
                if self.json {
                    return document::print(&models);
                }
                render::print(&jobs::models(&models))
            }
        }
    }

    fn list(&self, daemon: &DaemonClient, limit: u32) -> Result<()> {
        let list = daemon.get(&format!("/v1/jobs?limit={limit}"))?;
        if self.json {
            return document::print(&list);
        }
        render::print(&jobs::list(&list))
    }
}

/// A job's name as it may stand in a path.
fn checked(id: &str) -> Result<&str> {
    let is_id = !id.is_empty() && id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric());
    anyhow::ensure!(is_id, "`{id}` is no job's name; hint: `berth jobs` lists them");
    Ok(id)
}
