//! The levels and steps of the reference pipelines, and levels computed by hand.

mod golden;

use super::curves::Curve;
use super::flow::*;
use super::*;
use protocol::Sampler;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

const TOLERANCE: f32 = 1e-6;

macro_rules! repository {
    ($path:expr) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../", $path)
    };
}

/// A reference model: its scheduler's configuration, the list of its cases, and their tensors.
struct Reference {
    config: FlowMatchConfig,
    cases: Vec<Case>,
    tensors: Vec<u8>,
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

/// The two lists of cases name their fields differently.
#[derive(Deserialize)]
struct Case {
    #[serde(alias = "key")]
    name: String,
    #[serde(alias = "call")]
    shape: Option<Shape>,
    #[serde(flatten)]
    flat: Option<Shape>,
}

#[derive(Deserialize, Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    #[serde(alias = "num_inference_steps")]
    steps: usize,
    #[serde(default)]
    true_cfg_scale: Option<f32>,
}

impl Case {
    fn shape(&self) -> Shape {
        self.shape.or(self.flat).expect("each case has a shape")
    }
}

fn reference(model: &str, golden: &str) -> Reference {
    let config =
        std::fs::read_to_string(format!("{model}/scheduler/scheduler_config.json")).unwrap();
    let cases = std::fs::read(format!("{golden}.json")).unwrap();
    Reference {
        config: FlowMatchConfig::parse(&config).unwrap(),
        cases: serde_json::from_slice::<Cases>(&cases).unwrap().cases,
        tensors: std::fs::read(format!("{golden}.safetensors")).unwrap(),
    }
}

fn flux(name: &str) -> Reference {
    let root = repository!("tests/fixtures");
    reference(&format!("{root}/{name}"), &format!("{root}/golden/{name}"))
}

fn demo() -> Reference {
    reference(repository!("planner/demo/model"), repository!("tests/fixtures/golden/demo"))
}

fn values(file: &SafeTensors, name: &str) -> Vec<f32> {
    let view = file.tensor(name).unwrap();
    assert_eq!(view.dtype(), Dtype::F32);
    view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The usual sampler's step between two levels.
fn euler_step(latents: &mut [f32], velocity: &[f32], sigma: f32, sigma_next: f32) {
    let table = SigmaTable { sigmas: vec![sigma, sigma_next], timesteps: vec![1000.0 * sigma] };
    let made = named::flow_trajectory(Sampler::Euler, &table, 0, None).unwrap();
    let mut output = velocity.to_vec();
    made.calls[0].apply(latents, &mut output, &[], &mut []);
    // In f32, one operation after the other; so is the picture that the model sees.
    let expected = latents.iter().zip(velocity).map(|(x, v)| x - sigma_next * v);
    assert!(expected.eq(output));
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance, "{what}[{i}]: {got} for {expected}");
    }
}

fn table(json: &str, steps: usize, image_tokens: usize) -> SigmaTable {
    FlowMatchConfig::parse(json).unwrap().sigmas(steps, image_tokens).unwrap()
}

#[test]
fn levels_equal_the_reference_in_every_case() {
    let families = [(flux("flux_schnell"), "/", 5), (flux("flux_dev"), "/", 5), (demo(), ".", 3)];
    for (reference, separator, count) in families {
        let file = SafeTensors::deserialize(&reference.tensors).unwrap();
        assert_eq!(reference.cases.len(), count);
        for case in &reference.cases {
            let Shape { width, height, steps, .. } = case.shape();
            let table = reference.config.sigmas(steps, (width / 16) * (height / 16)).unwrap();
            let golden = |part| values(&file, &format!("{}{separator}{part}", case.name));
            assert_close(&table.sigmas, &golden("sigmas"), TOLERANCE, &case.name);
            // Timesteps are levels times 1000, and so is their rounding.
            assert_close(&table.timesteps, &golden("timesteps"), 1000.0 * TOLERANCE, &case.name);
        }
    }
}

#[test]
fn the_models_time_input_equals_the_reference() {
    for reference in [flux("flux_schnell"), flux("flux_dev")] {
        let file = SafeTensors::deserialize(&reference.tensors).unwrap();
        for case in &reference.cases {
            let first = values(&file, &format!("{}/timesteps", case.name))[0];
            let name = format!("{}/transformer.call0.in.timestep", case.name);
            // The fixture holds the pipeline's half: the timestep over 1000.
            assert_eq!(model_timestep(first), values(&file, &name)[0] * 1000.0);
        }
    }
}

