//! Host profiles as operators and users have them: layers of files, a first profile of what is
//! here, what other processes have planned, and GPUs that share the host's memory. All by the real
//! program, on a made-up NVML where GPUs are needed.

mod layers;
mod parts;
mod reservations;

use std::path::Path;
use std::process::Command;

use crate::support::{Ended, Home};
use serde_json::Value;

/// A machine with GPUs: a home, and beside it a library in NVML's place.
struct Machine {
    home: Home,
}

impl Machine {
    /// `cuda0` of 6 GiB, `cuda1` of 24 GiB of which 2 are used, `cuda2` that shares the host's
    /// memory.
    fn new() -> Machine {
        let home = Home::new();
        let (source, folder) = (home.beside("fake_nvml.c"), home.beside("lib"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&source, include_str!("../../planner/src/inventory/nvml/fake_nvml.c"))
            .unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(folder.join("libnvidia-ml.so.1")).arg(source);
        assert!(compiler.status().expect("the C compiler `cc`").success());
        Machine { home }
    }

    fn berth(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.berth(arguments);
        command.env("LD_LIBRARY_PATH", self.home.beside("lib")).env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(self.berth(arguments).output().expect("berth starts"))
    }

    /// What `berth devices` finds.
    fn devices(&self, arguments: &[&str]) -> Value {
        let ended = self.run(&[&["devices", "--json"], arguments].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.json()
    }
}

/// Writes a file, with the directories that it needs.
fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a directory")).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The budget of a device, or of the host, in `berth devices`.
fn budget(devices: &Value, id: &str) -> u64 {
    let budgets = devices["budgets"].as_array().expect("budgets");
    let budget = budgets.iter().find(|budget| budget["id"] == id).expect(id);
    budget["budget_bytes"].as_u64().expect("bytes")
}

const MIB: u64 = 1 << 20;

const GIB: u64 = 1 << 30;

#[test]
fn a_first_profile_gives_the_machine_that_was_found() {
    let machine = Machine::new();
    let found = machine.devices(&[]);
    assert_eq!(found["devices"].as_array().map(Vec::len), Some(3), "{found}");
    let printed = machine.run(&["devices", "--profile"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let user = machine.home.beside("config/berth/host.toml");
    // A profile that is there is read, and so is not written over.
    std::fs::create_dir_all(user.parent().unwrap()).unwrap();
    let user = user.to_string_lossy().into_owned();
    let written = machine.run(&["devices", "--profile", "--output", &user]);
    assert_eq!((written.code, written.stdout.as_str()), (Some(0), ""), "{}", written.stderr);
    let text = std::fs::read_to_string(&user).unwrap();
    assert!(
        text.contains("uuid = \"GPU-aaaa0000\"") && text.contains("integrated = true"),
        "{text}"
    );
    assert!(text.lines().count() == printed.stdout.lines().count(), "{text}");

    let again = machine.devices(&[]);
    assert_eq!(again["profiles"][0], user.as_str());
    for (again, found) in
        again["devices"].as_array().unwrap().iter().zip(found["devices"].as_array().unwrap())
    {
        for key in
            ["id", "kind", "name", "uuid", "total_bytes", "integrated", "driver", "overhead_bytes"]
        {
            assert_eq!(again[key], found[key], "{key} of {text}");
        }
        let integrated = found["integrated"] == true;
        assert!(integrated || again["free_bytes"] == found["free_bytes"], "{text}");
        for key in ["link_bytes_per_s", "f32_flops_per_s", "half_flops_per_s", "memory_bytes_per_s"]
        {
            let rate = |device: &Value| device[key]["value"].as_f64().expect("a rate");
            assert!((rate(again) / rate(found) - 1.0).abs() < 1e-9, "{key}: {text}");
        }
    }
    // On another machine, the devices are those of the file.
    let elsewhere = machine.home.json(&["devices", "--json", "--host", &user]);
    assert_eq!(elsewhere["devices"].as_array().map(Vec::len), Some(3));
    let nowhere = machine.home.run(&["devices", "--profile"]);
    assert!(
        nowhere.stdout.contains("uuid = \"GPU-aaaa0000\""),
        "the layer's devices: {}",
        nowhere.stdout
    );
}

#[test]
fn an_integrated_device_shares_the_hosts_memory() {
    let home = Home::new();
    let plan = |more: &[&str]| {
        let fixed = ["plan", "--dry-run", "--host", "integrated-only", "--output", "plan.toml"];
        home.run(&[fixed.as_slice(), more].concat())
    };
    let read = || -> toml::Table {
        std::fs::read_to_string(home.path("plan.toml")).unwrap().parse().expect("TOML")
    };
    let on = |plan: &toml::Table| -> Vec<String> {
        let components = plan["components"].as_array().expect("components").iter();
        components.map(|c| c["devices"][0].as_str().expect("a device").to_owned()).collect()
    };
    // Its context alone takes more than this.
    let ended = plan(&["--max-ram", "500MiB"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(on(&read()).iter().all(|device| device == "host"));

    let ended = plan(&["--backend", "all=cuda0"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let all = read();
    assert!(on(&all).iter().all(|device| device == "cuda0"));
    let device = &all["devices"][0];
    assert_eq!(device["integrated"].as_bool(), Some(true));
    let bytes = |value: &toml::Value| value.as_integer().expect("bytes");
    let (host, pool) = (&all["host"], bytes(&all["host"]["pool_bytes"]));
    assert!(bytes(&device["peak_bytes"]) > 0);
    assert!(bytes(&device["peak_bytes"]) + bytes(&host["peak_bytes"]) <= pool);

    // Its budget is the host's: neither cap can be passed by the other.
    let ended = plan(&["--backend", "all=cuda0", "--max-ram", "700MiB", "--max-vram", "4"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(bytes(&read()["devices"][0]["budget_bytes"]), 700 * MIB as i64);
    let ended = plan(&["--backend", "all=cuda0", "--max-ram", "500MiB"]);
    assert_eq!(ended.code, Some(1), "its context alone takes more: {}", ended.stdout);
    // A changed plan that takes more of the pool than there is.
    let mut changed = all.clone();
    let entry = changed["host"].as_table_mut().expect("the host");
    entry.insert("pool_bytes".to_owned(), toml::Value::Integer(MIB as i64));
    std::fs::write(home.path("changed.toml"), changed.to_string()).unwrap();
    let ended = home.run(&["generate", "--prompt", "x", "--plan", "changed.toml"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("integrated devices take"), "{}", ended.stderr);
}

#[test]
fn every_form_of_a_budget_is_understood() {
    let machine = Machine::new();
    let gpus = |text: &str| {
        let devices = machine.devices(&["--max-vram", text]);
        ["cuda0", "cuda1"].map(|id| budget(&devices, id) / MIB)
    };
    let all = machine.devices(&[]);
    // 6144 MiB less 256 of the firmware; 24576 less 512 less 2048; margins of 256 MiB and 2 %.
    assert_eq!(["cuda0", "cuda1"].map(|id| budget(&all, id) / MIB), [5632, 21524]);
    for (text, expected) in [
        ("4", [4096, 4096]),
        ("4,cuda1=6.5", [4096, 6656]),
        ("cuda1=6656MiB", [5632, 6656]),
        ("GPU-bbbb=50%,cuda0=-1", [4864, 12288]),
        ("-2,cuda1=25%", [3840, 6144]),
    ] {
        assert_eq!(gpus(text), expected, "{text}");
    }
    for (text, says) in [
        ("host=4", "--max-ram limits the host's memory"),
        ("cuda=4", "`cuda` may be any of cuda0, cuda1, cuda2"),
        ("cuda0=1,5", "`5` names no device"),
        ("cuda9=1", "no device `cuda9`; hint: there is cuda0, cuda1, cuda2"),
        ("cuda0=1,GPU-aaaa=2", "cuda0 has two amounts"),
    ] {
        let ended = machine.run(&["devices", "--max-vram", text]);
        assert_eq!(ended.code, Some(2), "{text}");
        assert!(ended.stderr.contains(says), "{text}: {}", ended.stderr);
    }
}
