//! Adapters on a small component without a family: every way in which a file can be wrong, and
//! results against the formula.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use half::{bf16, f16};
use safetensors::Dtype as Theirs;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::*;
use crate::weights::WeightsError;

/// A tensor to write: its name, type, shape and content.
struct Written(String, Theirs, Vec<usize>, Vec<u8>);

fn element_bytes(dtype: Theirs, value: f32) -> Vec<u8> {
    match dtype {
        Theirs::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        Theirs::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        Theirs::F32 => value.to_le_bytes().to_vec(),
        other => vec![value as u8; other.bitsize() / 8],
    }
}

/// Numbers between -1 and 1 that look random and are the same on every run.
fn random(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn tensor(name: &str, dtype: Theirs, shape: &[usize]) -> Written {
    let seed = name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    let values = random(seed).take(shape.iter().product());
    let bytes = values.flat_map(|value| element_bytes(dtype, value)).collect();
    Written(name.to_owned(), dtype, shape.to_vec(), bytes)
}

fn scalar(name: &str, value: f32) -> Written {
    Written(name.to_owned(), Theirs::F32, vec![], value.to_le_bytes().to_vec())
}

fn write(path: &Path, tensors: &[Written], note: Option<&str>) {
    let views = tensors.iter().map(|Written(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let notes = note.map(|note| [(metadata::NOTE.to_owned(), note.to_owned())].into());
    safetensors::serialize_to_file(views, notes, path).unwrap();
}

/// A component of three layers that one name stands for together, one layer that stands with its
/// halves swapped under another name, and much that is no layer.
struct Component {
    dir: TempDir,
    weights: Arc<WeightFiles>,
    names: LoraNames,
}

const LAYERS: [(&str, Theirs, [usize; 2]); 4] = [
    ("block.q", Theirs::F32, [33, 300]),
    ("block.k", Theirs::F16, [33, 300]),
    ("block.v", Theirs::BF16, [50, 300]),
    ("out", Theirs::BF16, [20, 7]),
];

impl Component {
    fn new() -> Component {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors: Vec<Written> = LAYERS
            .iter()
            .map(|(name, dtype, shape)| tensor(&format!("{name}.weight"), *dtype, shape))
            .collect();
        tensors.push(tensor("block.a_table", Theirs::F32, &[9000]));
        tensors.push(tensor("z_table", Theirs::BF16, &[9000]));
        let path = dir.path().join("model.safetensors");
        write(&path, &tensors, None);
        let weights = Arc::new(WeightFiles::open_file(&path).unwrap());
        let layers = LAYERS.map(|(name, _, shape)| {
            let name = format!("{name}.weight");
            let tensor = weights.require(&name, &shape).unwrap();
            (name, tensor)
        });
        let layers = layers.iter().map(|(name, tensor)| (name.as_str(), *tensor));
        let mut component = ComponentNames::new("part", &["", "part_", "lora_part_"], layers);
        component.alias("block.qkv", &["q", "k", "v"].map(|layer| format!("block.{layer}")));
        component.alias("block.nothing", &["block.absent".to_owned()]);
        component.alias_with_halves_swapped("last", "out");
        component.alias_with_halves_swapped("nothing", "absent");
        let mut names = LoraNames::default();
        names.add(component);
        Component { dir, weights, names }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn lora(&self, name: &str, tensors: &[Written], note: Option<&str>) -> LoraSource {
        let path = self.path(name);
        write(&path, tensors, note);
        LoraSource { path, weight: 1.0 }
    }

    fn open(&self, sources: &[LoraSource]) -> Result<Loras, LoraError> {
        Loras::open(sources, &self.names)
    }

    fn apply(&self, loras: &Loras, mode: LoraMode) -> Result<Arc<WeightFiles>, LoraError> {
        loras.apply("part", &self.weights, mode, &|| false)
    }

    /// The error that a file of these tensors ends in, with the file's path in its message.
    #[track_caller]
    fn refused(&self, tensors: &[Written], note: Option<&str>) -> LoraError {
        let source = self.lora("bad.safetensors", tensors, note);
        let fault = self.open(std::slice::from_ref(&source)).expect_err("the file is bad");
        let path = source.path.to_str().unwrap();
        assert!(fault.to_string().contains(path), "no path in: {fault}");
        fault
    }
}

/// The two factors of a module in PEFT's form.
fn factors(module: &str, dtype: Theirs, rank: usize, [out, inner]: [usize; 2]) -> [Written; 2] {
    [
        tensor(&format!("{module}.lora_A.weight"), dtype, &[rank, inner]),
        tensor(&format!("{module}.lora_B.weight"), dtype, &[out, rank]),
    ]
}

fn values(files: &WeightFiles, name: &str) -> Vec<f32> {
    let info = files.tensor(name).unwrap();
    files.require(name, info.shape).unwrap().view(files).to_f32()
}

/// `W + Σ scale · B · A` in f64, element by element. `changes`: scale, A, B and the first row.
fn formula(
    base: &[f32],
    [rows, columns]: [usize; 2],
    changes: &[(f64, Vec<f32>, Vec<f32>, usize)],
) -> Vec<f64> {
    let element = |row: usize, column: usize| {
        let mut sum = f64::from(base[row * columns + column]);
        for (scale, a, b, first_row) in changes {
            let rank = a.len() / columns;
            let Some(row) = row.checked_sub(*first_row).filter(|row| (row + 1) * rank <= b.len())
            else {
                continue;
            };
            let product: f64 = (0..rank)
                .map(|k| f64::from(b[row * rank + k]) * f64::from(a[k * columns + column]))
                .sum();
            sum += scale * product;
        }
        sum
    };
    (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(r, c)| element(r, c))
        .collect()
}

/// Each value is one of its type's that is nearest to what is expected.
#[track_caller]
fn assert_nearest(dtype: Theirs, got: &[f32], expected: &[f64], name: &str) {
    let digits = match dtype {
        Theirs::F32 => 24,
        Theirs::F16 => 11,
        _ => 8,
    };
    assert_eq!(got.len(), expected.len());
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        // Half the distance of neighbours of this size; f16 has none closer than 2⁻²⁴.
        let exponent = f64::from(got.abs().max(1e-30).log2().floor()).max(-14.0);
        let half_step = 2_f64.powf(exponent - f64::from(digits));
        let error = (f64::from(got) - expected).abs();
        assert!(error <= half_step * (1.0 + 1e-9), "{name}[{at}] {got}, not {expected}");
    }
}

fn state(path: &Path) -> (Vec<u8>, SystemTime) {
    (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap())
}

/// Two files: one of both fused forms, one on a single layer, each with its own weight.
fn two_loras(component: &Component) -> [LoraSource; 2] {
    let mut fused: Vec<Written> = factors("part.block.qkv", Theirs::BF16, 4, [116, 300]).into();
    fused.extend(factors("last", Theirs::F16, 3, [20, 7]));
    fused.push(scalar("part.block.qkv.alpha", 2.0));
    let mut single: Vec<Written> = factors("part.block.k", Theirs::F32, 2, [33, 300]).into();
    single.push(tensor("part.block.other.lora_A.weight", Theirs::F32, &[2, 300]));
    single.push(tensor("unheard_of", Theirs::I64, &[3]));
    let note = r#"{"part.lora_alpha": 6, "part.r": 2}"#;
    let [mut first, mut second] =
        [component.lora("fused", &fused, None), component.lora("single", &single, Some(note))];
    (first.weight, second.weight) = (0.8, -1.5);
    [first, second]
}

#[test]
fn merged_weights_are_the_formulas_nearest_numbers() {
    let component = Component::new();
    let path = component.path("model.safetensors");
    let before = state(&path);
    let sources = two_loras(&component);
    let loras = component.open(&sources).unwrap();
    let merged = component.apply(&loras, LoraMode::Immediately).unwrap();

    let files = sources.each_ref().map(|source| WeightFiles::open_file(&source.path).unwrap());
    let factors = |file: usize, module: &str| {
        let factor = |part: &str| values(&files[file], &format!("{module}.{part}.weight"));
        (factor("lora_A"), factor("lora_B"))
    };
    let scales = [f64::from(0.8_f32) * 2.0 / 4.0, f64::from(0.8_f32), -1.5 * 6.0 / 2.0];
    let (a, b) = factors(0, "part.block.qkv");
    let own = |rows: Range<usize>, first_row| {
        (scales[0], a.clone(), b[rows.start * 4..rows.end * 4].to_vec(), first_row)
    };
    let (last_a, last_b) = factors(0, "last");
    let half = |rows: Range<usize>, first_row| {
        (scales[1], last_a.clone(), last_b[rows.start * 3..rows.end * 3].to_vec(), first_row)
    };
    let (k_a, k_b) = factors(1, "part.block.k");
    for ((name, dtype, shape), changes) in LAYERS.into_iter().zip([
        vec![own(0..33, 0)],
        vec![own(33..66, 0), (scales[2], k_a, k_b, 0)],
        vec![own(66..116, 0)],
        vec![half(0..10, 10), half(10..20, 0)],
    ]) {
        let name = format!("{name}.weight");
        let base = values(&component.weights, &name);
        let expected = formula(&base, shape, &changes);
        let got = values(&merged, &name);
        assert_nearest(dtype, &got, &expected, &name);
        let changed = got.iter().zip(&base).filter(|(got, base)| got != base).count();
        assert!(changed * 2 > base.len(), "{name} hardly changed");
    }
    for name in ["block.a_table", "z_table"] {
        assert_eq!(values(&merged, name), values(&component.weights, name));
    }
    assert_eq!(state(&path), before, "the file changed");
    let again = component.apply(&loras, LoraMode::Immediately).unwrap();
    for info in merged.tensors() {
        assert_eq!(merged.bytes(&info), again.bytes(&info), "the base was changed");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn just_the_pages_under_changed_rows_become_private() {
    let component = Component::new();
    let layer = component.lora("q", &factors("block.q", Theirs::F32, 2, [33, 300]), None);
    let mut both = factors("block.q", Theirs::F32, 2, [33, 300]).into_iter().collect::<Vec<_>>();
    both.extend(factors("out", Theirs::F32, 2, [20, 7]));
    let both = component.lora("both", &both, None);
    for sources in [vec![layer.clone()], vec![layer, both], two_loras(&component).to_vec()] {
        let loras = component.open(&sources).unwrap();
        let predicted = loras.private_bytes("part");
        let merged = component.apply(&loras, LoraMode::Immediately).unwrap();
        assert_eq!(merged.private_bytes(), predicted);
        let info = merged.tensor("z_table").unwrap();
        // Reading makes nothing private.
        assert!(merged.tensors().all(|info| merged.bytes(&info).iter().any(|&byte| byte != 0)));
        let found = anonymous_bytes(merged.bytes(&info).as_ptr().addr());
        assert_eq!(found, predicted.0, "of {}", merged.total_tensor_bytes());
        assert!(predicted < merged.total_tensor_bytes());
    }
    assert_eq!(component.weights.private_bytes(), Bytes::ZERO);
    assert_eq!(component.open(&[]).unwrap().private_bytes("part"), Bytes::ZERO);
}

/// What the system says of the mapping at an address: its pages that no file holds.
#[cfg(target_os = "linux")]
fn anonymous_bytes(address: usize) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let first = line.split(' ').next().unwrap();
        if let Some((from, to)) = first.split_once('-') {
            let parse = |text| usize::from_str_radix(text, 16);
            if let (Ok(from), Ok(to)) = (parse(from), parse(to)) {
                inside = (from..to).contains(&address);
            }
        } else if inside && first == "Anonymous:" {
            let kib = line.split_whitespace().nth(1).unwrap();
            return kib.parse::<u64>().unwrap() << 10;
        }
    }
    panic!("no mapping has the address");
}

#[test]
fn beside_the_layers_the_factors_are_tensors_of_the_component() {
    let component = Component::new();
    let sources = two_loras(&component);
    let loras = component.open(&sources).unwrap();
    let extended = component.apply(&loras, LoraMode::Runtime).unwrap();
    assert_eq!(extended.private_bytes(), Bytes::ZERO);
    let changes = |weight: &str| -> Vec<(String, usize, usize, usize, f32)> {
        let adapters = extended.adapters(&format!("{weight}.weight")).iter();
        adapters.map(|x| (x.b.clone(), x.rank, x.first_row, x.rows, x.scale)).collect()
    };
    let part = |name: &str| format!("lora.0.{name}");
    let fused = (0.8_f32 as f64 * 0.5) as f32;
    assert_eq!(
        changes("block.q"),
        [(part("part.block.qkv.lora_B.block.q.weight.0"), 4, 0, 33, fused)]
    );
    assert_eq!(
        changes("block.k"),
        [
            (part("part.block.qkv.lora_B.block.k.weight.0"), 4, 0, 33, fused),
            ("lora.1.part.block.k.lora_B".to_owned(), 2, 0, 33, -4.5),
        ]
    );
    assert_eq!(
        changes("out"),
        [
            (part("last.lora_B.out.weight.10"), 3, 10, 10, 0.8),
            (part("last.lora_B.out.weight.0"), 3, 0, 10, 0.8),
        ]
    );
    assert_eq!(changes("block.other"), []);

    // The bytes are those of the LoRA's own mapping, in order.
    let file = WeightFiles::open_file(&sources[0].path).unwrap();
    let b = values(&file, "last.lora_B.weight");
    assert_eq!(values(&extended, &part("last.lora_B.out.weight.10")), b[..30]);
    assert_eq!(values(&extended, &part("last.lora_B.out.weight.0")), b[30..]);
    assert_eq!(
        values(&extended, &part("part.block.qkv.lora_A")),
        values(&file, "part.block.qkv.lora_A.weight")
    );
    let added = extended.total_tensor_bytes() - component.weights.total_tensor_bytes();
    assert_eq!(added.0, 2 * (4 * 300 + 116 * 4) + 2 * (3 * 7 + 20 * 3) + 4 * (2 * 300 + 33 * 2));
    assert_eq!(extended.paths().count(), 3);
    for info in component.weights.tensors() {
        assert_eq!(
            extended.bytes(&extended.tensor(info.name).unwrap()),
            component.weights.bytes(&info)
        );
    }
}

#[test]
fn the_report_counts_modules_and_lists_what_is_not_applied() {
    let component = Component::new();
    let mut tensors: Vec<Written> =
        factors("lora_part_block_qkv", Theirs::F32, 2, [116, 300]).into();
    tensors.extend(factors("part.out", Theirs::F32, 2, [20, 7]));
    tensors.extend(factors("part.elsewhere", Theirs::F32, 2, [3, 5]));
    tensors.push(tensor("part.out.diff_b", Theirs::F32, &[20]));
    tensors.push(tensor("part.else.hada_w1_a", Theirs::F32, &[2, 2]));
    tensors.push(scalar("part.else.alpha", 3.0));
    tensors.push(tensor("emb_params", Theirs::F32, &[2]));
    let source = component.lora("mixed", &tensors, None);
    let loras = component.open(std::slice::from_ref(&source)).unwrap();
    let [report] = &loras.report().files[..] else { panic!("one file") };
    assert_eq!((&report.path, report.weight), (&source.path, 1.0));
    assert_eq!(report.matched, [("part", 2)]);
    let unmatched: Vec<_> = report.unmatched.iter().map(|u| (u.key.as_str(), u.kind)).collect();
    assert_eq!(
        unmatched,
        [
            ("emb_params", None),
            ("part.else.alpha", Some(Kind::Loha)),
            ("part.else.hada_w1_a", Some(Kind::Loha)),
            ("part.elsewhere.lora_A.weight", None),
            ("part.elsewhere.lora_B.weight", None),
            ("part.out.diff_b", Some(Kind::Whole)),
        ]
    );
    assert_eq!(loras.components().collect::<Vec<_>>(), ["part"]);
}

#[test]
fn a_component_without_adapters_keeps_its_weights() {
    let component = Component::new();
    let loras = component.open(&two_loras(&component)).unwrap();
    for mode in [LoraMode::Immediately, LoraMode::Runtime] {
        let other = loras.apply("other", &component.weights, mode, &|| false).unwrap();
        assert!(Arc::ptr_eq(&other, &component.weights));
    }
}

mod refused;
