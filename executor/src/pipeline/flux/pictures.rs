//! Between pictures and latents: the VAE's two ways, tile by tile, as `FluxImg2ImgPipeline` goes in and
//! `FluxPipeline` out.

use protocol::{Failure, Phase};

use super::Run;
use crate::failure::bad_request;
use crate::job::JobBuffers;
use crate::models::vae::tiles::{Tile, TileGrid};
use crate::pipeline::finite;
use crate::pipeline::image::{Picture, normalize, quantize};
use crate::pipeline::latents::{VaeRange, unpack_for_vae};
use crate::pipeline::noise::image_seed;
use crate::pipeline::tiles::{Joint, Seams};

impl Run<'_> {
    fn tiles(&self) -> Result<TileGrid, Failure> {
        let plan = &self.runtime.plan;
        Ok(self.model().tiles(&plan.job, &plan.options)?)
    }

    pub(super) fn vae_range(&self) -> VaeRange {
        let vae = self.model().vae();
        VaeRange { scaling: vae.scaling_factor, shift: vae.shift_factor.unwrap_or(0.0) }
    }

    /// The given picture into moments.
    pub(super) fn encode(&mut self) -> Result<(), Failure> {
        let source = match &self.job.init_image {
            Some(picture) if picture.len() == self.buffers.pixels.len() => picture,
            _ => {
                let [height, width, _] = self.layout.picture;
                return Err(bad_request(format!(
                    "the job needs a picture of {width}x{height} to start from"
                )));
            }
        };
        let grid = self.tiles()?;
        let [.., channels] = self.layout.picture;
        let pixels = Joint { grid: &grid, scale: self.model().vae().scale(), channels };
        let moments = Joint { grid: &grid, scale: 1, channels: self.layout.moments[2] };
        let with_lora = !self.runtime.plan.options.loras.is_empty();
        for (done, tile) in grid.tiles().enumerate() {
            let JobBuffers { tile: values, above, left, moments: whole, .. } = &mut self.buffers;
            let row_len = pixels.row_len(&tile);
            for (row, values) in values[..pixels.len(&tile)].chunks_exact_mut(row_len).enumerate() {
                let start = pixels.start(&tile, row);
                normalize(&source[start..start + row_len], values);
            }
            let component = self.runtime.variant("vae_encoder", tile.variant);
            component.write("image", 0, &values[..pixels.len(&tile)])?;
            component.run(self.cancel)?;
            let values = &mut values[..moments.len(&tile)];
            component.read("moments", values)?;
            finite::check(values, "vae_encoder", None, with_lora)?;
            moments.blend(&tile, values, &mut Seams { above, left });
            for (range, start) in moments.kept(&tile) {
                whole[start..start + range.len()].copy_from_slice(&values[range]);
            }
            self.progress(Phase::Encode, done as u32 + 1, grid.count() as u32);
        }
        self.dump.append_nhwc("vae_encoder.moments", self.layout.moments, &self.buffers.moments);
        Ok(())
    }

    pub(super) fn decode(&mut self) -> Result<(), Failure> {
        let grid = self.tiles()?;
        let [height, width, channels] = self.layout.picture;
        let joint = Joint { grid: &grid, scale: self.model().vae().scale(), channels };
        let batch = self.layout.latents[0];
        for index in 0..batch {
            self.dump_vae_input(index);
            let mut whole = self.dump.is_wanted().then(|| vec![0.0; height * width * channels]);
            for (done, tile) in grid.tiles().enumerate() {
                self.decode_tile(index, &joint, &tile)?;
                let buffers = &mut self.buffers;
                for (range, start) in joint.kept(&tile) {
                    let values = &buffers.tile[range];
                    quantize(values, &mut buffers.pixels[start..start + values.len()]);
                    if let Some(whole) = &mut whole {
                        whole[start..start + values.len()].copy_from_slice(values);
                    }
                }
                let (done, of) = (index * grid.count() + done + 1, batch * grid.count());
                self.progress(Phase::Decode, done as u32, of as u32);
            }
            if let Some(whole) = whole {
                self.dump.append_nhwc("vae.out", self.layout.picture, &whole);
            }
            let pixels = &self.buffers.pixels;
            self.dump.append_pixels("image_u8", &self.layout.picture, pixels);
            self.observer.picture(Picture {
                index: index as u32,
                seed: image_seed(self.job.seed, index),
                width: width as u32,
                height: height as u32,
                pixels,
            })?;
        }
        Ok(())
    }

    /// Decodes a tile of a picture of the batch, and blends it.
    fn decode_tile(&mut self, index: usize, joint: &Joint<'_>, tile: &Tile) -> Result<(), Failure> {
        let (shape, range) = (self.latent_shape(), self.vae_range());
        let item = self.layout.vae_latents.iter().product::<usize>();
        let JobBuffers { latents, vae_latents, tile: values, above, left, .. } = &mut self.buffers;
        let cells = &mut vae_latents[..tile.y.len * tile.x.len * shape.channels];
        unpack_for_vae(shape, [tile.y, tile.x], &latents[index * item..][..item], range, cells);
        let component = self.runtime.variant("vae", tile.variant);
        component.write("latents", 0, cells)?;
        component.run(self.cancel)?;
        let values = &mut values[..joint.len(tile)];
        component.read("image", values)?;
        let with_lora = !self.runtime.plan.options.loras.is_empty();
        finite::check(values, "vae", None, with_lora)?;
        joint.blend(tile, values, &mut Seams { above, left });
        Ok(())
    }

    fn dump_vae_input(&mut self, index: usize) {
        if !self.dump.is_wanted() {
            return;
        }
        let (shape, range) = (self.latent_shape(), self.vae_range());
        let JobBuffers { latents, vae_latents, .. } = &mut self.buffers;
        let latents = &latents[index * vae_latents.len()..][..vae_latents.len()];
        unpack_for_vae(shape, shape.whole(), latents, range, vae_latents);
        self.dump.append_nhwc("vae.in", self.layout.vae_latents, vae_latents);
    }
}
