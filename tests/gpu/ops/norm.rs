//! Normalisations of rows.

use executor::backend::cuda::ops::elementwise::{ChunksAt, TokenShape};
use executor::backend::cuda::ops::norm::{self, ShiftAndScale};
use executor::backend::kernels::{self, Modulation};
use protocol::StorageType;

use super::bench::{Bench, Random, Stored, assert_close};
use super::elements::run_in_all;

const EPS: f32 = 1e-5;

/// Sums in f32 in place of f64, of numbers whose mean is ten times their deviation.
const TOLERANCE: f64 = 5e-6;

/// Rows of a warp, of a block, and longer than a block keeps; the last in as few numbers as show
/// it.
const SIZES: [(usize, usize); 9] =
    [(1, 1), (3, 17), (40, 300), (9, 512), (7, 516), (3, 3072), (2, 4101), (1, 16384), (1, 17001)];

const STORAGES: [StorageType; 5] = [
    StorageType::F32,
    StorageType::F16,
    StorageType::BF16,
    StorageType::F8E4M3,
    StorageType::F8E5M2,
];

#[test]
#[ignore = "needs a GPU or the simulator"]
fn layer_norms() {
    let bench = Bench::new();
    let mut random = Random::new(1);
    for (index, (rows, features)) in SIZES.into_iter().enumerate() {
        let [one, other] = [STORAGES[index % 5], STORAGES[index / 2 % 5]];
        let weight = Stored::random(&mut random, one, &[features]);
        let bias = Stored::random(&mut random, other, &[features]);
        let x = random.far_from_zero(rows * features);
        let (_weight, weight_at) = bench.stored(&weight);
        let (_bias, bias_at) = bench.stored(&bias);
        let found = run_in_all(&bench, &x, |on, out, x| {
            norm::layer_norm(on, out, x, [rows, features], EPS, [weight_at, bias_at])
        });
        let mut expected = x.clone();
        let affine = Some((weight.view(), bias.view()));
        kernels::layer_norm(&bench.workers, &mut expected, features, EPS, affine);
        assert_close(&found, &expected, TOLERANCE, &format!("{rows} × {features}, {one} {other}"));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn modulated_layer_norms() {
    let bench = Bench::new();
    let mut random = Random::new(3);
    for (batch, tokens, features, chunks) in
        [(2, 9, 111, 6), (1, 5, 512, 3), (2, 3, 3072, 2), (1, 2, 17_001, 2)]
    {
        let x = random.far_from_zero(batch * tokens * features);
        let values = random.normals(batch * chunks * features);
        let at = bench.floats(&values);
        let shape = TokenShape { batch, tokens, features };
        let modulation = ChunksAt { address: at.address(), chunks };
        let by = ShiftAndScale { modulation, shift_chunk: 0, scale_chunk: chunks - 1 };
        let found =
            run_in_all(&bench, &x, |on, out, x| norm::ada_layer_norm(on, out, x, shape, by, EPS));
        let mut expected = x.clone();
        let modulation = Modulation { values: &values, batch, features };
        kernels::ada_layer_norm(&bench.workers, &mut expected, modulation, 0, chunks - 1, EPS);
        assert_close(&found, &expected, TOLERANCE, &format!("{shape:?}"));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn root_mean_squares() {
    let bench = Bench::new();
    let mut random = Random::new(2);
    for (rows, features) in SIZES.into_iter().chain([(100, 128)]) {
        for storage in STORAGES {
            let weight = Stored::random(&mut random, storage, &[features]);
            let x = random.normals(rows * features);
            let (_kept, weight_at) = bench.stored(&weight);
            let found = run_in_all(&bench, &x, |on, out, x| {
                norm::rms_norm(on, out, x, [rows, features], EPS, weight_at)
            });
            let mut expected = x.clone();
            kernels::rms_norm(&bench.workers, &mut expected, features, EPS, weight.view());
            assert_close(&found, &expected, 2e-6, &format!("{rows} × {features}, {storage}"));
        }
    }
}
