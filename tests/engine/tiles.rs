//! The VAE in tiles, by the real program: its memory is one tile's at every size of picture, to the
//! byte, and the picture is the same on every device.

use serde_json::Value;

use crate::support::Home;

/// One large device, and a host that only feeds it.
const DEVICE: &str = r#"
name = "device"
[host]
compute = false
memory = "16GiB"
available = "12GiB"
[[device]]
kind = "virtual"
total = "8GiB"
link = "64GiB/s"
"#;

/// No device at all.
const HOST: &str = r#"
name = "host"
[host]
memory = "16GiB"
available = "12GiB"
"#;

/// Width and height, from a few tiles to many.
const SIZES: [[u32; 2]; 5] = [[512, 512], [1024, 512], [1024, 1024], [768, 2048], [2048, 2048]];

/// Side of a tile in pixels, and what two tiles share.
const TILE: u32 = 256;
const OVERLAP: u32 = TILE / 4;

fn home() -> Home {
    let home = Home::new();
    for (name, profile) in [("device.toml", DEVICE), ("host.toml", HOST)] {
        std::fs::write(home.path(name), profile).expect("the home can be written");
    }
    home
}

/// Runs a command on the demo model for a size, and reads its document.
fn json(home: &Home, command: &str, [width, height]: [u32; 2], more: &[&str]) -> Value {
    let (width, height) = (width.to_string(), height.to_string());
    let size = [command, "--json", "--width", &width, "--height", &height, "--steps", "1"];
    home.json(&[&size[..], more].concat())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no bytes: {value}"))
}

/// Activations and workspaces of a component in a plan, on all its devices.
fn compute_bytes(plan: &Value, name: &str) -> u64 {
    let component = list(&plan["components"]).iter().find(|component| component["name"] == name);
    let component = component.unwrap_or_else(|| panic!("no {name} in the plan"));
    list(&component["parts"]).iter().map(|part| bytes(&part["compute_bytes"])).sum()
}

/// Every phase that was measured took what was stated.
fn assert_exact(usage: &Value, phases: usize, what: &str) {
    let devices = list(&usage["devices"]);
    assert!(!devices.is_empty(), "{what}");
    for device in devices {
        assert_eq!(list(&device["phases"]).len(), phases, "{what}: {device}");
        for phase in list(&device["phases"]) {
            let measured = &phase["measured_peak_bytes"];
            assert_eq!(phase["predicted_peak_bytes"], *measured, "{what}: {}", device["id"]);
        }
    }
}

/// Pixels of all tiles that cover a side, one after the other, where they are full or end with the
/// side.
fn tiled_pixels(side: u32) -> u64 {
    let starts = (0..side).step_by((TILE - OVERLAP) as usize);
    starts.map(|start| u64::from(TILE.min(side - start))).sum()
}

#[test]
fn the_vae_takes_one_tiles_memory_at_every_size() {
    let home = home();
    let tile = TILE.to_string();
    std::fs::copy(crate::support::fixture("pictures").join("rgb.png"), home.path("rgb.png"))
        .expect("a picture to start from");
    let started = ["--host", "./device.toml", "--init-image", "rgb.png", "--strength", "1"];
    let whole = json(&home, "plan", [TILE, TILE], &started);
    let one_tile = ["vae_encoder", "vae"].map(|name| compute_bytes(&whole, name));
    assert!(one_tile.iter().all(|&bytes| bytes > 0));
    for size in SIZES {
        let what = format!("{size:?}");
        let plan = json(&home, "plan", size, &[&started[..], &["--vae-tile", &tile]].concat());
        let taken = ["vae_encoder", "vae"].map(|name| compute_bytes(&plan, name));
        assert_eq!(taken, one_tile, "{what}");
        // The rehearsal has loaded and allocated every phase.
        assert_exact(&plan["usage"], 4, &what);
        assert_eq!(list(&plan["devices"][0]["phases"]).len(), 4, "{what}");
        for (phase, at) in [("encode", 0), ("decode", 3)] {
            let stated = &plan["devices"][0]["phases"][at];
            assert_eq!(stated["phase"], phase, "{what}");
            assert_eq!(bytes(&stated["compute_bytes"]), one_tile[at / 3], "{what}: {phase}");
        }
    }
}

