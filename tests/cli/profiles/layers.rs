//! System, user, project, `--host`: who wins, who stands alone, and what is told of them.

use super::*;

const SYSTEM: &str = "[policy]\nmax_vram = \"8\"\nmargin = \"cuda1=1,host=3\"\nmax_ram = \"1\"\n";

fn system(machine: &Machine, text: &str) -> String {
    let path = machine.home.beside("system/host.toml");
    write(&path, text);
    path.to_string_lossy().into_owned()
}

fn user(machine: &Machine, text: &str) -> String {
    let path = machine.home.beside("config/berth/host.toml");
    write(&path, text);
    path.to_string_lossy().into_owned()
}

fn gib(devices: &Value, id: &str) -> f64 {
    budget(devices, id) as f64 / GIB as f64
}

#[test]
fn each_layer_replaces_the_keys_below_it() {
    let machine = Machine::new();
    let system = system(&machine, SYSTEM);
    let devices = machine.devices(&[]);
    assert_eq!([gib(&devices, "cuda1"), gib(&devices, "host")], [8.0, 1.0]);
    assert_eq!(devices["source"], "this machine");
    assert_eq!(devices["profiles"], serde_json::json!([system]));

    let user =
        user(&machine, "name = \"mine\"\n[policy]\nmax_vram = \"9,cuda0=3\"\n[host]\ncores = 2\n");
    let devices = machine.devices(&[]);
    let budgets = ["cuda0", "cuda1", "host"].map(|id| gib(&devices, id));
    assert_eq!(budgets, [3.0, 9.0, 1.0]);
    assert_eq!((&devices["source"], &devices["host"]["cores"]), (&"mine".into(), &2.into()));

    write(&machine.home.path("berth.toml"), "[policy]\nmax_vram = \"100%\"\n");
    let devices = machine.devices(&[]);
    // 22016 MiB are free, of which the system's margin keeps one GiB.
    assert_eq!([gib(&devices, "cuda1"), gib(&devices, "host")], [20.5, 1.0]);
    assert_eq!(devices["profiles"], serde_json::json!([system, user, "berth.toml"]));
    let told = machine.run(&["devices"]);
    assert!(
        told.stdout.contains(&format!("profiles: {system}, {user}, berth.toml")),
        "{}",
        told.stdout
    );

    let devices = machine.devices(&["--max-vram", "2", "--host", "this-machine"]);
    assert_eq!([gib(&devices, "cuda1"), gib(&devices, "host")], [2.0, 1.0]);
    assert_eq!(devices["profiles"][3], "this-machine");
}

#[test]
fn a_berth_toml_of_a_model_is_no_layer() {
    let machine = Machine::new();
    write(&machine.home.path("berth.toml"), "[defaults]\nwidth = 64\n");
    assert_eq!(machine.run(&["devices"]).code, Some(2));
    write(&machine.home.path("model_index.json"), "{}");
    assert_eq!(machine.devices(&[])["profiles"], serde_json::json!([]));
}

#[test]
fn an_imagined_host_stands_alone() {
    let machine = Machine::new();
    system(&machine, SYSTEM);
    user(&machine, "this is broken");
    let devices = machine.devices(&["--host", "virtual-2x2g"]);
    assert_eq!(gib(&devices, "virtual1"), 2.0);
    assert_eq!(devices["profiles"], serde_json::json!(["virtual-2x2g"]));
    // The environment names one like the flag, which is over it.
    let mut command = machine.berth(&["devices", "--json"]);
    command.env("BERTH_HOST", "virtual-2x2g");
    let named = Ended::of(command.output().unwrap()).json();
    assert_eq!(named["devices"], devices["devices"]);
    let mut command = machine.berth(&["devices", "--json", "--host", "virtual-1x64m"]);
    command.env("BERTH_HOST", "virtual-2x2g");
    assert_eq!(
        Ended::of(command.output().unwrap()).json()["devices"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn a_broken_layer_is_an_error_that_names_it() {
    let machine = Machine::new();
    let path = system(&machine, "[policy]\noptimize = \"fun\"\n");
    for arguments in [&["devices"][..], &["plan", "--dry-run"], &["generate", "--prompt", "x"]] {
        let ended = machine.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        let says = format!("{path}:2: `optimize`: `fun` is not one of latency, throughput, memory");
        assert!(ended.stderr.contains(&says), "{}", ended.stderr);
    }
    // Readable by itself, and wrong for this machine.
    let path = system(&machine, "[policy]\nmargin = \"cuda7=1\"\n");
    let ended = machine.run(&["devices"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains(&path) && ended.stderr.contains("no device `cuda7`"),
        "{}",
        ended.stderr
    );
}

#[test]
fn no_component_is_pinned_against_a_profile() {
    let machine = Machine::new();
    let path = machine.home.path("two.toml");
    let device = "[[device]]\nkind = \"virtual\"\ntotal = \"1GiB\"\nlink = \"1GiB/s\"\n";
    let plan = |policy: &str, backend: &str| {
        write(&path, &format!("name = \"two\"\n{device}{device}[policy]\n{policy}\n"));
        machine.run(&["plan", "--dry-run", "--host", "./two.toml", "--backend", backend])
    };
    let ended = plan("forbid = \"dit=virtual0\"", "dit=virtual1");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for (policy, backend, says) in [
        (
            "forbid = \"dit=virtual0\"",
            "all=virtual0",
            "keeps dit from virtual0 by forbid = \"dit=virtual0\"",
        ),
        (
            "allow = \"vae=virtual1\"",
            "vae=cpu",
            "keeps vae from the host by allow = \"vae=virtual1\"",
        ),
        (
            "forbid = \"te=virtual0&virtual1&host\"",
            "dit=virtual0",
            "clip may be on no device at all",
        ),
        ("forbid = \"te=cuda0\"", "dit=virtual0", "no device `cuda0`"),
        ("allow = \"lamp=virtual0\"", "dit=virtual0", "the model has no component `lamp`"),
    ] {
        let ended = plan(policy, backend);
        assert_eq!(ended.code, Some(2), "{policy} {backend}: {}", ended.stdout);
        assert!(ended.stderr.contains(says) && ended.stderr.contains("hint:"), "{}", ended.stderr);
    }
}
