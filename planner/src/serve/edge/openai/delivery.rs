//! How the pictures of a request are wanted: format, text or address, all at the end or as they
//! come.

use serde_json::Value;

use super::quality::PictureQuality;
use crate::media::PictureFormat;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::{Fields, bad};

/// Most pictures that are sent on the way to one (OpenAI's images API).
const PARTIALS_MAX: u32 = 3;

/// Quality of JPEG where nobody says (OpenAI's images API).
const COMPRESSION: u32 = 100;

/// The two routes that make pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagesRoute {
    /// From a prompt.
    Generations,
    /// From a prompt and pictures.
    Edits,
}

/// How pictures are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// By which of the routes: the names of events differ.
    pub route: ImagesRoute,
    /// What their files are.
    pub format: PictureFormat,
    /// Quality of JPEG files, 0 to 100.
    pub compression: u8,
    /// Whether the answer names addresses in place of holding the files.
    pub as_url: bool,
    /// How good they are to be, for the answer.
    pub quality: PictureQuality,
    /// Whether they are sent as they come.
    pub stream: bool,
    /// Pictures that are sent on the way to the first one.
    pub partials: u32,
    /// Whether the stream also tells how far the job is, which no other server does.
    pub progress: bool,
}

impl Delivery {
    /// Reads the fields that say it; `url_by_default` is for requests that do not say how pictures
    /// come.
    ///
    /// # Errors
    /// One of them is none that there is, or asks for what nothing here makes.
    pub fn read(
        fields: &mut Fields,
        route: ImagesRoute,
        quality: PictureQuality,
        url_by_default: bool,
    ) -> Result<Delivery, EdgeError> {
        let format = format(fields)?;
        let compression = fields.count("output_compression", 0, 100)?;
        if compression.is_some() && format != PictureFormat::Jpeg {
            fields.notice(
                "output_compression has an effect on jpeg alone: png and webp lose nothing",
            );
        }
        let come = fields.word("response_format", &["b64_json", "url"])?;
        let as_url = come.map_or(url_by_default, |come| come == "url");
        let stream = fields.is_on("stream")?;
        let partials = fields.count("partial_images", 0, PARTIALS_MAX)?.unwrap_or(0);
        if partials > 0 && !stream {
            fields.notice("partial_images has an effect with stream only");
        }
        Ok(Delivery {
            route,
            format,
            compression: compression.unwrap_or(COMPRESSION) as u8,
            as_url,
            quality,
            stream,
            partials: if stream { partials } else { 0 },
            progress: progress(fields)?,
        })
    }

    /// Steps between pictures on the way: as `asked`, else so that as many come as are wanted;
    /// `None` for none.
    pub fn preview_every(
        &self,
        asked: Option<u32>,
        steps: Option<u32>,
        strength: Option<f64>,
    ) -> Option<u32> {
        if self.partials == 0 {
            return None;
        }
        // A start from a picture leaves the first steps out. At least one always runs.
        let run = steps.map(|steps| (f64::from(steps) * strength.unwrap_or(1.0)) as u32);
        asked.or(Some((run.unwrap_or(1) / (self.partials + 1)).max(1)))
    }

    /// What the API calls the format.
    pub fn format_name(&self) -> &'static str {
        match self.format {
            PictureFormat::Png => "png",
            PictureFormat::Jpeg => "jpeg",
            PictureFormat::WebP => "webp",
        }
    }
}

fn format(fields: &mut Fields) -> Result<PictureFormat, EdgeError> {
    const NAME: &str = "output_format";
    match fields.filled_text(NAME)?.as_deref() {
        None | Some("png") => Ok(PictureFormat::Png),
        Some("jpeg" | "jpg") => Ok(PictureFormat::Jpeg),
        Some("webp") => Ok(PictureFormat::WebP),
        Some(kind @ ("gif" | "svg")) => {
            let message = format!("no model here makes {kind}; hint: png, jpeg or webp");
            Err(EdgeError::unsupported(NAME, message))
        }
        Some(other) => Err(bad(NAME, "one of png, jpeg, webp", &other.into())),
    }
}

/// Reads `stream_options`, of which only our own is known.
fn progress(fields: &mut Fields) -> Result<bool, EdgeError> {
    const NAME: &str = "stream_options";
    let Some(value) = fields.value(NAME) else { return Ok(false) };
    let Value::Object(options) = value else { return Err(bad(NAME, "an object", &value)) };
    let mut options = Fields::of(options);
    let progress = options.is_on("berth_progress")?;
    for notice in options.notices() {
        fields.notice(format!("{NAME}: {notice}"));
    }
    Ok(progress)
}
