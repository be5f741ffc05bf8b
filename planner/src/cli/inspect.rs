//! `berth inspect`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;

use super::ExecutorArguments;
use super::listen::Terminal;
use super::model::ModelArguments;
use crate::engine::session::Session;
use crate::job::infotext::picture::{is_picture, of_picture};
use crate::planning;
use crate::render;
use crate::render::document::SettingsDocument;

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
    /// Prints what the files hold.
    pub fn run(&self) -> Result<()> {
        if let Some(picture) = self.model.single().filter(|path| is_picture(path)) {
            return self.show_settings(picture);
        }
        let model = self.model.name()?.source(&BTreeMap::new())?;
        let executors = Terminal::new(self.executor.verbose).executors();
        let mut session = Session::start(&self.executor.program(), executors)?;
        let description = planning::inspect(&mut session, &model, true)?;
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
