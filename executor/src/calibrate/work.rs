//! How fast a processor is at each kind of work, by graphs that have one kind of it.
//!
//! Each kind is tried in sizes that grow up to those of a diffusion model at 512x512, until one
//! takes long enough to be measured or the next does not fit. The last size, of one at 1024x1024,
//! only GPUs and large servers come to: smaller work is over before all of their processors are
//! busy, and little of it is told from starting it.

use std::collections::BTreeSet;

use protocol::calibration::{MeasuredSpeeds, WorkSpeed};
use protocol::profile::{Work, WorkKind};
use protocol::{Failure, StorageType};

use super::probe::{self, Probe};
use super::{CalibrationTarget, REPETITIONS, least};
use crate::failure::{bad_request, internal};
use crate::graph::{Activation, ElementType, Graph, GraphBuilder, Operation};
use crate::ops::ada_layer_norm::AdaLayerNormOp;
use crate::ops::add::AddOp;
use crate::ops::attention::AttentionOp;
use crate::ops::conv2d::ConvOp;
use crate::ops::gated_add::GatedAddOp;
use crate::ops::linear::LinearOp;
use crate::ops::norm::NormOp;
use crate::ops::rope::RopeOp;
use crate::weights::WeightsError;

/// A measurement that takes so long is long enough: a hundred times what waking a thread takes.
const SECONDS_ENOUGH: f64 = 0.02;

/// Types that products are measured with; Q8_0 stands for all that are multiplied as integers.
const STORAGES: [StorageType; 4] =
    [StorageType::F32, StorageType::F16, StorageType::BF16, StorageType::Q8_0];

/// Rows and features, both in and out, of a product.
const PRODUCTS: [[usize; 2]; 7] =
    [[16, 64], [64, 256], [128, 512], [256, 1024], [512, 1536], [2048, 1536], [4096, 1536]];

/// How often one of the last size follows another: 3.1e11 operations, half a millisecond of the
/// fastest GPUs.
const PRODUCTS_REPEATED: usize = 16;

/// Tokens and heads of attention.
const ATTENTIONS: [[usize; 2]; 6] =
    [[32, 1], [128, 2], [512, 8], [1024, 12], [2048, 16], [4096, 24]];

/// How often there is one of the last size: 8.2e11 operations.
const ATTENTIONS_REPEATED: usize = 4;

/// Side in pixels and channels, both in and out, of a convolution.
const CONVOLUTIONS: [[usize; 2]; 7] =
    [[8, 16], [16, 32], [32, 64], [64, 128], [64, 256], [128, 256], [256, 256]];

/// How often one of the last size follows another: 6.2e11 operations.
const CONVOLUTIONS_REPEATED: usize = 8;

/// Tokens and heads of what is done element by element. Of the last size a value is 201 MB, which
/// no GPU's cache holds.
const ELEMENTWISE: [[usize; 2]; 5] = [[32, 1], [128, 4], [512, 12], [2048, 24], [16384, 24]];

/// Rows and features of the small products of which many are started: with the larger one, a
/// product is shared by all workers, and takes them a few microseconds.
const STARTS: [[usize; 2]; 2] = [[4, 64], [4, 256]];

/// How often the operations of such a graph are repeated in it.
const STARTS_REPEATED: usize = 32;

/// Features of a head, as in most DiTs.
const HEAD_FEATURES: usize = 128;

/// Of the time that operations took to be started and done, what is theirs at least of being
/// started: measurements vary.
const STARTING_PART_MIN: f64 = 0.1;

/// Added to what norms divide by, as in most DiTs.
const EPS: f32 = 1e-6;

/// The norm of heads.
const RMS_NORM: NormOp = NormOp::Rms { eps: EPS };

type Built = Result<(), WeightsError>;

/// All weights of the graphs here: names, types and shapes.
pub fn weights() -> Vec<(String, StorageType, Vec<usize>)> {
    let mut weights = vec![("norm.weight".to_owned(), StorageType::F32, vec![HEAD_FEATURES])];
    for storage in STORAGES {
        for features in widths(&PRODUCTS) {
            weights.push((
                format!("{}.weight", product_name(storage, features)),
                storage,
                vec![features; 2],
            ));
        }
    }
    for channels in widths(&CONVOLUTIONS) {
        let (name, bf16) = (conv_name(channels), StorageType::BF16);
        weights.push((format!("{name}.weight"), bf16, vec![channels, channels, 3, 3]));
        weights.push((format!("{name}.bias"), bf16, vec![channels]));
    }
    weights
}

/// The second numbers of sizes, each once.
fn widths(sizes: &[[usize; 2]]) -> BTreeSet<usize> {
    sizes.iter().map(|size| size[1]).collect()
}

