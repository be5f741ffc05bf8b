//! Joining a VAE's tiles: where two overlap, the one fades into the other.
//!
//! Equal to diffusers' `AutoencoderKL.tiled_decode` and `tiled_encode`, which keep all tiles: a
//! tile blends first with the last rows of the tile above, then with the last columns of the one to
//! its left, both blended already and not yet cut. Those rows and columns, the seams, are all that
//! is kept here, so memory grows with a row of tiles and not with the picture.

use std::ops::Range;

use crate::components::vae::tiles::{Tile, TileGrid};

/// What tiles leave to those that come after them. Lengths are
/// [`TileLayout`](crate::components::vae::tiles::TileLayout)'s.
pub struct Seams<'a> {
    /// The last rows of each tile of the row above, or of this row where that is done already.
    pub above: &'a mut [f32],
    /// The last columns of the tile to the left.
    pub left: &'a mut [f32],
}

/// The sizes of tiles of one kind of values.
#[derive(Debug, Clone, Copy)]
pub struct TileScale<'a> {
    /// How the picture is cut.
    pub grid: &'a TileGrid,
    /// Values along a cell of latents.
    pub scale: usize,
    /// Values of one place.
    pub channels: usize,
}

impl TileScale<'_> {
    /// Length of a tile's values.
    pub fn len(&self, tile: &Tile) -> usize {
        tile.y.len * self.scale * self.row_len(tile)
    }

    /// Length of one row of a tile's values.
    pub fn row_len(&self, tile: &Tile) -> usize {
        tile.x.len * self.scale * self.channels
    }

    /// Blends a tile `[rows, columns, channels]` with its neighbours, and leaves its own seams.
    /// Tiles come in the order of [`TileGrid::tiles`].
    pub fn blend(&self, tile: &Tile, values: &mut [f32], seams: &mut Seams<'_>) {
        assert_eq!(values.len(), self.len(tile), "a whole tile");
        let row_len = self.row_len(tile);
        let (rows, columns) = (tile.y.len * self.scale, tile.x.len * self.scale);
        let above_rows = self.grid.rows.overlap * self.scale;
        let left_columns = self.grid.columns.overlap * self.scale;
        let before: usize =
            self.grid.columns.spans[..tile.column].iter().map(|span| span.len).sum();
        let above = before * self.scale * above_rows * self.channels;
        if tile.row > 0 {
            let depth = above_rows.min(rows);
            let seam = &seams.above[above..][(above_rows - depth) * row_len..][..depth * row_len];
            let of_seam = seam.chunks_exact(row_len).zip(values.chunks_exact_mut(row_len));
            for (at, (old, new)) in of_seam.enumerate() {
                fade(old, new, at, depth);
            }
        }
        let seam_len = left_columns * self.channels;
        if tile.column > 0 && seam_len > 0 {
            let depth = left_columns.min(columns);
            let seam = seams.left.chunks_exact(seam_len).zip(values.chunks_exact_mut(row_len));
            for (old, new) in seam {
                let old = old[(left_columns - depth) * self.channels..].chunks_exact(self.channels);
                let pairs = old.zip(new.chunks_exact_mut(self.channels));
                for (at, (old, new)) in pairs.enumerate() {
                    fade(old, new, at, depth);
                }
            }
        }
        if tile.row + 1 < self.grid.rows.spans.len() {
            let len = above_rows * row_len;
            seams.above[above..above + len].copy_from_slice(&values[values.len() - len..]);
        }
        if tile.column + 1 < self.grid.columns.spans.len() && seam_len > 0 {
            let rows = seams.left.chunks_exact_mut(seam_len).zip(values.chunks_exact(row_len));
            for (seam, row) in rows {
                seam.copy_from_slice(&row[row_len - seam_len..]);
            }
        }
    }

    /// Where a row of a tile starts in the values of a whole picture.
    pub fn start(&self, tile: &Tile, row: usize) -> usize {
        let width = self.grid.columns.side() * self.scale;
        ((tile.y.start * self.scale + row) * width + tile.x.start * self.scale) * self.channels
    }

    /// The kept part of a tile: for each of its rows, the range in the tile, and where it starts in
    /// the values of a whole picture.
    pub fn kept(&self, tile: &Tile) -> impl Iterator<Item = (Range<usize>, usize)> {
        let [rows, columns] = tile.kept.map(|cells| cells * self.scale);
        let row_len = self.row_len(tile);
        let range = move |row| row * row_len..row * row_len + columns * self.channels;
        (0..rows).map(move |row| (range(row), self.start(tile, row)))
    }
}

