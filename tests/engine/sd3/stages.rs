//! The transformer and the VAE alone, from golden inputs.

use std::sync::Arc;

use executor::components::vae::tiles::TileGrid;
use executor::families::{self, sd3::Sd3};
use executor::models::Model;
use executor::weights::WeightFiles;
use protocol::plan::VaeTile;
use protocol::{GraphOptions, JobShape};

use super::golden::{Case, MODELS, cases, of_vae};
use crate::parity::compare::{DECODER, DENOISER, ENCODER, assert_close};
use crate::parity::golden::json;
use crate::parity::stages::{compute, float_bytes, transposed};
use crate::parity::tiles::joined;
use crate::support::fixture;

/// Cells along a patch, and the latents' channels.
const PATCH: usize = 2;
const CHANNELS: usize = 16;

fn open(model: &str) -> Arc<dyn Model> {
    families::open(&fixture(model)).expect("a whole model")
}

/// Latents `[channels, height, width]` as the convolution of patches takes them: `[tokens, channels
/// × patch × patch]`.
fn patches(nchw: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
    let mut packed = Vec::new();
    for token in 0..(height / PATCH) * (width / PATCH) {
        let (top, left) = (token / (width / PATCH) * PATCH, token % (width / PATCH) * PATCH);
        for channel in 0..CHANNELS {
            for (y, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                packed.push(nchw[(channel * height + top + y) * width + left + x]);
            }
        }
    }
    packed
}

/// The transformer's result `[tokens, patch × patch × channels]` as latents `[channels, height,
/// width]`.
fn unpatched(packed: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
    let mut nchw = vec![0.0; packed.len()];
    for (place, value) in packed.iter().enumerate() {
        let (token, feature) = (place / (4 * CHANNELS), place % (4 * CHANNELS));
        let (cell, channel) = (feature / CHANNELS, feature % CHANNELS);
        let y = token / (width / PATCH) * PATCH + cell / PATCH;
        let x = token % (width / PATCH) * PATCH + cell % PATCH;
        nchw[(channel * height + y) * width + x] = *value;
    }
    nchw
}

/// The middle of the table of positions, as many rows and columns as a picture has.
fn positions(model: &str, [height, width]: [usize; 2]) -> Vec<f32> {
    let part = fixture(model).join("transformer");
    let side = json(&part.join("config.json"))["pos_embed_max_size"].as_u64().expect("a size");
    let side = side as usize;
    let weights = part.join("diffusion_pytorch_model.safetensors");
    let files = WeightFiles::open_file(&weights).expect("weights");
    let name = "pos_embed.pos_embed";
    let shape = files.tensor(name).expect("a table").shape.to_vec();
    let table = files.require(name, &shape).expect("a table").view(&files).to_f32();
    let hidden = table.len() / (side * side);
    let (rows, columns) = (height / PATCH, width / PATCH);
    let (top, left) = ((side - rows) / 2, (side - columns) / 2);
    let row = |row: usize| {
        let start = ((top + row) * side + left) * hidden;
        &table[start..start + columns * hidden]
    };
    (0..rows).flat_map(row).copied().collect()
}

/// The first call of the transformer for each half of the pipeline's batch.
fn first_call(case: &Case) {
    let model = open(case.model);
    let [width, height] = ["width", "height"].map(|side| case.number(side) as u32);
    let max_sequence_length = case.number("max_sequence_length") as u32;
    let job = JobShape { width, height, max_sequence_length, ..JobShape::small() };
    let graphs = model.graphs(&job, &GraphOptions::default()).expect("a possible job");
    let dit = graphs.into_iter().find(|part| part.name == "dit").expect("a transformer");
    let items = if case.guidance() > 1.0 { 2 } else { 1 };
    let input = |name: &str| case.tensors[&format!("transformer.call0.in.{name}")].floats();
    let golden = case.tensors["transformer.call0.out"].floats();
    for item in 0..items {
        let of = |values: &[f32]| {
            let count = values.len() / items;
            float_bytes(&values[item * count..(item + 1) * count])
        };
        let inputs = vec![
            ("latents", float_bytes(&patches(case.tensors["noise_nchw"].floats(), case.cells()))),
            ("positions", float_bytes(&positions(case.model, case.cells()))),
            ("encoder_hidden_states", of(input("encoder_hidden_states"))),
            ("pooled", of(input("pooled_projections"))),
            ("timestep", of(input("timestep"))),
        ];
        let what = format!("{} {} item {item}", case.model, case.name);
        let velocity = compute(&what, &dit.variants[0], model.files("dit"), &inputs, true);
        let velocity = unpatched(&velocity, case.cells());
        let golden = &golden[item * velocity.len()..(item + 1) * velocity.len()];
        assert_close(&what, &velocity, golden, DENOISER);
    }
}

#[test]
fn the_transformer_matches_from_golden_inputs() {
    MODELS.into_iter().flat_map(cases).for_each(|case| first_call(&case));
}

/// Decodes latents `[channels, height, width]` to a picture `[3, height, width]`.
fn decoded(model: &Arc<dyn Model>, latents: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
    let own: Arc<Sd3> = Arc::clone(model).downcast();
    let files = model.files("vae");
    let graph = own.vae().decoder(files, height, width).expect("a whole decoder");
    let nhwc = transposed(latents, CHANNELS, height * width);
    let inputs = vec![("latents", float_bytes(&nhwc))];
    let picture = compute("the decoder", &graph, files, &inputs, true);
    transposed(&picture, picture.len() / 3, 3)
}

#[test]
fn the_vae_matches_in_both_ways_and_in_tiles() {
    for name in MODELS {
        let (model, golden) = (open(name), of_vae(name));
        let latents = golden["z"].floats();
        let whole = decoded(&model, latents, [11, 14]);
        assert_close(name, &whole, golden["decode"].floats(), DECODER);

        let tile = VaeTile { width: 64, height: 64, overlap: 0.25 };
        let grid = TileGrid::new([11, 14], Some(&tile), 8).expect("whole cells");
        let picture = joined(&grid, 8, 3, |tile| {
            let of_channel = |channel: usize| {
                (tile.y.start..).take(tile.y.len).flat_map(move |y| {
                    let start = (channel * 11 + y) * 14 + tile.x.start;
                    latents[start..start + tile.x.len].iter().copied()
                })
            };
            let latents: Vec<f32> = (0..CHANNELS).flat_map(of_channel).collect();
            let decoded = decoded(&model, &latents, [tile.y.len, tile.x.len]);
            transposed(&decoded, 3, decoded.len() / 3)
        });
        let picture = transposed(&picture, picture.len() / 3, 3);
        assert_close(name, &picture, golden["decode_tiled"].floats(), DECODER);

        let own: Arc<Sd3> = Arc::clone(&model).downcast();
        let picture = golden["encode_in"].floats();
        let inputs = vec![("image", float_bytes(&transposed(picture, 3, picture.len() / 3)))];
        let files = model.files("vae_encoder");
        let graph = own.vae().encoder(files, 6, 4).expect("a whole encoder");
        let moments = compute(name, &graph, files, &inputs, true);
        let moments = transposed(&moments, 6 * 4, moments.len() / (6 * 4));
        let (mean, log_variance) = moments.split_at(moments.len() / 2);
        assert_close(name, mean, golden["encode_mean"].floats(), ENCODER);
        assert_close(name, log_variance, golden["encode_logvar"].floats(), ENCODER);
    }
}
