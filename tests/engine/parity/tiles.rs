//! The VAE tile by tile, joined as a job joins them, from golden latents and pictures.

use executor::components::vae::tiles::{Tile, TileGrid, TileLayout};
use executor::pipeline::tiles::{Seams, TileScale};
use protocol::plan::VaeTile;

use crate::parity::compare::{DECODER, ENCODER, assert_close, deviation};
use crate::parity::golden::Golden;
use crate::parity::stages::{Opened, compute, float_bytes, transposed};

/// The whole of what is made tile by tile, `[rows, columns, channels]`; seams start as what they
/// must not be read as.
pub fn joined(
    grid: &TileGrid,
    scale: usize,
    channels: usize,
    make: impl Fn(&Tile) -> Vec<f32>,
) -> Vec<f32> {
    let joint = TileScale { grid, scale, channels };
    let layout = TileLayout::new(grid, scale, channels);
    let (mut above, mut left) = (vec![f32::NAN; layout.above], vec![f32::NAN; layout.left]);
    let cells = grid.rows.side() * grid.columns.side();
    let mut whole = vec![f32::NAN; cells * scale * scale * channels];
    for tile in grid.tiles() {
        let mut values = make(&tile);
        let mut seams = Seams { above: &mut above, left: &mut left };
        joint.blend(&tile, &mut values, &mut seams);
        for (range, start) in joint.kept(&tile) {
            whole[start..start + range.len()].copy_from_slice(&values[range]);
        }
    }
    whole
}

#[test]
fn the_decoder_matches_in_tiles() {
    for name in ["flux_schnell", "flux_dev"] {
        let opened = Opened::new(Golden::fixture(name));
        let what = format!("{name} vae/decode_tiled");
        let tile = VaeTile { width: 64, height: 64, overlap: 0.25 };
        let grid = TileGrid::new([11, 14], Some(&tile), 8).expect("whole cells");
        let latents = opened.golden.others["z"].floats();
        let channels = latents.len() / (11 * 14);
        let picture = joined(&grid, 8, 3, |tile| {
            let of_channel = |channel: usize| {
                (tile.y.start..).take(tile.y.len).flat_map(move |y| {
                    let start = (channel * 11 + y) * 14 + tile.x.start;
                    latents[start..start + tile.x.len].iter().copied()
                })
            };
            let latents: Vec<f32> = (0..channels).flat_map(of_channel).collect();
            let decoded = opened.decoded(&what, &latents, tile.y.len, tile.x.len);
            transposed(&decoded, 3, decoded.len() / 3)
        });
        let picture = transposed(&picture, picture.len() / 3, 3);
        let golden = opened.golden.others["decode_tiled"].floats();
        assert_close(&what, &picture, golden, DECODER);
        // The whole decode is another picture: tiles normalise by themselves.
        let whole = deviation(&picture, opened.golden.others["decode"].floats());
        assert!(whole > 100.0 * DECODER, "{what} is {whole:.1e} off the whole decode only");
    }
}

#[test]
fn the_encoder_matches_from_a_golden_picture() {
    for name in ["flux_schnell", "flux_dev"] {
        let opened = Opened::new(Golden::fixture(name));
        let what = format!("{name} vae/encode");
        let picture = opened.golden.others["encode_in"].floats();
        let inputs = vec![("image", float_bytes(&transposed(picture, 3, picture.len() / 3)))];
        let files = opened.model.files("vae_encoder");
        let graph = opened.flux().vae().encoder(files, 6, 4).expect("a whole encoder");
        let moments = compute(&what, &graph, files, &inputs, true);
        let moments = transposed(&moments, 6 * 4, moments.len() / (6 * 4));
        let (mean, log_variance) = moments.split_at(moments.len() / 2);
        assert_close(&what, mean, opened.golden.others["encode_mean"].floats(), ENCODER);
        assert_close(&what, log_variance, opened.golden.others["encode_logvar"].floats(), ENCODER);
    }
}
