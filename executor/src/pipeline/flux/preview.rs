//! A preview of the first picture of a batch: the latents that it would have if the rest of the way
//! were straight, as colours.

use super::Run;
use crate::job::JobBuffers;
use crate::models::Model;
use crate::pipeline::image::quantize;

impl Run<'_> {
    /// Shows a preview after a step, `step` of all from 1, to noise level `sigma`, where one is due
    /// and the planner has taken the one before.
    pub(super) fn preview(&mut self, step: usize, sigma: f32) {
        let every = self.runtime.plan.options.preview_every as usize;
        if every == 0 || !step.is_multiple_of(every) {
            return;
        }
        let shape = self.latent_shape();
        let Model::Flux(model) = &*self.runtime.model;
        let map = model.rgb_map();
        let JobBuffers { preview, latents, velocity, .. } = &mut self.buffers;
        let Some(preview) = preview else { return };
        let lent = preview.write_and_lend(|pixels| {
            for (cell, pixel) in pixels.chunks_exact_mut(3).enumerate() {
                let (y, x) = (cell / shape.width, cell % shape.width);
                let channels = (0..shape.channels).map(|channel| {
                    let place = shape.packed(channel, y, x);
                    latents[place] - sigma * velocity[0][place]
                });
                quantize(&map.rgb(channels), pixel);
            }
        });
        if let Some(pixels) = lent {
            self.observer.preview([shape.width as u32, shape.height as u32], pixels);
        }
    }
}
