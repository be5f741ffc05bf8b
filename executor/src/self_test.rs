//! The self-test of GPUs: every family of kernels once, small, against the host's kernels; and
//! copies between each two GPUs, by a pattern.
//!
//! A case is a graph of a few nodes (`cases`), scheduled, loaded and computed through what a run
//! uses. Devices are tested at the same time, and beside them the host computes what is expected.
//! Several executors may have a share of the cases each.
//! Layers that cuBLASLt multiplies are computed by our own kernels too: a run goes on with those
//! where the library fails.
//!
//! Not here: what follows from a difference. The planner keeps the record and plans around it.

mod cases;
mod compare;
mod copies;
mod program;
mod weights;

use std::sync::Arc;
use std::time::Instant;

use protocol::calibration::CalibrationDevice;
use protocol::self_test::{SelfTest, SelfTestShare};
use protocol::{Bytes, DeviceId, Failure};

use crate::backend::cuda::launch::LIBRARY_PRODUCT;
use crate::backend::kernels::Workers;
use crate::backend::{Backend, CancelFlag, CudaDevice, HostBackend, Memory};
use crate::calibrate::CalibrationTarget;
use crate::calibrate::probe::Probe;
use crate::failure::{bad_request, internal};
use crate::graph::{ElementType, Graph, GraphBuilder};
use crate::ops::OperationNeeds;
use crate::runtime::open_device;
use crate::schedule::{Assignment, Schedule};
use crate::weights::WeightFiles;
use cases::Case;

pub use program::program;

/// The most that is allocated of the host's memory beside devices' page-locked memory: the values
/// and weights of the largest case are below 2 MiB.
const HOST_BYTES_MAX: Bytes = Bytes::mib(16);

/// The most shares of a test.
pub const SHARES_MAX: u32 = 32;

/// What all cases are computed with.
#[derive(Clone, Copy)]
struct SelfTestBench<'a> {
    cases: &'a [&'static Case],
    files: &'a Arc<WeightFiles>,
    threads: usize,
    cancel: &'a CancelFlag,
}

/// A case on a device.
struct ComputedCase {
    case: &'static Case,
    values: Vec<f32>,
    kernels: Vec<String>,
    operations: Vec<String>,
}

/// Tests GPUs by a share of the cases.
///
/// # Errors
/// `BadRequest` for a device that is no GPU; `OutOfMemory`, `DeviceFailed`, `DeviceLost`,
/// `Cancelled`.
pub fn self_test(
    devices: &[CalibrationDevice],
    threads: usize,
    share: SelfTestShare,
    cancel: &CancelFlag,
) -> Result<SelfTest, Failure> {
    let pinned: Bytes = devices.iter().map(|device| device.pinned_bytes).sum();
    let host_memory = Memory::new(DeviceId::host(), HOST_BYTES_MAX + pinned, None);
    let workers = Arc::new(Workers::new(threads).map_err(internal)?);
    let files = Arc::new(weights::weights()?);
    let mut opened = Vec::new();
    for device in devices {
        let CalibrationDevice { id, backend, budget_bytes, overhead_bytes, pinned_bytes } = device;
        let sizes = [*budget_bytes, *overhead_bytes, *pinned_bytes];
        let device = open_device(id, backend, sizes, &host_memory, &workers, None)?;
        if device.as_cuda().is_none() {
            return Err(bad_request(format!("{id} is no GPU: it computes as the host does")));
        }
        opened.push(device);
    }
    let cases = cases::of(share);
    let bench = SelfTestBench { cases: &cases, files: &files, threads, cancel };
    let (expected, computed) = std::thread::scope(|scope| {
        let run = |device: Box<dyn Backend>| {
            scope.spawn(move || {
                let begun = Instant::now();
                let computed = bench.on_gpu(&*device);
                (device, computed, begun.elapsed().as_secs_f64() * 1e3)
            })
        };
        let running: Vec<_> = opened.into_iter().map(run).collect();
        let host = HostBackend::new(Arc::clone(&host_memory), Arc::clone(&workers));
        let expected = bench.on_host(&host);
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        (expected, ended)
    });
    let expected = expected?;
    let (mut gpus, mut tested) = (Vec::new(), Vec::new());
    for ended in computed {
        let (device, computed, ms) =
            ended.map_err(|_| internal("a thread that tested a GPU has panicked"))?;
        let id = device.memory().device().clone();
        tested.push(compare::tested(id, &computed?, &cases, &expected, ms));
        gpus.push(device);
    }
    let gpus: Vec<&CudaDevice> = gpus.iter().filter_map(|device| device.as_cuda()).collect();
    let copies = if share.index == 0 { copies::between(&gpus)? } else { Vec::new() };
    Ok(SelfTest { devices: tested, copies })
}