#[test]
fn on_the_host_tiles_take_their_seams_and_no_picture_of_floats() {
    let home = home();
    let (pixel, tile) = (3 * 4, TILE.to_string());
    let job_bytes = |size, more: &[&str]| {
        let plan =
            json(&home, "plan", size, &[&["--host", "./host.toml", "--dry-run"], more].concat());
        bytes(&plan["host"]["job_bytes"])
    };
    for size @ [width, height] in SIZES {
        let whole = job_bytes(size, &[]);
        let tiled = job_bytes(size, &["--vae-tile", &tile]);
        let above = tiled_pixels(width) * u64::from(OVERLAP);
        let left = u64::from(TILE * OVERLAP);
        let picture = u64::from(width * height);
        let saved = picture - u64::from(TILE * TILE) - above - left;
        assert_eq!(whole - tiled, pixel * saved, "{size:?}");
    }
}

#[test]
fn a_picture_in_tiles_is_the_same_on_every_device() {
    let home = home();
    let prompt = ["--prompt", "a large yellow star on a blue background", "--seed", "4"];
    let picture = |name: &str, more: &[&str]| {
        let output = ["--output", name];
        let size = [320, 256];
        let document = json(&home, "generate", size, &[&prompt[..], &output, more].concat());
        assert_exact(&document["usage"], if more.contains(&"--init-image") { 4 } else { 3 }, name);
        std::fs::read(home.path(name)).expect("the picture was written")
    };
    let on_host = picture("host.png", &["--host", "./host.toml", "--vae-tile", "96"]);
    let on_device = picture("device.png", &["--host", "./device.toml", "--vae-tile", "96"]);
    assert!(on_host == on_device, "host and device differ");
    let whole = picture("whole.png", &["--host", "./host.toml"]);
    assert!(on_host != whole, "the tiles left no trace");
    // A picture that is not larger than a tile is not cut.
    let uncut = picture("uncut.png", &["--host", "./host.toml", "--vae-tile", "320"]);
    assert!(uncut == whole, "a tile that holds the picture changed it");

    let started = ["--init-image", "host.png", "--strength", "1", "--vae-tile", "96"];
    let on_host = picture("next.png", &[&["--host", "./host.toml"], &started[..]].concat());
    let on_device =
        picture("next-device.png", &[&["--host", "./device.toml"], &started[..]].concat());
    assert!(on_host == on_device, "host and device differ in a job that starts from a picture");
}

#[test]
fn a_started_batch_in_tiles_uses_what_is_planned() {
    let home = home();
    std::fs::copy(crate::support::fixture("pictures").join("baseline.jpg"), home.path("start.jpg"))
        .expect("a picture to start from");
    let model = crate::support::fixture("flux_dev");
    let model = model.to_str().expect("a path in UTF-8");
    let started = [model, "--prompt", "a fox", "--init-image", "start.jpg", "--strength", "0.5"];
    let guided = ["--true-cfg-scale", "3", "--max-sequence-length", "48", "--batch", "3"];
    for (host, tile) in [("./host.toml", "64"), ("./device.toml", "64"), ("virtual-2x2g", "96")] {
        let more = [&["--host", host, "--vae-tile", tile], &started[..], &guided].concat();
        for [width, height] in [["144", "96"], ["96", "176"]] {
            let size = ["generate", "--json", "--width", width, "--height", height];
            let run = home.json(&[&size[..], &["--steps", "4"], &more].concat());
            assert_exact(&run["usage"], 4, &format!("{width}x{height} on {host}"));
            assert_eq!(run["plan"]["job"]["first_step"], 2);
            assert_eq!(run["attempts"], 1);
        }
    }
}

#[test]
fn tiles_that_are_no_whole_cells_are_refused() {
    let home = home();
    for (tile, hint) in [("100", "use a multiple of 32"), ("4", "use --vae-tile 16 or more")] {
        let arguments = ["plan", "--dry-run", "--host", "./host.toml", "--vae-tile", tile];
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(2), "{tile}: {}", ended.stderr);
        assert!(ended.stderr.contains(hint), "{tile}: {}", ended.stderr);
    }
}