#[test]
fn the_first_step_equals_the_reference() {
    for reference in [flux("flux_schnell"), flux("flux_dev")] {
        let file = SafeTensors::deserialize(&reference.tensors).unwrap();
        for case in &reference.cases {
            let golden = |part: &str| values(&file, &format!("{}/{part}", case.name));
            let mut velocity = golden("transformer.call0.out");
            if let Some(scale) = case.shape().true_cfg_scale {
                guide(&mut velocity, &golden("transformer.call1.out"), scale);
            }
            let (mut latents, sigmas) = (golden("latents_init"), golden("sigmas"));
            euler_step(&mut latents, &velocity, sigmas[0], sigmas[1]);
            assert_close(&latents, &golden("latents.step0"), TOLERANCE, &case.name);
        }
    }
}

#[test]
fn every_step_of_the_demo_equals_the_reference() {
    let reference = demo();
    let file = SafeTensors::deserialize(&reference.tensors).unwrap();
    for case in &reference.cases {
        let golden = |part: &str| values(&file, &format!("{}.{part}", case.name));
        let (mut latents, sigmas) = (golden("init_latents"), golden("sigmas"));
        let (velocities, expected) = (golden("step_velocity"), golden("step_latents"));
        let steps = velocities.chunks(latents.len()).zip(expected.chunks(latents.len()));
        assert_eq!(steps.len(), case.shape().steps);
        for (i, (velocity, expected)) in steps.enumerate() {
            euler_step(&mut latents, velocity, sigmas[i], sigmas[i + 1]);
            assert_close(&latents, expected, TOLERANCE, &format!("{} step {i}", case.name));
        }
    }
}

#[test]
fn a_static_shift_of_three_by_hand() {
    // x = 1, 3/4, 1/2, 1/4 through 3x / (1 + 2x).
    let table = table(r#"{"shift": 3.0}"#, 4, 0);
    assert_close(&table.sigmas, &[1.0, 0.9, 0.75, 0.5, 0.0], TOLERANCE, "sigmas");
    assert_close(&table.timesteps, &[1000.0, 900.0, 750.0, 500.0], 1e-3, "timesteps");
}

#[test]
fn levels_that_the_scheduler_makes_are_shifted_twice() {
    let config = FlowMatchConfig::parse(r#"{"shift": 3.0}"#).unwrap().over_trained_levels();
    // diffusers' own for seven steps (`golden/samplers.safetensors`, fm_euler_shift.n7).
    let golden = [
        1.0,
        0.937_710_46,
        0.857_692_3,
        0.751_121_1,
        0.602_150_56,
        0.379_194_62,
        0.008_928_572,
        0.0,
    ];
    assert_close(&config.sigmas(7, 0).unwrap().sigmas, &golden, TOLERANCE, "seven steps");
    for model in ["sd3_medium", "sd35_medium"] {
        let reference = flux(model);
        let file = SafeTensors::deserialize(&reference.tensors).unwrap();
        let config = reference.config.clone().over_trained_levels();
        for case in &reference.cases {
            let table = config.sigmas(case.shape().steps, 0).unwrap();
            let golden = |part| values(&file, &format!("{}/{part}", case.name));
            assert_close(&table.sigmas, &golden("sigmas"), TOLERANCE, &case.name);
            assert_close(&table.timesteps, &golden("timesteps"), 1000.0 * TOLERANCE, &case.name);
        }
    }
    assert_eq!(config.sigmas(1, 0).unwrap().sigmas, [1.0, 0.0]);
}

#[test]
fn tables_of_other_programs_by_hand() {
    let flat = FlowMatchConfig::parse("{}").unwrap();
    let shifted = FlowMatchConfig::parse(r#"{"shift": 3.0}"#).unwrap();
    let sigmas = |config: &FlowMatchConfig, table: FlowTable, steps: usize| {
        config.table(&table, steps, 0).unwrap().sigmas
    };
    for (table, steps, expected) in [
        (FlowTable::Normal, 4, &[1.0, 0.667, 0.334, 0.001, 0.0][..]),
        (FlowTable::SgmUniform, 4, &[1.0, 0.750_25, 0.500_5, 0.250_75, 0.0]),
        // 333.3 and 666.7 times of training less than 1000 are cut to whole ones.
        (FlowTable::Simple, 3, &[1.0, 0.667, 0.334, 0.0]),
        (FlowTable::Given(vec![1.0, 0.9, 0.2]), 3, &[1.0, 0.9, 0.2, 0.0]),
    ] {
        assert_close(&sigmas(&flat, table.clone(), steps), expected, TOLERANCE, "flat");
        let by_three = expected.iter().map(|x| 3.0 * x / (1.0 + 2.0 * x)).collect::<Vec<_>>();
        // The two that come down to the lowest level are shifted there twice: see above.
        if !matches!(table, FlowTable::Normal | FlowTable::SgmUniform) {
            assert_close(&sigmas(&shifted, table, steps), &by_three, TOLERANCE, "shifted");
        }
    }
    let own = sigmas(&shifted, FlowTable::Own, 6);
    for curve in [Curve::Karras, Curve::Exponential, Curve::Beta, Curve::KlOptimal] {
        let bent = sigmas(&shifted, FlowTable::Curved(curve), 6);
        assert_eq!((bent[0], bent[5], bent[6]), (own[0], own[5], 0.0), "{curve:?}");
        assert!(bent != own && bent.is_sorted_by(|a, b| a > b), "{curve:?}: {bent:?}");
        assert_eq!(sigmas(&shifted, FlowTable::Curved(curve), 1), [1.0, 0.0], "{curve:?}");
    }
}

#[test]
fn levels_that_the_scheduler_makes_are_shifted_once_by_a_dynamic_shift() {
    // mu = ln 2 at every size; x = 1, 0.001 through 2 / (2 + 1/x - 1).
    let json = r#"{"use_dynamic_shifting": true, "shift": 9.0,
        "base_shift": 0.6931471805599453, "max_shift": 0.6931471805599453}"#;
    let config = FlowMatchConfig::parse(json).unwrap().over_trained_levels();
    let expected = [1.0, 2.0 / 1001.0, 0.0];
    assert_close(&config.sigmas(2, 4096).unwrap().sigmas, &expected, TOLERANCE, "dynamic");
}

#[test]
fn a_linear_dynamic_shift_by_hand() {
    // mu = 2 at 300 tokens, half way from 1 to 3; x = 1, 1/2 through mu / (mu + 1/x - 1).
    let json = r#"{"use_dynamic_shifting": true, "time_shift_type": "linear", "base_shift": 1.0,
        "max_shift": 3.0, "base_image_seq_len": 200, "max_image_seq_len": 400}"#;
    assert_close(&table(json, 2, 300).sigmas, &[1.0, 2.0 / 3.0, 0.0], TOLERANCE, "linear");
}

#[test]
fn an_exponential_dynamic_shift_by_hand() {
    // mu = ln 2 at every size; x = 1, 1/2 through 2 / (2 + 1/x - 1).
    let json = r#"{"use_dynamic_shifting": true, "shift": 9.0,
        "base_shift": 0.6931471805599453, "max_shift": 0.6931471805599453}"#;
    assert_close(&table(json, 2, 4096).sigmas, &[1.0, 2.0 / 3.0, 0.0], TOLERANCE, "exponential");
}

