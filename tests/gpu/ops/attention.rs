//! Attention in f32 and on tensor cores.

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::driver::DriverError;
use executor::backend::cuda::launch::{Address, Launcher};
use executor::backend::cuda::ops::attention::{
    AttentionOperands, attention, attention_workspace_bytes, reads, takes_tall_blocks,
};
use executor::backend::cuda::ops::{Products, ValueAt};
use executor::backend::kernels::{self, AttentionShape};
use executor::graph::ElementType;

use super::bench::{Bench, Random, assert_close, assert_same};
use super::elements::{assert_rounded, run_short, shorts, words};

const BOTH: [Products; 2] = [Products::Exact, Products::Half];

/// Differences from the host, relative to the root mean square of the result.
///
/// In f32 both sum up to 512 products a score and some hundred keys a result, in other orders. On
/// tensor cores q, k, v and the weights are rounded to f16, each by up to 2⁻¹¹ of itself: a score
/// of about 1 is off by some 2⁻¹², and so is its weight; a result is a mean of values with errors
/// of that size, of which the largest of some thousand is seen. 5e-3 were seen.
fn tolerance(products: Products) -> f64 {
    match products {
        Products::Exact => 2e-5,
        Products::Half => 8e-3,
    }
}

const F32S: [ElementType; 3] = [ElementType::F32; 3];
const F16S: [ElementType; 3] = [ElementType::F16; 3];

struct Case {
    shape: AttentionShape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// Keys of each sequence that are seen, if not all.
    known: Option<usize>,
}

impl Case {
    fn random(shape: AttentionShape, biased: bool) -> Case {
        let features = shape.heads * shape.head_dim;
        let mut random = Random::new((shape.key_tokens * 7 + shape.head_dim) as u64);
        let q = random.normals(shape.batch * shape.query_tokens * features);
        let k = random.normals(shape.batch * shape.key_tokens * shape.kv_heads * shape.head_dim);
        let v = random.normals(k.len());
        let distances = shape.query_tokens + shape.key_tokens - 1;
        let bias = biased.then(|| random.normals(shape.heads * distances));
        Case { shape, q, k, v, bias, known: None }
    }

    fn on_host(&self, bench: &Bench) -> Vec<f32> {
        let Case { shape, q, k, v, bias, known } = self;
        let known = known.unwrap_or(shape.key_tokens);
        let shape = AttentionShape { query_chunk: 64, ..*shape };
        let mut out = vec![f32::NAN; q.len()];
        let mut scratch = vec![f32::NAN; kernels::attention_scratch_len(&shape, 1)];
        let bias = bias.as_deref();
        let workers = &bench.workers;
        kernels::masked_attention(workers, &shape, known, q, k, v, bias, &mut out, &mut scratch);
        out
    }

    fn on_gpu(&self, bench: &Bench, products: Products) -> Vec<f32> {
        self.on_gpu_from(bench, products, F32S)
    }

    /// With queries, keys and values of these elements.
    fn on_gpu_from(
        &self,
        bench: &Bench,
        products: Products,
        elements: [ElementType; 3],
    ) -> Vec<f32> {
        let out = bench.room(self.q.len());
        let result = ValueAt { address: out.address(), element: ElementType::F32 };
        bench.run(&out, |on| self.start(bench, on, products, elements, result))
    }

    /// The same with a result of bf16.
    fn in_bf16(&self, bench: &Bench, elements: [ElementType; 3]) -> Vec<u16> {
        run_short(bench, self.q.len(), ElementType::BF16, |on, out| {
            self.start(bench, on, Products::Half, elements, out)
        })
    }

