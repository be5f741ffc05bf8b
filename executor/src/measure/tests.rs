//! Sizes of many layouts at once, and of weights as if they were stored in another type.

use std::path::Path;
use std::sync::Arc;

use protocol::plan::VaeTile;
use protocol::profile::Lane;
use protocol::{Division, FailureKind, PieceSizes};

use super::*;

const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

fn model() -> Arc<dyn Model> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    crate::families::open(&fixtures.join("flux_schnell")).unwrap()
}

/// The profile with some options.
fn measured(
    model: &dyn Model,
    job: &JobShape,
    options: &GraphOptions,
    known: &mut KnownComponents,
) -> ModelProfile {
    profiles(model, job, std::slice::from_ref(options), 2, known).unwrap().remove(0)
}

/// Every way to cut the DiT in two.
fn cuts(model: &dyn Model) -> Vec<Layout> {
    let graphs = model.graphs(&JOB, &GraphOptions::default()).unwrap();
    let segments = graphs.iter().find(|g| g.name == "dit").unwrap().variants[0].segments.len();
    let lane = Lane { backend: BackendKind::Virtual, unsupported: Vec::new() };
    let cut = |at: usize| Layout {
        component: "dit".to_owned(),
        lanes: vec![lane.clone(); 2],
        division: Division::Layer {
            segments: (0..segments).map(|segment| u32::from(segment >= at)).collect(),
        },
    };
    (1..segments).map(cut).collect()
}

#[test]
fn many_layouts_have_the_sizes_of_each_alone_in_their_order() {
    let (model, options) = (model(), GraphOptions::default());
    let layouts = cuts(&*model);
    let sized = |layouts: &[Layout]| {
        sizes(&*model, &JOB, &options, 2, layouts, &mut KnownComponents::default())
    };
    let together = sized(&layouts).unwrap();
    let alone: Vec<LayoutBytes> = layouts
        .iter()
        .map(|layout| sized(std::slice::from_ref(layout)).unwrap().remove(0))
        .collect();
    assert_eq!(together, alone);
    assert!(together.windows(2).all(|pair| pair[0] != pair[1]), "each cut has sizes of its own");

    // Of several that cannot be, the first is told.
    let mut wrong = layouts.clone();
    wrong[1].component = "first".to_owned();
    wrong.last_mut().unwrap().component = "last".to_owned();
    for _ in 0..20 {
        let failure = sized(&wrong).unwrap_err();
        assert_eq!(failure.kind, FailureKind::BadRequest);
        assert!(failure.message.contains("component first"), "{failure}");
    }
}

#[test]
fn devices_of_a_tensor_split_give_each_other_the_summands_that_are_stated() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = crate::families::open(&fixtures.join("flux_dev")).unwrap();
    let options = GraphOptions::default();
    let mut known = KnownComponents::default();
    let profile = measured(&*model, &JOB, &options, &mut known);
    let stated = |name: &str| {
        let mut components = profile.components.iter();
        components.find(|component| component.name == name).unwrap().summands.bytes
    };
    assert_eq!(stated("t5"), Bytes::ZERO, "its heads cannot be shared");
    let summands = stated("dit").0;
    assert!(summands > 0);
    let lane = Lane { backend: BackendKind::Cuda, unsupported: Vec::new() };
    for devices in 2..=4 {
        let division = Division::Tensor { shares: vec![1; devices] };
        let lanes = vec![lane.clone(); devices];
        let layout = Layout { component: "dit".to_owned(), lanes, division };
        let sized = sizes(&*model, &JOB, &options, 2, &[layout], &mut known).unwrap();
        let crossing = sized[0].crossing_bytes.0;
        let given = (devices * (devices - 1)) as u64 * summands;
        // Inputs, results and rows of other products cross too.
        assert!(crossing > given && crossing < 2 * given, "{devices}: {crossing} of {given}");
    }
}

