//! Lookups in stored tables, sequences joined and cut, sinusoids.

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::ops::elementwise::TokenShape;
use executor::backend::cuda::ops::{ValueAt, tokens};
use executor::backend::kernels;
use executor::graph::ElementType;
use protocol::StorageType;

use super::bench::{Bench, Random, Stored, assert_close, assert_same};
use super::elements::{assert_rounded, run_short, shorts, words};

/// Every type with a row of whole blocks, and those without blocks also with odd ones.
fn tables() -> impl Iterator<Item = (StorageType, usize)> {
    StorageType::ALL.into_iter().flat_map(|storage| {
        let odd: &[usize] = if storage.is_blocks() { &[] } else { &[1, 33, 76] };
        let whole = [storage.block_elements() as usize * 2, 512];
        odd.iter().copied().chain(whole).map(move |features| (storage, features))
    })
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn embeddings() {
    let bench = Bench::new();
    let mut random = Random::new(1);
    for (storage, features) in tables() {
        let table = Stored::random(&mut random, storage, &[50, features]);
        let (_kept, weight) = bench.stored(&table);
        let ids = [49, 0, 7, 7, 23];
        let id_bytes: Vec<u8> = ids.iter().flat_map(|id: &i32| id.to_le_bytes()).collect();
        let (ids_at, out) = (bench.bytes(&id_bytes), bench.room(ids.len() * features));
        let found = bench.run(&out, |on| {
            tokens::embedding(on, out.address(), ids_at.address(), weight, ids.len(), features)
        });
        let mut expected = vec![0.0; ids.len() * features];
        kernels::embedding(&bench.workers, &ids, table.view(), &mut expected);
        assert_same(&found, &expected, &format!("{storage} {features}"));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn positions() {
    let bench = Bench::new();
    let mut random = Random::new(5);
    let (batch, tokens) = (2, 7);
    for (storage, features) in tables() {
        let table = Stored::random(&mut random, storage, &[9, features]);
        let (_kept, weight) = bench.stored(&table);
        let x = random.normals(batch * tokens * features);
        let shape = TokenShape { batch, tokens, features };
        let found =
            bench.run_both_ways(&x, |on, out, x| tokens::add_positions(on, out, x, shape, weight));
        let mut expected = x.clone();
        kernels::add_rows(&bench.workers, &mut expected, tokens, features, table.view());
        assert_same(&found, &expected, &format!("{storage} {features}"));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn biases_by_distance() {
    let bench = Bench::new();
    let mut random = Random::new(7);
    for storage in [StorageType::F32, StorageType::BF16, StorageType::Q8_0] {
        for (tokens, buckets, max_distance) in [(1, 32, 128), (77, 32, 128), (300, 16, 64)] {
            let heads = 32;
            let table = Stored::random(&mut random, storage, &[buckets, heads]);
            let (_kept, weight) = bench.stored(&table);
            let out = bench.room(heads * (2 * tokens - 1));
            let shape = [buckets, heads];
            let found = bench.run(&out, |on| {
                let out = out.address();
                tokens::relative_position_bias(on, out, weight, shape, tokens, max_distance)
            });
            let mut expected = vec![0.0; found.len()];
            let view = table.view();
            kernels::relative_position_bias(tokens, buckets, max_distance, view, &mut expected);
            assert_same(&found, &expected, &format!("{storage} {tokens}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn joined_and_cut() {
    let bench = Bench::new();
    let mut random = Random::new(2);
    // Spans in pieces of 16 bytes, of 4 and, of 16 bits, of 2, also where their beginnings alone
    // demand the smaller ones.
    for (batch, a_tokens, b_tokens, features) in
        [(1, 1, 1, 1), (2, 3, 5, 7), (3, 90, 70, 130), (2, 20, 30, 64), (2, 3, 8, 6), (2, 1, 16, 9)]
    {
        let a = random.normals(batch * a_tokens * features);
        let b = random.normals(batch * b_tokens * features);
        let (a_at, b_at, out) = (bench.floats(&a), bench.floats(&b), bench.room(a.len() + b.len()));
        let f32_at =
            |buffer: &Buffer| ValueAt { address: buffer.address(), element: ElementType::F32 };
        let counts = [a_tokens, b_tokens];
        let joined = bench.run(&out, |on| {
            let inputs = [a_at.address(), b_at.address()];
            tokens::concat_tokens(on, f32_at(&out), inputs, counts, batch, features)
        });
        let mut expected = vec![0.0; joined.len()];
        kernels::concat_tokens(&bench.workers, &a, &b, batch, features, &mut expected);
        assert_same(&joined, &expected, "joined");
        let shape = TokenShape { batch, tokens: a_tokens + b_tokens, features };
        let cut = bench.run(&b_at, |on| {
            tokens::slice_tokens(on, f32_at(&b_at), out.address(), shape, a_tokens, b_tokens)
        });
        assert_same(&cut, &b, "cut");
        for element in [ElementType::F16, ElementType::BF16] {
            let [a_at, b_at] = [&a, &b].map(|x| shorts(&bench, &words(x, element)));
            let joined = run_short(&bench, expected.len(), element, |on, out| {
                let inputs = [a_at.address(), b_at.address()];
                tokens::concat_tokens(on, out, inputs, counts, batch, features)
            });
            assert_rounded(&joined, &expected, element, "joined");
            let whole = shorts(&bench, &joined);
            let cut = run_short(&bench, b.len(), element, |on, out| {
                tokens::slice_tokens(on, out, whole.address(), shape, a_tokens, b_tokens)
            });
            assert_rounded(&cut, &b, element, "cut");
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn sinusoids() {
    let bench = Bench::new();
    let times = [0.0, 1000.0, 0.25, 713.5, -3.0];
    let at = bench.floats(&times);
    for (features, scale) in [(2, 1.0), (4, 1.0), (256, 1000.0), (322, 1.0)] {
        let out = bench.room(times.len() * features);
        let found = bench.run(&out, |on| {
            tokens::sinusoid(on, out.address(), at.address(), scale, [times.len(), features])
        });
        let mut expected = vec![0.0; found.len()];
        kernels::sinusoid(&times, scale, features, &mut expected);
        // Another mathematical library's last place.
        assert_close(&found, &expected, 2e-7, "sinusoid");
    }
}
