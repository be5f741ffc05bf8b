//! A preview of the first picture of a batch: the latents that it would have if the rest of the way
//! were straight, as colours.

use super::RunningJob;
use super::image::quantize;
use super::latents::LatentShape;
use crate::models::rgb_map::RgbMap;

impl RunningJob<'_> {
    /// Shows a preview after a step, `step` of all from 1, where one is due and the planner has
    /// taken the one before. `latent` is the expected value at a place of the first picture's
    /// packed latents.
    pub fn show_preview(
        &mut self,
        step: usize,
        shape: LatentShape,
        map: &RgbMap,
        latent: impl Fn(usize) -> f32,
    ) {
        let every = self.runtime.plan.options.preview_every as usize;
        if every == 0 || !step.is_multiple_of(every) {
            return;
        }
        let Some(preview) = &mut self.preview else { return };
        let lent = preview.write_and_lend(|pixels| {
            for (cell, pixel) in pixels.chunks_exact_mut(3).enumerate() {
                let (y, x) = (cell / shape.width, cell % shape.width);
                let channels =
                    (0..shape.channels).map(|channel| latent(shape.packed(channel, y, x)));
                quantize(&map.rgb(channels), pixel);
            }
        });
        if let Some(pixels) = lent {
            self.observer.preview([shape.width as u32, shape.height as u32], pixels);
        }
    }
}
