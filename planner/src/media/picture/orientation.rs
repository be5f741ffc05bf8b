//! How a camera was held: EXIF's tag of it, and the turn that undoes it.

use super::Rgb;
use crate::media::exif;

/// How the stored rows and columns are to be seen: EXIF's number, 1 to 8. 1 is as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orientation(u16);

impl Default for Orientation {
    fn default() -> Orientation {
        Orientation(1)
    }
}

impl Orientation {
    /// What EXIF data say, from their TIFF header on. Where they say nothing that is understood,
    /// pictures are seen as stored.
    pub fn of(exif: &[u8]) -> Orientation {
        let number =
            exif::number(exif, exif::ORIENTATION).filter(|number| (1..=8).contains(number));
        number.map(Orientation).unwrap_or_default()
    }

    /// Width and height as seen, of those stored.
    pub fn size(self, [width, height]: [usize; 2]) -> [usize; 2] {
        if self.0 >= 5 { [height, width] } else { [width, height] }
    }

    /// The picture as seen.
    pub fn turn(self, stored: Rgb) -> Rgb {
        if self == Orientation::default() {
            return stored;
        }
        let [width, height] = self.size([stored.width, stored.height]);
        let (right, bottom) = (stored.width - 1, stored.height - 1);
        let mut pixels = Vec::with_capacity(stored.pixels.len());
        for y in 0..height {
            for x in 0..width {
                let (column, row) = match self.0 {
                    2 => (right - x, y),
                    3 => (right - x, bottom - y),
                    4 => (x, bottom - y),
                    5 => (y, x),
                    6 => (y, bottom - x),
                    7 => (right - y, bottom - x),
                    _ => (right - y, x),
                };
                let at = 3 * (row * stored.width + column);
                pixels.extend_from_slice(&stored.pixels[at..at + 3]);
            }
        }
        Rgb { width, height, pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The type of a 16-bit number (TIFF 6.0, section 2).
    const SHORT: u16 = 3;

    /// EXIF data with a resolution's entry before the orientation's.
    fn exif(number: u16, little: bool) -> Vec<u8> {
        let short = |value: u16| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let long = |value: u32| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend(long(8));
        bytes.extend(short(2));
        for (tag, kind, value) in [(0x0128, SHORT, 2), (exif::ORIENTATION, SHORT, number)] {
            bytes.extend([short(tag), short(kind)].concat());
            bytes.extend(long(1));
            bytes.extend([short(value), short(0)].concat());
        }
        bytes
    }

    /// Two columns and three rows, numbered.
    fn numbered() -> Rgb {
        Rgb { width: 2, height: 3, pixels: (1..=6).flat_map(|n| [n; 3]).collect() }
    }

    #[test]
    fn every_orientation_is_undone() {
        for (number, width, seen) in [
            (1, 2, [1, 2, 3, 4, 5, 6]),
            (2, 2, [2, 1, 4, 3, 6, 5]),
            (3, 2, [6, 5, 4, 3, 2, 1]),
            (4, 2, [5, 6, 3, 4, 1, 2]),
            (5, 3, [1, 3, 5, 2, 4, 6]),
            (6, 3, [5, 3, 1, 6, 4, 2]),
            (7, 3, [6, 4, 2, 5, 3, 1]),
            (8, 3, [2, 4, 6, 1, 3, 5]),
        ] {
            for little in [true, false] {
                let orientation = Orientation::of(&exif(number, little));
                let turned = orientation.turn(numbered());
                assert_eq!([turned.width, turned.height], orientation.size([2, 3]));
                assert_eq!(turned.width, width);
                let numbers: Vec<u8> = turned.pixels.iter().copied().step_by(3).collect();
                assert_eq!(numbers, seen, "orientation {number}");
            }
        }
    }

    #[test]
    fn what_is_not_understood_changes_nothing() {
        for number in [0, 9, 0xffff] {
            assert_eq!(Orientation::of(&exif(number, true)), Orientation::default());
        }
        let whole = exif(6, false);
        for length in 0..whole.len() {
            let cut = Orientation::of(&whole[..length]);
            let known = length >= whole.len() - 2;
            assert_eq!(cut == Orientation(6), known, "{length} bytes");
        }
        let mut far = whole.clone();
        far[4..8].fill(0xff);
        assert_eq!(Orientation::of(&far), Orientation::default());
    }
}
