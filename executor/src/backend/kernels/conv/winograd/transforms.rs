//! The three transforms, of whole vectors: of filters over a panel's outputs, of inputs over the
//! patches side by side, of sums over a panel's outputs.

use std::ops::Range;

use super::super::add_or_store;
use super::{BEYOND_ROW, LINE, POINTS, ROW, SIDE};
use crate::backend::kernels::outer::PANEL;
use crate::backend::kernels::simd::{Lanes, per_isa};

/// A number for each output of a panel.
type Panel = [f32; PANEL];

per_isa! {
    /// `G g Gᵀ` of some channels' filters for a panel: `taps`, `[PANEL, channel, 9]`; `to`, for
    /// each point `[channel, PANEL]`.
    pub(super) fn transform_filters<L>(taps: &[f32], to: [&mut [f32]; POINTS]) {
        let channels = taps.len() / (9 * PANEL);
        for channel in 0..channels {
            let tap = |tap: usize| -> Panel {
                std::array::from_fn(|output| taps[(output * channels + channel) * 9 + tap])
            };
            let rows: [[Panel; 4]; 3] = std::array::from_fn(|column| {
                filter_sums::<L>(std::array::from_fn(|row| tap(3 * row + column)))
            });
            for row in 0..4 {
                let points = filter_sums::<L>(std::array::from_fn(|column| rows[column][row]));
                for (column, point) in points.into_iter().enumerate() {
                    to[4 * row + column][channel * PANEL..][..PANEL].copy_from_slice(&point);
                }
            }
        }
    }
}

/// `G` times three numbers.
#[inline(always)]
fn filter_sums<L: Lanes>([a, b, c]: [Panel; 3]) -> [Panel; 4] {
    let plus = std::array::from_fn(|i| 0.5 * (a[i] + b[i] + c[i]));
    let minus = std::array::from_fn(|i| 0.5 * (a[i] - b[i] + c[i]));
    [a, plus, minus, c]
}

per_isa! {
    /// `Bᵀ d B` of patches side by side. `packed`: their four rows of inputs, of which the last two
    /// are the next patches' first, `[row, channel, ROW]` and [`BEYOND_ROW`] elements more. `to`:
    /// `[point, channel, patch]`.
    pub(super) fn transform_inputs<L>(packed: [&[f32]; 4], to: &mut [f32]) {
        let channels = to.len() / (POINTS * LINE);
        for row in packed {
            assert!(row.len() >= channels * ROW + BEYOND_ROW, "a row is too short");
        }
        for channel in 0..channels {
            for patch in (0..LINE).step_by(L::WIDTH) {
                // SAFETY: `per_isa!` has the instructions. A channel's last vector begins with
                // element `ROW - WIDTH + 2`, and ends within the rows, whose lengths were checked;
                // each point has a line for each channel.
                unsafe {
                    let mut rows = [[L::zero(); 4]; 4];
                    for (row, packed) in rows.iter_mut().zip(packed) {
                        let from = packed.as_ptr().add(channel * ROW + 2 * patch);
                        let [a, b] =
                            L::even_and_odd(L::load(from), L::load(from.add(L::WIDTH)));
                        let from = from.add(2);
                        let [c, d] =
                            L::even_and_odd(L::load(from), L::load(from.add(L::WIDTH)));
                        *row = input_sums::<L>([a, b, c, d]);
                    }
                    let [a, b, c, d] = rows;
                    for column in 0..4 {
                        let points =
                            input_sums::<L>([a[column], b[column], c[column], d[column]]);
                        for (row, point) in points.into_iter().enumerate() {
                            let line = (4 * row + column) * channels + channel;
                            L::store(to.as_mut_ptr().add(line * LINE + patch), point);
                        }
                    }
                }
            }
        }
    }
}

/// `Bᵀ` times four numbers.
///
/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn input_sums<L: Lanes>([a, b, c, d]: [L::Vector; 4]) -> [L::Vector; 4] {
    // SAFETY: the caller's promise.
    unsafe { [L::subtract(a, c), L::add(b, c), L::subtract(c, b), L::subtract(b, d)] }
}

/// Where the outputs of a panel go.
pub(super) struct PanelOutputs<'a> {
    /// Rows of pixels; a row that the picture does not have is empty.
    pub(super) rows: [&'a mut [f32]; SIDE],
    /// Elements of a pixel.
    pub(super) stride: usize,
    /// Those of the panel.
    pub(super) channels: Range<usize>,
    /// Added to the outputs.
    pub(super) bias: &'a Panel,
    /// Whether to add to what is there.
    pub(super) accumulate: bool,
}

per_isa! {
    /// `Aᵀ m A` of patches side by side. `sums`: `[point, patch, PANEL]`.
    pub(super) fn transform_outputs<L>(sums: &[f32], to: PanelOutputs<'_>) {
        let PanelOutputs { rows, stride, channels, bias, accumulate } = to;
        let patches = sums.len() / (POINTS * PANEL);
        let mut pixels = rows.map(|row| row.chunks_exact_mut(stride));
        for patch in 0..patches {
            let mut outputs = [[[0.0; PANEL]; SIDE]; SIDE];
            for column in (0..PANEL).step_by(L::WIDTH) {
                // SAFETY: `per_isa!` has the instructions; each point has a panel for each patch,
                // and so have the outputs.
                unsafe {
                    let bias = L::load(bias.as_ptr().add(column));
                    let mut columns = [[L::zero(); SIDE]; 4];
                    for (x, sum) in columns.iter_mut().enumerate() {
                        let mut points = [L::zero(); 4];
                        for (y, point) in points.iter_mut().enumerate() {
                            let panel = (4 * y + x) * patches + patch;
                            *point = L::load(sums.as_ptr().add(panel * PANEL + column));
                        }
                        *sum = output_sums::<L>(points);
                    }
                    let [a, b, c, d] = columns;
                    for (row, outputs) in outputs.iter_mut().enumerate() {
                        let values = output_sums::<L>([a[row], b[row], c[row], d[row]]);
                        for (value, output) in values.into_iter().zip(outputs) {
                            L::store(output.as_mut_ptr().add(column), L::add(value, bias));
                        }
                    }
                }
            }
            for (pixels, outputs) in pixels.iter_mut().zip(&outputs) {
                for values in outputs {
                    let Some(pixel) = pixels.next() else { continue };
                    add_or_store(&mut pixel[channels.clone()], values, accumulate);
                }
            }
        }
    }
}

/// `Aᵀ` times four numbers.
///
/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn output_sums<L: Lanes>([a, b, c, d]: [L::Vector; 4]) -> [L::Vector; SIDE] {
    // SAFETY: the caller's promise.
    unsafe { [L::add(L::add(a, b), c), L::subtract(L::subtract(b, c), d)] }
}
