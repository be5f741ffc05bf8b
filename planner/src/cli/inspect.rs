//! `berth inspect`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::ExecutorArguments;
use super::interrupt::Interruption;
use super::setup::{check_description, model_directory};
use crate::planning;
use crate::render;
use crate::session::Session;

/// What a model is made of.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A directory in diffusers format [default: the built-in demo model]
    model: Option<PathBuf>,
    #[command(flatten)]
    executor: ExecutorArguments,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl Inspect {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let interruption = Interruption::install()?;
        let model = model_directory(self.model.as_deref())?;
        let mut session = Session::start(&self.executor.program(), |interrupts| {
            interruption.watch(interrupts);
        })?;
        let description = planning::inspect(&mut session, &model.to_string_lossy())?;
        session.end();
        if self.json {
            render::document::print(&description)?;
        } else {
            render::print(&render::tables::description(&description))?;
        }
        check_description(&description)
    }
}
