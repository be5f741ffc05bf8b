//! LoRA on the reference models: every form of its files stands for the same changes, and both ways
//! of applying them compute what a checkpoint does whose weights were changed by the formula `W +
//! α/r · B · A`.

#[path = "lora/changes.rs"]
mod changes;
#[path = "lora/run.rs"]
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use executor::families;
use executor::graph::Graph;
use executor::models::Model;
use executor::ops::OperationNeeds;
use executor::schedule::{Assignment, Schedule};
use executor::weights::lora::{LoraError, LoraMode, LoraSource};
use executor::weights::{WeightFiles, WeightsError};
use protocol::{BackendKind, Bytes, GraphOptions, JobShape, StorageType};
use safetensors::Dtype;
use tempfile::TempDir;

use changes::{Change, FORMS, PARTS, all_changes, merged, write_form, write_tensors};
use run::run;

/// The components that can have adapters.
const COMPONENTS: [&str; 3] = ["clip", "t5", "dit"];

/// Relative error of outputs: the noise floor of two orders of summation in f32 on models of this
/// size.
const TOLERANCE: f64 = 1e-5;

fn job() -> JobShape {
    JobShape {
        width: 64,
        height: 48,
        steps: 1,
        batch: 2,
        max_sequence_length: 24,
        ..JobShape::small()
    }
}

/// A reference model in a directory of its own, with room for LoRA files beside it.
struct Reference {
    dir: TempDir,
    model: Arc<dyn Model>,
}

