//! The library in this process: no change of a file makes it panic. Refusals and successes are both
//! fine here; what is said in a refusal is checked by the other modules.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use executor::families;
use protocol::{GraphOptions, JobShape, Plan};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bad_input::case::{copy, edit_json, planned, split};
use crate::support::root;

/// Opens, describes and measures a model, whatever comes of it; an error is how it panicked.
fn survive(model: &Path) -> Result<(), String> {
    let attempt = || {
        let Ok(description) = families::describe(model) else { return };
        let Ok(model) = families::open(model) else { return };
        let side = description.side_multiple_pixels;
        let job = JobShape {
            width: 2 * side,
            height: side,
            steps: 1,
            batch: 2,
            max_sequence_length: 8,
            true_cfg: true,
            ..JobShape::small()
        };
        // A refusal is as good as a profile here.
        drop(executor::measure::profiles(
            &*model,
            &job,
            &[GraphOptions::default()],
            2,
            &mut Default::default(),
        ));
    };
    catch_unwind(AssertUnwindSafe(attempt)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text").to_owned()
    })
}

/// A copy of the demo model, whose files are the smallest.
fn demo() -> TempDir {
    let directory = TempDir::new().unwrap();
    copy(&root().join("planner/demo/model"), directory.path());
    directory
}

#[test]
fn no_changed_byte_of_a_header_or_an_index_makes_the_library_panic() {
    let model = demo();
    let mut numbers = Numbers(1);
    let mut panics = Vec::new();
    for (file, rounds) in [
        ("text_encoder/model.safetensors", 150),
        ("vae/diffusion_pytorch_model.safetensors", 50),
        ("model_index.json", 150),
        ("tokenizer_2/tokenizer.json", 50),
        ("scheduler/scheduler_config.json", 50),
    ] {
        let path = model.path().join(file);
        let sound = fs::read(&path).unwrap();
        let length =
            if file.ends_with(".safetensors") { 8 + split(&path).0.len() } else { sound.len() };
        for _ in 0..rounds {
            let (at, byte) = (numbers.below(length), numbers.below(256) as u8);
            let mut changed = sound.clone();
            changed[at] = byte;
            fs::write(&path, changed).unwrap();
            if let Err(panic) = survive(model.path()) {
                panics.push(format!("{file}: byte {at} as {byte}: {panic}"));
            }
        }
        fs::write(&path, sound).unwrap();
    }
    assert!(panics.is_empty(), "{panics:#?}");
}

#[test]
fn no_value_of_a_configuration_makes_the_library_panic() {
    let model = demo();
    let values = [
        json!(0),
        json!(1),
        json!(3),
        json!(131_072),
        json!(u64::MAX),
        json!(-1),
        json!(1e300),
        json!(null),
        json!("x"),
        json!([0, 0, 0]),
        json!([2, 2, 1_u64 << 63]),
    ];
    let mut panics = Vec::new();
    for part in ["text_encoder", "text_encoder_2", "transformer", "vae"] {
        let path = model.path().join(part).join("config.json");
        let sound = fs::read(&path).unwrap();
        let config: serde_json::Map<String, Value> = serde_json::from_slice(&sound).unwrap();
        for key in config.keys() {
            for value in &values {
                edit_json(&path, |config| config[key] = value.clone());
                if let Err(panic) = survive(model.path()) {
                    panics.push(format!("{part}: {key} = {value}: {panic}"));
                }
                fs::write(&path, &sound).unwrap();
            }
        }
    }
    assert!(panics.is_empty(), "{} of them: {panics:#?}", panics.len());
}

#[test]
fn no_number_or_name_in_a_plan_makes_the_checks_panic() {
    let (home, plan) = planned();
    let model = families::open(&home.path("model")).expect("the model is sound");
    let mut leaves = Vec::new();
    collect_leaves(&toml::Value::Table(plan.clone()), &mut Vec::new(), &mut leaves);
    assert!(leaves.len() > 100, "the plan has only {} leaves", leaves.len());
    let mut panics = Vec::new();
    let mut accepted = 0;
    for leaf in &leaves {
        for value in [
            "0",
            "1",
            "256",
            "9223372036854775807",
            "-1",
            "nan",
            "\"\"",
            "\"host\"",
            "\"vae\"",
            "[]",
        ] {
            let mut changed = toml::Value::Table(plan.clone());
            *reach(&mut changed, leaf) =
                format!("x = {value}").parse::<toml::Table>().unwrap()["x"].clone();
            let Ok(plan) = changed.try_into::<Plan>() else { continue };
            let attempt = || {
                protocol::check::check(&plan).is_ok()
                    && executor::runtime::verify(&plan, &*model).is_ok()
            };
            match catch_unwind(AssertUnwindSafe(attempt)) {
                Ok(ok) => accepted += usize::from(ok),
                Err(_) => panics.push(format!("{leaf:?} = {value}")),
            }
        }
    }
    assert!(panics.is_empty(), "{} of them: {panics:#?}", panics.len());
    // Names of devices and predicted times, for example, are not wrong.
    assert!(accepted > 0, "every change was refused");
}

/// Numbers that look random and are the same in every run (splitmix64, Vigna's public-domain
/// generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % limit as u64) as usize
    }
}

/// A step into a document: a key, or a position.
#[derive(Debug, Clone)]
enum Step {
    Key(String),
    At(usize),
}

fn collect_leaves(value: &toml::Value, path: &mut Vec<Step>, leaves: &mut Vec<Vec<Step>>) {
    let mut descend = |step, value: &toml::Value| {
        path.push(step);
        collect_leaves(value, path, leaves);
        path.pop();
    };
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(key, value)| descend(Step::Key(key.clone()), value));
        }
        toml::Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| descend(Step::At(at), value));
        }
        _ => leaves.push(path.clone()),
    }
}

fn reach<'a>(value: &'a mut toml::Value, path: &[Step]) -> &'a mut toml::Value {
    path.iter().fold(value, |value, step| match step {
        Step::Key(key) => &mut value[key.as_str()],
        Step::At(at) => &mut value[*at],
    })
}
