//! Which model a command is about: a directory, a file, files of parts, or the built-in demo model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use protocol::{ModelSource, PartFlag};

use crate::job::model::ModelName;

/// The model.
#[derive(Debug, Default, Args)]
pub struct ModelArguments {
    /// A directory in diffusers format, or a file (safetensors, GGUF) that holds one or more parts
    /// [default: the built-in demo model, unless parts are named]
    model: Option<PathBuf>,
    #[command(flatten)]
    parts: PartArguments,
}

/// Files of parts, by the flags that name them: an argument for each flag that there is.
#[derive(Debug, Default)]
struct PartArguments(BTreeMap<PartFlag, PathBuf>);

impl Args for PartArguments {
    fn augment_args(command: Command) -> Command {
        command.args(PartFlag::ALL.iter().map(|flag| {
            Arg::new(flag.name())
                .long(flag.name())
                .value_name(if flag.is_directory() { "DIR" } else { "FILE" })
                .help(flag.help())
                .help_heading("Parts")
                .value_parser(value_parser!(PathBuf))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        PartArguments::augment_args(command)
    }
}

impl FromArgMatches for PartArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<PartArguments, clap::Error> {
        let path = |&flag: &PartFlag| Some((flag, matches.get_one(flag.name()).cloned()?));
        Ok(PartArguments(PartFlag::ALL.iter().filter_map(path).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(PartArguments::from_arg_matches(matches)?.0);
        Ok(())
    }
}

impl ModelArguments {
    /// MODEL, where nothing else is named.
    pub fn single(&self) -> Option<&Path> {
        self.model.as_deref().filter(|_| self.parts.0.is_empty())
    }

    /// What a request says of the model: the paths as they were typed.
    pub fn name(&self) -> Result<ModelName> {
        let mut source = ModelSource::default();
        if let Some(path) = &self.model {
            source.model = Some(text(path)?);
        }
        for (flag, path) in &self.parts.0 {
            source.parts.insert(*flag, text(path)?);
        }
        Ok(ModelName::Files(source))
    }
}

/// A path as it is sent.
fn text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("the model's path {} is not UTF-8", path.display()),
    }
}
