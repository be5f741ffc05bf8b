//! Products of bf16 in tiles.
//!
//! A task packs a panel of weight rows, one block of the summed dimension at a time, into its
//! worker's scratch. Then it rounds some activation rows at a time into a strip and multiplies it
//! with all slivers of the panel: by registers for tiles ([`strip`]) or by vectors ([`rows`]).

use std::ops::Range;

use super::panel::{Panel, SLIVER_COLUMNS, STEP, StoredColumns};
use super::rounding::{STRIP_ROWS, strip_words};
use super::{rows, strip};
use crate::backend::kernels::grid::{Grid, Rows, aligned, aligned_len};
use crate::backend::kernels::lines_ahead::LinesAhead;
use crate::backend::kernels::matmul::{LinearOperands, LinearShape, PANEL_COLUMNS};
use crate::backend::kernels::simd::Isa;
use crate::backend::kernels::tiles::Tiles;
use crate::backend::kernels::workers::{Disjoint, Workers};

/// The largest panels. Each reads and writes all its results once more, and all activations are
/// read and rounded for each panel's columns: of depths from 256 to 3072, and as many columns as
/// scratch allows, this ran fastest at 512 x 3072 x 3072 with AMX (Sapphire Rapids).
const PANEL_MAX: PanelSize = PanelSize { columns: PANEL_COLUMNS, depth: 1024 };

/// The same of processors whose vectors multiply bf16.
const PANEL_MAX_OF_VECTORS: PanelSize = PanelSize { columns: 512, depth: rows::DEPTH_MAX };

/// What strips of activations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strips {
    /// Tiles, for a processor with registers for them.
    Tiles,
    /// Rows, for one whose vectors multiply bf16.
    Rows,
}

impl Strips {
    fn of(isa: Isa) -> Strips {
        if isa.has_tiles() { Strips::Tiles } else { Strips::Rows }
    }

    /// Activation rows of one.
    fn rows(self) -> usize {
        match self {
            Strips::Tiles => STRIP_ROWS,
            Strips::Rows => rows::ROWS,
        }
    }

    /// Words of one, of some depth, a multiple of [`STEP`].
    fn words(self, depth: usize) -> usize {
        match self {
            Strips::Tiles => strip_words(depth),
            Strips::Rows => rows::STRIP_WORDS,
        }
    }

    /// The largest panels that are multiplied with them.
    fn panel_max(self) -> PanelSize {
        match self {
            Strips::Tiles => PANEL_MAX,
            Strips::Rows => PANEL_MAX_OF_VECTORS,
        }
    }
}

/// A panel of fewer columns than this is made less deep instead.
const PANEL_COLUMNS_MIN: usize = 256;

/// Fewer activation rows than this are not worth packing a panel for a second time.
const TASK_ROWS_MIN: usize = 128;

/// The size of panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PanelSize {
    columns: usize,
    depth: usize,
}

impl PanelSize {
    /// The largest that go with a strip into so many elements of scratch, in panels of about the
    /// same size. Results do not depend on it.
    fn within(scratch_len: usize, shape: &LinearShape<'_>, strips: Strips) -> PanelSize {
        let max = strips.panel_max();
        let deepest = shape.in_features.iter().copied().max().unwrap_or(0);
        let columns_of = |depth: usize| {
            let words = scratch_len.saturating_sub(aligned_len(strips.words(depth)));
            words * 2 / depth / SLIVER_COLUMNS * SLIVER_COLUMNS
        };
        let wanted = shape.out_features.next_multiple_of(SLIVER_COLUMNS).min(PANEL_COLUMNS_MIN);
        let mut depth = deepest.next_multiple_of(STEP).min(max.depth);
        while columns_of(depth) < wanted && depth > STEP {
            depth = (depth / 2).next_multiple_of(STEP);
        }
        let most = columns_of(depth).min(max.columns);
        assert!(most > 0, "{scratch_len} elements of scratch hold no panel");
        let panels = shape.out_features.div_ceil(most);
        let columns = shape.out_features.div_ceil(panels).next_multiple_of(SLIVER_COLUMNS);
        PanelSize { columns, depth }
    }
}

