//! `berth inspect`.

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;

use super::model::ModelArguments;
use super::settings::{is_picture, of_picture};
use super::{ExecutorArguments, interrupt};
use crate::engine::session::Session;
use crate::planning;
use crate::render;
use crate::render::document::SettingsDocument;
use crate::render::progress::ProgressLine;

/// What a model is made of, or how a picture was made.
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
        if let Some(picture) = self.model.single().filter(|path| is_picture(path)) {
            return self.show_settings(picture);
        }
        let model = self.model.source()?;
        let progress = ProgressLine::new(self.executor.verbose);
        let executors = progress.executors(interrupt::watch);
        let mut session = Session::start(&self.executor.program(), executors)?;
        let description = planning::inspect(&mut session, &model)?;
        session.end();
        if self.json {
            render::document::print(&description)?;
        } else {
            render::print(&render::tables::description(&description))?;
        }
        // What lacks for a whole model is no fault of what is there.
        match description.problems.as_slice() {
            [] => Ok(()),
            problems => bail!("{}", problems.join("\n")),
        }
    }

    /// Shows how a picture was made.
    fn show_settings(&self, picture: &Path) -> Result<()> {
        let reading = of_picture(picture)?;
        let picture = picture.display().to_string();
        match self.json {
            true => render::document::print(&SettingsDocument::new(&picture, &reading)),
            false => render::print(&render::tables::settings(&picture, &reading)),
        }
    }
}
