//! A picture's size as it is asked for, and the nearest that a model makes.

use protocol::ModelDescription;
use protocol::limits::SIDE_PIXELS_MAX;

use super::errors::EdgeError;

/// Reads `WIDTHxHEIGHT`.
///
/// # Errors
/// It is something else, or no size of a picture.
pub fn read(param: &str, text: &str) -> Result<[u32; 2], EdgeError> {
    let sides = text.split_once(['x', 'X', '×']).and_then(|(width, height)| {
        let side = |text: &str| text.trim().parse::<u32>().ok();
        Some([side(width)?, side(height)?])
    });
    let in_range = |sides: &[u32; 2]| sides.iter().all(|side| (1..=SIDE_PIXELS_MAX).contains(side));
    sides.filter(in_range).ok_or_else(|| {
        let message = format!(
            "{param} must be auto or WIDTHxHEIGHT with sides from 1 to {SIDE_PIXELS_MAX}, \
             got {:?}; hint: as 1024x1024",
            super::fields::shortened(text)
        );
        EdgeError::bad_value(param, message)
    })
}

/// Checks that a size is one of a model whose sides are multiples of `multiple`.
///
/// # Errors
/// It is not; the error names the next smaller and the next larger one, and has them as `nearest`.
pub fn check(param: &str, size: [u32; 2], multiple: u32) -> Result<(), EdgeError> {
    let multiple = multiple.max(1);
    if size.iter().all(|side| side % multiple == 0) {
        return Ok(());
    }
    let [smaller, larger] = nearest(size, multiple);
    let name = |[width, height]: [u32; 2]| format!("{width}x{height}");
    let hint = match smaller == larger {
        true => name(larger),
        false => format!("{} or {}", name(smaller), name(larger)),
    };
    let message = format!(
        "{} is no size of this model: sides must be multiples of {multiple}; hint: {hint}",
        name(size)
    );
    let mut error = EdgeError::bad_value(param, message);
    let nearest = serde_json::json!({ "sizes": [name(smaller), name(larger)] });
    error.nearest = Some(Box::new(nearest));
    Err(error)
}

/// Checks the sides that are given, each by its own name; one that is not is the model's own.
///
/// # Errors
/// As [`check`].
pub fn check_sides(
    sides: [Option<u32>; 2],
    description: &ModelDescription,
) -> Result<(), EdgeError> {
    let (multiple, defaults) = (description.side_multiple_pixels.max(1), &description.defaults);
    let (width, height) = (sides[0].unwrap_or(defaults.width), sides[1].unwrap_or(defaults.height));
    let wrong = if width % multiple == 0 { "height" } else { "width" };
    check(wrong, [width, height], multiple)
}

/// The next smaller and the next larger size, each side by itself.
fn nearest(size: [u32; 2], multiple: u32) -> [[u32; 2]; 2] {
    let most = SIDE_PIXELS_MAX / multiple * multiple;
    let smaller = size.map(|side| (side / multiple * multiple).clamp(multiple, most));
    let larger = size.map(|side| side.div_ceil(multiple).saturating_mul(multiple).min(most));
    [smaller, larger]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, size) in [
            ("1024x768", Some([1024, 768])),
            ("64X64", Some([64, 64])),
            (" 64 × 32 ", Some([64, 32])),
            ("1024", None),
            ("0x64", None),
            ("64x-1", None),
            ("99999x64", None),
            ("64x64x64", None),
            ("", None),
        ] {
            assert_eq!(read("size", text).ok(), size, "{text}");
        }
    }

    #[test]
    fn a_size_that_is_none_is_answered_with_its_neighbours() {
        assert!(check("size", [1024, 768], 16).is_ok());
        for (size, hint) in [
            ([1000, 1000], "992x992 or 1008x1008"),
            ([1024, 1000], "1024x992 or 1024x1008"),
            ([5, 5], "16x16"),
            ([16_383, 64], "16368x64 or 16384x64"),
        ] {
            let error = check("size", size, 16).unwrap_err();
            assert!(error.message.ends_with(&format!("hint: {hint}")), "{}", error.message);
            assert_eq!(error.nearest.unwrap()["sizes"].as_array().unwrap().len(), 2);
        }
    }
}
