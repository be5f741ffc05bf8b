//! One component at a time, from golden inputs, at every kind of place where it can compute.

use std::sync::Arc;

use executor::components::vae::job::VaeJob;
use executor::components::vae::tiles::TileGrid;
use executor::families::{self, qwen_image::QwenImage};
use executor::models::Model;
use protocol::plan::VaeTile;

use super::golden::{cases, stored};
use crate::parity::compare::{DECODER, DENOISER, ENCODER, TEXT, assert_close, deviation};
use crate::parity::stages::{compute, float_bytes, transposed};
use crate::parity::tiles::joined;
use crate::support::fixture;

/// Tokens that texts are filled up to here, and how many the reference model's heads have.
const FILLED: usize = 64;
const HEAD_DIM: usize = 32;

fn model() -> Arc<QwenImage> {
    families::open(&fixture("qwen_image")).expect("a whole model").downcast()
}

fn id_bytes(ids: impl IntoIterator<Item = i64>) -> Vec<u8> {
    ids.into_iter().flat_map(|id| (id as i32).to_ne_bytes()).collect()
}

#[test]
fn the_text_encoder_matches_before_and_behind_its_last_layer() {
    let model = model();
    let (config, files) = (model.llm(), model.files("llm"));
    let mut compared = 0;
    for case in cases() {
        for (call, prompt) in ["c", "u"].into_iter().enumerate() {
            let Some(ids) = case.tensors.get(&format!("text_encoder.{prompt}.input_ids")) else {
                continue;
            };
            let tokens = ids.ids().len();
            let mut rope = vec![0.0; tokens * config.head_dim()];
            config.rotary_table(&mut rope);
            let inputs = vec![
                ("input_ids", id_bytes(ids.ids().iter().copied())),
                ("rope", float_bytes(&rope)),
            ];
            let what = format!("{} {prompt}", case.name);
            let before = config.num_hidden_layers - 1;
            let graph = config.graph(files, tokens, before).expect("a whole encoder");
            let hidden = compute(&what, &graph, files, &inputs, true);
            let golden = &case.tensors[&format!("text_encoder.{prompt}.hidden_states.m2")];
            assert_close(&what, &hidden, golden.floats(), TEXT);
            let graph = config.graph(files, tokens, before + 1).expect("a whole encoder");
            let hidden = compute(&what, &graph, files, &inputs, true);
            // What the DiT gets is behind the template's tokens.
            let name = format!("transformer.call{call}.in.encoder_hidden_states");
            let Some(golden) = case.tensors.get(&name) else { continue };
            let dropped = hidden.len() - golden.floats().len();
            assert_eq!(dropped, 34 * config.hidden_size, "{what}");
            assert_close(&what, &hidden[dropped..], golden.floats(), TEXT);
            compared += 1;
        }
    }
    assert!(compared >= 4, "{compared} texts compared");
}

#[test]
fn the_dit_matches_from_golden_inputs_however_its_text_is_filled_up() {
    let model = model();
    let (config, files) = (model.dit(), model.files("dit"));
    for case in cases() {
        let image = case.tensors["latents_init"].floats().len() / config.in_channels;
        let cells = ["height", "width"].map(|side| case.number(side) as usize / 16);
        for call in 0..2 {
            let name = format!("transformer.call{call}.in.encoder_hidden_states");
            // The second call is the negative prompt's, where there is one.
            let Some(text) = case.tensors.get(&name).filter(|_| case.guidance() > 1.0) else {
                continue;
            };
            let length = text.floats().len() / config.joint_attention_dim;
            let golden = case.tensors[&format!("transformer.call{call}.out")].floats();
            for filled in [length, FILLED] {
                let what = format!("{} call{call} filled up to {filled}", case.name);
                // What fills the text up must be seen nowhere.
                let mut hidden = text.floats().to_vec();
                hidden.resize(filled * config.joint_attention_dim, 7.5);
                let mut rope = vec![0.0; (image + filled) * HEAD_DIM];
                config.rotary_table(&mut rope, cells);
                let inputs = vec![
                    ("latents", float_bytes(case.tensors["latents_init"].floats())),
                    ("text", float_bytes(&hidden)),
                    ("known_tokens", id_bytes([(image + length) as i64])),
                    ("timestep", float_bytes(&[case.tensors["timesteps"].floats()[0] / 1000.0])),
                    ("rope", float_bytes(&rope)),
                ];
                let graph = config.graph(files, 1, filled, image).expect("a whole DiT");
                let velocity = compute(&what, &graph, files, &inputs, true);
                assert_close(&what, &velocity, golden, DENOISER);
            }
        }
    }
}

