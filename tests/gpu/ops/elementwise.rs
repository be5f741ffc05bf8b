//! Operations on each element and on each row by its token.

use executor::backend::cuda::launch::{Address, Launcher};
use executor::backend::cuda::ops::ValueAt;
use executor::backend::cuda::ops::elementwise::{self, ChunksAt, ScaledPart, TokenShape};
use executor::backend::kernels::{self, Modulation};
use executor::graph::Activation;

use super::bench::{Bench, Random, assert_close, assert_same};
use super::elements::run_in_all;

/// Two roundings where the host has one, or other last places of an exponential.
const TOLERANCE: f64 = 1e-6;

#[test]
#[ignore = "needs a GPU or the simulator"]
fn sums_and_products() {
    let bench = Bench::new();
    let mut random = Random::new(1);
    for elements in [1, 3, 4, 1027, 70_001] {
        let (x, y) = (random.normals(elements), random.normals(elements));
        let other = bench.floats(&y);
        let found = bench.run_both_ways(&x, |on, out, x| {
            elementwise::add(on, out, [x, other.address()], elements)
        });
        let mut expected = x.clone();
        kernels::add(&bench.workers, &mut expected, &y);
        assert_same(&found, &expected, "sum");
        let found = bench.run_both_ways(&x, |on, out, x| {
            elementwise::mul(on, out, [x, other.address()], elements)
        });
        let mut expected = x.clone();
        kernels::mul(&bench.workers, &mut expected, &y);
        assert_same(&found, &expected, "product");
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn activations() {
    let bench = Bench::new();
    use Activation::{GeluErf, GeluTanh, QuickGelu, Silu};
    for activation in [Silu, GeluTanh, GeluErf, QuickGelu] {
        let mut x: Vec<f32> = Random::new(3).normals(5003).iter().map(|x| 4.0 * x).collect();
        x[..4].copy_from_slice(&[-1e4, 0.0, 1e4, f32::NAN]);
        let found = bench.run_both_ways(&x, |on, out, input| {
            elementwise::activate(on, out, input, x.len(), activation)
        });
        let mut expected = x.clone();
        kernels::activate(&bench.workers, &mut expected, activation);
        let name = format!("{activation:?}");
        assert!(found[0].abs() < 1e-30 && found[1] == 0.0 && found[2] == 1e4, "{name}");
        assert!(found[3].is_nan(), "{name}");
        assert_close(&found[4..], &expected[4..], TOLERANCE, &name);
        // In the tails, where they are small, each in proportion.
        for (&found, &expected) in found[4..].iter().zip(&expected[4..]) {
            let error = (found - expected).abs();
            assert!(error <= 4e-6 * expected.abs() + 1e-9, "{name}: {found}, not {expected}");
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn gated_sums() {
    let bench = Bench::new();
    let mut random = Random::new(2);
    for (batch, tokens, features, chunks) in [(2, 70, 121, 3), (1, 9, 1, 1), (3, 5, 1536, 6)] {
        let elements = batch * tokens * features;
        let (x, y) = (random.normals(elements), random.normals(elements));
        let values = random.normals(batch * chunks * features);
        let (other, gates) = (bench.floats(&y), bench.floats(&values));
        let shape = TokenShape { batch, tokens, features };
        let at = ChunksAt { address: gates.address(), chunks };
        let chunk = chunks - 1;
        let found = bench.run_both_ways(&x, |on, out, x| {
            elementwise::gated_add(on, out, [x, other.address()], shape, at, chunk)
        });
        let mut expected = x.clone();
        let modulation = Modulation { values: &values, batch, features };
        kernels::gated_add(&bench.workers, &mut expected, &y, modulation, chunk);
        assert_close(&found, &expected, TOLERANCE, "gated");
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn scaled_sums() {
    let bench = Bench::new();
    let mut random = Random::new(6);
    let rows = 90;
    for (features, added) in [
        (1, 0..1),
        (121, 0..121),
        (121, 17..80),
        (300, 299..300),
        (128, 64..128),
        (1028, 4..12),
        (128, 3..68),
        (64, 4..7),
    ] {
        let (first, y_features) = (added.start, added.len());
        let (x, y) = (random.normals(rows * features), random.normals(rows * y_features));
        let other = bench.floats(&y);
        let part = ScaledPart { features, first_feature: first, y_features, scale: -0.75 };
        let found = bench.run_both_ways(&x, |on, out, x| {
            elementwise::scaled_add(on, out, [x, other.address()], rows, part)
        });
        let mut expected = x.clone();
        kernels::scaled_add(&bench.workers, &mut expected, features, added, &y, -0.75);
        assert_close(&found, &expected, TOLERANCE, &format!("{part:?}"));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn rotations() {
    let bench = Bench::new();
    let mut random = Random::new(4);
    for (batch, tokens, heads, dim) in [(2, 60, 3, 34), (1, 33, 4, 128), (2, 3, 1, 2)] {
        let features = heads * dim;
        let x = random.normals(batch * tokens * features);
        let angles = random.normals(tokens * dim / 2);
        let table: Vec<f32> = angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
        let rotations = bench.floats(&table);
        let shape = TokenShape { batch, tokens, features };
        let rope = |on: &Launcher<'_>, out: ValueAt, x: Address| {
            elementwise::rope(on, out, [x, rotations.address()], shape, heads)
        };
        let found = run_in_all(&bench, &x, rope);
        let mut expected = x.clone();
        kernels::rope(&bench.workers, &mut expected, &table, tokens, heads, dim);
        assert_close(&found, &expected, TOLERANCE, "rope");
        // More than f16 holds.
        let large: Vec<f32> = x.iter().map(|x| x * 1e5).collect();
        run_in_all(&bench, &large, rope);
    }
}