/// Fades from `old` to `new` at a place of so many: the first is all `old`.
fn fade(old: &[f32], new: &mut [f32], at: usize, of: usize) {
    let part = at as f64 / of as f64;
    let (of_old, of_new) = ((1.0 - part) as f32, part as f32);
    for (new, old) in new.iter_mut().zip(old) {
        *new = old * of_old + *new * of_new;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::plan::VaeTile;

    use super::*;
    use crate::components::vae::tiles::TileLayout;

    /// Values of a tile that have nothing to do with its neighbours': blending must show them all.
    fn made_up(tile: &Tile, len: usize) -> Vec<f32> {
        let seed = (31 * tile.row + 17 * tile.column) as f64;
        (0..len).map(|at| (seed + at as f64 * 0.7).sin() as f32).collect()
    }

    /// A tile as rows of columns of channels.
    type Values = Vec<Vec<Vec<f64>>>;

    /// The reference: every tile is kept whole, in f64, and blended as the rule says it.
    fn reference(joint: &TileScale<'_>) -> Values {
        let TileScale { grid, scale, channels } = *joint;
        let [over_rows, over_columns] =
            [grid.rows.overlap, grid.columns.overlap].map(|cells| cells * scale);
        let columns = grid.columns.spans.len();
        let mut tiles: Vec<Values> = Vec::new();
        for tile in grid.tiles() {
            let mut flat = made_up(&tile, joint.len(&tile)).into_iter().map(f64::from);
            let mut value = || flat.next().expect("a value for each place");
            let mut now: Values = (0..tile.y.len * scale)
                .map(|_| {
                    (0..tile.x.len * scale)
                        .map(|_| (0..channels).map(|_| value()).collect())
                        .collect()
                })
                .collect();
            if tile.row > 0 {
                let above = &tiles[tiles.len() - columns];
                let depth = over_rows.min(above.len()).min(now.len());
                for y in 0..depth {
                    let part = y as f64 / depth as f64;
                    for x in 0..now[y].len() {
                        for c in 0..channels {
                            let old = above[above.len() - depth + y][x][c];
                            now[y][x][c] = old * (1.0 - part) + now[y][x][c] * part;
                        }
                    }
                }
            }
            if tile.column > 0 {
                let left = &tiles[tiles.len() - 1];
                let depth = over_columns.min(left[0].len()).min(now[0].len());
                for y in 0..now.len() {
                    for x in 0..depth {
                        let part = x as f64 / depth as f64;
                        for c in 0..channels {
                            let old = left[y][left[y].len() - depth + x][c];
                            now[y][x][c] = old * (1.0 - part) + now[y][x][c] * part;
                        }
                    }
                }
            }
            tiles.push(now);
        }
        let mut picture: Values = Vec::new();
        for row in tiles.chunks(columns) {
            for y in 0..row[0].len().min(grid.rows.step * scale) {
                let kept = row
                    .iter()
                    .flat_map(|tile| tile[y].iter().take(grid.columns.step * scale).cloned());
                picture.push(kept.collect());
            }
        }
        picture
    }

    fn joined(joint: &TileScale<'_>) -> Vec<f32> {
        let TileScale { grid, scale, channels } = *joint;
        let layout = TileLayout::new(grid, scale, channels);
        let mut above = vec![f32::NAN; layout.above];
        let mut left = vec![f32::NAN; layout.left];
        let area = grid.rows.side() * grid.columns.side() * scale * scale;
        let mut picture = vec![f32::NAN; area * channels];
        for tile in grid.tiles() {
            let mut values = made_up(&tile, joint.len(&tile));
            assert!(values.len() <= layout.values);
            let mut seams = Seams { above: &mut above, left: &mut left };
            joint.blend(&tile, &mut values, &mut seams);
            for (range, start) in joint.kept(&tile) {
                picture[start..start + range.len()].copy_from_slice(&values[range]);
            }
        }
        picture
    }

    proptest! {
        #[test]
        fn seams_give_what_whole_tiles_give(
            size in [1..40_usize, 1..40_usize],
            (width, height, quarters) in (1..5_u32, 1..5_u32, 0..3_u32),
            (scale, channels) in (1..4_usize, 1..4_usize),
        ) {
            let pixels = scale as u32;
            let (width, height) = (4 * pixels * width, 4 * pixels * height);
            let tile = VaeTile { width, height, overlap: f64::from(quarters) / 4.0 };
            let grid = TileGrid::new(size, Some(&tile), scale).unwrap();
            let joint = TileScale { grid: &grid, scale, channels };
            let expected: Vec<f64> = reference(&joint).into_iter().flatten().flatten().collect();
            let got = joined(&joint);
            prop_assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(expected) {
                prop_assert!((f64::from(*got) - expected).abs() < 1e-6, "{} for {}", got, expected);
            }
        }
    }

    #[test]
    fn a_single_tile_stays_as_it_is() {
        let grid = TileGrid::new([3, 5], None, 2).unwrap();
        let joint = TileScale { grid: &grid, scale: 2, channels: 3 };
        let tile = grid.tiles().next().unwrap();
        assert_eq!(joined(&joint), made_up(&tile, 6 * 10 * 3));
        let layout = TileLayout::new(&grid, 2, 3);
        assert_eq!(layout, TileLayout { values: 180, above: 0, left: 0 });
    }

    #[test]
    fn neighbours_fade_into_one_another_from_the_first() {
        let tile = VaeTile { width: 4, height: 4, overlap: 0.5 };
        let grid = TileGrid::new([1, 5], Some(&tile), 1).unwrap();
        let joint = TileScale { grid: &grid, scale: 1, channels: 1 };
        let mut left = [0.0; 2];
        let mut kept = Vec::new();
        for (tile, value) in grid.tiles().zip([8.0, 16.0, 32.0]) {
            let mut values = vec![value; tile.x.len];
            joint.blend(&tile, &mut values, &mut Seams { above: &mut [], left: &mut left });
            kept.extend_from_slice(&values[..tile.kept[1]]);
        }
        assert_eq!(kept, [8.0, 8.0, 8.0, 12.0, 16.0]);
    }
}