#[test]
fn positions_are_the_golden_ones() {
    let (model, stored) = (model(), stored());
    let golden =
        |part: usize| stored[&format!("p0_64x64/dbg.transformer.pos_embed.{part}")].floats();
    let expected = [golden(0), golden(1)].concat();
    let mut table = vec![0.0; expected.len()];
    model.dit().rotary_table(&mut table, [4, 4]);
    let off = deviation(&table, &expected);
    assert!(off <= 1e-6, "positions are {off:.1e} off");
}

/// Decodes latents `[channels, height, width]` to a picture `[3, height, width]`.
fn decoded(model: &QwenImage, what: &str, latents: &[f32], size: [usize; 2]) -> Vec<f32> {
    let ([height, width], files) = (size, model.files("vae"));
    let graph = model.vae().decoder(files, height, width).expect("a whole decoder");
    let nhwc = transposed(latents, latents.len() / (height * width), height * width);
    let picture = compute(what, &graph, files, &vec![("latents", float_bytes(&nhwc))], true);
    transposed(&picture, picture.len() / 3, 3)
}

#[test]
fn the_decoder_matches_whole_and_in_tiles() {
    let (model, stored) = (model(), stored());
    let z = stored["vae/z"].floats();
    let mut whole = decoded(&model, "whole", z, [11, 14]);
    assert!(whole.iter().any(|value| value.abs() > 1.0), "the reference is cut to pixels' range");
    whole.iter_mut().for_each(|value| *value = value.clamp(-1.0, 1.0));
    assert_close("vae/decode", &whole, stored["vae/decode"].floats(), DECODER);

    let tile = VaeTile { width: 64, height: 64, overlap: 0.25 };
    let grid = TileGrid::new([11, 14], Some(&tile), 8).expect("whole cells");
    let channels = z.len() / (11 * 14);
    let picture = joined(&grid, 8, 3, |tile| {
        let of_channel = |channel: usize| {
            (tile.y.start..).take(tile.y.len).flat_map(move |y| {
                let start = (channel * 11 + y) * 14 + tile.x.start;
                z[start..start + tile.x.len].iter().copied()
            })
        };
        let latents: Vec<f32> = (0..channels).flat_map(of_channel).collect();
        let decoded = decoded(&model, "a tile", &latents, [tile.y.len, tile.x.len]);
        transposed(&decoded, 3, decoded.len() / 3)
    });
    let picture = transposed(&picture, picture.len() / 3, 3);
    let golden = stored["vae/decode_tiled"].floats();
    assert!(golden.iter().any(|value| value.abs() > 1.0), "tiles are not cut");
    assert_close("vae/decode_tiled", &picture, golden, DECODER);
}

#[test]
fn the_encoder_matches_from_a_golden_picture() {
    let (model, stored) = (model(), stored());
    let picture = stored["vae/encode_in"].floats();
    let inputs = vec![("image", float_bytes(&transposed(picture, 3, picture.len() / 3)))];
    let files = model.files("vae_encoder");
    let graph = model.vae().encoder(files, 6, 4).expect("a whole encoder");
    let moments = compute("vae/encode", &graph, files, &inputs, true);
    let moments = transposed(&moments, 6 * 4, moments.len() / (6 * 4));
    let (mean, log_variance) = moments.split_at(moments.len() / 2);
    assert_close("mean", mean, stored["vae/encode_mean"].floats(), ENCODER);
    assert_close("logvar", log_variance, stored["vae/encode_logvar"].floats(), ENCODER);
}
