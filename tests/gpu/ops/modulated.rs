//! Normalisations whose weight is modulated, rotary positions of halves, and padding.

use executor::backend::cuda::launch::Address;
use executor::backend::cuda::ops::elementwise::{ChunksAt, TokenShape};
use executor::backend::cuda::ops::modulated_norm::{self, FactorsAt};
use executor::backend::cuda::ops::pad_tokens::{self, PaddedAt};
use executor::backend::cuda::ops::rope_halves;
use executor::backend::kernels::{self, Modulation};
use protocol::StorageType;

use super::bench::{Bench, Random, Stored, assert_close, assert_same};
use super::elements::run_in_all;

const EPS: f32 = 1e-5;

/// Sums in f32 in place of f64, and another mathematical library's tangent.
const TOLERANCE: f64 = 5e-6;

const STORAGES: [StorageType; 4] =
    [StorageType::F32, StorageType::F16, StorageType::BF16, StorageType::F8E4M3];

/// Batch, tokens, features and chunks: rows of a warp, of a block, and longer than a block keeps.
const SIZES: [[usize; 4]; 4] = [[2, 9, 111, 4], [1, 5, 512, 1], [2, 3, 3072, 4], [1, 2, 17_001, 2]];

#[test]
#[ignore = "needs a GPU or the simulator"]
fn scaled_norms() {
    let bench = Bench::new();
    let mut random = Random::new(5);
    for ([batch, tokens, features, chunks], storage) in SIZES.into_iter().zip(STORAGES) {
        let x = random.normals(batch * tokens * features);
        let values = random.normals(batch * chunks * features);
        let (at, chunk) = (bench.floats(&values), chunks - 1);
        let shape = TokenShape { batch, tokens, features };
        let modulation = Some((ChunksAt { address: at.address(), chunks }, chunk));
        let weight = Stored::random(&mut random, storage, &[features]);
        let (_kept, weight_at) = bench.stored(&weight);
        for weighted in [true, false] {
            let by = FactorsAt { weight: weighted.then_some(weight_at), modulation };
            let found = run_in_all(&bench, &x, |on, out, x| {
                modulated_norm::scaled_norm(on, out, x, shape, by, EPS)
            });
            let mut expected = x.clone();
            let scales = Modulation { values: &values, batch, features };
            let mut scratch = vec![f32::NAN; kernels::modulated_scratch_len(batch, features)];
            let view = weighted.then(|| weight.view());
            let workers = &bench.workers;
            kernels::scaled_norm(workers, &mut expected, view, scales, chunk, EPS, &mut scratch);
            assert_close(&found, &expected, TOLERANCE, &format!("{shape:?}, {weighted}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn gated_sums_of_norms() {
    let bench = Bench::new();
    let mut random = Random::new(6);
    for ([batch, tokens, features, chunks], storage) in SIZES.into_iter().zip(STORAGES) {
        let [x, y] = [0; 2].map(|_| random.normals(batch * tokens * features));
        let values = random.normals(batch * chunks * features);
        let (at, chunk, other) = (bench.floats(&values), chunks - 1, bench.floats(&y));
        let shape = TokenShape { batch, tokens, features };
        let weight = Stored::random(&mut random, storage, &[features]);
        let (_kept, weight_at) = bench.stored(&weight);
        for gated in [true, false] {
            let chunks = ChunksAt { address: at.address(), chunks };
            let modulation = gated.then_some((chunks, chunk));
            let by = FactorsAt { weight: Some(weight_at), modulation };
            let found = bench.run_both_ways(&x, |on, out, x| {
                modulated_norm::gated_norm_add(on, out, [x, other.address()], shape, by, EPS)
            });
            let mut expected = x.clone();
            let gates = Modulation { values: &values, batch, features };
            let mut scratch = vec![f32::NAN; kernels::modulated_scratch_len(batch, features)];
            let gate = gated.then_some((gates, chunk));
            let (workers, view) = (&bench.workers, weight.view());
            kernels::gated_norm_add(workers, &mut expected, &y, view, gate, EPS, &mut scratch);
            assert_close(&found, &expected, TOLERANCE, &format!("{shape:?}, {gated}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn rotations_of_halves() {
    let bench = Bench::new();
    let mut random = Random::new(7);
    for (batch, tokens, heads, dim) in [(2, 60, 3, 34), (1, 33, 4, 128), (2, 3, 1, 2)] {
        let features = heads * dim;
        let x = random.normals(batch * tokens * features);
        let angles = random.normals(tokens * dim / 2);
        let table: Vec<f32> = angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
        let rotations = bench.floats(&table);
        let shape = TokenShape { batch, tokens, features };
        let found = run_in_all(&bench, &x, |on, out, x| {
            rope_halves::rope_halves(on, out, [x, rotations.address()], shape, heads)
        });
        let mut expected = x.clone();
        kernels::rope_halves(&bench.workers, &mut expected, &table, tokens, heads, dim);
        assert_close(&found, &expected, 1e-6, "halves");
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn padded_sequences() {
    let bench = Bench::new();
    let mut random = Random::new(8);
    for (features, storage) in [(20, StorageType::BF16), (301, StorageType::F32)] {
        let (batch, from, to) = (2, 5, 9);
        let x = random.normals(batch * from * features);
        let padding = Stored::random(&mut random, storage, &[features]);
        let (_kept, padding_at) = bench.stored(&padding);
        let values = bench.floats(&x);
        for known in [None, Some(0), Some(3), Some(5)] {
            let count = bench.bytes(&(known.unwrap_or(0) as i32).to_le_bytes());
            let operands = PaddedAt {
                x: values.address(),
                tokens: from,
                known: known.map_or(Address::NONE, |_| count.address()),
                padding: padding_at,
            };
            let shape = TokenShape { batch, tokens: to, features };
            let out = bench.room(batch * to * features);
            let found =
                bench.run(&out, |on| pad_tokens::pad_tokens(on, out.address(), operands, shape));
            let mut expected = vec![f32::NAN; found.len()];
            let known = known.unwrap_or(from);
            let view = padding.view();
            kernels::pad_tokens(&bench.workers, &x, batch, known, view, &mut expected);
            assert_same(&found, &expected, &format!("{known} of {from}"));
        }
    }
}
