//! One GPU as several devices, and GPUs that are not here or that CUDA does not start on.

use serde_json::Value;

use super::{GIB, MIB, Machine, write};

/// A driver that is nowhere.
const NO_DRIVER: [(&str, &str); 1] = [("BERTH_CUDA_DRIVER", "/nowhere/libcuda.so.1")];

/// A machine without CUDA, and a profile there of the GPU with this ordinal, as two devices of 4
/// GiB.
fn divided(ordinal: usize) -> (Machine, &'static str) {
    let machine = Machine::new();
    let part = format!("[[device]]\nkind = \"cuda\"\nordinal = {ordinal}\ntotal = \"4GiB\"\n");
    write(&machine.home.path("two.toml"), &format!("name = \"two\"\n{}", part.repeat(2)));
    (machine, "./two.toml")
}

fn run(machine: &Machine, arguments: &[&str]) -> super::Ended {
    let mut command = machine.berth(arguments);
    super::Ended::of(command.envs(NO_DRIVER).output().expect("berth starts"))
}

/// A figure of each device.
fn each(devices: &Value, key: &str) -> Vec<u64> {
    let devices = devices.as_array().expect("devices").iter();
    devices.map(|device| device[key].as_u64().expect(key)).collect()
}

#[test]
fn a_gpu_is_used_as_two_devices_with_one_context() {
    let (machine, host) = divided(2);
    let found = run(&machine, &["devices", "--json", "--host", host]).json();
    let devices = &found["devices"];
    assert_eq!(each(devices, "free_bytes"), [4 * GIB; 2]);
    assert_eq!(each(devices, "overhead_bytes"), [576 * MIB, 0]);
    for (index, device) in devices.as_array().expect("devices").iter().enumerate() {
        assert_eq!((&device["uuid"], &device["ordinal"]), (&"GPU-bbbb0000".into(), &2.into()));
        assert_eq!(device["part"]["index"], index, "{device}");
    }
    for (on, peaks_above) in [("cuda0&cuda1", [576 * MIB, 0]), ("cuda1", [576 * MIB - 1, 0])] {
        let backend = format!("all={on}");
        let plan = ["plan", "--dry-run", "--json", "--host", host, "--backend", &backend];
        let ended = run(&machine, &plan);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let plan = ended.json();
        assert_eq!(each(&plan["devices"], "overhead_bytes"), [576 * MIB, 0], "{on}");
        let peaks = each(&plan["devices"], "peak_bytes");
        assert!(peaks.iter().zip(peaks_above).all(|(peak, above)| *peak > above), "{peaks:?}");
        // The context is all there is of a part that is not used.
        assert_eq!(peaks[0] == 576 * MIB, on == "cuda1", "{peaks:?}");
        assert_eq!(each(&plan["devices"], "pinned_bytes")[1], 16 * MIB);
    }
}

#[test]
fn a_gpu_that_is_not_here_is_planned_for_and_not_run_on() {
    let (machine, host) = divided(9);
    let dry = run(&machine, &["plan", "--dry-run", "--host", host, "--backend", "all=cuda1"]);
    assert_eq!(dry.code, Some(0), "{}", dry.stderr);
    for command in [&["plan"][..], &["generate", "--prompt", "a circle"]] {
        let ended = run(&machine, &[command, &["--host", host]].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let says =
            "cuda0 of the host profile: GPU ordinal 9 is not here, but ordinal 0 (GPU-aaaa0000)";
        assert!(ended.stderr.contains(says) && ended.stderr.contains("hint: "), "{}", ended.stderr);
    }
}

#[test]
fn a_gpu_that_cuda_does_not_start_on_is_told() {
    let (machine, host) = divided(0);
    let why = "no CUDA driver: /nowhere/libcuda.so.1: ";
    let listed = run(&machine, &["devices", "--host", host]);
    assert!(listed.stdout.contains(&format!("\nno GPU is used: {why}")), "{}", listed.stdout);
    let document = run(&machine, &["devices", "--json"]).json();
    assert!(document["why_no_cuda"].as_str().is_some_and(|said| said.starts_with(why)));
    let ended = run(&machine, &["generate", "--prompt", "a circle", "--host", host]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("berth: no GPU is used: {why}")), "{}", ended.stderr);
    let explained = run(&machine, &["plan", "--explain", "--host", host]);
    assert!(
        explained.stdout.contains("this executor does not compute on GPUs"),
        "{}",
        explained.stdout
    );
    // Where no GPU is, nobody asks.
    let nothing = machine.home.json(&["devices", "--json"]);
    assert_eq!(nothing["why_no_cuda"], Value::Null);
}
