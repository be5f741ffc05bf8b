//! Between pictures and latents: the two ways of a VAE, tile by tile, as diffusers'
//! image-to-image pipelines go in and all its pipelines go out; and the latents that a job starts
//! from.

use protocol::{Failure, Phase};

use super::RunningJob;
use super::finite;
use super::image::{Picture, normalize, quantize};
use super::latents::{
    LatentShape, Packing, draw, noise_tokens, pack, read_initial, unpack_for_vae,
};
use super::noise::CpuGenerator;
use super::tiles::{Seams, TileScale};
use crate::components::vae::job::{
    ABOVE, DECODER, ENCODER, LATENTS, LEFT, MOMENTS, PICTURE, PICTURE_CHANNELS, TILE, VaeJob,
    VaeRange,
};
use crate::components::vae::tiles::{Tile, TileGrid};
use crate::failure::bad_request;

/// A job's VAE, with the buffers for both ways.
pub struct PictureCodec {
    shape: LatentShape,
    /// The latents as noise is drawn for them.
    noise: LatentShape,
    /// Whether the noise of steps is drawn for tokens, as the first is for cells.
    steps_tokens: bool,
    range: VaeRange,
    /// Whether a picture's latents are drawn by their moments, and not just the means.
    draws: bool,
    /// Whether a picture without tiles is cut to the range of pixels.
    is_clamped: bool,
    /// Pixels along a cell of latents.
    scale: usize,
    grid: TileGrid,
    /// Latents of one picture as the VAE takes them: `[height, width, channels]`.
    vae_latents: Vec<f32>,
    tile: Vec<f32>,
    above: Vec<f32>,
    left: Vec<f32>,
    /// `[height, width, 2 × channels]`; empty without a picture to start from.
    moments: Vec<f32>,
    /// One picture: `[height, width, 3]`.
    pixels: Vec<u8>,
}

impl PictureCodec {
    /// Takes the VAE's buffers, for latents that its family packs so.
    pub fn take(
        vae: &impl VaeJob,
        packing: Packing,
        running: &mut RunningJob<'_>,
    ) -> Result<PictureCodec, Failure> {
        let plan = &running.runtime.plan;
        let [height, width] = vae.latent_size(&plan.job);
        let grid = vae.tiles(&plan.job, &plan.options)?;
        let buffers = &mut running.buffers;
        let shape = LatentShape { height, width, channels: vae.latent_channels(), packing };
        Ok(PictureCodec {
            shape,
            noise: shape,
            steps_tokens: false,
            range: vae.range(),
            draws: true,
            is_clamped: vae.is_clamped() && grid.count() == 1,
            scale: vae.scale(),
            grid,
            vae_latents: buffers.take(LATENTS),
            tile: buffers.take(TILE),
            above: buffers.take(ABOVE),
            left: buffers.take(LEFT),
            moments: buffers.take(MOMENTS),
            pixels: buffers.take_pixels(PICTURE),
        })
    }

    /// The same where the sampler's latents are tokens from the first on: noise is drawn for them
    /// as cells, the VAE's range is of their features, and a picture to start from gives its means.
    pub fn of_tokens(self, range: VaeRange) -> PictureCodec {
        PictureCodec { noise: self.shape.of_tokens(), range, draws: false, ..self }
    }

    /// The same where the family's pipeline packs latents before its first step, and draws the
    /// noise of steps for tokens.
    pub fn stepping_tokens(self) -> PictureCodec {
        PictureCodec { steps_tokens: true, ..self }
    }

    /// The shape of one picture's latents.
    pub fn shape(&self) -> LatentShape {
        self.shape
    }

    /// Height, width and channels of a picture.
    fn picture(&self) -> [usize; 3] {
        [self.shape.height * self.scale, self.shape.width * self.scale, PICTURE_CHANNELS]
    }

    /// The given picture into moments.
    pub fn encode(&mut self, running: &mut RunningJob<'_>) -> Result<(), Failure> {
        let [height, width, channels] = self.picture();
        let job = running.job;
        let source = match &job.init_image {
            Some(picture) if picture.len() == self.pixels.len() => picture,
            _ => {
                return Err(bad_request(format!(
                    "the job needs a picture of {width}x{height} to start from"
                )));
            }
        };
        let LatentShape { height, width, channels: latent_channels, .. } = self.shape;
        let moments_shape = [height, width, 2 * latent_channels];
        let pixels = TileScale { grid: &self.grid, scale: self.scale, channels };
        let moments = TileScale { grid: &self.grid, scale: 1, channels: 2 * latent_channels };
        for (done, tile) in self.grid.tiles().enumerate() {
            let row_len = pixels.row_len(&tile);
            let values = &mut self.tile[..pixels.len(&tile)];
            for (row, values) in values.chunks_exact_mut(row_len).enumerate() {
                let start = pixels.start(&tile, row);
                normalize(&source[start..start + row_len], values);
            }
            let component = running.runtime.variant(ENCODER, tile.variant);
            component.write("image", 0, values)?;
            component.run(running.cancel)?;
            let values = &mut self.tile[..moments.len(&tile)];
            component.read("moments", values)?;
            running.check_finite(ENCODER, values, None)?;
            let (above, left) = (&mut self.above, &mut self.left);
            moments.blend(&tile, values, &mut Seams { above, left });
            for (range, start) in moments.kept(&tile) {
                self.moments[start..start + range.len()].copy_from_slice(&values[range]);
            }
            running.progress(Phase::Encode, done as u32 + 1, self.grid.count() as u32);
        }
        running.dump.append_nhwc("vae_encoder.moments", moments_shape, &self.moments);
        Ok(())
    }