fn product_name(storage: StorageType, features: usize) -> String {
    format!("product.{storage}.{features}")
}

fn conv_name(channels: usize) -> String {
    format!("conv.{channels}")
}

/// What a graph does, and the seconds that it takes.
struct Timed {
    work: Vec<Work>,
    seconds: f64,
}

impl Timed {
    fn flops(&self) -> f64 {
        self.work.iter().map(|work| work.flops).sum()
    }

    fn moved_bytes(&self) -> f64 {
        self.work.iter().map(|work| work.moved_bytes.0 as f64).sum()
    }
}

impl CalibrationTarget<'_> {
    /// The speeds of all kinds of work that it can do.
    pub fn speeds(&self) -> Result<MeasuredSpeeds, Failure> {
        let mut work = Vec::new();
        let mut add = |kind, timed: Option<Timed>| {
            work.extend(
                timed.map(|timed| WorkSpeed { kind, flops_per_s: timed.flops() / timed.seconds }),
            );
        };
        for storage in STORAGES {
            let timed = self.timed(&PRODUCTS, |graph, size| product(graph, storage, size))?;
            add(WorkKind::Matmul(storage), timed);
        }
        add(
            WorkKind::Attention,
            self.timed(&ATTENTIONS, |graph, size| self.attention(graph, size))?,
        );
        add(WorkKind::Convolution, self.timed(&CONVOLUTIONS, convolution)?);
        let elementwise = self.timed(&ELEMENTWISE, |graph, size| self.elementwise(graph, size))?;
        let starts = self.timed(&STARTS, |graph, size| self.starts(graph, size))?;
        let (Some(elementwise), Some(starts)) = (elementwise, starts) else {
            return Err(bad_request(format!(
                "{} can do nothing that could be measured; hint: it is said not to support too much",
                self.backend.memory().device()
            )));
        };
        let memory_bytes_per_s = elementwise.moved_bytes() / elementwise.seconds;
        let product = work.first().map_or(f64::INFINITY, |speed: &WorkSpeed| speed.flops_per_s);
        let seconds = |work: &Work| match work.kind {
            WorkKind::Matmul(_) => work.flops / product,
            _ => work.moved_bytes.0 as f64 / memory_bytes_per_s,
        };
        let doing: f64 = starts.work.iter().map(seconds).sum();
        let starting = (starts.seconds - doing).max(starts.seconds * STARTING_PART_MIN);
        let operations: f64 = starts.work.iter().map(|work| f64::from(work.operations)).sum();
        Ok(MeasuredSpeeds { work, memory_bytes_per_s, starts_per_s: operations / starting })
    }

    /// Times the last of some sizes that fits and is needed; `None` where the target cannot do this
    /// work.
    fn timed(
        &self,
        sizes: &[[usize; 2]],
        build: impl Fn(&mut GraphBuilder<'_>, [usize; 2]) -> Built,
    ) -> Result<Option<Timed>, Failure> {
        let mut probe: Option<Probe<'_>> = None;
        for &size in sizes {
            let graph = graph(self, &build, size)?;
            if graph.nodes.is_empty() || graph.nodes.iter().any(|node| !self.can_do(&*node.op)) {
                return Ok(None);
            }
            let schedule = probe::schedule(self, graph);
            let needed = probe::bytes(&schedule);
            if needed > self.room_bytes {
                if probe.is_none() {
                    return Err(self.too_small(needed));
                }
                break;
            }
            // The one before makes room for it.
            drop(probe.take());
            let loaded = Probe::load(self, schedule)?;
            let enough = takes_long(|| loaded.run())?;
            probe = Some(loaded);
            if enough {
                break;
            }
        }
        let probe = probe.expect("there is at least one size");
        let seconds = (0..REPETITIONS).map(|_| probe.run()).collect::<Result<Vec<_>, _>>()?;
        let graph = probe.graph();
        Ok(Some(Timed { work: graph.work(graph.nodes.iter()), seconds: least(seconds) }))
    }

    fn can_do(&self, op: &dyn Operation) -> bool {
        !self.unsupported.iter().any(|name| name == op.name())
    }

    /// What a block of a DiT does element by element, as far as the target can.
    fn elementwise(&self, graph: &mut GraphBuilder<'_>, [tokens, heads]: [usize; 2]) -> Built {
        let features = heads * HEAD_FEATURES;
        let float = ElementType::F32;
        let mut x = graph.input("x", &[1, tokens, features], float);
        let y = graph.input("y", &[1, tokens, features], float);
        let modulation = graph.input("modulation", &[1, 3 * features], float);
        let table = graph.input("rope", &[tokens, HEAD_FEATURES / 2, 2], float);
        if self.can_do(&AdaLayerNormOp { eps: EPS, shift_chunk: 0, scale_chunk: 1 }) {
            x = graph.ada_layer_norm(x, modulation, 0, 1, EPS);
        }
        if self.can_do(&RMS_NORM) {
            x = graph.rms_norm(x, "norm", HEAD_FEATURES, EPS)?;
        }
        if self.can_do(&RopeOp { heads }) {
            x = graph.rope(x, table, heads);
        }
        if self.can_do(&GatedAddOp { gate_chunk: 2 }) {
            x = graph.gated_add(x, y, modulation, 2);
        }
        graph.output("x", x);
        Ok(())
    }

    /// Attention, of the last size to values that were normalised, as a GPU best takes them.
    fn attention(&self, graph: &mut GraphBuilder<'_>, [tokens, heads]: [usize; 2]) -> Built {
        let shape = [1, tokens, heads * HEAD_FEATURES];
        let mut qkv = ["q", "k", "v"].map(|name| graph.input(name, &shape, ElementType::F32));
        let repeats = repeats(&ATTENTIONS, [tokens, heads], ATTENTIONS_REPEATED);
        if repeats > 1 && self.can_do(&RMS_NORM) {
            for value in &mut qkv {
                *value = graph.rms_norm(*value, "norm", HEAD_FEATURES, EPS)?;
            }
        }
        let scale = (HEAD_FEATURES as f32).sqrt().recip();
        let op = AttentionOp { heads, kv_heads: heads, scale, causal: false };
        let all = (0..repeats).map(|_| graph.attention(qkv, None, op.clone()));
        let y = all.last().expect("it is there once at least");
        graph.output("y", y);
        Ok(())
    }

    /// Many small operations, as far as the target can do them.
    fn starts(&self, graph: &mut GraphBuilder<'_>, [rows, features]: [usize; 2]) -> Built {
        let name = product_name(StorageType::F32, features);
        let mut x = graph.input("x", &[1, rows, features], ElementType::F32);
        let y = graph.input("y", &[1, rows, features], ElementType::F32);
        for _ in 0..STARTS_REPEATED {
            if self.can_do(&LinearOp(Activation::None)) {
                x = graph.linear_no_bias(x, &name, features, Activation::None)?;
            }
            if self.can_do(&AddOp) {
                x = graph.add(x, y);
            }
        }
        graph.output("x", x);
        Ok(())
    }
}

