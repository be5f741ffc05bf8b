//! The VAE from golden latents and pictures: whole, and in tiles.

use std::sync::Arc;

use executor::components::vae::kl::VaeConfig;
use executor::components::vae::tiles::TileGrid;
use executor::families::{self, flux2::Flux2};
use executor::models::Model;
use protocol::plan::VaeTile;

use super::MODEL;
use super::golden::of_the_vae;
use crate::parity::compare::{DECODER, ENCODER, assert_close, deviation};
use crate::parity::stages::{compute, float_bytes, transposed};
use crate::parity::tiles::joined;
use crate::support::fixture;

/// Rows and columns of the golden latents.
const CELLS: [usize; 2] = [11, 14];

fn model() -> Arc<Flux2> {
    families::open(&fixture(MODEL)).expect("a whole model").downcast()
}

/// Decodes latents `[channels, height, width]` to a picture `[height, width, 3]`.
fn decoded(model: &Flux2, latents: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
    let (vae, files): (&VaeConfig, _) = (model.vae(), model.files("vae"));
    let graph = vae.decoder(files, height, width).expect("a whole decoder");
    let nhwc = transposed(latents, latents.len() / (height * width), height * width);
    compute("the decoder", &graph, files, &vec![("latents", float_bytes(&nhwc))], true)
}

#[test]
fn the_decoder_matches_whole_and_in_tiles() {
    let (model, golden) = (model(), of_the_vae());
    let latents = golden["z"].floats();
    let whole = decoded(&model, latents, CELLS);
    let whole = transposed(&whole, whole.len() / 3, 3);
    assert_close("vae/decode", &whole, golden["decode"].floats(), DECODER);

    let tile = VaeTile { width: 64, height: 64, overlap: 0.25 };
    let grid = TileGrid::new(CELLS, Some(&tile), 8).expect("whole cells");
    let [height, width] = CELLS;
    let picture = joined(&grid, 8, 3, |tile| {
        let of_channel = |channel: usize| {
            (tile.y.start..).take(tile.y.len).flat_map(move |y| {
                let start = (channel * height + y) * width + tile.x.start;
                latents[start..start + tile.x.len].iter().copied()
            })
        };
        let channels = latents.len() / (height * width);
        let latents: Vec<f32> = (0..channels).flat_map(of_channel).collect();
        decoded(&model, &latents, [tile.y.len, tile.x.len])
    });
    let picture = transposed(&picture, picture.len() / 3, 3);
    assert_close("vae/decode_tiled", &picture, golden["decode_tiled"].floats(), DECODER);
    assert!(deviation(&picture, &whole) > 100.0 * DECODER, "tiles normalise by themselves");
}

#[test]
fn the_encoder_matches_from_a_golden_picture() {
    let (model, golden) = (model(), of_the_vae());
    let picture = golden["encode_in"].floats();
    let inputs = vec![("image", float_bytes(&transposed(picture, 3, picture.len() / 3)))];
    let files = model.files("vae_encoder");
    let graph = model.vae().encoder(files, 6, 4).expect("a whole encoder");
    let moments = compute("the encoder", &graph, files, &inputs, true);
    let moments = transposed(&moments, 6 * 4, moments.len() / (6 * 4));
    let (mean, log_variance) = moments.split_at(moments.len() / 2);
    assert_close("vae/encode_mean", mean, golden["encode_mean"].floats(), ENCODER);
    assert_close("vae/encode_logvar", log_variance, golden["encode_logvar"].floats(), ENCODER);
}
