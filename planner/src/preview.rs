//! A preview while a picture is being made: a PNG file beside the picture's place, replaced whole
//! each time, and removed when the job has ended, however it ends.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use png::{BitDepth, ColorType, Decoder, Encoder};

use crate::media::picture;
use crate::output::{Destination, Existing, OutputKind, Outputs};

/// The argument that asks for previews.
const FLAG: &str = "--preview";

/// What stands before the extension of a preview's name.
const MARK: &str = "preview";

/// A text in each preview, by which one that a killed Berth left is known, and no other file is
/// written over.
const TEXT: (&str, &str) = ("Software", "berth preview");

/// A preview's file. Dropping it removes the file, if one was made.
#[derive(Debug)]
pub struct PreviewFile {
    path: PathBuf,
    destination: Destination,
    /// Width and height in pixels: the picture's.
    size: [u32; 2],
    is_there: bool,
    has_failed: bool,
}

impl PreviewFile {
    /// The file beside the first of a job's outputs, which is a picture of `size`. Nothing is
    /// written yet.
    ///
    /// # Errors
    /// The picture is to go to what is no file, or another file has the preview's name.
    pub fn new(outputs: &Outputs, size: [u32; 2]) -> Result<PreviewFile> {
        let first = outputs.first().context("a job has an output")?;
        let Some(picture) = first.file() else {
            bail!(
                "a preview stands beside its picture, and {} is no file; hint: leave --preview out, or name a \
                 file with --output",
                first.shown()
            );
        };
        let path = picture.with_extension(format!("{MARK}.png"));
        let is_foreign = match fs::symlink_metadata(&path) {
            Ok(found) => !found.is_file() || !is_preview(&path),
            Err(_) => false,
        };
        let place = || Destination::of(FLAG, &path, OutputKind::Picture, Existing::Replaced);
        if is_foreign || outputs.hold(&place()?)? {
            bail!(
                "{} is the preview's name, and belongs to another file; hint: move that, or name another --output",
                path.display()
            );
        }
        let destination = place()?;
        Ok(PreviewFile { path, destination, size, is_there: false, has_failed: false })
    }

    /// Writes a preview in place of the one before: rows from the top, 3 bytes RGB a pixel, of this
    /// width and height. That it cannot be written is told once: the job goes on.
    pub fn show(&mut self, size: [u32; 2], pixels: &[u8]) {
        if self.has_failed {
            return;
        }
        match self.write(size, pixels) {
            Ok(()) => self.is_there = true,
            Err(error) => {
                eprintln!("berth: no more previews are shown: {error:#}");
                self.has_failed = true;
            }
        }
    }

    fn write(&self, [width, height]: [u32; 2], pixels: &[u8]) -> Result<()> {
        let size = [width as usize, height as usize];
        if pixels.len() != 3 * size[0] * size[1] || size.contains(&0) {
            bail!("the executor made a preview of {} B for {width}x{height}", pixels.len());
        }
        let enlarged = picture::enlarge(pixels, size, self.size.map(|side| side as usize));
        let encoded = encode(&enlarged, self.size).context("cannot encode the preview")?;
        Ok(self.destination.replace(&encoded)?)
    }
}

impl Drop for PreviewFile {
    fn drop(&mut self) {
        if self.is_there
            && let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("berth: cannot remove {}: {error}", self.path.display());
        }
    }
}

fn encode(pixels: &[u8], [width, height]: [u32; 2]) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(BufWriter::new(&mut bytes), width, height);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    // It is replaced within seconds: time counts, not bytes.
    encoder.set_compression(png::Compression::Fast);
    encoder.add_text_chunk(TEXT.0.to_owned(), TEXT.1.to_owned())?;
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

fn is_preview(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(reader) = Decoder::new(BufReader::new(file)).read_info() else { return false };
    let texts = &reader.info().uncompressed_latin1_text;
    texts.iter().any(|text| (&*text.keyword, &*text.text) == TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outputs of a job whose picture is at `picture`.
    fn outputs(picture: &Path, others: &[&Path]) -> Outputs {
        let mut outputs = Outputs::new();
        for path in [picture].iter().chain(others) {
            let place = Destination::of("--output", path, OutputKind::Picture, Existing::Replaced);
            outputs.add(place.expect("a place for a file"));
        }
        outputs
    }

    #[test]
    fn it_is_replaced_whole_and_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let picture = directory.path().join("x.webp");
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let mut file = PreviewFile::new(&outputs(&picture, &[]), [16, 8]).unwrap();
        assert_eq!(names(), 0);
        for level in [10, 200] {
            file.show([2, 1], &[level; 6]);
            let path = directory.path().join("x.preview.png");
            let file = BufReader::new(File::open(&path).unwrap());
            let mut reader = Decoder::new(file).read_info().unwrap();
            let mut pixels = vec![0; 3 * 16 * 8];
            reader.next_frame(&mut pixels).unwrap();
            assert_eq!(pixels, [level; 3 * 16 * 8]);
            assert_eq!(names(), 1);
            // What a killed Berth left is taken over, but not where the job writes it too.
            assert!(PreviewFile::new(&outputs(&picture, &[]), [16, 8]).is_ok());
            assert!(PreviewFile::new(&outputs(&picture, &[&path]), [16, 8]).is_err());
        }
        drop(file);
        assert_eq!(names(), 0);
    }

    #[test]
    fn no_other_file_is_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let (picture, own) = (directory.path().join("x"), directory.path().join("x.preview.png"));
        let refused = |others: &[&Path]| {
            PreviewFile::new(&outputs(&picture, others), [8, 8]).unwrap_err().to_string()
        };
        assert!(refused(&[&own]).contains("belongs to another file"));
        fs::write(&own, "mine").unwrap();
        assert!(refused(&[]).contains("belongs to another file"));
        let error = PreviewFile::new(&outputs(Path::new("-"), &[]), [8, 8]).unwrap_err();
        assert!(error.to_string().contains("standard output is no file"), "{error}");
        drop(PreviewFile::new(&outputs(&directory.path().join("y"), &[]), [8, 8]).unwrap());
        assert_eq!(fs::read(&own).unwrap(), b"mine");
    }
}