#[test]
fn what_is_known_of_other_tiles_is_what_would_be_measured() {
    let model = model();
    let mut known = KnownComponents::default();
    let tile = VaeTile { width: 32, height: 32, overlap: 0.25 };
    let pieces = [(None, 256), (Some(tile), 256), (None, 64), (Some(tile), 64)];
    let options = pieces.map(|(vae_tile, attention_chunk)| {
        GraphOptions::default().in_pieces(PieceSizes { vae_tile, attention_chunk })
    });
    let jobs = [JOB, JobShape { batch: 2, ..JOB }, JOB];
    // Other tests read the same files meanwhile: what is in the page cache is left out.
    let uncached = |mut profile: ModelProfile| {
        profile.components.iter_mut().for_each(|component| component.cached_bytes = Bytes::ZERO);
        profile
    };
    let all = |job: &JobShape, known: &mut KnownComponents| -> Vec<ModelProfile> {
        let profiles = profiles(&*model, job, &options, 2, known).unwrap();
        profiles.into_iter().map(uncached).collect()
    };
    let one = |job: &JobShape, options: &GraphOptions, known: &mut KnownComponents| {
        uncached(measured(&*model, job, options, known))
    };
    let alone = jobs.each_ref().map(|job| {
        let with = |options| one(job, options, &mut KnownComponents::default());
        options.each_ref().map(with)
    });
    for (at, options) in options.iter().enumerate() {
        for (job, alone) in jobs.iter().zip(&alone) {
            for _ in 0..2 {
                assert_eq!(one(job, options, &mut known), alone[at], "{options:?}");
            }
        }
    }
    for (job, alone) in jobs.iter().zip(&alone) {
        assert_eq!(all(job, &mut KnownComponents::default()), alone);
        assert_eq!(all(job, &mut known), alone);
    }
}

#[test]
fn weights_as_if_in_blocks_take_less_and_compute_the_same() {
    use protocol::StorageType::{BF16, IQ4NL, Q8_0};
    use protocol::profile::{BackendKind, WorkKind};
    let model = model();
    let stored_as = |weights_as, exact_matmul| {
        let options = GraphOptions { weights_as, exact_matmul, ..GraphOptions::default() };
        measured(&*model, &JOB, &options, &mut KnownComponents::default())
    };
    let [stored, blocks] = [stored_as(None, false), stored_as(Some(Q8_0), false)];
    let exact = stored_as(Some(Q8_0), true);
    let graphs = model.graphs(&JOB, &GraphOptions::default()).unwrap();
    for ((stored, blocks), graph) in stored.components.iter().zip(&blocks.components).zip(&graphs) {
        let tensors = graph.variants[0].weights.iter().map(|weight| weight.tensor);
        let in_blocks =
            |shape: &[usize]| shape.len() > 1 && shape[1..].iter().product::<usize>() % 32 == 0;
        let expected: u64 = tensors
            .map(|tensor| match in_blocks(tensor.shape()) {
                true => tensor.shape().iter().product::<usize>() as u64 / 32 * 34,
                false => tensor.size().0,
            })
            .sum();
        assert_eq!(blocks.tensor_bytes, Bytes(expected), "{}", stored.name);
        assert!(blocks.tensor_bytes < stored.tensor_bytes, "{}", stored.name);
        assert_eq!(blocks.cached_bytes, Bytes::ZERO);
        let of_segments = blocks.segments.iter().flat_map(|segment| &segment.storage);
        assert_eq!(of_segments.map(|entry| entry.bytes).sum::<Bytes>(), Bytes(expected));
    }
    for (stored, exact) in stored.components.iter().zip(&exact.components) {
        // Arenas hold no weights.
        for kind in [BackendKind::Host, BackendKind::Virtual] {
            assert_eq!(exact.compute_bytes(kind), stored.compute_bytes(kind));
        }
        let mut work = exact.segments.iter().flat_map(|segment| &segment.work);
        assert!(!work.any(|work| work.kind == WorkKind::Matmul(Q8_0)), "computed as f32");
    }
    // Of a type that is never multiplied as bytes, for which this small model has more workspace.
    let halves = stored_as(Some(IQ4NL), false);
    let on_gpu = [&exact, &halves].map(|of| of.components[2].compute_bytes(BackendKind::Cuda));
    assert!(on_gpu[0] > on_gpu[1], "exact products have their operands in f32: {on_gpu:?}");
    let dit = &blocks.components[2];
    let kinds = dit.segments.iter().flat_map(|segment| &segment.work).map(|work| work.kind);
    assert!(kinds.clone().any(|kind| kind == WorkKind::Matmul(Q8_0)));
    assert!(!kinds.clone().any(|kind| kind == WorkKind::Matmul(BF16)), "all rows are whole blocks");
}
