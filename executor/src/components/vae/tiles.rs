//! How the VAE's work is cut into tiles: which pieces, in which order, and what two neighbours
//! share.
//!
//! The cut is that of diffusers' `AutoencoderKL.tiled_decode` and `tiled_encode`, for both sides on
//! their own: tiles start at every multiple of the step and end at the picture's end at the latest,
//! so that those at the end may be smaller, down to one cell. Pure geometry in cells of latents;
//! what is done with the values where tiles overlap is in `pipeline::tiles`.
//!
//! Invariants: the kept parts of all tiles cover the picture once; the first tile is at least as
//! large as any other, in both directions.

use protocol::plan::VaeTile;

/// A tile's overlap in cells counts as whole where it is nearer to a whole number than this: above
/// what rounding adds to the product of a side and a part, below what any wrong side leaves.
const WHOLE: f64 = 1e-6;

/// Some cells of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellSpan {
    /// The first cell.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// How one side is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The tiles' cells, in order.
    pub spans: Vec<CellSpan>,
    /// Cells from one tile's start to the next one's: what is kept of each.
    pub step: usize,
    /// Cells that a tile shares with the one before it.
    pub overlap: usize,
}

/// How a picture is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TileGrid {
    /// From top to bottom.
    pub rows: Cut,
    /// From left to right.
    pub columns: Cut,
}

/// A piece of a picture that is encoded or decoded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Its row of tiles.
    pub row: usize,
    /// Its column of tiles.
    pub column: usize,
    /// Its rows of cells.
    pub y: CellSpan,
    /// Its columns of cells.
    pub x: CellSpan,
    /// Rows and columns of cells that are kept of it, from its start.
    pub kept: [usize; 2],
    /// Place of its size among [`TileGrid::sizes`].
    pub variant: usize,
}

impl Cut {
    fn whole(side: usize) -> Cut {
        Cut { spans: vec![CellSpan { start: 0, len: side }], step: side, overlap: 0 }
    }

    fn of(side: usize, tile: usize, overlap: usize) -> Cut {
        let step = tile - overlap;
        let span = |start| CellSpan { start, len: tile.min(side - start) };
        Cut { spans: (0..side).step_by(step).map(span).collect(), step, overlap }
    }

    /// Cells of the whole side.
    pub fn side(&self) -> usize {
        self.spans.last().map_or(0, |span| span.start + span.len)
    }

    /// The different lengths of tiles, the largest first.
    fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> = self.spans.iter().map(|span| span.len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        lengths
    }
}

impl TileGrid {
    /// Cuts latents of `[height, width]` cells; `scale` is the pixels along a cell. A picture that
    /// is not larger than a tile is left whole.
    ///
    /// # Errors
    /// What is wrong with the tile, with a hint.
    pub fn new(size: [usize; 2], tile: Option<&VaeTile>, scale: usize) -> Result<TileGrid, String> {
        let [height, width] = size;
        let whole = TileGrid { rows: Cut::whole(height), columns: Cut::whole(width) };
        let Some(tile) = tile else { return Ok(whole) };
        let [tile_height, over_rows] = cells("height", tile.height, tile.overlap, scale)?;
        let [tile_width, over_columns] = cells("width", tile.width, tile.overlap, scale)?;
        if height <= tile_height && width <= tile_width {
            return Ok(whole);
        }
        let rows = Cut::of(height, tile_height, over_rows);
        let columns = Cut::of(width, tile_width, over_columns);
        Ok(TileGrid { rows, columns })
    }

    /// All tiles, row by row.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        (0..self.count()).map(|index| self.tile(index))
    }

    /// A tile by its place in that order.
    pub fn tile(&self, index: usize) -> Tile {
        let (heights, widths) = (self.rows.lengths(), self.columns.lengths());
        let columns = self.columns.spans.len();
        let (row, column) = (index / columns, index % columns);
        let (y, x) = (self.rows.spans[row], self.columns.spans[column]);
        let kept = [y.len.min(self.rows.step), x.len.min(self.columns.step)];
        let place = |lengths: &[usize], length| lengths.iter().position(|&l| l == length);
        let (height, width) = (place(&heights, y.len), place(&widths, x.len));
        let variant = height.expect("its own") * widths.len() + width.expect("its own");
        Tile { row, column, y, x, kept, variant }
    }

    /// How many tiles there are.
    pub fn count(&self) -> usize {
        self.rows.spans.len() * self.columns.spans.len()
    }

    /// The different `[height, width]` of tiles in cells, the largest first: at most nine, since of
    /// one side's tiles only those that end at the picture's end are cut short, two where tiles
    /// overlap.
    pub fn sizes(&self) -> Vec<[usize; 2]> {
        let widths = self.columns.lengths();
        let with_widths = |height| widths.iter().map(move |&width| [height, width]);
        self.rows.lengths().into_iter().flat_map(with_widths).collect()
    }

    /// The largest tile's `[height, width]` in cells.
    pub fn largest(&self) -> [usize; 2] {
        [self.rows.spans[0].len, self.columns.spans[0].len]
    }
}

/// Sizes of the buffers in which a VAE's tiles are joined, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileLayout {
    /// The largest tile.
    pub values: usize,
    /// The last rows of all tiles of a row, which the tiles below blend with.
    pub above: usize,
    /// The last columns of one tile, which the next one blends with.
    pub left: usize,
}

impl TileLayout {
    /// For values of `channels`, with `scale` of them along a cell of latents.
    pub fn new(grid: &TileGrid, scale: usize, channels: usize) -> TileLayout {
        let [rows, columns] = grid.largest();
        let cell = scale * scale * channels;
        let widths: usize = grid.columns.spans.iter().map(|span| span.len).sum();
        let (more_rows, more_columns) = (grid.rows.spans.len() > 1, grid.columns.spans.len() > 1);
        TileLayout {
            values: rows * columns * cell,
            above: if more_rows { widths * grid.rows.overlap * cell } else { 0 },
            left: if more_columns { rows * grid.columns.overlap * cell } else { 0 },
        }
    }