    /// Packed latents of the batch before the first step: noise, or the given picture at that
    /// step's noise level `sigma`, or those of a file. The pictures' generators are given back as
    /// they are then.
    pub(super) fn initial_latents(
        &mut self,
        running: &mut RunningJob<'_>,
        sigma: f32,
        latents: &mut [f32],
    ) -> Result<Vec<CpuGenerator>, Failure> {
        let (shape, of_noise, item) = (self.shape, self.noise, self.shape.elements());
        let batch = latents.len() / item;
        let job = running.job;
        let mut generators: Vec<_> =
            job.items.iter().map(|item| CpuGenerator::new(item.seed)).collect();
        if let Some(path) = &job.init_latents {
            read_initial(path.as_ref(), of_noise, batch, latents).map_err(bad_request)?;
            if !finite::all_finite(latents) {
                return Err(bad_request(format!(
                    "{path} holds latents that are infinite or no numbers; hint: make them anew"
                )));
            }
        } else {
            let from_picture = job.init_image.is_some();
            // The decoder's buffer has this size, and is not in use before the last phase.
            let noise = &mut self.vae_latents;
            let pictures = latents.chunks_exact_mut(item).zip(&mut generators);
            for (latents, generator) in pictures {
                if from_picture {
                    match self.draws {
                        true => generator.standard_normal(noise),
                        false => noise.fill(0.0),
                    }
                    draw(shape, &self.moments, noise, &self.range, latents);
                }
                generator.standard_normal(noise);
                let nchw = [of_noise.channels, of_noise.height, of_noise.width];
                running.dump.append("noise_nchw", &nchw, noise);
                match from_picture {
                    true => noise_tokens(of_noise, noise, sigma, latents),
                    false => pack(of_noise, noise, latents),
                }
            }
        }
        running.dump.floats("latents_init", &shape.packed_batch(batch), latents);
        Ok(generators)
    }

    /// Draws the fresh noise of a step for one picture's tokens, as the family's pipeline does.
    pub(super) fn draw_noise(&mut self, generator: &mut CpuGenerator, tokens: &mut [f32]) {
        if self.steps_tokens {
            generator.standard_normal(tokens);
        } else {
            // As for the first latents, the decoder's buffer is not in use yet.
            generator.standard_normal(&mut self.vae_latents);
            pack(self.noise, &self.vae_latents, tokens);
        }
    }

    /// The batch's packed latents into pictures, each handed over when it is whole.
    pub fn decode(&mut self, running: &mut RunningJob<'_>, latents: &[f32]) -> Result<(), Failure> {
        let [height, width, channels] = self.picture();
        let item = self.shape.elements();
        let batch = latents.len() / item;
        for (index, latents) in latents.chunks_exact(item).enumerate() {
            self.dump_input(running, latents);
            let mut whole = running.dump.is_wanted().then(|| vec![0.0; height * width * channels]);
            let tiles = self.grid.count();
            for done in 0..tiles {
                let tile = self.grid.tile(done);
                self.decode_tile(running, latents, &tile)?;
                let joint = TileScale { grid: &self.grid, scale: self.scale, channels };
                for (range, start) in joint.kept(&tile) {
                    let values = &self.tile[range];
                    quantize(values, &mut self.pixels[start..start + values.len()]);
                    if let Some(whole) = &mut whole {
                        whole[start..start + values.len()].copy_from_slice(values);
                    }
                }
                let (done, of) = (index * tiles + done + 1, batch * tiles);
                running.progress(Phase::Decode, done as u32, of as u32);
            }
            if let Some(whole) = whole {
                running.dump.append_nhwc("vae.out", self.picture(), &whole);
            }
            running.dump.append_pixels("image_u8", &self.picture(), &self.pixels);
            running.picture(Picture {
                index: index as u32,
                seed: running.job.items[index].seed,
                width: width as u32,
                height: height as u32,
                pixels: &self.pixels,
            })?;
        }
        Ok(())
    }

    /// Decodes a tile of one picture's latents, and blends it.
    fn decode_tile(
        &mut self,
        running: &RunningJob<'_>,
        latents: &[f32],
        tile: &Tile,
    ) -> Result<(), Failure> {
        let cells = &mut self.vae_latents[..tile.y.len * tile.x.len * self.shape.channels];
        unpack_for_vae(self.shape, [tile.y, tile.x], latents, &self.range, cells);
        let component = running.runtime.variant(DECODER, tile.variant);
        component.write("latents", 0, cells)?;
        component.run(running.cancel)?;
        let joint = TileScale { grid: &self.grid, scale: self.scale, channels: PICTURE_CHANNELS };
        let values = &mut self.tile[..joint.len(tile)];
        component.read("image", values)?;
        running.check_finite(DECODER, values, None)?;
        if self.is_clamped {
            values.iter_mut().for_each(|value| *value = value.clamp(-1.0, 1.0));
        }
        let (above, left) = (&mut self.above, &mut self.left);
        joint.blend(tile, values, &mut Seams { above, left });
        Ok(())
    }

    fn dump_input(&mut self, running: &mut RunningJob<'_>, latents: &[f32]) {
        if !running.dump.is_wanted() {
            return;
        }
        let shape = self.shape;
        unpack_for_vae(shape, shape.whole(), latents, &self.range, &mut self.vae_latents);
        let nhwc = [shape.height, shape.width, shape.channels];
        running.dump.append_nhwc("vae.in", nhwc, &self.vae_latents);
    }
}
