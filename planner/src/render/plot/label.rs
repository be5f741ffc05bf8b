//! Where labels stand beside their points: none over another or over a point, none beyond the plot,
//! and none over the curve as long as there is room.

use std::ops::Range;

/// Height of a line of text in pixels.
const HEIGHT: i32 = 16;

/// About the width of a character; generous, as the reader's font is not known.
const CHARACTER_WIDTH: i32 = 8;

/// From a point to its label.
const DISTANCE: i32 = 9;

/// Radius of a point's marker.
pub const MARKER: i32 = 5;

/// From one place that is tried to the next, in pixels.
const STRIDE: i32 = 4;

/// Where a label stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Its upper left corner.
    pub at: (i32, i32),
    /// A line to its point, where it is not beside it.
    pub leader: Option<[(i32, i32); 2]>,
}

/// Left, top, right, bottom.
type Rectangle = [i32; 4];

/// The labels of one plot.
pub struct Labels {
    horizontal: Range<i32>,
    vertical: Range<i32>,
    /// Points, and labels that have their place.
    taken: Vec<Rectangle>,
    /// The curve.
    line: Vec<Rectangle>,
}

impl Labels {
    /// Labels within a plot, of a line whose parts are level or upright, through these corners.
    pub fn new(
        horizontal: Range<i32>,
        vertical: Range<i32>,
        points: Vec<(i32, i32)>,
        line: Vec<(i32, i32)>,
    ) -> Labels {
        let marker = |(x, y): (i32, i32)| [x - MARKER, y - MARKER, x + MARKER, y + MARKER];
        let part = |ends: &[(i32, i32)]| {
            let [(x1, y1), (x2, y2)] = [ends[0], ends[1]];
            [x1.min(x2) - 1, y1.min(y2) - 1, x1.max(x2) + 1, y1.max(y2) + 1]
        };
        Labels {
            horizontal,
            vertical,
            taken: points.into_iter().map(marker).collect(),
            line: line.windows(2).map(part).collect(),
        }
    }

    /// A place for a text near a point: the nearest that is free.
    pub fn place(&mut self, point: (i32, i32), text: &str) -> Label {
        let width = CHARACTER_WIDTH * text.chars().count() as i32;
        let free = |area: &Rectangle| !self.taken.iter().any(|taken| overlap(taken, area));
        let clear =
            |area: &Rectangle| free(area) && !self.line.iter().any(|part| overlap(part, area));
        let areas = self.areas(point, width);
        let found = areas.iter().find(|area| clear(area)).or(areas.iter().find(|area| free(area)));
        // Where there is no room at all, one that is inside.
        let area = found.or(areas.first()).copied().unwrap_or([
            self.horizontal.start,
            self.vertical.start,
            self.horizontal.start + width,
            self.vertical.start + HEIGHT,
        ]);
        self.taken.push(area);
        let end = nearest(&area, point);
        let is_beside = apart(end, point) <= i64::from(2 * DISTANCE * DISTANCE);
        Label { at: (area[0], area[1]), leader: (!is_beside).then_some([point, end]) }
    }

    /// Places inside the plot by their distance from a point; of equally near ones those above and
    /// to the right come first, where a falling curve leaves room.
    fn areas(&self, point: (i32, i32), width: i32) -> Vec<Rectangle> {
        let tops = (self.vertical.start..=self.vertical.end - HEIGHT).step_by(STRIDE as usize);
        let lefts = (self.horizontal.start..=self.horizontal.end - width).step_by(STRIDE as usize);
        let mut areas: Vec<Rectangle> = tops
            .flat_map(|top| lefts.clone().map(move |left| [left, top, left + width, top + HEIGHT]))
            .filter(|area| apart(nearest(area, point), point) >= i64::from(DISTANCE * DISTANCE))
            .collect();
        areas.sort_by_key(|area| {
            let is_right = area[0] >= point.0;
            let is_above = area[3] <= point.1;
            let near = apart(nearest(area, point), point);
            (near + if is_right && is_above { 0 } else { i64::from(DISTANCE * DISTANCE) }, *area)
        });
        areas
    }
}

fn overlap(a: &Rectangle, b: &Rectangle) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

/// The point of an area that is nearest to another one.
fn nearest(area: &Rectangle, point: (i32, i32)) -> (i32, i32) {
    (point.0.clamp(area[0], area[2]), point.1.clamp(area[1], area[3]))
}

/// The square of a distance.
fn apart(a: (i32, i32), b: (i32, i32)) -> i64 {
    let (x, y) = (i64::from(a.0 - b.0), i64::from(a.1 - b.1));
    x * x + y * y
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn area(label: Label, text: &str) -> Rectangle {
        let (left, top) = label.at;
        [left, top, left + CHARACTER_WIDTH * text.len() as i32, top + HEIGHT]
    }

    #[test]
    fn a_label_stands_above_and_to_the_right_of_its_point() {
        let line = vec![(0, 300), (100, 300), (100, 400), (800, 400)];
        let mut labels = Labels::new(0..800, 0..500, vec![(100, 300)], line);
        let label = labels.place((100, 300), "4.00 GiB: 31.2 s");
        assert!(label.at.0 >= 100 && label.at.1 + HEIGHT <= 300, "{label:?}");
        assert_eq!(label.leader, None);
    }

    proptest! {
        #[test]
        fn labels_never_overlap_and_stay_in_the_plot(
            heights in prop::collection::vec((0_i32..800, 0_i32..500), 1..9),
        ) {
            let text = "24.0 GiB: 20.0 s";
            let mut line = heights.clone();
            line.sort_unstable();
            let mut labels = Labels::new(0..800, 0..500, line.clone(), Vec::new());
            let mut placed: Vec<Rectangle> = Vec::new();
            for point in line {
                let area = area(labels.place(point, text), text);
                prop_assert!(area[0] >= 0 && area[1] >= 0, "{:?}", area);
                prop_assert!(area[2] <= 800 && area[3] <= 500, "{:?}", area);
                prop_assert!(!placed.iter().any(|other| overlap(other, &area)), "{:?}", area);
                placed.push(area);
            }
        }
    }
}
