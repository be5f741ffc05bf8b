//! The size of the pieces in which the VAE works, as people write it.

use protocol::limits::SIDE_PIXELS_MAX;
use protocol::plan::VaeTile;

/// The part of a tile that it shares with each neighbour where nobody says otherwise: diffusers'
/// `tile_overlap_factor`.
pub const OVERLAP: f64 = 0.25;

/// What stands for tiling where only that is asked for, as stable-diffusion.cpp's `--vae-tiling`
/// does.
pub const DEFAULT_TILE: &str = "512:0.25";

/// What is wished of the VAE's pieces.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum TileRequest {
    /// Whatever is best, the whole picture at once where that fits as well.
    #[default]
    Chosen,
    /// The whole picture at once.
    Off,
    /// Tiles of this size.
    Of(VaeTile),
}

/// A size that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    /// It is no size.
    #[error(
        "`{text}` is not a tile size; hint: write auto, off, or pixels from 1 to {SIDE_PIXELS_MAX} with an overlap from 0 to 0.5, as 512, 512x768 or 512:0.25"
    )]
    Unreadable {
        /// What was written.
        text: String,
    },
    /// The model's smallest tile is larger.
    #[error(
        "a tile of {width}x{height} pixels is smaller than the model's {least}x{least}; hint: use --vae-tile {least} or more"
    )]
    TooSmall {
        /// In pixels, as it was asked for.
        width: u32,
        /// Likewise, from top to bottom.
        height: u32,
        /// The least side of a tile.
        least: u32,
    },
}

/// Reads `auto`, `off`, `512`, `512x768` or `512x768:0.25`: width, height and overlap.
///
/// # Errors
/// It is none of these, or out of range.
pub fn parse_tile(text: &str) -> Result<TileRequest, TileError> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("off") {
        return Ok(TileRequest::Off);
    }
    if text.eq_ignore_ascii_case("auto") {
        return Ok(TileRequest::Chosen);
    }
    let (size, overlap) = match text.split_once(':') {
        Some((size, overlap)) => (size, plain_number(overlap)),
        None => (text, Some(OVERLAP)),
    };
    let (width, height) = size.split_once('x').unwrap_or((size, size));
    let side = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|side| digits && (1..=SIDE_PIXELS_MAX).contains(side))
    };
    match (side(width), side(height), overlap.filter(|overlap| (0.0..=0.5).contains(overlap))) {
        (Some(width), Some(height), Some(overlap)) => {
            Ok(TileRequest::Of(VaeTile { width, height, overlap }))
        }
        _ => Err(TileError::Unreadable { text: text.chars().take(80).collect() }),
    }
}

/// Whether a model can work in such tiles: none of their sides is below `least` pixels.
///
/// # Errors
/// A side is.
pub fn check_tile(tile: TileRequest, least: u32) -> Result<(), TileError> {
    match tile {
        TileRequest::Of(VaeTile { width, height, .. }) if width.min(height) < least => {
            Err(TileError::TooSmall { width, height, least })
        }
        _ => Ok(()),
    }
}

/// Digits with at most one point: no sign, exponent, `inf` or `NaN`.
fn plain_number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_read_as_people_write_them() {
        for (text, expected) in [
            ("512", Some((512, 512, 0.25))),
            (" 512x768 ", Some((512, 768, 0.25))),
            ("512:0.5", Some((512, 512, 0.5))),
            ("64x32:0", Some((64, 32, 0.0))),
            ("16384:.125", Some((16_384, 16_384, 0.125))),
            (DEFAULT_TILE, Some((512, 512, OVERLAP))),
        ] {
            let expected = expected.map(|(width, height, overlap)| {
                TileRequest::Of(VaeTile { width, height, overlap })
            });
            assert_eq!(parse_tile(text).ok(), expected, "{text}");
        }
        for (text, expected) in
            [("off", TileRequest::Off), ("OFF", TileRequest::Off), ("auto", TileRequest::Chosen)]
        {
            assert_eq!(parse_tile(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        for text in [
            "",
            "on",
            "x",
            "512x",
            "x512",
            "512x512x512",
            "0",
            "0x64",
            "16385",
            "-1",
            "+512",
            "512:",
            "512:0.6",
            "512:-0.1",
            "512:1e-1",
            "512:NaN",
            "512:0.1:0.2",
            "5 12",
            "99999999999",
            "512px",
        ] {
            let error = parse_tile(text).expect_err(text).to_string();
            assert!(error.contains("is not a tile size; hint:"), "{text}: {error}");
        }
    }

    #[test]
    fn a_tile_is_no_smaller_than_the_model_allows() {
        let tile = |text| parse_tile(text).expect(text);
        assert_eq!(check_tile(tile("16x64"), 16), Ok(()));
        assert_eq!(check_tile(TileRequest::Off, 16), Ok(()));
        let error = check_tile(tile("64x15"), 16).expect_err("15 is below 16");
        assert_eq!(error, TileError::TooSmall { width: 64, height: 15, least: 16 });
    }
}
