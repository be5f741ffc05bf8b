//! Pictures of requests: out of base64, decoded once to see that they can be, and kept by the hash
//! of their content, so that a job that is begun again finds the same ones.
//!
//! Nothing is ever fetched: an address in place of a picture is an error.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::media::PictureFormat;
use crate::media::picture::{Picture, PictureError};
use crate::serve::desk::job::{ErrorCode, JobError};
use crate::temporary::{self, PRIVATE_MODE};

/// What errors call a picture of a request.
const NAME: &str = "image";

/// How a picture begins that is written as an address of itself.
const DATA_URL: &str = "data:";

/// What stands between an address's head and its content.
const BASE64: &str = ";base64,";

/// Keeps a picture in a folder, and returns its file.
pub fn picture(folder: &Path, bytes: &[u8]) -> Result<PathBuf, JobError> {
    let wrong = |error: PictureError| bad(error.to_string());
    let picture = Picture::of(bytes.to_vec(), Path::new(NAME)).map_err(wrong)?;
    // At its own size nothing is scaled, but all of it is decoded.
    let [width, height] = picture.size();
    picture.pixels(width, height).map_err(wrong)?;
    let ending = PictureFormat::of_bytes(bytes).map_or("png", |format| format.endings()[0]);
    let path = folder.join(format!("{}.{ending}", picture.sha256()));
    write(folder, &path, bytes).map_err(|error| {
        JobError::new(ErrorCode::Disk, format!("the request's picture cannot be kept: {error}"))
    })?;
    Ok(path)
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let mut file = temporary::file_in(folder, PRIVATE_MODE)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The bytes of a picture in base64, with or without `data:image/…;base64,` before it.
///
/// # Errors
/// It is an address of something else, or no base64.
pub fn from_base64(text: &str) -> Result<Vec<u8>, JobError> {
    let text = text.trim();
    let content = match strip_ignoring_case(text, DATA_URL) {
        Some(url) => url.split_once(BASE64).map(|(_, content)| content),
        None => Some(text),
    };
    let begins = |scheme| strip_ignoring_case(text, scheme).is_some();
    if begins("http:") || begins("https:") || begins("file:") {
        return Err(bad(
            "a picture must be sent as base64; hint: nothing is fetched from an address",
        ));
    }
    let content = content.ok_or_else(|| bad("the data URL must be in base64"))?;
    base64::decode(content).map_err(|error| bad(format!("the picture is no base64: {error}")))
}

fn strip_ignoring_case<'a>(text: &'a str, beginning: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(beginning.len())?;
    head.eq_ignore_ascii_case(beginning).then_some(rest)
}

fn bad(message: impl Into<String>) -> JobError {
    let mut error = JobError::new(ErrorCode::BadValue, message);
    error.param = Some(NAME.to_owned());
    error
}

#[cfg(test)]
mod tests {
    use ipc_channel::ipc::IpcSharedMemory;
    use protocol::message::Image;

    use super::*;

    fn png() -> Vec<u8> {
        let pixels = IpcSharedMemory::from_bytes(&[7; 6]);
        let image = Image { index: 0, seed: 0, width: 2, height: 1, pixels };
        PictureFormat::Png.encode(&image, None, 1).unwrap().bytes
    }

    #[test]
    fn a_picture_is_kept_once_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = folder.path().join("inputs");
        let path = picture(&inputs, &png()).unwrap();
        assert_eq!(picture(&inputs, &png()).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), png());
        assert_eq!(fs::read_dir(&inputs).unwrap().count(), 1);
        assert!(path.extension().is_some_and(|ending| ending == "png"));
    }

    #[test]
    fn what_cannot_be_decoded_is_refused_and_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let whole = png();
        for bytes in [&b""[..], b"GIF89a", &whole[..whole.len() / 2]] {
            let error = picture(folder.path(), bytes).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("image"));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn base64_is_taken_with_and_without_its_head_and_addresses_are_not() {
        for text in ["AQI=", " AQI=\n", "data:image/png;base64,AQI=", "DATA:image/png;base64,AQI="]
        {
            assert_eq!(from_base64(text).unwrap(), [1, 2], "{text}");
        }
        for text in ["http://a/b.png", "HTTPS://a", "file:///etc/passwd", "data:text/plain,x", "é="]
        {
            assert_eq!(from_base64(text).unwrap_err().code, ErrorCode::BadValue, "{text}");
        }
    }
}
