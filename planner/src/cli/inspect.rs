//! `berth inspect`.

use anyhow::Result;
use clap::Args;

use super::ExecutorArguments;
use super::interrupt::Interruption;
use super::model::ModelArguments;
use super::setup::check_description;
use crate::planning;
use crate::render;
use crate::render::progress::ProgressLine;
use crate::session::Session;

/// What a model is made of.
#[derive(Debug, Args)]
pub struct Inspect {
    #[command(flatten)]
    model: ModelArguments,
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
        let model = self.model.source()?;
        let progress = ProgressLine::new(self.executor.verbose);
        let executors = progress.executors(interruption.watcher());
        let mut session = Session::start(&self.executor.program(), executors)?;
        let description = planning::inspect(&mut session, &model)?;
        session.end();
        if self.json {
            render::document::print(&description)?;
        } else {
            render::print(&render::tables::description(&description))?;
        }
        check_description(&description)
    }
}
