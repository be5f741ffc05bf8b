//! What a model needs: its description from the files, and its profile for one job shape.

use serde::{Deserialize, Serialize};

use crate::division::{Division, item_runs};
use crate::limits::FEW_ROWS;
use crate::model::ModelSource;
use crate::phase::Phase;
use crate::plan::JobShape;
use crate::sampler::{Sampler, Scheduler};
use crate::storage::StorageType;
use crate::units::Bytes;

/// A kind of backend. Sizes of workspaces depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// The CPU with its RAM.
    Host,
    /// Host kernels over a memory of their own.
    Virtual,
    /// An NVIDIA GPU.
    Cuda,
}

/// What a job takes where its user names nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobDefaults {
    /// Width of the picture in pixels.
    pub width: u32,
    /// Height of the picture in pixels.
    pub height: u32,
    /// Denoising steps.
    pub steps: u32,
    /// Text tokens of the long encoder.
    pub max_sequence_length: u32,
    /// As the model's [`GuidanceScale`] says; ignored by models that take none.
    pub guidance_scale: f32,
    /// Classifier-free guidance with a second run; 1 is none.
    pub true_cfg_scale: f32,
}

/// What the number is that a family's pipeline takes as `guidance_scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuidanceScale {
    /// The model takes none.
    None,
    /// An input of the model, which is distilled for it.
    Embedded,
    /// Classifier-free guidance with a second run, counted from no guidance: 0 is none, and it is
    /// one less than a scale whose 1 is none.
    BeyondPrompt,
    /// The same counted from 1, which is none: `--true-cfg-scale` by another name.
    ClassifierFree,
}

/// How a model makes good pictures in fewer steps than its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FewSteps {
    /// How many.
    pub steps: u32,
    /// What that takes, as a clause behind the number of steps.
    pub by: String,
}

/// What is in a model's files, read from configurations and headers only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Where the model is.
    pub model: ModelSource,
    /// The model's family; `unknown` where no file says it.
    pub family: String,
    /// What each file gives that is named for itself: none for a diffusers directory.
    pub files: Vec<FileDescription>,
    /// The components in the order in which they run.
    pub components: Vec<ComponentDescription>,
    /// What a job takes where its user names nothing.
    pub defaults: JobDefaults,
    /// Width and height must be multiples of this.
    pub side_multiple_pixels: u32,
    /// Most text tokens of the long encoder that the model was made for.
    pub sequence_tokens_max: u32,
    /// Whether pictures of one batch may have prompts of their own.
    pub own_prompts: bool,
    /// What `guidance_scale` is to the model's pipeline.
    pub guidance: GuidanceScale,
    /// The denoising rules that make sense for it, its own first.
    pub samplers: Vec<Sampler>,
    /// The tables of noise levels that do, its own first.
    pub schedulers: Vec<Scheduler>,
    /// A way to good pictures in fewer steps, where the model has one that people know.
    pub few_steps: Option<FewSteps>,
    /// Parts that no file gives, a sentence each; empty for a whole model. What is there may be
    /// sound without them.
    pub lacks: Vec<String>,
    /// What is wrong with what is there, a sentence each.
    pub problems: Vec<String>,
}

/// What one file holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileDescription {
    /// The file.
    pub path: String,
    /// The components that take their weights from it.
    pub gives: Vec<String>,
    /// The components whose weights it also holds, and that take them elsewhere.
    pub holds: Vec<String>,
    /// Its tensors by type, the most bytes first.
    pub types: Vec<TypeBytes>,
}

/// The tensors of one type in a file, also of types that cannot be computed with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TypeBytes {
    /// The type as the file's format calls it.
    pub name: String,
    /// Tensors.
    pub tensors: u32,
    /// Bytes of them.
    pub bytes: Bytes,
}

