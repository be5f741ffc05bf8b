//! Files given beside the model: host profiles, initial latents, plans.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::bad_input::case::{
    Case, ERROR, GENERATE, INFEASIBLE, Line, assert_refused, changes, contents, copy, faults_of,
    join, planned,
};
use crate::support::fixture;

#[test]
fn a_host_profile_is_refused_with_file_line_and_key() {
    const PLAN: &str = "plan model --dry-run --width 64 --height 64 --host model/host.toml";
    let cases: &[Line] = &[
        (
            "an unknown key",
            |model| {
                fs::write(model.join("host.toml"), "name = \"a\"\n[host]\nmemroy = \"1GiB\"\n")
                    .unwrap()
            },
            &["model/host.toml:3: `memroy`"],
        ),
        (
            "no name",
            |model| fs::write(model.join("host.toml"), "description = \"a\"\n").unwrap(),
            &["model/host.toml:", "name"],
        ),
        (
            "no TOML",
            |model| fs::write(model.join("host.toml"), "name = \"a\"\n[[device\n").unwrap(),
            &["model/host.toml:2: "],
        ),
        (
            "no memory",
            |model| {
                let text = "name = \"a\"\n[[device]]\nkind = \"virtual\"\ntotal = \"0B\"\nlink = \"1GiB/s\"\n";
                fs::write(model.join("host.toml"), text).unwrap();
            },
            &["model/host.toml:4: `total`"],
        ),
        (
            "an unknown kind",
            |model| {
                let text = "name = \"a\"\n[[device]]\nkind = \"abacus\"\ntotal = \"1GiB\"\nlink = \"1GiB/s\"\n";
                fs::write(model.join("host.toml"), text).unwrap();
            },
            &["model/host.toml:3: ", "abacus"],
        ),
        (
            "more devices than any host has",
            |model| {
                let device =
                    "[[device]]\nkind = \"virtual\"\ntotal = \"1GiB\"\nlink = \"1GiB/s\"\n";
                fs::write(model.join("host.toml"), format!("name = \"a\"\n{}", device.repeat(17)))
                    .unwrap();
            },
            &["model/host.toml:", "16"],
        ),
        (
            "larger than any",
            |model| fs::write(model.join("host.toml"), "#".repeat(2 << 20)).unwrap(),
            &["model/host.toml is not a host profile: it is larger than"],
        ),
        (
            "a directory",
            |model| fs::create_dir(model.join("host.toml")).unwrap(),
            &["cannot read the host profile model/host.toml: it is not a regular file"],
        ),
        ("no such file", |_| {}, &["cannot read the host profile model/host.toml"]),
    ];
    assert_refused(
        cases.iter().map(|&(name, damage, says)| Case::of(name, PLAN, says).after(damage)),
    );
    assert_refused([Case::of(
        "no such shipped profile",
        "devices --host rtx-9999",
        &["no host profile `rtx-9999`; hint: give a path, or one of", "virtual-2x2g"],
    )]);
}

#[test]
fn initial_latents_of_another_model_are_refused() {
    fn latents(model: &Path, name: &str, dtype: &str, shape: &[u64], bytes: u64) {
        let header =
            json!({ name: { "dtype": dtype, "shape": shape, "data_offsets": [0, bytes] } });
        join(&model.join("latents"), &header.to_string(), &vec![0; bytes as usize]);
    }
    let generate = format!("{GENERATE} --init-latents model/latents");
    let cases: &[Line] = &[
        ("no such file", |_| {}, &["cannot open", "model/latents"]),
        (
            "another shape",
            |model| latents(model, "noise_nchw", "F32", &[1, 16, 8, 4], 2048),
            &["model/latents has shape [1, 16, 8, 4], the model needs [1, 16, 8, 8]"],
        ),
        (
            "tokens of another shape",
            |model| latents(model, "latents_init", "F32", &[1, 16, 32], 2048),
            &["model/latents has shape [1, 16, 32], the model needs [1, 16, 64]"],
        ),
        (
            "another name",
            |model| latents(model, "noise", "F32", &[1, 16, 8, 8], 4096),
            &["model/latents has no tensor \"noise_nchw\""],
        ),
        (
            "another type",
            |model| latents(model, "noise_nchw", "I32", &[1, 16, 8, 8], 4096),
            &["\"noise_nchw\"", "has type I32"],
        ),
        (
            "a damaged file",
            |model| fs::write(model.join("latents"), "noise").unwrap(),
            &["is no usable safetensors file"],
        ),
    ];
    assert_refused(
        cases.iter().map(|&(name, damage, says)| Case::of(name, &generate, says).after(damage)),
    );
}

