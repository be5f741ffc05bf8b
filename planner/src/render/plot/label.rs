//! Where labels stand beside their points: none over another, none beyond the plot.
//!
//! A curve that falls from left to right leaves the room above and to the right of each of its corners free.

use std::ops::Range;

/// Height of a line of text in pixels.
const HEIGHT: i32 = 16;

/// About the width of a character; generous, as the reader's font is not known.
const CHARACTER_WIDTH: i32 = 8;

/// From a point to its label.
const DISTANCE: i32 = 9;

/// Where a label stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Its upper left corner.
    pub at: (i32, i32),
    /// A line to its point, where it is not beside it.
    pub leader: Option<[(i32, i32); 2]>,
}

/// The labels of one plot.
pub struct Labels {
    horizontal: Range<i32>,
    vertical: Range<i32>,
    /// Left, top, right, bottom.
    taken: Vec<[i32; 4]>,
}

impl Labels {
    /// Labels within a plot.
    pub fn new(horizontal: Range<i32>, vertical: Range<i32>) -> Labels {
        Labels { horizontal, vertical, taken: Vec::new() }
    }

    /// A place for a text beside a point.
    pub fn place(&mut self, point: (i32, i32), text: &str) -> Label {
        let width = CHARACTER_WIDTH * text.chars().count() as i32;
        let is_inside = point.0 + DISTANCE + width <= self.horizontal.end;
        // Beyond the right edge: below the line and to the left of the edge.
        let (left, mut top) = match is_inside {
            true => (point.0 + DISTANCE, point.1 - DISTANCE - HEIGHT),
            false => (self.horizontal.end - width, point.1 + DISTANCE),
        };
        let first_top = top;
        while self.is_taken(left, top, width) {
            top += if is_inside { -HEIGHT } else { HEIGHT };
        }
        let inside = self.vertical.start..self.vertical.end - HEIGHT;
        top = top.clamp(inside.start, inside.end.max(inside.start));
        self.taken.push([left, top, left + width, top + HEIGHT]);
        let moved = (top - first_top).abs() >= HEIGHT;
        let edge = if top < point.1 { top + HEIGHT } else { top };
        Label { at: (left, top), leader: moved.then_some([point, (left, edge)]) }
    }

    fn is_taken(&self, left: i32, top: i32, width: i32) -> bool {
        let overlaps = |taken: &[i32; 4]| {
            let [l, t, r, b] = *taken;
            left < r && l < left + width && top < b && t < top + HEIGHT
        };
        self.taken.iter().any(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_beside_their_points_and_not_over_others() {
        let mut labels = Labels::new(0..800, 0..500);
        let first = labels.place((100, 300), "4.00 GiB: 31.2 s");
        assert_eq!((first.at, first.leader), ((109, 275), None));
        let second = labels.place((120, 305), "4.20 GiB: 30.9 s");
        assert!(second.at.1 + HEIGHT <= first.at.1 && second.leader.is_some(), "{second:?}");
        let far = labels.place((600, 400), "9.00 GiB: 20.0 s");
        assert_eq!(far.leader, None);
    }

    #[test]
    fn no_label_leaves_the_plot() {
        let mut labels = Labels::new(0..800, 0..500);
        for point in [(790, 20), (790, 480), (10, 2), (700, 498), (799, 499)] {
            let text = "24.0 GiB: 20.0 s";
            let (left, top) = labels.place(point, text).at;
            let right = left + CHARACTER_WIDTH * text.len() as i32;
            assert!(left >= 0 && right <= 800, "{point:?}: {left} to {right}");
            assert!(top >= 0 && top + HEIGHT <= 500, "{point:?}: {top}");
        }
    }
}