/// What is on disk for one component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentDescription {
    /// The component's name, as `dit`.
    pub name: String,
    /// The class that the model index names, or the one that the file's names are of.
    pub class: String,
    /// The phase of a job in which it computes.
    pub phase: Phase,
    /// The files that hold its weights.
    pub files: Vec<String>,
    /// The tensors that it uses.
    pub tensors: u32,
    /// Parameters that it uses.
    pub parameters: u64,
    /// Bytes that it uses, by storage type.
    pub storage: Vec<StorageBytes>,
    /// Bytes that it uses.
    pub tensor_bytes: Bytes,
    /// Bytes in its files that it does not use, as a VAE's encoder.
    pub unused_bytes: Bytes,
}

/// Bytes held in one storage type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageBytes {
    /// The storage type.
    pub storage: StorageType,
    /// Bytes held in it.
    pub bytes: Bytes,
}

/// The exact needs of a model for one job shape and number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelProfile {
    /// The model's family.
    pub family: String,
    /// The components in the order in which they run.
    pub components: Vec<ComponentProfile>,
    /// Latents, embeddings and pictures that the host holds during the whole job.
    pub job_bytes: Bytes,
    /// Pages of weight files that LoRA changes, held by the host for as long as the model is open.
    pub changed_bytes: Bytes,
    /// What the user should know of the files, a sentence each: LoRA tensors that match nothing.
    pub notices: Vec<String>,
}

/// The exact needs of one component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentProfile {
    /// The component's name.
    pub name: String,
    /// The phase in which it computes.
    pub phase: Phase,
    /// How often its graph runs in one job.
    pub calls: u32,
    /// Its weights as in the file.
    pub tensor_bytes: Bytes,
    /// How much of that the page cache holds now: it need not be read from storage.
    pub cached_bytes: Bytes,
    /// Its weights with the alignment that memory needs.
    pub weights_bytes: Bytes,
    /// Its arena on each kind of backend.
    pub compute: Vec<BackendBytes>,
    /// Activations that cross between host and device in one call, both ways.
    pub boundary_bytes: Bytes,
    /// Whether any of its weights can be split by rows.
    pub splits_rows: bool,
    /// The most devices that can share the heads and features of its blocks in a tensor split; 1
    /// where they cannot be split so.
    pub heads_max: u32,
    /// What devices of a tensor split add up.
    pub summands: SummandProfile,
    /// The items of a step that replicas on several devices may share.
    pub items: StepItems,
    /// Its segments in order.
    pub segments: Vec<SegmentProfile>,
}

/// The summands of a component in a tensor split, in one call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SummandProfile {
    /// What each device gives each other one, at least.
    pub bytes: Bytes,
    /// Of that, the last parts: while they cross, no product is left to make.
    pub last_bytes: Bytes,
    /// The products that make them, whole.
    pub products: Vec<Work>,
}

impl ComponentProfile {
    /// The arena's size on a kind of backend; `None` where the component cannot run there.
    pub fn compute_bytes(&self, backend: BackendKind) -> Option<Bytes> {
        self.compute.iter().find(|entry| entry.backend == backend).map(|entry| entry.bytes)
    }

    /// Floating-point operations of one call.
    pub fn flops(&self) -> f64 {
        self.segments.iter().map(SegmentProfile::flops).sum()
    }
}

/// The items that a component computes in each step: in `passes` calls a batch of pictures each.
/// What takes one item after the other, or has no steps, has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepItems {
    /// Calls of a step that do not wait for each other: those of classifier-free guidance.
    pub passes: u32,
    /// Pictures that a call computes together.
    pub batch: u32,
    /// The fewest of them that give the same bits as all together: products of few rows are summed
    /// up in another order than those of more.
    pub run_min: u32,
}

impl StepItems {
    /// What cannot be shared.
    pub const ONE: StepItems = StepItems { passes: 1, batch: 1, run_min: 1 };

    /// All of them: the most devices that can have some.
    pub const fn count(self) -> u32 {
        self.passes.saturating_mul(self.batch)
    }