#[test]
fn a_given_plan_that_is_not_true_is_refused() {
    let (home, plan) = planned();
    copy(&fixture("flux_dev"), &home.path("other"));
    let arguments: Vec<&str> = GENERATE.split(' ').chain(["--plan", "plan.toml"]).collect();
    let sound = home.run(&arguments);
    assert_eq!(sound.code, Some(0), "{}", sound.stderr);
    fs::remove_file(home.path("berth.png")).unwrap();

    let integer = |value: &toml::Value| value.as_integer().unwrap();
    let device = |plan: &toml::Table| {
        let used = |device: &toml::Value| device["peak_bytes"].as_integer() > Some(0);
        plan["devices"]
            .as_array()
            .unwrap()
            .iter()
            .position(used)
            .expect("the host computes nothing")
    };
    type Change<'a> = &'a dyn Fn(&mut toml::Table);
    let cases: &[(&str, Change<'_>, &[&str])] = &[
        (
            "a peak that is not the sum",
            &|plan| {
                let at = device(plan);
                let peak = &mut plan["devices"][at]["phases"][0]["peak_bytes"];
                *peak = (integer(peak) - 256).into();
            },
            &["the plan breaks a rule", "B of peak, the components' sum is"],
        ),
        (
            "weights that no segment holds",
            &|plan| {
                let weights = &mut plan["components"][0]["weights_bytes"];
                *weights = (integer(weights) + 256).into();
            },
            &["the plan breaks a rule: clip: segments hold"],
        ),
        (
            "above the budget",
            &|plan| {
                let at = device(plan);
                let budget = integer(&plan["devices"][at]["peak_bytes"]) - 1;
                plan["devices"][at]["budget_bytes"] = budget.into();
            },
            &["the plan breaks a rule", "is above the budget of"],
        ),
        (
            "sums that agree and are too small",
            &|plan| {
                let host = plan["host"].as_table_mut().unwrap();
                let less = |value: &mut toml::Value| *value = (integer(value) - 1).into();
                less(&mut host["job_bytes"]);
                less(&mut host["peak_bytes"]);
                for phase in host["phases"].as_array_mut().unwrap() {
                    less(&mut phase["peak_bytes"]);
                }
            },
            &["for the job's buffers, they take"],
        ),
        (
            "a component that the model does not have",
            &|plan| plan["components"][0]["name"] = "nothing".into(),
            &["nothing"],
        ),
        (
            "a component too few",
            &|plan| drop(plan["components"].as_array_mut().unwrap().pop()),
            &["the plan"],
        ),
        (
            "another schema",
            &|plan| plan["schema"] = 99.into(),
            &["the plan breaks a rule: schema 99", "another version of Berth", "hint: "],
        ),
        (
            "an older schema, of which a field is not known any more",
            &|plan| {
                plan["schema"] = 0.into();
                drop(plan.remove("mapping_policy"));
            },
            &["schema 0", "plan.toml is of another version of Berth"],
        ),
        (
            "a device of another machine",
            &|plan| {
                let at = device(plan);
                let uuid: toml::Table = "cuda = { uuid = \"GPU-elsewhere\" }".parse().unwrap();
                plan["devices"][at]["backend"] = uuid.into();
            },
            &[
                "made for another machine: virtual",
                "GPU-elsewhere) is not here",
                "hint: `berth devices`",
            ],
        ),
        ("another family", &|plan| plan["family"] = "sdxl".into(), &["sdxl"]),
        (
            "another model",
            &|plan| plan["model"] = home.path("other").to_str().unwrap().into(),
            &["the plan is for the model", "other, not for"],
        ),
        (
            "another size",
            &|plan| plan["job"]["width"] = 128.into(),
            &["the plan is for 128x64", "hint: "],
        ),
        (
            "a negative size",
            &|plan| plan["job"]["width"] = (-64).into(),
            &["cannot read the plan plan.toml"],
        ),
        (
            "no components",
            &|plan| drop(plan.remove("components")),
            &["cannot read the plan", "missing field `components`"],
        ),
    ];
    let mut faults = Vec::new();
    for (name, change, says) in cases {
        let mut plan = plan.clone();
        change(&mut plan);
        fs::write(home.path("plan.toml"), toml::to_string(&plan).unwrap()).unwrap();
        let before = contents(&home);
        let mut of_case = faults_of(&home.run(&arguments), ERROR, says);
        of_case.extend(changes(&before, &contents(&home)));
        // What a plan must not have made is not to be taken for the next one's.
        drop(fs::remove_file(home.path("berth.png")));
        if !of_case.is_empty() {
            faults.push(format!("{name}:\n    {}", of_case.join("\n    ")));
        }
    }
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_given_plan_that_cannot_be_read_is_refused() {
    let generate = format!("{GENERATE} --plan model/plan.toml");
    assert_refused([
        Case::of("no TOML", &generate, &["cannot read the plan model/plan.toml", "line 1"])
            .after(|model| fs::write(model.join("plan.toml"), "schema = = 1\n").unwrap()),
        Case::of("no such file", &generate, &["cannot read the plan model/plan.toml"]),
        Case::of("a directory", &generate, &["cannot read the plan model/plan.toml"])
            .after(|model| fs::create_dir(model.join("plan.toml")).unwrap()),
        Case::of("larger than any", &generate, &["more than a plan can have"])
            .after(|model| fs::write(model.join("plan.toml"), vec![b'#'; 17 << 20]).unwrap()),
        Case::of(
            "with a budget beside",
            &format!("{generate} --max-vram 2"),
            &["--plan", "cannot be used with"],
        ),
    ]);
}

#[test]
fn a_given_plan_that_takes_more_than_is_free_is_refused_before_anything_is_loaded() {
    let (home, mut plan) = planned();
    // A device whose driver takes more than any machine has; all else follows from it.
    let taken = 1_i64 << 47;
    let devices = plan["devices"].as_array_mut().unwrap();
    let device = devices.iter_mut().find(|device| device["peak_bytes"].as_integer() > Some(0));
    let device = device.expect("the host computes nothing");
    let raise = |value: &mut toml::Value| *value = (value.as_integer().unwrap() + taken).into();
    for size in
        ["total_bytes", "free_bytes", "budget_bytes", "overhead_bytes", "peak_bytes", "idle_bytes"]
    {
        raise(&mut device[size]);
    }
    for phase in device["phases"].as_array_mut().unwrap() {
        raise(&mut phase["peak_bytes"]);
    }
    fs::write(home.path("plan.toml"), toml::to_string(&plan).unwrap()).unwrap();
    let more = ["--plan", "plan.toml", "--verbose", "--json"];
    let arguments: Vec<&str> = GENERATE.split(' ').chain(more).collect();
    let before = contents(&home);
    let refused = home.run(&arguments);
    assert_eq!(refused.code, Some(INFEASIBLE), "{}", refused.stderr);
    for text in ["the plan does not fit: it takes ", " of host, ", " are free now\nhint: "] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    assert!(!refused.stderr.contains("berth: load"), "{}", refused.stderr);
    let document = refused.json();
    assert_eq!(
        (&document["feasible"], &document["nearest"]["width"]),
        (&false.into(), &json!(null))
    );
    assert_eq!(changes(&before, &contents(&home)), None);
}