#[test]
fn the_last_level_is_stretched_to_the_terminal() {
    // x = 1, 1/2: the distance 1/2 of the last level from 1 becomes 4/5.
    let stretched = table(r#"{"shift_terminal": 0.2}"#, 2, 0);
    assert_close(&stretched.sigmas, &[1.0, 0.2, 0.0], TOLERANCE, "terminal");
    let stretched = table(r#"{"shift_terminal": 0.2}"#, 4, 0);
    let expected = [1.0, 0.733_333_3, 0.466_666_7, 0.2, 0.0];
    assert_close(&stretched.sigmas, &expected, TOLERANCE, "terminal");
    let config = FlowMatchConfig::parse(r#"{"shift_terminal": 0.2}"#).unwrap();
    assert_eq!(config.sigmas(1, 0), Err(SamplerError::SingleStepTerminal));
    assert_eq!(table(r#"{"shift_terminal": 0.0}"#, 4, 0), table("{}", 4, 0));
}

#[test]
fn levels_fall_from_one_to_zero_at_every_accepted_extreme() {
    let configs = [
        r#"{"shift": 0.01}"#,
        r#"{"shift": 100.0, "shift_terminal": 0.0001}"#,
        r#"{"use_dynamic_shifting": true, "base_shift": 16, "max_shift": 16}"#,
        r#"{"use_dynamic_shifting": true, "base_shift": -16, "max_shift": -16}"#,
        r#"{"use_dynamic_shifting": true, "base_shift": 16, "max_shift": 16,
            "shift_terminal": 0.9999}"#,
        r#"{"use_dynamic_shifting": true, "base_shift": 0.001, "max_shift": 0.001,
            "time_shift_type": "linear", "shift_terminal": 0.0001}"#,
    ];
    for json in configs {
        for steps in [2, 3, 28, 999, *STEPS.end()] {
            let table = table(json, steps, 256);
            assert_eq!((table.sigmas.len(), table.timesteps.len()), (steps + 1, steps));
            assert!((table.sigmas[0] - 1.0).abs() < 1e-5, "{json}");
            assert!(table.sigmas.is_sorted_by(|a, b| a >= b), "{json} at {steps} steps");
            assert!(table.sigmas[steps - 1] > 0.0 && table.sigmas[steps] == 0.0, "{json}");
        }
    }
    assert_eq!(table("{}", 1, 0).sigmas, [1.0, 0.0]);
}

#[test]
fn steps_and_images_out_of_range_are_refused() {
    let config = FlowMatchConfig::default();
    for got in [0, STEPS.end() + 1, usize::MAX] {
        assert_eq!(config.sigmas(got, 256), Err(SamplerError::Steps { got }));
    }
    let dynamic = FlowMatchConfig::parse(r#"{"use_dynamic_shifting": true}"#).unwrap();
    assert!(dynamic.sigmas(4, 16_384).is_ok());
    let refused = dynamic.sigmas(4, usize::MAX);
    assert!(matches!(refused, Err(SamplerError::Mu { image_tokens: usize::MAX, .. })));
    let json = r#"{"use_dynamic_shifting": true, "time_shift_type": "linear", "base_shift": -1}"#;
    let linear = FlowMatchConfig::parse(json).unwrap();
    assert!(matches!(linear.sigmas(4, 256), Err(SamplerError::Mu { mu: -1.0, .. })));
}

#[test]
fn an_empty_document_has_the_class_defaults() {
    let config = FlowMatchConfig::parse(r#"{"_diffusers_version": "0.42.1", "unknown": [1]}"#);
    assert_eq!(config, Ok(FlowMatchConfig::default()));
    assert_eq!(config.unwrap().num_train_timesteps(), 1000);
}

#[test]
fn rules_that_are_not_computed_are_refused_by_name() {
    let keys = [
        "invert_sigmas",
        "use_karras_sigmas",
        "use_exponential_sigmas",
        "use_beta_sigmas",
        "stochastic_sampling",
    ];
    for key in keys {
        let refused = FlowMatchConfig::parse(&format!(r#"{{"{key}": true}}"#));
        assert_eq!(refused, Err(SamplerError::Unsupported { key }));
    }
    let refused = FlowMatchConfig::parse(r#"{"_class_name": "EulerDiscreteScheduler"}"#);
    assert!(matches!(refused, Err(SamplerError::OtherClass { .. })));
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let cases = [
        ("num_train_timesteps", "0"),
        ("num_train_timesteps", "4000000000"),
        ("shift", "0"),
        ("shift", "-3.0"),
        ("shift", "1e300"),
        ("base_shift", "17"),
        ("max_shift", "-1e9"),
        ("max_image_seq_len", "256"),
        ("shift_terminal", "1.0"),
        ("shift_terminal", "-0.1"),
        ("shift_terminal", "1e-9"),
    ];
    for (name, value) in cases {
        match FlowMatchConfig::parse(&format!(r#"{{"{name}": {value}}}"#)) {
            Err(SamplerError::OutOfRange { key, .. }) => assert_eq!(key, name),
            other => panic!("{name} = {value}: {other:?}"),
        }
    }
    for (name, value) in
        [("shift", "1e999"), ("shift", "\"3\""), ("num_train_timesteps", "-1"), ("shift", "NaN")]
    {
        let parsed = FlowMatchConfig::parse(&format!(r#"{{"{name}": {value}}}"#));
        assert!(matches!(parsed, Err(SamplerError::Malformed { .. })), "{name} = {value}");
    }
    let unknown = FlowMatchConfig::parse(r#"{"time_shift_type": "cubic"}"#).unwrap_err();
    assert!(unknown.to_string().contains("cubic"));
    let long = " ".repeat(CONFIG_BYTES_MAX + 1);
    assert!(matches!(FlowMatchConfig::parse(&long), Err(SamplerError::Malformed { .. })));
}

#[test]
fn guidance_goes_from_the_unconditional_output_through_the_conditional_one() {
    let mut output = [1.0, 2.0, -4.0];
    guide(&mut output, &[0.0, 1.0, -2.0], 3.0);
    assert_eq!(output, [3.0, 4.0, -8.0]);
}