    fn start(
        &self,
        bench: &Bench,
        on: &Launcher<'_>,
        products: Products,
        elements: [ElementType; 3],
        out: ValueAt,
    ) -> Result<(), DriverError> {
        let values = [&self.q, &self.k, &self.v];
        let qkv: [Buffer; 3] = std::array::from_fn(|index| match elements[index] {
            ElementType::F32 => bench.floats(values[index]),
            short => shorts(bench, &words(values[index], short)),
        });
        let bias = self.bias.as_ref().map(|bias| bench.floats(bias));
        let known = self.known.map(|known| bench.bytes(&(known as i32).to_le_bytes()));
        let bytes = attention_workspace_bytes(&self.shape, products, elements).as_usize();
        let workspace = bench.bytes(&vec![0xff; bytes.max(1)]);
        let operands = AttentionOperands {
            qkv: std::array::from_fn(|index| ValueAt {
                address: qkv[index].address(),
                element: elements[index],
            }),
            bias: bias.as_ref().map_or(AttentionOperands::NO_BIAS, |bias| bias.address()),
            known: known.as_ref().map_or(Address::NONE, |known| known.address()),
            out,
        };
        attention(on, &self.shape, products, operands, workspace.address())?;
        bench.stream.synchronize()
    }

    fn check(&self, bench: &Bench) {
        let expected = self.on_host(bench);
        for products in BOTH {
            let name = format!("{:?} {products:?}", self.shape);
            assert_close(&self.on_gpu(bench, products), &expected, tolerance(products), &name);
        }
    }
}

const SHAPE: AttentionShape = AttentionShape {
    batch: 1,
    query_tokens: 1,
    key_tokens: 1,
    heads: 1,
    kv_heads: 1,
    head_dim: 1,
    scale: 1.0,
    causal: false,
    rounds: false,
    query_chunk: 1,
};