/// Whether work takes long enough to be measured. The first time may have taken so long because a
/// driver compiled kernels.
fn takes_long(mut run: impl FnMut() -> Result<f64, Failure>) -> Result<bool, Failure> {
    Ok(run()? >= SECONDS_ENOUGH && run()? >= SECONDS_ENOUGH)
}

fn graph(
    target: &CalibrationTarget<'_>,
    build: impl Fn(&mut GraphBuilder<'_>, [usize; 2]) -> Built,
    size: [usize; 2],
) -> Result<Graph, Failure> {
    let mut graph = GraphBuilder::new(target.files);
    graph.segment("calibration");
    build(&mut graph, size).map_err(internal)?;
    Ok(graph.finish())
}

/// How often work of a size is repeated: once, but for the last size.
fn repeats(sizes: &[[usize; 2]], size: [usize; 2], of_the_last: usize) -> usize {
    if sizes.last() == Some(&size) { of_the_last } else { 1 }
}

fn product(
    graph: &mut GraphBuilder<'_>,
    storage: StorageType,
    [rows, features]: [usize; 2],
) -> Built {
    let mut x = graph.input("x", &[1, rows, features], ElementType::F32);
    let name = product_name(storage, features);
    for _ in 0..repeats(&PRODUCTS, [rows, features], PRODUCTS_REPEATED) {
        x = graph.linear_no_bias(x, &name, features, Activation::None)?;
    }
    graph.output("y", x);
    Ok(())
}

fn convolution(graph: &mut GraphBuilder<'_>, [side, channels]: [usize; 2]) -> Built {
    let mut x = graph.input("x", &[1, side, side, channels], ElementType::F32);
    for _ in 0..repeats(&CONVOLUTIONS, [side, channels], CONVOLUTIONS_REPEATED) {
        x = graph.conv2d(x, &conv_name(channels), channels, ConvOp::same(3))?;
    }
    graph.output("y", x);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_first_run_is_not_yet_long_work() {
        for (runs, long) in [(&[0.001][..], false), (&[5.0, 0.001], false), (&[5.0, 0.02], true)] {
            let mut left = runs.iter();
            let mut run = || Ok(*left.next().expect("no run beside those"));
            assert_eq!(takes_long(&mut run).unwrap(), long, "{runs:?}");
            assert!(left.next().is_none(), "{runs:?}");
        }
    }
}
