//! EXIF data: a directory of numbered entries in TIFF's form, read as far as pictures need it, and
//! made for settings. (EXIF 2.32, section 4.6; TIFF 6.0, section 2.)

/// Tag of the entry that says how the camera was held.
pub const ORIENTATION: u16 = 0x0112;

/// Tag of the entry that points to EXIF's own directory.
const EXIF_DIRECTORY: u16 = 0x8769;

/// Tag of the user comment there.
const USER_COMMENT: u16 = 0x9286;

/// Types of values, by the number that an entry has.
const SHORT: u16 = 3;
const LONG: u16 = 4;
const UNDEFINED: u16 = 7;

/// Length of an entry in bytes.
const ENTRY_BYTES: usize = 12;

/// What a user comment begins with: 8 bytes that name its characters.
const UNICODE: [u8; 8] = *b"UNICODE\0";
const ASCII: [u8; 8] = *b"ASCII\0\0\0";
const UNSPECIFIED: [u8; 8] = [0; 8];

/// What stands before EXIF data in JPEG files, and by mistake in some others.
pub const PREFIX: [u8; 6] = *b"Exif\0\0";

/// EXIF data, from their TIFF header on.
#[derive(Clone, Copy)]
struct Tiff<'a> {
    bytes: &'a [u8],
    little: bool,
}

impl<'a> Tiff<'a> {
    fn of(bytes: &'a [u8]) -> Option<Tiff<'a>> {
        match bytes.get(..4)? {
            b"II*\0" => Some(Tiff { bytes, little: true }),
            b"MM\0*" => Some(Tiff { bytes, little: false }),
            _ => None,
        }
    }

    fn short(self, at: usize) -> Option<u16> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn long(self, at: usize) -> Option<u32> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    /// Where the entry of a tag and type begins, in the directory at `directory`.
    fn entry(self, directory: usize, tag: u16, kind: u16) -> Option<usize> {
        let entries = directory.checked_add(2)?;
        for index in 0..usize::from(self.short(directory)?) {
            let entry = entries.checked_add(index * ENTRY_BYTES)?;
            if self.short(entry)? == tag && self.short(entry + 2)? == kind {
                return Some(entry);
            }
        }
        None
    }
}

/// The value of an entry of the first directory that is a 16-bit number.
pub fn number(exif: &[u8], tag: u16) -> Option<u16> {
    let tiff = Tiff::of(exif)?;
    let entry = tiff.entry(tiff.long(4)? as usize, tag, SHORT)?;
    tiff.short(entry + 8)
}

/// The user comment, if there is one with characters that are known.
pub fn user_comment(exif: &[u8]) -> Option<String> {
    let tiff = Tiff::of(exif)?;
    let pointer = tiff.entry(tiff.long(4)? as usize, EXIF_DIRECTORY, LONG)?;
    let entry = tiff.entry(tiff.long(pointer + 8)? as usize, USER_COMMENT, UNDEFINED)?;
    let length = tiff.long(entry + 4)? as usize;
    // Values of up to 4 bytes stand in the entry itself; a comment's characters do not.
    let start = tiff.long(entry + 8)? as usize;
    let comment = exif.get(start..start.checked_add(length)?)?;
    let (characters, text) = comment.split_at_checked(8)?;
    let text = match characters {
        _ if characters == UNICODE => utf16(text),
        _ if characters == ASCII || characters == UNSPECIFIED => {
            String::from_utf8_lossy(text).into_owned()
        }
        _ => return None,
    };
    let text = text.trim_end_matches('\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Text in 16-bit units. Their order is not written down: most programs write the high byte first,
/// some in the order of the TIFF header, a few say it with a mark.
fn utf16(bytes: &[u8]) -> String {
    let pairs = bytes.as_chunks::<2>().0;
    let units = |little: bool| -> Vec<u16> {
        let unit = |pair: &[u8; 2]| match little {
            true => u16::from_le_bytes(*pair),
            false => u16::from_be_bytes(*pair),
        };
        pairs.iter().map(unit).collect()
    };
    const MARK: u16 = 0xfeff;
    // Settings have many Latin letters, whose high byte is 0.
    let latin = |units: &[u16]| units.iter().filter(|unit| **unit < 0x100).count();
    let (big, little) = (units(false), units(true));
    let units = match (big.first(), little.first()) {
        (Some(&MARK), _) => &big[1..],
        (_, Some(&MARK)) => &little[1..],
        _ if latin(&little) > latin(&big) => &little[..],
        _ => &big[..],
    };
    String::from_utf16_lossy(units)
}

/// EXIF data with nothing but a user comment: high bytes first, as AUTOMATIC1111 has it written.
pub fn with_user_comment(text: &str) -> Vec<u8> {
    let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let comment = [&UNICODE[..], &units].concat();
    // Header, then two directories of one entry each, which end with the place of the next one:
    // none.
    const FIRST: u32 = 8;
    const SECOND: u32 = FIRST + 2 + ENTRY_BYTES as u32 + 4;
    const COMMENT: u32 = SECOND + 2 + ENTRY_BYTES as u32 + 4;
    let directory = |tag: u16, kind: u16, count: u32, value: u32| {
        let mut bytes = 1_u16.to_be_bytes().to_vec();
        bytes.extend([tag.to_be_bytes(), kind.to_be_bytes()].concat());
        bytes.extend([count.to_be_bytes(), value.to_be_bytes(), [0; 4]].concat());
        bytes
    };
    let mut bytes = b"MM\0*".to_vec();
    bytes.extend(FIRST.to_be_bytes());
    bytes.extend(directory(EXIF_DIRECTORY, LONG, 1, SECOND));
    // A prompt has at most some ten kilobytes; what formats can hold is checked by them.
    let length = u32::try_from(comment.len()).unwrap_or(u32::MAX);
    bytes.extend(directory(USER_COMMENT, UNDEFINED, length, COMMENT));
    bytes.extend(comment);
    bytes
}
