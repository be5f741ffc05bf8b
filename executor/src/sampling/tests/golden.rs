//! All trajectories and tables of the reference file (`samplers.json` says how it was made).

mod made;

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::sampling::curves::Curve;
use crate::sampling::path::Prediction;
use crate::sampling::sum::HISTORY_MAX;
use crate::sampling::tables::NamedTable;
use crate::sampling::training::{Betas, Training, ZeroSnr};
use made::made;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden/samplers");

/// Of a step, over the root of the mean square.
const TOLERANCE: f64 = 1e-5;

/// Calls, from 0, in which the reference's own f32 loses more than that: differences of large
/// numbers, or of nearly equal ones over a small level. Its distance from the same run in f64 is
/// known, and is the tolerance there.
const CANCELLED: [(&str, usize); 4] = [
    ("euler_v_zsnr_trailing.n5", 0),
    ("euler_a_v_zsnr.n4", 0),
    ("dpm2_a_v.n3", 1),
    ("fm_heun.n4", 5),
];

/// Of a whole run, likewise: the reference's own.
const RUN_TOLERANCE: f64 = 1e-4;

#[derive(Deserialize)]
struct Document {
    classes: BTreeMap<String, Class>,
    configs: BTreeMap<String, Config>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Class {
    order: usize,
    arguments: Map<String, Value>,
}

#[derive(Deserialize)]
struct Config {
    class: String,
    given: Map<String, Value>,
    betas: Option<String>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: String,
    steps: usize,
    set_timesteps: Map<String, Value>,
    step_args: Map<String, Value>,
    start: Start,
    scaled_input: bool,
    noise_floor: f64,
    noise: Option<Noise>,
    order_list: Option<Vec<usize>>,
}

#[derive(Deserialize)]
struct Start {
    begin_index: usize,
}

#[derive(Deserialize)]
struct Noise {
    tensor: String,
    draw_of_step: Option<Vec<Option<usize>>>,
    step_of_draw: Option<Vec<usize>>,
}

/// The whole file.
struct Golden {
    document: Document,
    bytes: Vec<u8>,
}

impl Golden {
    fn read() -> Golden {
        let document = std::fs::read(format!("{SOURCE}.json")).unwrap();
        Golden {
            document: serde_json::from_slice(&document).unwrap(),
            bytes: std::fs::read(format!("{SOURCE}.safetensors")).unwrap(),
        }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    fn setting(&self, config: &Config) -> Setting {
        let mut arguments = match self.document.classes.get(&config.class) {
            Some(class) => class.arguments.clone(),
            None => Map::new(),
        };
        arguments.extend(config.given.clone());
        let order = self.document.classes.get(&config.class).map_or(1, |class| class.order);
        Setting { class: config.class.clone(), arguments, betas: config.betas.clone(), order }
    }
}

fn values(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f64>> {
    let view = file.tensor(name).ok()?;
    let data = view.data();
    Some(match view.dtype() {
        Dtype::F32 => {
            data.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
        }
        Dtype::F64 => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        Dtype::I64 => data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        other => panic!("{name} is {other:?}"),
    })
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    values(file, name).unwrap_or_else(|| panic!("{name}")).iter().map(|v| *v as f32).collect()
}

/// A class with all its arguments.
struct Setting {
    class: String,
    arguments: Map<String, Value>,
    betas: Option<String>,
    order: usize,
}

impl Setting {
    fn flag(&self, key: &str) -> bool {
        self.arguments.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn text(&self, key: &str) -> &str {
        self.arguments.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.arguments.get(key).and_then(Value::as_f64)
    }

    fn prediction(&self) -> Prediction {
        match self.text("prediction_type") {
            "epsilon" => Prediction::Noise,
            "v_prediction" => Prediction::Velocity,
            "sample" => Prediction::Sample,
            _ => Prediction::Flow,
        }
    }

    fn training(&self) -> Option<Training> {
        let id = self.betas.as_deref()?;
        let zero_snr = match id {
            "scaled_linear_zsnr" => ZeroSnr::Whole,
            "scaled_linear_zsnr_floor" => ZeroSnr::Floor,
            _ => ZeroSnr::No,
        };
        let betas = match id {
            "linear" => Betas::Linear([0.0001, 0.02]),
            "squaredcos_cap_v2" => Betas::SquaredCosine,
            _ => Betas::ScaledLinear([0.00085, 0.012]),
        };
        Some(Training::of(betas, zero_snr))
    }

    fn curve(&self) -> Option<Curve> {
        let curves = [
            ("use_karras_sigmas", Curve::Karras),
            ("use_exponential_sigmas", Curve::Exponential),
            ("use_beta_sigmas", Curve::Beta),
            // Equal strides in half the logarithm of the signal-to-noise ratio are the same.
            ("use_lu_lambdas", Curve::Exponential),
        ];
        curves.into_iter().find(|(key, _)| self.flag(key)).map(|(_, curve)| curve)
    }
}

/// The largest difference over the root of the mean square.
fn difference(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square: f64 = expected.iter().map(|value| f64::from(*value).powi(2)).sum();
    let rms = (square / expected.len() as f64).sqrt();
    let pairs = got.iter().zip(expected);
    pairs.map(|(got, expected)| f64::from((got - expected).abs()) / rms).fold(0.0, f64::max)
}

#[test]
fn levels_of_training_equal_the_reference() {
    let golden = Golden::read();
    let file = golden.file();
    for (id, betas, zero_snr) in [
        ("linear", Betas::Linear([0.0001, 0.02]), ZeroSnr::No),
        ("scaled_linear", Betas::ScaledLinear([0.00085, 0.012]), ZeroSnr::No),
        ("scaled_linear_zsnr", Betas::ScaledLinear([0.00085, 0.012]), ZeroSnr::Whole),
        ("scaled_linear_zsnr_floor", Betas::ScaledLinear([0.00085, 0.012]), ZeroSnr::Floor),
        ("squaredcos_cap_v2", Betas::SquaredCosine, ZeroSnr::No),
    ] {
        let expected = floats(&file, &format!("betas/{id}/alphas_cumprod"));
        let got = Training::of(betas, zero_snr).products;
        for (time, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let close = (got - expected).abs() <= 1e-6 * expected.abs() + 1e-9;
            assert!(close, "{id}[{time}]: {got} for {expected}");
        }
    }
}

#[test]
fn every_trajectory_equals_the_reference_step_by_step() {
    let golden = Golden::read();
    let file = golden.file();
    let mut failed = Vec::new();
    for case in &golden.document.cases {
        let setting = golden.setting(&golden.document.configs[&case.config]);
        let sigmas = values(&file, &format!("{}/sigmas", case.name)).unwrap_or_default();
        let made = made(&setting, case.steps, Some(case), &sigmas);
        let tensor = |part: &str| floats(&file, &format!("{}/{part}", case.name));
        let (start, out, prev) = (tensor("start"), tensor("out"), tensor("prev"));
        let len = start.len();
        let calls = &made.trajectory.calls;
        assert_eq!(calls.len(), out.len() / len, "{}", case.name);
        let mut history = vec![vec![0.0; len]; HISTORY_MAX];
        let mut latents = start;
        for (index, call) in calls.iter().enumerate() {
            let place = index * len..(index + 1) * len;
            if case.scaled_input {
                let input = tensor("in");
                let scaled: Vec<f32> =
                    latents.iter().map(|x| (f64::from(*x) * call.input_scale) as f32).collect();
                let off = difference(&scaled, &input[place.clone()]);
                if off > TOLERANCE {
                    failed.push(format!("{} call {index} in: {off:e}", case.name));
                }
            }
            let noise = noise_of(&file, case, index, call.draws);
            let mut output = out[place.clone()].to_vec();
            call.apply(&mut latents, &mut output, &noise, &mut history);
            let expected = &prev[place];
            let off = difference(&latents, expected);
            let is_cancelled = CANCELLED.contains(&(case.name.as_str(), index));
            let allowed = if is_cancelled { 1.5 * case.noise_floor } else { TOLERANCE };
            if off > allowed {
                failed.push(format!("{} call {index}: {off:e}", case.name));
            }
            // Each step begins where the reference does.
            latents.copy_from_slice(expected);
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// With the reference's model, a formula, in place of its stored outputs: errors may add up.
#[test]
fn every_run_ends_where_the_reference_does() {
    let golden = Golden::read();
    let file = golden.file();
    let constants = floats(&file, "model/c");
    let mut failed = Vec::new();
    for case in &golden.document.cases {
        let setting = golden.setting(&golden.document.configs[&case.config]);
        let sigmas = values(&file, &format!("{}/sigmas", case.name)).unwrap_or_default();
        let made = made(&setting, case.steps, Some(case), &sigmas);
        let tensor = |part: &str| floats(&file, &format!("{}/{part}", case.name));
        let (mut latents, prev) = (tensor("start"), tensor("prev"));
        let mut history = vec![vec![0.0; latents.len()]; made.trajectory.history_len()];
        for (index, call) in made.trajectory.calls.iter().enumerate() {
            let output = |(x, c): (&f32, &f32)| {
                let input = (f64::from(*x) * call.input_scale) as f32;
                let of_time = 0.3 * (call.time / 100.0).sin() * f64::from(*c);
                (0.7 * f64::from(input).tanh() + of_time) as f32
            };
            let mut output: Vec<f32> = latents.iter().zip(&constants).map(output).collect();
            let noise = noise_of(&file, case, index, call.draws);
            call.apply(&mut latents, &mut output, &noise, &mut history);
        }
        let off = difference(&latents, &prev[prev.len() - latents.len()..]);
        if off > RUN_TOLERANCE.max(20.0 * case.noise_floor) {
            failed.push(format!("{}: {off:e}", case.name));
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// The noise of a call, which it draws where the reference does.
fn noise_of(file: &SafeTensors<'_>, case: &Case, call: usize, draws: bool) -> Vec<f32> {
    let Some(noise) = &case.noise else {
        assert!(!draws, "{} call {call} draws", case.name);
        return Vec::new();
    };
    let row = match (&noise.draw_of_step, &noise.step_of_draw) {
        (Some(draws), _) => draws[call],
        (_, Some(steps)) => steps.iter().position(|step| *step == call),
        _ => panic!("{}", case.name),
    };
    assert_eq!(row.is_some(), draws, "{} call {call}", case.name);
    let Some(row) = row else { return Vec::new() };
    let rows = floats(file, &noise.tensor);
    let len = floats(file, "init/x0").len();
    rows[row * len..(row + 1) * len].to_vec()
}

/// Differences between levels, of which the reference's tolerance is given.
fn levels_off(what: &str, got: &[f64], expected: &[f64], failed: &mut Vec<String>) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        if (got - expected).abs() > 1e-5 * expected.abs() + 1e-6 {
            failed.push(format!("{what} sigma {place}: {got} for {expected}"));
        }
    }
}

/// Whole times are exact, others within the reference's tolerance.
fn times_off(what: &str, is_whole: bool, got: &[f64], expected: &[f64], failed: &mut Vec<String>) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        let tolerance = if is_whole { 0.0 } else { 2e-3 };
        if (got - expected).abs() > tolerance {
            failed.push(format!("{what} time {place}: {got} for {expected}"));
        }
    }
}

#[test]
fn every_table_equals_the_reference() {
    let golden = Golden::read();
    let file = golden.file();
    let mut failed = Vec::new();
    for case in &golden.document.cases {
        let setting = golden.setting(&golden.document.configs[&case.config]);
        let name = &case.name;
        let sigmas = values(&file, &format!("{name}/sigmas")).unwrap_or_default();
        let made = made(&setting, case.steps, Some(case), &sigmas);
        if setting.order == 1 && !made.table.sigmas.is_empty() && setting.class != "k-diffusion" {
            levels_off(name, &made.table.sigmas, &sigmas, &mut failed);
        }
        if let Some(expected) = values(&file, &format!("{name}/call_sigmas")) {
            let got: Vec<f64> = made.trajectory.calls.iter().map(|call| call.sigma).collect();
            levels_off(name, &got, &expected, &mut failed);
        }
        let times: Vec<f64> = made.trajectory.calls.iter().map(|call| call.time).collect();
        let (expected, is_whole) = times_of(&file, name);
        if let Some(expected) = expected {
            let expected = &expected[case.start.begin_index..][..times.len()];
            times_off(name, is_whole, &times, expected, &mut failed);
        }
    }
    let mut names: Vec<&str> =
        file.names().into_iter().filter(|n| n.starts_with("tables/")).collect();
    names.sort();
    for name in names {
        let [_, config, steps, part] = name.split('/').collect::<Vec<_>>()[..] else {
            panic!("{name}")
        };
        let setting = golden.setting(&golden.document.configs[config]);
        let steps: usize = steps[1..].parse().unwrap();
        let like = golden.document.cases.iter().find(|case| case.config == config);
        let made = made(&setting, steps, like, &[]);
        let expected = values(&file, name).unwrap();
        let is_whole = file.tensor(name).unwrap().dtype() == Dtype::I64;
        match part {
            "sigmas" if setting.order == 1 => {
                levels_off(name, &made.table.sigmas, &expected, &mut failed);
            }
            "timesteps" => {
                let got: Vec<f64> = made.trajectory.calls.iter().map(|call| call.time).collect();
                times_off(name, is_whole, &got, &expected, &mut failed);
            }
            _ => {}
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

fn times_of(file: &SafeTensors<'_>, name: &str) -> (Option<Vec<f64>>, bool) {
    let name = format!("{name}/timesteps");
    let is_whole = file.tensor(&name).is_ok_and(|view| view.dtype() == Dtype::I64);
    (values(file, &name), is_whole)
}

#[test]
fn tables_of_comfyui_and_a1111_equal_the_reference() {
    let golden = Golden::read();
    let file = golden.file();
    let training = Training::of(Betas::ScaledLinear([0.00085, 0.012]), ZeroSnr::No);
    let mut failed = Vec::new();
    for (name, table) in [
        ("normal", NamedTable::Normal),
        ("sgm_uniform", NamedTable::SgmUniform),
        ("karras", NamedTable::Karras),
        ("exponential", NamedTable::Exponential),
        ("simple", NamedTable::Simple),
        ("ddim_uniform", NamedTable::DdimUniform),
        ("beta_a1111", NamedTable::BetaOfSigmas),
        ("beta_comfyui", NamedTable::BetaOfTimes),
        ("kl_optimal_comfyui", NamedTable::KlOptimal),
        ("kl_optimal_a1111", NamedTable::KlOptimalToLowest),
    ] {
        for steps in [7, 20] {
            let name = format!("kd_tables/{name}/n{steps}");
            let expected = values(&file, &name).unwrap();
            levels_off(&name, &training.named_sigmas(table, steps), &expected, &mut failed);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