    /// Buffers that do for either.
    pub fn or(self, other: TileLayout) -> TileLayout {
        TileLayout {
            values: self.values.max(other.values),
            above: self.above.max(other.above),
            left: self.left.max(other.left),
        }
    }
}

/// Side and overlap of a tile in cells. The overlap is at most half a side: checked with the
/// options.
fn cells(name: &str, pixels: u32, overlap: f64, scale: usize) -> Result<[usize; 2], String> {
    let shared = |side: usize| {
        let cells = side as f64 * overlap;
        ((cells - cells.round()).abs() < WHOLE).then(|| cells.round() as usize)
    };
    let side = pixels as usize / scale;
    if pixels > 0
        && (pixels as usize).is_multiple_of(scale)
        && let Some(shared) = shared(side)
    {
        return Ok([side, shared]);
    }
    let hint = match (1..=256).find(|&side| shared(side).is_some()) {
        Some(multiple) => format!("use a multiple of {}", multiple * scale),
        None => "use an overlap of 0.25".to_owned(),
    };
    Err(format!(
        "a VAE tile's {name} of {pixels} pixels with an overlap of {overlap} is no whole number of latent \
         cells of {scale} pixels; hint: {hint}"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tile(width: u32, height: u32, overlap: f64) -> VaeTile {
        VaeTile { width, height, overlap }
    }

    fn spans(cut: &Cut) -> Vec<(usize, usize)> {
        cut.spans.iter().map(|span| (span.start, span.len)).collect()
    }

    #[test]
    fn tiles_start_at_every_step_and_end_with_the_picture() {
        // The sizes of the reference: 11 × 14 cells in tiles of 8, of which 2 are shared.
        let grid = TileGrid::new([11, 14], Some(&tile(64, 64, 0.25)), 8).unwrap();
        assert_eq!(spans(&grid.rows), [(0, 8), (6, 5)]);
        assert_eq!(spans(&grid.columns), [(0, 8), (6, 8), (12, 2)]);
        assert_eq!((grid.rows.overlap, grid.rows.step), (2, 6));
        assert_eq!(grid.sizes(), [[8, 8], [8, 2], [5, 8], [5, 2]]);
        let kept: Vec<_> = grid.tiles().map(|tile| tile.kept).collect();
        assert_eq!(kept, [[6, 6], [6, 6], [6, 2], [5, 6], [5, 6], [5, 2]]);
    }

    #[test]
    fn a_picture_within_a_tile_is_whole() {
        let wide = tile(128, 64, 0.25);
        for tile in [None, Some(&tile(256, 256, 0.0)), Some(&wide)] {
            let grid = TileGrid::new([8, 16], tile, 8).unwrap();
            assert_eq!((grid.count(), grid.sizes()), (1, vec![[8, 16]]));
        }
        // As in diffusers, a picture that is larger in one direction is cut in both.
        let grid = TileGrid::new([8, 17], Some(&wide), 8).unwrap();
        assert_eq!(spans(&grid.rows), [(0, 8), (6, 2)]);
        assert_eq!(spans(&grid.columns), [(0, 16), (12, 5)]);
    }

    #[test]
    fn tiles_that_are_no_whole_cells_are_refused() {
        for (tile, hint) in [
            (tile(60, 64, 0.25), "use a multiple of 32"),
            (tile(64, 40, 0.25), "use a multiple of 32"),
            (tile(64, 4, 0.0), "use a multiple of 8"),
            (tile(64, 64, 0.3), "use a multiple of 80"),
            (tile(64, 64, 0.123_456_7), "use an overlap of 0.25"),
        ] {
            let message = TileGrid::new([32, 32], Some(&tile), 8).unwrap_err();
            assert!(message.ends_with(hint), "{message}");
        }
        // Rounding of the factors is no reason.
        let grid = TileGrid::new([99, 99], Some(&tile(280, 240, 0.2)), 8).unwrap();
        assert_eq!((grid.rows.overlap, grid.columns.overlap), (6, 7));
    }

    proptest! {
        #[test]
        fn kept_parts_cover_every_cell_once(
            size in [1..70_usize, 1..70_usize],
            (width, height, quarters) in (1..9_u32, 1..9_u32, 0..3_u32),
        ) {
            let tile = tile(32 * width, 32 * height, f64::from(quarters) / 4.0);
            let grid = TileGrid::new(size, Some(&tile), 8).unwrap();
            let mut covered = vec![0; size[0] * size[1]];
            for tile in grid.tiles() {
                for y in tile.y.start..tile.y.start + tile.kept[0] {
                    for x in tile.x.start..tile.x.start + tile.kept[1] {
                        covered[y * size[1] + x] += 1;
                    }
                }
            }
            prop_assert!(covered.iter().all(|&times| times == 1));
            prop_assert_eq!(grid.tiles().count(), grid.count());
            let sizes = grid.sizes();
            prop_assert!(sizes.len() <= 9);
            prop_assert_eq!(sizes[0], grid.largest());
            for tile in grid.tiles() {
                prop_assert_eq!(sizes[tile.variant], [tile.y.len, tile.x.len]);
                prop_assert!(tile.y.len <= sizes[0][0] && tile.x.len <= sizes[0][1]);
                let more_below = tile.row + 1 < grid.rows.spans.len();
                prop_assert!(!more_below || tile.y.len > grid.rows.overlap);
            }
        }
    }
}
