//! The arguments of a job's pictures: their names, format and quality.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use protocol::ModelSource;
use protocol::message::Image;

use super::number;
use crate::media::{PictureFormat, QUALITY};
use crate::output::names::{self, FieldValues, NUMBER_MAX, PictureName, Template};
use crate::output::{Destination, Existing, OutputError, OutputKind, Outputs, is_free};

/// The argument that names a picture's file.
const FLAG: &str = "--output";

/// The argument that names a file of tensors.
const DUMP_FLAG: &str = "--dump-tensors";

/// Where pictures go, and how they are written.
#[derive(Debug, Args)]
pub struct PictureArguments {
    /// The picture's file; its ending says the format: .png, .jpg or .webp. `-` is standard output.
    /// {seed}, {index} (of the batch, from 1), {date}, {model} and {n} (counts up past files that
    /// are there) become values, {{ is a brace; a batch without {seed}, {index} or {n} is numbered
    #[arg(short, long, value_name = "FILE", default_value = "berth.png")]
    output: PathBuf,
    /// Quality of .jpg and .webp, 1 to 100 [default: 90]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true,
        value_parser = number::within(1..=100_u8))]
    quality: Option<u8>,
    /// Never replace a file that is there
    #[arg(long)]
    no_overwrite: bool,
    /// Leave the settings out of the picture's file
    #[arg(long)]
    pub no_settings: bool,
}

/// How the pictures of a job are written.
#[derive(Debug, Default)]
pub struct PictureFormats {
    formats: Vec<PictureFormat>,
    quality: u8,
    settings: bool,
}

impl PictureArguments {
    /// The outputs of a job, and how its pictures are written, of the quality of recorded settings
    /// where nothing else is said.
    pub fn outputs(
        &self,
        model: &ModelSource,
        seed: u64,
        batch: u32,
        dump_tensors: Option<&Path>,
        recorded_quality: Option<u8>,
    ) -> Result<(Outputs, PictureFormats)> {
        let template = Template::parse(self.output.as_os_str())?;
        let values = FieldValues { seed, date: names::today(), model: model.name() };
        if batch > 1 {
            self.check_several(&template, batch, &values)?;
        }
        let mut outputs = Outputs::new();
        let mut formats = Vec::new();
        let mut taken = BTreeSet::new();
        for name in template.names(batch, &values) {
            let (path, existing) = self.path(name, &mut taken)?;
            let destination = Destination::of(FLAG, &path, OutputKind::Picture, existing)?;
            formats.push(self.format(&path, &destination)?);
            outputs.add(destination);
        }
        if let Some(path) = dump_tensors {
            let existing = self.existing();
            outputs.add(Destination::of(DUMP_FLAG, path, OutputKind::Tensors, existing)?);
        }
        let quality = self.quality.or(recorded_quality).unwrap_or(QUALITY);
        Ok((outputs, PictureFormats { formats, quality, settings: !self.no_settings }))
    }

    /// A batch needs a file for each picture.
    fn check_several(&self, template: &Template, batch: u32, values: &FieldValues) -> Result<()> {
        let one = template.names(1, values).remove(0).path(1);
        let destination = Destination::of(FLAG, &one, OutputKind::Picture, Existing::Replaced);
        // What cannot be written is told of the names that the pictures get.
        if destination.is_ok_and(|destination| destination.is_stream()) {
            bail!(
                "{FLAG} {} takes one picture, not a batch of {batch}; hint: name a file, or leave out --batch",
                one.display()
            );
        }
        Ok(())
    }

    /// The path of one picture, with the smallest free number for `{n}`.
    fn path(
        &self,
        name: PictureName,
        taken: &mut BTreeSet<PathBuf>,
    ) -> Result<(PathBuf, Existing), OutputError> {
        if !name.counts() {
            return Ok((name.path(0), self.existing()));
        }
        let is_free = |path: &Path| !taken.contains(path) && is_free(path);
        let Some(number) = names::free_number(&name, 1, is_free) else {
            let path = name.path(NUMBER_MAX).display().to_string();
            return Err(OutputError::AllNumbers { path });
        };
        let path = name.path(number);
        taken.insert(path.clone());
        Ok((path, Existing::CountedPast(name, number)))
    }

    fn existing(&self) -> Existing {
        if self.no_overwrite { Existing::Refused } else { Existing::Replaced }
    }

    /// The format that a name says; of a stream whose name has no ending, PNG.
    fn format(&self, path: &Path, destination: &Destination) -> Result<PictureFormat> {
        let format = match path.extension() {
            None if destination.is_stream() => Some(PictureFormat::Png),
            _ => PictureFormat::of_name(path),
        };
        let Some(format) = format else {
            bail!(
                "{FLAG} {} names no format that is written; hint: end its name in .png, .jpg or .webp",
                path.display()
            );
        };
        if self.quality.is_some() && !format.is_lossy() {
            bail!(
                "--quality has no effect on PNG, which loses nothing; hint: leave it out, or end the name in .jpg or .webp"
            );
        }
        Ok(format)
    }
}

impl PictureFormats {
    /// An error now if pictures of this size cannot be written.
    pub fn check_size(&self, width: u32, height: u32) -> Result<()> {
        for format in &self.formats {
            if width.max(height) > format.side_pixels_max() {
                bail!(
                    "a .{} file holds at most {1}x{1} pixels, not {width}x{height}; hint: end its name in .png",
                    format.endings()[0],
                    format.side_pixels_max()
                );
            }
        }
        Ok(())
    }

    /// The files of the pictures. `settings` is given each picture, and its quality where its
    /// format has one.
    pub fn encode(
        &self,
        images: &[Image],
        settings: impl Fn(&Image, Option<u8>) -> String,
    ) -> Result<Vec<Vec<u8>>> {
        if images.len() != self.formats.len() {
            bail!("the executor made {} pictures of {}", images.len(), self.formats.len());
        }
        let encode = |(image, format): (&Image, &PictureFormat)| {
            let quality = format.is_lossy().then_some(self.quality);
            let settings = self.settings.then(|| settings(image, quality));
            let encoded = format.encode(image, settings.as_deref(), self.quality);
            let encoded = match encoded {
                Ok(encoded) => encoded,
                Err(error) => bail!("cannot encode picture {}: {error}", image.index + 1),
            };
            // A picture that is made is not lost for that.
            if let Some(bytes) = encoded.left_out_bytes {
                eprintln!(
                    "berth: the settings take {bytes} B, more than a .{} file holds, and are left out; hint: end its name in .png or .webp",
                    format.endings()[0]
                );
            }
            Ok(encoded.bytes)
        };
        images.iter().zip(&self.formats).map(encode).collect()
    }
}
