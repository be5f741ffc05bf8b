//! `GET /v1/jobs/{id}/pictures/{n}`: a picture as it was filed, in another format, or small.

use std::path::Path as FilePath;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use protocol::Bytes;

use super::{QueryPairs, jobs, whole_of_query};
use crate::media::picture::Picture;
use crate::media::{self, PictureFormat, QUALITY, RgbRows};
use crate::read;
use crate::serve::desk::event::Ask;
use crate::serve::edge::asker::Caller;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::state::Edge;

/// What a picture may be asked for.
pub const QUERY: [(&str, &str); 2] = [
    ("format", "png as it was filed, jpeg or webp"),
    ("thumb", "at most so many pixels a side, 16 to 1024"),
];

/// Pixels of a small picture's longer side.
const THUMB_PIXELS: [u64; 2] = [16, 1024];

/// Largest file: as large as any picture that is read.
const FILE_BYTES_MAX: Bytes = media::picture::FILE_BYTES_MAX;

/// A picture's name does not come again with another content.
const CACHED: &str = "private, max-age=31536000, immutable";

/// Answers the file, or what is made of it.
pub async fn picture(
    State(edge): State<Edge>,
    caller: Caller,
    Path((id, index)): Path<(String, String)>,
    Query(query): QueryPairs,
) -> Result<Response, EdgeError> {
    let id = jobs::job_id(&id)?;
    let format = query.get("format").map(|name| format(name)).transpose()?;
    let thumb = whole_of_query(&query, "thumb", THUMB_PIXELS)?;
    let view = jobs::job_of(edge.ask(caller.asker, Ask::Show(id.clone())).await)?;
    let index: Option<u32> = index.parse().ok();
    let record = view.record.pictures.iter().find(|picture| Some(picture.index) == index);
    let path = record.and_then(|picture| edge.picture_path(picture));
    let path = path.ok_or_else(|| EdgeError::no_route("the job has no such picture"))?;
    let format = format.unwrap_or(PictureFormat::Png);
    let made = tokio::task::spawn_blocking(move || file(&path, format, thumb)).await;
    let bytes = made.map_err(|_| EdgeError::internal("an encoder has panicked"))??;
    let ending = format.endings()[0];
    let name = format!("inline; filename=\"{id}-{}.{ending}\"", index.unwrap_or_default());
    let headers = [
        (CONTENT_TYPE, media_type(format).to_owned()),
        (CACHE_CONTROL, CACHED.to_owned()),
        (CONTENT_DISPOSITION, name),
    ];
    Ok((headers, bytes).into_response())
}

fn format(name: &str) -> Result<PictureFormat, EdgeError> {
    match name {
        "png" => Ok(PictureFormat::Png),
        "jpeg" | "jpg" => Ok(PictureFormat::Jpeg),
        "webp" => Ok(PictureFormat::WebP),
        _ => Err(EdgeError::unsupported("format", "format must be png, jpeg or webp")),
    }
}

/// The media type of a format (IANA).
pub fn media_type(format: PictureFormat) -> &'static str {
    match format {
        PictureFormat::Png => "image/png",
        PictureFormat::Jpeg => "image/jpeg",
        PictureFormat::WebP => "image/webp",
    }
}

/// Reads a filed picture, and makes of it what is asked for.
fn file(path: &FilePath, format: PictureFormat, side: Option<u64>) -> Result<Vec<u8>, EdgeError> {
    let bytes = read::bytes(path, FILE_BYTES_MAX).map_err(|error| match error.is_missing() {
        true => EdgeError::new(StatusCode::GONE, "expired", "the picture's file is gone"),
        false => EdgeError::internal(format!("the picture's file cannot be read: {error}")),
    })?;
    if format == PictureFormat::Png && side.is_none() {
        return Ok(bytes);
    }
    convert(bytes, format, side).map_err(EdgeError::internal)
}

/// A picture in another format with its settings, or a small one without.
fn convert(bytes: Vec<u8>, format: PictureFormat, side: Option<u64>) -> Result<Vec<u8>, String> {
    let settings = match side {
        Some(_) => None,
        None => media::settings(&bytes).map_err(|error| error.to_string())?,
    };
    let picture = Picture::of(bytes, FilePath::new("the file")).map_err(|e| e.to_string())?;
    let [width, height] = within(picture.size(), side);
    let pixels = picture.pixels(width, height).map_err(|error| error.to_string())?;
    let image = RgbRows { width: width as u32, height: height as u32, pixels: &pixels };
    let encoded = format.encode(image, settings.as_deref(), QUALITY);
    encoded.map(|encoded| encoded.bytes).map_err(|error| error.to_string())
}

/// A size whose longer side is at most this one, of the same shape.
fn within([width, height]: [usize; 2], side: Option<u64>) -> [usize; 2] {
    let longer = width.max(height).max(1);
    match side.map(|side| side as usize).filter(|side| *side < longer) {
        Some(side) => [width, height].map(|length| (length * side / longer).max(1)),
        None => [width, height],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_picture_keeps_its_shape() {
        assert_eq!(within([1024, 512], Some(256)), [256, 128]);
        assert_eq!(within([4000, 1], Some(16)), [16, 1]);
        assert_eq!(within([100, 50], Some(256)), [100, 50]);
        assert_eq!(within([100, 50], None), [100, 50]);
    }

    #[test]
    fn another_format_keeps_the_settings() {
        let image = RgbRows { width: 64, height: 32, pixels: &[9; 3 * 64 * 32] };
        let png = PictureFormat::Png.encode(image, Some("a house"), 1).unwrap().bytes;
        for format in [PictureFormat::Jpeg, PictureFormat::WebP] {
            let whole = convert(png.clone(), format, None).unwrap();
            assert_eq!(PictureFormat::of_bytes(&whole), Some(format));
            assert_eq!(media::settings(&whole).unwrap().as_deref(), Some("a house"));
            let small = convert(png.clone(), format, Some(16)).unwrap();
            assert_eq!(media::settings(&small).unwrap(), None);
        }
        let small = convert(png, PictureFormat::Png, Some(16)).unwrap();
        assert_eq!(Picture::of(small, FilePath::new("x")).unwrap().size(), [16, 8]);
    }
}
