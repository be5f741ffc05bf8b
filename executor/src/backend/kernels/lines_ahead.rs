//! Memory that will be read soon, asked for a few cache lines at a time while something else is
//! computed.

use super::simd::{LINE_BYTES, prefetch};

/// Cache lines of rows that lie apart, all of a row and then the next row's. Those past the last
/// row are never asked for.
pub(super) struct LinesAhead {
    /// The next line's address. It need not be valid.
    next: *const u8,
    /// From behind a row's last line to the next row's first one.
    gap_bytes: usize,
    row_lines: usize,
    /// Lines of the present row that are left.
    row_lines_left: usize,
    lines_left: usize,
    /// Lines that are asked for at a time.
    at_once: usize,
}

impl LinesAhead {
    /// `count` rows of `row_bytes` that begin `stride_bytes` apart, the first one at `start`. All
    /// are asked for when [`LinesAhead::ask`] was called `calls` times.
    pub(super) fn rows(
        start: *const u8,
        stride_bytes: usize,
        row_bytes: usize,
        count: usize,
        calls: usize,
    ) -> LinesAhead {
        let row_lines = row_bytes.div_ceil(LINE_BYTES);
        let lines_left = row_lines * count;
        LinesAhead {
            next: start,
            gap_bytes: stride_bytes.wrapping_sub(row_lines * LINE_BYTES),
            row_lines,
            row_lines_left: row_lines,
            lines_left,
            at_once: lines_left.div_ceil(calls.max(1)),
        }
    }

    /// Asks for some more lines.
    #[inline(always)]
    pub(super) fn ask(&mut self) {
        let count = self.at_once.min(self.lines_left);
        self.lines_left -= count;
        for _ in 0..count {
            prefetch(self.next);
            self.next = self.next.wrapping_add(LINE_BYTES);
            self.row_lines_left -= 1;
            if self.row_lines_left == 0 {
                self.next = self.next.wrapping_add(self.gap_bytes);
                self.row_lines_left = self.row_lines;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_of_all_rows_are_asked_for_and_no_more() {
        let bytes = [0u8; 4096];
        let start = bytes.as_ptr();
        let mut ahead = LinesAhead::rows(start, 1000, 130, 3, 4);
        assert_eq!((ahead.lines_left, ahead.at_once), (9, 3));
        ahead.ask();
        assert_eq!(ahead.next, start.wrapping_add(1000), "three lines hold 130 bytes");
        ahead.ask();
        ahead.ask();
        assert_eq!((ahead.lines_left, ahead.next), (0, start.wrapping_add(3000)));
        ahead.ask();
        assert_eq!(ahead.next, start.wrapping_add(3000));
    }

    #[test]
    fn rows_that_overlap_or_are_none_are_fine() {
        let mut ahead = LinesAhead::rows(std::ptr::null(), 32, 48, 2, 1);
        ahead.ask();
        assert_eq!((ahead.lines_left, ahead.next.addr()), (0, 64));
        LinesAhead::rows(std::ptr::null(), 0, 0, 0, 1).ask();
    }
}