impl SelfTestBench<'_> {
    /// What is expected of each case: the host's, with products in f32.
    fn on_host(&self, host: &HostBackend) -> Result<Vec<Vec<f32>>, Failure> {
        let expected = self.cases.iter().map(|case| self.computed(case, host, true));
        expected.map(|computed| Ok(computed?.values)).collect()
    }

    fn on_gpu(&self, device: &dyn Backend) -> Result<Vec<ComputedCase>, Failure> {
        let gpu = device.as_cuda().expect("only GPUs are tested");
        // Cases are too small to fill a GPU.
        gpu.use_tall_attention(true);
        let mut all = Vec::new();
        for case in self.cases {
            gpu.gpu().take_launched();
            let begun = Instant::now();
            let computed = self.computed(case, device, case.exact)?;
            let kernels = gpu.gpu().take_launched();
            let ms = begun.elapsed().as_millis() as u64;
            tracing::debug!(case.family, ?kernels, ms, "tested");
            let by_library = kernels.iter().any(|kernel| kernel == LIBRARY_PRODUCT);
            all.push(ComputedCase { kernels, ..computed });
            if by_library {
                gpu.use_own_kernels(true);
                let computed = self.computed(case, device, case.exact);
                gpu.use_own_kernels(false);
                all.push(ComputedCase { kernels: gpu.gpu().take_launched(), ..computed? });
            }
        }
        Ok(all)
    }

    fn computed(
        &self,
        case: &'static Case,
        backend: &dyn Backend,
        exact: bool,
    ) -> Result<ComputedCase, Failure> {
        self.cancel.check()?;
        let graph = self.graph(case)?;
        let mut operations: Vec<String> = Vec::new();
        for node in &graph.nodes {
            let name = node.op.name();
            if !operations.iter().any(|known| known == name) {
                operations.push(name.to_owned());
            }
        }
        let on_one = Assignment::on_one(&graph, backend.kind(), self.threads);
        let assignment = Assignment { exact_matmul: exact, ..on_one };
        let schedule = Schedule::new(Arc::new(graph), assignment, &OperationNeeds);
        let target = CalibrationTarget {
            backend,
            room_bytes: backend.memory().free(),
            unsupported: &[],
            threads: self.threads,
            files: self.files,
            cancel: self.cancel,
        };
        let probe = Probe::load(&target, schedule)?;
        let graph = probe.graph();
        for (index, port) in graph.inputs.iter().enumerate() {
            let value = graph.value(port.value);
            let bytes = input(index, value.elements(), value.element);
            probe.write(port, &bytes)?;
        }
        probe.run()?;
        let values = probe.read(&graph.outputs[0])?;
        Ok(ComputedCase { case, values, kernels: Vec::new(), operations })
    }

    fn graph(&self, case: &Case) -> Result<Graph, Failure> {
        let mut graph = GraphBuilder::new(self.files);
        graph.segment("self-test");
        let y = (case.build)(&mut graph).map_err(internal)?;
        graph.output("y", y);
        Ok(graph.finish())
    }
}

/// What an input holds: numbers of magnitude up to 1, of either sign, in no order; of ids, those of
/// some rows of a table, of which the first is 3.
fn input(index: usize, elements: usize, element: ElementType) -> Vec<u8> {
    match element {
        ElementType::I32 => {
            let id = |at: usize| ((3 + 5 * at) % cases::TABLE_ROWS) as i32;
            (0..elements).flat_map(|at| id(at).to_ne_bytes()).collect()
        }
        _ => {
            // A linear congruential generator (Knuth, "MMIX").
            let mut state = 1 + index as u64;
            let next = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005);
                state = state.wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) as f32 / (1u64 << 30) as f32 - 1.0).to_ne_bytes()
            };
            (0..elements).flat_map(next).collect()
        }
    }
}

#[cfg(test)]
mod tests;
