//! The weights of a convolution: as they are stored, and in the order in which tiles read them.

use std::ops::Range;

use super::{CHANNEL_BLOCK, ConvShape};
use crate::backend::kernels::outer::PANEL;
use crate::backend::kernels::simd::Isa;
use crate::backend::kernels::widen::widen;
use crate::backend::kernels::workers::{Disjoint, Workers};
use crate::weights::view::WeightView;

/// Filters as they lie in memory: the taps of each input channel of each output follow each other,
/// and the next channel's begin some elements later.
#[derive(Debug, Clone, Copy)]
pub struct Filters<'a> {
    /// `[out_channels, in_channels, kernel_height, kernel_width]`; its bytes may be more than that.
    pub weight: WeightView<'a>,
    /// Elements from one channel's taps to the next one's.
    pub stride: usize,
}

impl<'a> From<WeightView<'a>> for Filters<'a> {
    fn from(weight: WeightView<'a>) -> Filters<'a> {
        Filters { weight, stride: weight.shape.iter().skip(2).product() }
    }
}

impl Filters<'_> {
    /// Widens the taps of some channels, counted through all outputs, into `row`, `[channel, tap]`.
    pub(super) fn widen(&self, isa: Isa, channels: Range<usize>, taps: usize, row: &mut [f32]) {
        if self.stride == taps {
            widen(isa, self.weight, channels.start * taps, row);
            return;
        }
        for (channel, row) in channels.zip(row.chunks_exact_mut(taps)) {
            widen(isa, self.weight, channel * self.stride, row);
        }
    }
}

/// `[panel, block of channels, tap, channel, PANEL]`; zeros where a panel has no output channel.
pub(super) struct PackedWeights<'a>(&'a [f32]);

impl<'a> PackedWeights<'a> {
    /// How many elements they are.
    pub(super) fn len(shape: &ConvShape) -> usize {
        shape.panels() * shape.taps() * shape.in_channels * PANEL
    }

    /// Packs them into `packed`. `scratch`: `scratch_len` for each worker, at least a channel
    /// block's weights for one output.
    pub(super) fn pack(
        workers: &Workers,
        shape: &ConvShape,
        filters: Filters<'_>,
        packed: &'a mut [f32],
        scratch: &mut [f32],
        scratch_len: usize,
    ) -> PackedWeights<'a> {
        let blocks = shape.in_channels.div_ceil(CHANNEL_BLOCK);
        let (taps, operations) = (shape.taps(), packed.len());
        {
            let packed = Disjoint::new(packed);
            let tasks = shape.panels() * blocks;
            workers.for_each_with(tasks, operations, scratch, scratch_len, |row, task| {
                let (panel, block) = (task / blocks, task % blocks * CHANNEL_BLOCK);
                let block = block..shape.in_channels.min(block + CHANNEL_BLOCK);
                // SAFETY: each task has a block of a panel of its own.
                let packed = unsafe { packed.range(Self::range(shape, panel, block.clone())) };
                packed.fill(0.0);
                let row = &mut row[..block.len() * taps];
                let channels = panel * PANEL..shape.out_channels.min((panel + 1) * PANEL);
                for (lane, channel) in channels.enumerate() {
                    let first = channel * shape.in_channels + block.start;
                    filters.widen(workers.isa(), first..first + block.len(), taps, row);
                    for tap in 0..taps {
                        let to = packed[tap * block.len() * PANEL + lane..].iter_mut();
                        let from = row[tap..].iter().step_by(taps);
                        to.step_by(PANEL).zip(from).for_each(|(to, from)| *to = *from);
                    }
                }
            });
        }
        PackedWeights(packed)
    }

    /// Those of a block of channels for a panel: `[tap, channel, PANEL]`.
    pub(super) fn block(&self, shape: &ConvShape, panel: usize, block: Range<usize>) -> &[f32] {
        &self.0[Self::range(shape, panel, block)]
    }

    fn range(shape: &ConvShape, panel: usize, block: Range<usize>) -> Range<usize> {
        let row = shape.taps() * PANEL;
        let first = panel * shape.in_channels;
        (first + block.start) * row..(first + block.end) * row
    }
}