impl Reference {
    fn new(name: &str) -> Reference {
        let dir = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        copy(&fixtures.join(name), &dir.path().join("model"));
        let model = families::open(&dir.path().join("model")).unwrap();
        Reference { dir, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn files(&self, component: &str) -> &Arc<WeightFiles> {
        self.model.files(component)
    }

    /// The model with LoRA, all of it in one mode.
    fn with(&self, sources: &[LoraSource], mode: LoraMode) -> Arc<dyn Model> {
        let loras = self.model.open_loras(sources).unwrap();
        self.model.with_loras(&loras, &|_| Some(mode), &|| false).unwrap()
    }

    /// The model from a checkpoint in f32 whose weights were changed by the formula.
    fn merged_checkpoint(&self, changes: &[(&[Change], f64)]) -> Arc<dyn Model> {
        let dir = self.path("merged");
        copy(&self.path("model"), &dir);
        for (component, (folder, stem)) in COMPONENTS.into_iter().zip(PARTS) {
            let folder = dir.join(folder);
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.to_str().unwrap().contains("safetensors") {
                    fs::remove_file(path).unwrap();
                }
            }
            let tensors = self.files(component).tensors().map(|info| {
                let values = merged(self.files(component), component, info.name, changes);
                let bytes = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
                (info.name.to_owned(), Dtype::F32, info.shape.to_vec(), bytes)
            });
            write_tensors(&folder.join(format!("{stem}.safetensors")), tensors.collect(), None);
        }
        families::open(&dir).unwrap()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Content and time of change of every weight file of a model.
fn state(model: &Arc<dyn Model>) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let paths = COMPONENTS.iter().flat_map(|component| model.files(component).paths());
    let each = |path: &Path| {
        let changed = fs::metadata(path).unwrap().modified().unwrap();
        (path.to_owned(), fs::read(path).unwrap(), changed)
    };
    paths.map(each).collect()
}

/// Output of a component for inputs that look random.
fn output(model: &Arc<dyn Model>, component: &str) -> Vec<f32> {
    let graph = model
        .graphs(&job(), &GraphOptions::default())
        .unwrap()
        .into_iter()
        .find(|graph| graph.name == component);
    run(&graph.unwrap().variants[0], model.files(component))
}

/// The largest difference over the root mean square.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares: f64 = b.iter().map(|&b| f64::from(b).powi(2)).sum();
    let largest = a.iter().zip(b).map(|(&a, &b)| f64::from(a - b).abs()).fold(0.0, f64::max);
    largest / (squares / b.len() as f64).sqrt()
}

/// Each weight is the formula's, rounded to its type; those without changes are as they were.
#[track_caller]
fn assert_formula(reference: &Reference, model: &Arc<dyn Model>, changes: &[(&[Change], f64)]) {
    for component in COMPONENTS {
        let files = model.files(component);
        for info in files.tensors() {
            let tensor = files.require(info.name, info.shape).unwrap();
            let digits = if tensor.storage() == StorageType::F32 { 24 } else { 8 };
            let got = tensor.view(files).to_f32();
            let expected = merged(reference.files(component), component, info.name, changes);
            for (&got, &expected) in got.iter().zip(&expected) {
                // Half a step is at most this part of the value; sums in f64 may differ by their
                // order.
                let allowed = expected.abs() * 2_f64.powi(-digits) + 1e-14;
                let error = (f64::from(got) - expected).abs();
                assert!(error <= allowed, "{}: {got}, not {expected}", info.name);
            }
        }
    }
}

/// Two LoRAs that change the same weights and others, the second with some of the first's names,
/// each in another form and with another weight.
fn two_loras(reference: &Reference) -> ([LoraSource; 2], [Vec<Change>; 2]) {
    let every = all_changes(&reference.model, 1, 3.0);
    let some = all_changes(&reference.model, 2, 5.0).into_iter().step_by(3).collect::<Vec<_>>();
    let paths = ["first", "second"].map(|name| reference.path(name));
    write_form(&paths[0], &FORMS[6], &every, Dtype::BF16);
    write_form(&paths[1], &FORMS[0], &some, Dtype::F32);
    let [first, second] = paths;
    let sources =
        [LoraSource { path: first, weight: 0.75 }, LoraSource { path: second, weight: -0.5 }];
    (sources, [every, some])
}

#[test]
fn every_form_stands_for_the_same_changes() {
    let reference = Reference::new("flux_schnell");
    let before = state(&reference.model);
    let changes = all_changes(&reference.model, 1, 3.0);
    let mut first = None;
    for (index, form) in FORMS.iter().enumerate() {
        let name = form.name;
        let path = reference.path(name);
        let dtype = [Dtype::F32, Dtype::F16, Dtype::BF16][index % 3];
        let modules = write_form(&path, form, &changes, dtype);
        let loras = reference.model.open_loras(&[LoraSource { path, weight: 0.5 }]).unwrap();
        let report = &loras.report().files[0];
        assert_eq!(report.unmatched, [], "{name}");
        let matched: usize = report.matched.iter().map(|(_, count)| count).sum();
        assert_eq!(matched, modules, "{name}");
        let components: Vec<&str> = report.matched.iter().map(|(name, _)| *name).collect();
        assert_eq!(components, ["clip", "dit", "t5"], "{name}");

        let mode = |_: &str| Some(LoraMode::Immediately);
        let model = reference.model.with_loras(&loras, &mode, &|| false).unwrap();
        let first = first.get_or_insert_with(|| {
            assert_formula(&reference, &model, &[(&changes, 0.5)]);
            model.clone()
        });
        for component in COMPONENTS {
            let files = model.files(component);
            assert_eq!(files.private_bytes(), loras.private_bytes(component));
            for (info, expected) in files.tensors().zip(first.files(component).tensors()) {
                let expected = first.files(component).bytes(&expected);
                assert!(files.bytes(&info) == expected, "{name}: {}", info.name);
            }
        }
    }
    assert_eq!(state(&reference.model), before, "a file changed");
}

#[test]
fn both_modes_compute_what_a_changed_checkpoint_does() {
    let reference = Reference::new("flux_schnell");
    let before = state(&reference.model);
    let (sources, [every, some]) = two_loras(&reference);
    let checkpoint = reference.merged_checkpoint(&[(&every, 0.75), (&some, -0.5)]);
    let immediately = reference.with(&sources, LoraMode::Immediately);
    let runtime = reference.with(&sources, LoraMode::Runtime);
    for component in COMPONENTS {
        let expected = output(&checkpoint, component);
        let base = distance(&output(&reference.model, component), &expected);
        assert!(base > 0.05, "{component}: the adapters hardly matter: {base:e}");
        for (name, model) in [("immediately", &immediately), ("runtime", &runtime)] {
            let found = distance(&output(model, component), &expected);
            assert!(found < TOLERANCE, "{component} {name}: {found:e}");
        }
    }
    assert_eq!(state(&reference.model), before, "a file changed");
}

#[test]
fn weights_in_shards_of_half_precision_are_changed_too() {
    let reference = Reference::new("flux_dev");
    assert!(reference.files("dit").paths().count() > 1);
    let before = state(&reference.model);
    let (sources, [every, some]) = two_loras(&reference);
    let changes: [(&[Change], f64); 2] = [(&every, 0.75), (&some, -0.5)];
    let checkpoint = reference.merged_checkpoint(&changes);
    let runtime = reference.with(&sources, LoraMode::Runtime);
    let immediately = reference.with(&sources, LoraMode::Immediately);
    for component in COMPONENTS {
        // Weights beside which the product is added keep all of it; merged ones are rounded.
        let found = distance(&output(&runtime, component), &output(&checkpoint, component));
        assert!(found < TOLERANCE, "{component}: {found:e}");
    }
    assert_formula(&reference, &immediately, &changes);
    assert_eq!(state(&reference.model), before, "a file changed");
}

#[test]
fn each_component_has_its_own_mode_and_shares_what_has_no_adapters() {
    let reference = Reference::new("flux_schnell");
    let mut changes = all_changes(&reference.model, 1, 3.0);
    changes.retain(|change| change.component != "t5");
    let path = reference.path("lora");
    write_form(&path, &FORMS[0], &changes, Dtype::F16);
    let loras = reference.model.open_loras(&[LoraSource { path, weight: 1.0 }]).unwrap();
    assert_eq!(loras.components().collect::<Vec<_>>(), ["clip", "dit"]);
    let mode = |component: &str| match component {
        "clip" => Some(LoraMode::Immediately),
        _ => Some(LoraMode::Runtime),
    };
    let model = reference.model.with_loras(&loras, &mode, &|| false).unwrap();
    for component in ["t5", "vae"] {
        assert!(Arc::ptr_eq(model.files(component), reference.files(component)), "{component}");
    }
    assert!(model.files("clip").private_bytes() > Bytes::ZERO);
    assert_eq!(model.files("dit").private_bytes(), Bytes::ZERO);
    assert_eq!(model.files("clip").adapted_weights().count(), 0);
    assert!(model.files("dit").adapted_weights().count() > 0);
    model.check_unchanged().unwrap();
    fs::write(reference.path("lora"), b"short").unwrap();
    assert!(matches!(model.check_unchanged(), Err(WeightsError::FileShrank { .. })));
}

#[test]
fn factors_are_weights_of_the_segment_that_they_adapt() {
    let reference = Reference::new("flux_schnell");
    let changes = all_changes(&reference.model, 1, 3.0);
    let path = reference.path("lora");
    write_form(&path, &FORMS[6], &changes, Dtype::BF16);
    let sources = [LoraSource { path: path.clone(), weight: 1.0 }];
    let runtime = reference.with(&sources, LoraMode::Runtime);
    let file = WeightFiles::open_file(&path).unwrap();
    let mut factor_bytes = Bytes::ZERO;
    let graphs = reference.model.graphs(&job(), &GraphOptions::default()).unwrap().into_iter();
    for (base, adapted) in graphs.zip(runtime.graphs(&job(), &GraphOptions::default()).unwrap()) {
        let segment = |name: &str| {
            adapted.variants[0].weights.iter().find(|weight| *weight.name == *name).unwrap().segment
        };
        let files = runtime.files(base.name);
        for weight in files.adapted_weights() {
            for adapter in files.adapters(weight) {
                for factor in [&adapter.a, &adapter.b] {
                    assert_eq!(segment(factor), segment(weight), "{factor}");
                }
            }
        }
        assert_eq!(base.variants[0].segments, adapted.variants[0].segments);
        let schedule = |graph: &Graph| {
            let assignment = Assignment::on_one(graph, BackendKind::Host, 1);
            Schedule::new(Arc::new(graph.clone()), assignment, &OperationNeeds)
        };
        let (base, adapted) = (schedule(&base.variants[0]), schedule(&adapted.variants[0]));
        factor_bytes += adapted.tensor_bytes() - base.tensor_bytes();
    }
    // Each byte of the file once, though projections share a factor; only the scales are no
    // weights.
    let alphas = file.tensors().filter(|info| info.name.ends_with(".alpha"));
    let alphas: Bytes = alphas.map(|info| info.size).sum();
    assert_eq!(factor_bytes, file.total_tensor_bytes() - alphas);
}

#[test]
fn a_lora_for_another_model_is_refused() {
    let reference = Reference::new("flux_schnell");
    let path = reference.path("lora");
    let tensor = |name: &str| (name.to_owned(), Dtype::F32, vec![4, 4], vec![0; 64]);
    // SDXL's, whose second text encoder is another CLIP.
    let keys = [
        "lora_unet_down_blocks_1_attentions_0_proj_in.lora_down.weight",
        "lora_unet_down_blocks_1_attentions_0_proj_in.lora_up.weight",
        "lora_te2_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight",
        "lora_te2_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight",
    ];
    write_tensors(&path, keys.map(tensor).into(), None);
    let source = LoraSource { path: path.clone(), weight: 1.0 };
    let error = reference.model.open_loras(std::slice::from_ref(&source)).unwrap_err();
    assert!(error.with_causes().contains("made for another model"), "{}", error.with_causes());

    // The right names, and a model of another width.
    let keys = [
        "transformer.transformer_blocks.1.attn.to_q.lora_A.weight",
        "transformer.transformer_blocks.1.attn.to_q.lora_B.weight",
    ];
    write_tensors(&path, keys.map(tensor).into(), None);
    let error = reference.model.open_loras(&[source]).unwrap_err();
    assert!(
        matches!(&error, executor::models::ModelError::Lora(LoraError::WrongShape { .. })),
        "{}",
        error.with_causes()
    );
}
