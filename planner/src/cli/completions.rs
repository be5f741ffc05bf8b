//! `berth completions`, and the hidden `berth man`: what shells and manuals know of this command
//! line, made from its own definition.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Arguments;
use crate::output::{Destination, Existing, OutputKind, Outputs};
use crate::render;

/// Print what makes a shell complete this command line.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth completions bash > ~/.local/share/bash-completion/completions/berth
  berth completions zsh > \"${fpath[1]}/_berth\"
  berth completions fish > ~/.config/fish/completions/berth.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script, or writes it to a file.
    pub fn run(&self) -> Result<()> {
        let mut command = Arguments::command();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "berth", &mut script);
        let script = String::from_utf8(script).context("the completions are not UTF-8")?;
        render::print(script.trim_end())
    }
}

/// Write the manual: a page of each command.
#[derive(Debug, Args)]
pub struct Manual {
    /// The directory that the pages go to, as berth.1, berth-generate.1
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
}

impl Manual {
    /// Writes a page for each command.
    pub fn run(&self) -> Result<()> {
        if !self.output.is_dir() {
            bail!(
                "there is no directory {}; hint: make it first, with mkdir",
                self.output.display()
            );
        }
        let mut root = Arguments::command().disable_help_subcommand(true);
        root.build();
        let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
        let (mut outputs, mut pages) = (Outputs::new(), Vec::new());
        for command in std::iter::once(&root).chain(shown) {
            let (path, page) = self.page(command)?;
            let place = Destination::of("--output", &path, OutputKind::Text, Existing::Replaced);
            outputs.add(place?);
            pages.push(page);
        }
        outputs.ready()?;
        let contents: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
        outputs.write(&contents, || ())?;
        Ok(())
    }

    /// The file and the text of a command's page.
    fn page(&self, command: &Command) -> Result<(PathBuf, Vec<u8>)> {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let manual = Man::new(command.clone().display_name(name.clone()));
        let mut text = Vec::new();
        manual.render(&mut text).context("the manual cannot be made")?;
        Ok((self.output.join(format!("{name}.1")), text))
    }
}