/// The products of all rows with all weight rows, through bias and activation. `scratch` is shared
/// out among the workers.
pub(super) fn multiply(
    workers: &Workers,
    operands: &LinearOperands<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = operands.shape();
    let len = scratch.len() / workers.count();
    let strips = Strips::of(workers.isa());
    let panel = PanelSize::within(len, &shape, strips);
    let grid =
        Grid::new(shape.rows, shape.out_features, panel.columns, TASK_ROWS_MIN, workers.count());
    let out = &Disjoint::new(out);
    let call = Call { operands, isa: workers.isa(), strips, depth: panel.depth, out };
    workers.for_each_with(grid.tasks(), operands.operations(), scratch, len, |scratch, task| {
        let (rows, columns) = grid.task(task);
        let following = grid.following(task, workers.count());
        call.multiply(rows, columns, following, scratch);
    });
}

/// What all tasks of one call share.
struct Call<'a> {
    operands: &'a LinearOperands<'a>,
    isa: Isa,
    strips: Strips,
    /// Of a panel.
    depth: usize,
    out: &'a Disjoint<'a>,
}

impl Call<'_> {
    /// The products of some rows with a panel of weight rows, through bias and activation.
    /// The worker will probably pack the weight rows `following` next.
    fn multiply(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        following: Range<usize>,
        scratch: &mut [f32],
    ) {
        let Call { operands, isa, strips, .. } = *self;
        let tiles = Tiles::configure(strips == Strips::Tiles);
        let stored = StoredColumns { operands, isa };
        let (strip, panel) = aligned(scratch).split_at_mut(strips.words(self.depth));
        let shape = operands.shape();
        let mut first = 0; // of the present input's features, among all
        for (input, &part) in operands.inputs.iter().zip(shape.in_features) {
            for from in (0..part).step_by(self.depth) {
                let depth = self.depth.min(part - from);
                stored.pack(columns.clone(), first + from, depth, panel);
                let end = first + from + depth;
                let is_last = end == operands.in_features;
                let calls = rows::calls(columns.len(), depth);
                let mut weights = {
                    let calls = calls * rows.len().div_ceil(strips.rows());
                    let (rows, from) = if is_last { (&following, 0) } else { (&columns, end) };
                    operands.ahead(rows.clone(), from, self.depth, calls)
                };
                for begin in rows.clone().step_by(strips.rows()) {
                    let chunk = begin..rows.end.min(begin + strips.rows());
                    let values = &input[chunk.start * part + from..];
                    let a = Rows { values, stride: part, count: chunk.len() };
                    // SAFETY: no other task has these rows and columns.
                    let target = unsafe {
                        operands.target(self.out, chunk.start, columns.start, first + from > 0)
                    };
                    let panel = Panel { words: panel, columns: columns.len(), depth };
                    match strips {
                        Strips::Tiles => strip::multiply(&tiles, a, strip, panel, target),
                        Strips::Rows => {
                            let next = values.as_ptr().wrapping_add(chunk.len() * part).cast();
                            let count = strips.rows().min(rows.end - chunk.end);
                            let mut next =
                                LinesAhead::rows(next, 4 * part, 4 * depth, count, calls);
                            let ahead = [&mut next, &mut weights];
                            // SAFETY: without tiles the processor has the vectors.
                            unsafe { rows::multiply(a, strip, panel, target, ahead) };
                        }
                    }
                    if is_last {
                        for from in columns.clone().step_by(PANEL_COLUMNS) {
                            let some = from..columns.end.min(from + PANEL_COLUMNS);
                            operands.finish(isa, chunk.clone(), some, self.out);
                        }
                    }
                }
            }
            first += part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_fit_into_whatever_scratch_products_in_f32_take() {
        use crate::backend::kernels::matmul::linear_scratch_len;
        let sizes = [1, 2, 15, 31, 32, 33, 100, 500, 511, 512, 513, 1025, 3072, 12288];
        for part in sizes {
            for out_features in sizes {
                let in_features = [part, 1];
                let shape = LinearShape { rows: 9, in_features: &in_features, out_features };
                let len = linear_scratch_len(&shape, 1);
                for strips in [Strips::Tiles, Strips::Rows] {
                    let PanelSize { columns, depth } = PanelSize::within(len, &shape, strips);
                    let words = aligned_len(strips.words(depth)) + columns * depth / 2;
                    assert!(words <= len, "{part} x {out_features}: {columns} x {depth}");
                }
            }
        }
        let shape = LinearShape { rows: 512, in_features: &[3072], out_features: 3072 };
        let size = |strips| PanelSize::within(linear_scratch_len(&shape, 1), &shape, strips);
        assert_eq!(size(Strips::Tiles), PanelSize { columns: 352, depth: 1024 });
        assert_eq!(size(Strips::Rows), PanelSize { columns: 512, depth: 768 });
    }
}