fn of_heads(
    heads: usize,
    head_dim: usize,
    [query_tokens, key_tokens]: [usize; 2],
) -> AttentionShape {
    let scale = (head_dim as f32).powf(-0.5);
    AttentionShape { query_tokens, key_tokens, heads, kv_heads: heads, head_dim, scale, ..SHAPE }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn heads_of_all_widths() {
    let bench = Bench::new();
    Case::random(SHAPE, false).check(&bench);
    // Whole widths and odd ones, each with a ragged tile and a full one.
    for head_dim in [3, 8, 16, 20, 32, 61, 64, 72, 128, 200, 256, 300, 512] {
        Case::random(of_heads(1, head_dim, [64, 128]), false).check(&bench);
        Case::random(of_heads(2, head_dim, [33, 77]), false).check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn batches_and_heads_keep_apart() {
    let bench = Bench::new();
    for head_dim in [16, 64, 160] {
        let shape = AttentionShape { batch: 3, ..of_heads(5, head_dim, [70, 51]) };
        Case::random(shape, false).check(&bench);
        Case::random(shape, true).check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn heads_share_keys_and_values_in_groups() {
    let bench = Bench::new();
    for (heads, kv_heads, head_dim) in [(6, 2, 16), (4, 1, 128), (4, 2, 160), (6, 3, 40)] {
        let shape = of_heads(heads, head_dim, [70, 131]);
        let shape = AttentionShape { kv_heads, batch: 2, ..shape };
        let case = Case::random(shape, true);
        case.check(&bench);
        let causal = AttentionShape { query_tokens: 131, causal: true, ..shape };
        Case::random(causal, false).check(&bench);
        if reads(&shape, Products::Half) == ElementType::F16 {
            let packed = case.on_gpu(&bench, Products::Half);
            let direct = case.on_gpu_from(&bench, Products::Half, F16S);
            assert_same(&direct, &packed, "as they lie");
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn causal_queries_see_only_what_came_before() {
    let bench = Bench::new();
    for (head_dim, tokens) in [(64, 77), (16, 193), (512, 65), (40, 64)] {
        let shape = AttentionShape { causal: true, batch: 2, ..of_heads(2, head_dim, [tokens; 2]) };
        Case::random(shape, false).check(&bench);
        Case::random(shape, true).check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn keys_that_are_padding_are_seen_by_no_query() {
    let bench = Bench::new();
    let check = |shape: AttentionShape, known: usize| {
        let case = Case { known: Some(known), ..Case::random(shape, false) };
        case.check(&bench);
        if reads(&shape, Products::Half) == ElementType::F16 {
            let packed = case.on_gpu(&bench, Products::Half);
            let direct = case.on_gpu_from(&bench, Products::Half, F16S);
            assert_same(&direct, &packed, "as they lie");
        }
    };
    for head_dim in [16, 40, 128, 200] {
        for known in [1, 20, 64, 65, 150] {
            for causal in [false, true] {
                let shape = AttentionShape { causal, batch: 2, ..of_heads(2, head_dim, [150; 2]) };
                check(shape, known);
            }
        }
    }
    for head_dim in [64, 512] {
        for (tokens, known) in [([70, 200], 1), ([33, 131], 64), ([65, 200], 199), ([5, 64], 64)] {
            check(of_heads(2, head_dim, tokens), known);
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn biases_by_distance() {
    let bench = Bench::new();
    for head_dim in [8, 64, 512] {
        let shape = AttentionShape { scale: 0.125, ..of_heads(2, head_dim, [65, 200]) };
        let mut case = Case::random(shape, true);
        case.check(&bench);
        // Later tiles have the larger scores; then nothing of the first tile weighs anything.
        let distances = 2 * (65 + 200 - 1);
        case.bias = Some((0..distances).map(|at| (at % 264) as f32 / 20.0).collect());
        case.check(&bench);
        let hidden = |at| if at % 264 < 64 + 65 { f32::NEG_INFINITY } else { 0.0 };
        case.bias = Some((0..distances).map(hidden).collect());
        case.check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn results_do_not_depend_on_the_other_queries() {
    let bench = Bench::new();
    for head_dim in [32, 128, 512] {
        let all = Case::random(of_heads(2, head_dim, [150, 100]), false);
        let row = 2 * head_dim;
        for products in BOTH {
            let whole = all.on_gpu(&bench, products);
            for queries in [0..1, 60..150, 7..101] {
                let shape = AttentionShape { query_tokens: queries.len(), ..all.shape };
                let elements = queries.start * row..queries.end * row;
                let q = all.q[elements.clone()].to_vec();
                let (k, v) = (all.k.clone(), all.v.clone());
                let part = Case { q, k, v, ..Case::random(shape, false) }.on_gpu(&bench, products);
                assert_same(&part, &whole[elements], &format!("{shape:?} {products:?}"));
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn what_f16_cannot_hold_becomes_its_largest_number() {
    let bench = Bench::new();
    for head_dim in [64, 512] {
        let mut case = Case::random(of_heads(1, head_dim, [5, 70]), false);
        case.v.iter_mut().for_each(|value| *value = value.signum() * 1e6);
        let first_positive = case.v.iter().take(head_dim).position(|&value| value > 0.0).unwrap();
        // The first key takes all of the first query's weight.
        case.q[..head_dim].copy_from_slice(&vec![1e5; head_dim]);
        case.k[..head_dim].copy_from_slice(&vec![1e5; head_dim]);
        let found = case.on_gpu(&bench, Products::Half);
        assert_eq!(found[first_positive], 65504.0);
        assert!(found.iter().all(|value| value.abs() <= 65504.0));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn what_lies_in_16_bits_gives_the_bits_of_what_is_packed() {
    let bench = Bench::new();
    for head_dim in [16, 32, 64, 128] {
        // Tiles that are not full, one key more than a tile, and one of each.
        for (tokens, heads, batch) in [
            ([1, 1], 1, 1),
            ([33, 77], 2, 1),
            ([70, 51], 5, 3),
            ([64, 65], 3, 2),
            ([130, 128], 1, 2),
        ] {
            let shape = AttentionShape { batch, ..of_heads(heads, head_dim, tokens) };
            assert_eq!(reads(&shape, Products::Half), ElementType::F16);
            let causal = AttentionShape { query_tokens: tokens[1], causal: true, ..shape };
            for (shape, biased) in [(shape, false), (shape, true), (causal, false)] {
                let mut case = Case::random(shape, biased);
                // What f16 does not hold, and what becomes subnormal there.
                case.k[0] = 1e5;
                case.v[0] = -1e30;
                case.v.iter_mut().skip(3).step_by(5).for_each(|value| *value *= 1e-6);
                let packed = case.on_gpu(&bench, Products::Half);
                let name = format!("{shape:?} {biased}");
                // As they lie, and with values that are packed beside them.
                for elements in [F16S, [ElementType::F16, ElementType::F16, ElementType::F32]] {
                    let direct = case.on_gpu_from(&bench, Products::Half, elements);
                    assert_same(&direct, &packed, &name);
                }
                let short = case.in_bf16(&bench, F16S);
                assert_rounded(&short, &packed, ElementType::BF16, &name);
            }
        }
    }
}

/// Whether the GPU has room for two blocks of `attention_tall` on a multiprocessor.
fn has_room(bench: &Bench) -> bool {
    bench.stream.gpu().multiprocessor_shared_bytes >= 130 << 10
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn tall_blocks_give_the_bits_of_the_smaller_ones() {
    let (bench, tall) = (Bench::new(), Bench::with_tall_attention());
    // Fewer than fill a GPU: one query, just a block, one more, and several tiles of keys.
    for (tokens, heads, kv_heads, batch) in [
        ([1, 1], 1, 1, 1),
        ([128, 64], 2, 1, 1),
        ([129, 65], 3, 3, 1),
        ([200, 300], 2, 2, 1),
        ([70, 100], 2, 1, 3),
    ] {
        let shape = AttentionShape { kv_heads, batch, ..of_heads(heads, 128, tokens) };
        let causal = AttentionShape { query_tokens: tokens[1], causal: true, ..shape };
        for (shape, biased, known) in [
            (shape, false, None),
            (shape, true, None),
            (shape, false, Some(tokens[1].div_ceil(3))),
            (causal, false, None),
            (causal, true, Some(tokens[1].div_ceil(2))),
        ] {
            let case = Case { known, ..Case::random(shape, biased) };
            let name = format!("{shape:?} {biased} {known:?}");
            assert!(!takes_tall_blocks(&bench.launcher(), &shape), "{name}");
            assert_eq!(takes_tall_blocks(&tall.launcher(), &shape), has_room(&tall), "{name}");
            let expected = case.on_gpu_from(&bench, Products::Half, F16S);
            let found = case.on_gpu_from(&tall, Products::Half, F16S);
            assert_same(&found, &expected, &name);
            assert_close(&found, &case.on_host(&bench), tolerance(Products::Half), &name);
            // Of f32, which is rounded before; and into bf16.
            assert_same(&case.on_gpu(&tall, Products::Half), &expected, &name);
            let short = case.in_bf16(&tall, F16S);
            assert_rounded(&short, &expected, ElementType::BF16, &name);
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn blocks_are_tall_where_they_fill_the_gpu() {
    let bench = Bench::new();
    let full = 2 * bench.stream.gpu().multiprocessors as usize;
    for (heads, head_dim, queries, fills) in [
        (full, 128, 1, true),
        (full - 1, 128, 1, false),
        (full / 2, 128, 129, true),
        (full / 2, 128, 128, false),
        (full, 64, 1, false),
    ] {
        let case = Case::random(of_heads(heads, head_dim, [queries, 3]), false);
        let name = format!("{:?}", case.shape);
        let expected = fills && has_room(&bench);
        assert_eq!(takes_tall_blocks(&bench.launcher(), &case.shape), expected, "{name}");
        let found = case.on_gpu_from(&bench, Products::Half, F16S);
        assert_close(&found, &case.on_host(&bench), tolerance(Products::Half), &name);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn results_of_bf16_are_those_of_f32_rounded() {
    let bench = Bench::new();
    for head_dim in [3, 16, 61, 64, 128, 160, 301, 512] {
        let case = Case::random(of_heads(2, head_dim, [67, 40]), false);
        let whole = case.on_gpu(&bench, Products::Half);
        let short = case.in_bf16(&bench, F32S);
        assert_rounded(&short, &whole, ElementType::BF16, &format!("{head_dim}"));
    }
}