    /// The items of a job's steps, of which a call multiplies so many rows for each picture with
    /// one matrix or another.
    pub fn of(job: &JobShape, rows: &[usize]) -> StepItems {
        let (batch, few) = (job.batch as usize, FEW_ROWS as usize);
        let many = rows.iter().filter(|&&rows| rows > 0 && rows * batch > few);
        let run_min = many.map(|rows| few / rows + 1).max().unwrap_or(1);
        StepItems { passes: job.passes(), batch: job.batch, run_min: run_min as u32 }
    }

    /// Whether devices that have so many items each give the same bits as one that has all.
    pub fn has_same_bits(self, counts: &[u32]) -> bool {
        let runs = item_runs(counts, self.batch as usize);
        runs.iter().all(|run| run.items.len() >= self.run_min as usize)
    }
}

/// Bytes needed on one kind of backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendBytes {
    /// The kind of backend.
    pub backend: BackendKind,
    /// Bytes needed there.
    pub bytes: Bytes,
}

/// The exact needs of one segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentProfile {
    /// The segment's name, usually its block's.
    pub name: String,
    /// Whether it is a block: one of several alike, that can be streamed and split by rows.
    pub block: bool,
    /// Its weights with alignment.
    pub weights_bytes: Bytes,
    /// Its weights as in the file, by storage type.
    pub storage: Vec<StorageBytes>,
    /// The most that values alive within it occupy at one time, workspaces not counted.
    pub arena_bytes: Bytes,
    /// Values that cross its end into later segments.
    pub carried_bytes: Bytes,
    /// The largest workspace of a node in it, on each kind of backend.
    pub workspace: Vec<BackendBytes>,
    /// What its nodes do in one call, an entry for each kind of work that there is.
    pub work: Vec<Work>,
}

impl SegmentProfile {
    /// Floating-point operations of one call; a multiply-add counts two.
    pub fn flops(&self) -> f64 {
        self.work.iter().map(|work| work.flops).sum()
    }
}

/// A kind of work, by what limits its speed. Devices have a rate for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkKind {
    /// Products with a weight matrix stored in this type.
    Matmul(StorageType),
    /// Scaled dot products of queries, keys and values.
    Attention,
    /// Convolutions of more than one pixel.
    Convolution,
    /// Everything else, which memory bounds.
    Elementwise,
}

/// Work of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Its kind.
    pub kind: WorkKind,
    /// Operations that are started.
    pub operations: u32,
    /// Floating-point operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes that are read and written, weights included.
    pub moved_bytes: Bytes,
}

/// A way to lay one component out over devices, of which the exact bytes are asked. When weights
/// are there is no part of it: activations do not depend on that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layout {
    /// The component.
    pub component: String,
    /// The devices, in order.
    pub lanes: Vec<Lane>,
    /// What of the component computes on which of them.
    pub division: Division,
}

impl Layout {
    /// Whether GPUs compute all of it, the host nothing in their place.
    pub fn is_on_gpus(&self) -> bool {
        let is_whole =
            |lane: &Lane| lane.backend == BackendKind::Cuda && lane.unsupported.is_empty();
        self.lanes.iter().all(is_whole)
    }
}

/// What of a device decides sizes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lane {
    /// Its kind.
    pub backend: BackendKind,
    /// Operations that it cannot do, by name.
    pub unsupported: Vec<String>,
}

/// The exact bytes of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutBytes {
    /// One entry for each device, in order; then one for the host, where it computes what a device
    /// cannot.
    pub parts: Vec<LayoutPart>,
    /// Activations that cross between devices, and between them and the host, in one call.
    pub crossing_bytes: Bytes,
}

/// The exact bytes of a layout on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutPart {
    /// Activations and workspaces.
    pub compute_bytes: Bytes,
    /// Weights of each segment of the component, with alignment.
    pub segment_bytes: Vec<Bytes>,
}
