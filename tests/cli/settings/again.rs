//! A picture is made again from its own settings, to the byte of its file.

use std::fs;

use crate::settings::{done, settings};
use crate::support::lora::write_lora;
use crate::support::wide::Wide;
use crate::support::{Home, fixture, pixels};

/// Names of pictures in the formats that are written.
const FORMATS: [&str; 3] = ["png", "jpg", "webp"];

/// A prompt that the plain form of settings cannot hold.
const HOSTILE: &str =
    " a \"red\" circle, on: white \n\tNegative prompt: round\nSteps: 1, Seed: 2, Size: 3x4\n";

/// Makes a picture again by its settings and more flags; both files must be the same.
fn assert_again(home: &Home, picture: &str, more: &[&str]) {
    // The name says the format, and the file is of it.
    let bytes = fs::read(home.path(picture)).unwrap();
    let begin: &[u8] = match picture.rsplit_once('.') {
        Some((_, "png")) => b"\x89PNG",
        Some((_, "jpg")) => b"\xff\xd8\xff",
        _ => b"RIFF",
    };
    assert!(bytes.starts_with(begin), "{picture} is of another format");
    let (_, format) = picture.rsplit_once('.').expect("a format");
    let again = format!("again.{format}");
    done(home, &[&["generate", "--settings", picture, "-o", &again], more].concat());
    let read = |name: &str| fs::read(home.path(name)).unwrap();
    let (first, second) = (settings(home, picture), settings(home, &again));
    assert_eq!(first, second, "{picture}");
    assert!(read(picture) == read(&again), "{picture} is another picture");
}

#[test]
fn pictures_of_every_format_are_made_again() {
    let home = Home::new();
    for format in FORMATS {
        let plain = format!("plain.{format}");
        done(&home, &["generate", "-p", "a red circle", "-o", &plain, "--steps", "3"]);
        assert_again(&home, &plain, &[]);
        let hostile = format!("hostile.{format}");
        let prompts = ["generate", "-p", HOSTILE, "--prompt-2", "a\r\nb", "-n", " blue "];
        let more = ["--true-cfg-scale", "3.7", "--steps", "2", "-W", "48", "-H", "32"];
        let more = [&more[..], &["--max-sequence-length", "20", "-o", &hostile]].concat();
        done(&home, &[&prompts[..], &more].concat());
        assert_again(&home, &hostile, &[]);
        let recorded = settings(&home, &hostile);
        assert_eq!(recorded["prompt"], HOSTILE);
        assert_eq!(recorded["prompt_2"], "a\r\nb");
        assert_eq!(recorded["negative_prompt"], " blue ");
    }
}

#[test]
fn a_sampler_is_recorded_as_the_web_ui_does_and_taken_again() {
    let home = Home::new();
    let run = ["generate", "-p", "a red circle", "-s", "3", "-W", "48", "-H", "32"];
    let mut made = Vec::new();
    for (name, asked, keys) in [
        ("euler", &["--steps", "4"][..], "Steps: 4, Sampler: Euler, CFG scale"),
        (
            "sde",
            &["--steps", "4", "--sampler", "DPM++ 2M SDE", "--scheduler", "karras", "--eta", "0.5"],
            "Sampler: DPM++ 2M SDE, Schedule type: Karras, Eta: 0.5, CFG scale",
        ),
        (
            "given",
            &["--sampler", "EULER A", "--sigmas", "1,0.8,0.5,0.125"],
            "Steps: 4, Sampler: Euler a, Sigmas: 1 0.8 0.5 0.125, CFG scale",
        ),
    ] {
        let picture = format!("{name}.png");
        done(&home, &[&run[..], asked, &["-o", &picture]].concat());
        assert_again(&home, &picture, &[]);
        let bytes = fs::read(home.path(&picture)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(keys), "{name}: no {keys}");
        let picture = pixels(&home.path(&picture));
        assert!(!made.contains(&picture), "{name} has no effect");
        made.push(picture);
    }
    // What is asked of the sampler replaces all that was recorded of it.
    let asked = ["--sampler", "euler", "-o", "other.png"];
    done(&home, &[&["generate", "--settings", "sde.png"], &asked[..]].concat());
    assert!(pixels(&home.path("other.png")) == made[0], "the table of another sampler is taken");
    let planned = done(&home, &["plan", "--sampler", "heun", "--steps", "4"]).stdout;
    assert!(planned.contains("7 model calls of"), "{planned}");
}

#[test]
fn the_quality_of_a_lossy_file_is_recorded_and_taken_where_it_has_an_effect() {
    let home = Home::new();
    let run = ["generate", "-p", "a red circle", "--steps", "1", "-s", "1"];
    for picture in ["a.jpg", "a.webp"] {
        done(&home, &[&run[..], &["--quality", "37", "-o", picture]].concat());
        assert_eq!(settings(&home, picture)["quality"], 37);
        assert_again(&home, picture, &[]);
        let other = ["--quality", "90", "-o", "other.jpg"];
        done(&home, &[&["generate", "--settings", picture], &other[..]].concat());
        assert_eq!(settings(&home, "other.jpg")["quality"], 90);
        // The pixels that were lost in the file come back in one that loses nothing.
        done(&home, &["generate", "--settings", picture, "-o", "whole.png"]);
        done(&home, &[&run[..], &["-o", "first.png"]].concat());
        let read = |name| fs::read(home.path(name)).unwrap();
        assert!(read("whole.png") == read("first.png"), "{picture}");
    }
}

#[test]
fn a_model_with_lora_start_batch_and_tiles_is_run_again() {
    let home = Home::new();
    Wide::bf16().write(&home.path("model")).expect("a file system with room");
    write_lora(&home.path("style:v1.safetensors"), 1);
    write_lora(&home.path("other, one.safetensors"), 100);
    fs::copy(fixture("pictures/turned.jpg"), home.path("start.jpg")).unwrap();
    let loras = ["--lora", "./style:v1.safetensors:0.8", "--lora", "other, one.safetensors"];
    let start = ["--init-image", "start.jpg", "--strength", "0.55", "--vae-tile", "32:0.25"];
    let shape = ["-W", "64", "-H", "48", "--steps", "3", "-b", "2", "--max-sequence-length", "32"];
    for format in FORMATS {
        let output = format!("made.{format}");
        let run = ["generate", "model", "-p", "a red circle", "-o", &output];
        done(&home, &[&run[..], &loras, &start, &shape].concat());
        for number in ["1", "2"] {
            assert_again(&home, &format!("made-{number}.{format}"), &[]);
        }
    }
    let recorded = settings(&home, "made-2.png");
    assert_eq!(recorded["loras"][0]["path"], "./style:v1.safetensors");
    assert_eq!(recorded["loras"][0]["weight"].as_f64().map(|w| w as f32), Some(0.8));
    assert_eq!(recorded["vae_tile"], "32x32:0.25");
    assert_eq!((&recorded["batch_size"], &recorded["batch_position"]), (&2.into(), &1.into()));
    // Moved to another place with all that it needs, it is found there.
    fs::create_dir(home.path("box")).unwrap();
    for name in
        ["style:v1.safetensors", "other, one.safetensors", "start.jpg", "model", "made-2.png"]
    {
        fs::rename(home.path(name), home.path("box").join(name)).unwrap();
    }
    done(&home, &["generate", "--settings", "box/made-2.png", "-o", "moved.png"]);
    assert!(pixels(&home.path("moved.png")) == pixels(&home.path("box/made-2.png")));
}

#[test]
fn lora_products_beside_streamed_weights_are_made_again_where_all_is_held() {
    let home = Home::new();
    Wide::bf16().write(&home.path("model")).expect("a file system with room");
    write_lora(&home.path("style.safetensors"), 1);
    let device = "[[device]]\nkind = \"virtual\"\ntotal = \"256MiB\"\nlink = \"8GiB/s\"\n";
    fs::write(home.path("one.toml"), format!("name = \"one\"\n{device}")).unwrap();
    let run =
        ["generate", "model", "-p", "a red circle", "--lora", "style.safetensors", "-W", "64"];
    let more = ["-H", "48", "--steps", "2", "--max-sequence-length", "32", "-s", "5"];
    let streamed = ["--host", "one.toml", "--params-backend", "dit=cpu,t5=cpu"];
    done(&home, &[&run[..], &more, &streamed, &["-o", "streamed.png"]].concat());
    done(&home, &[&run[..], &more, &["-o", "held.png"]].concat());
    let of = |name: &str| settings(&home, name)["lora_at_run_time"].clone();
    assert_eq!(of("streamed.png"), serde_json::json!(["t5", "dit"]));
    assert_eq!(of("held.png"), serde_json::json!([]));
    assert_again(&home, "streamed.png", &[]);
    assert_again(&home, "held.png", &[]);
}

#[test]
fn a_picture_of_a_large_batch_is_made_again_in_it_or_alone() {
    let home = Home::new();
    let model = fixture("flux_dev");
    let shape = ["-W", "64", "-H", "64", "--steps", "1", "-b", "9", "-s", "4294967290"];
    let run = ["generate", model.to_str().unwrap(), "-p", "a red circle", "-o", "many.png"];
    done(&home, &[&run[..], &shape].concat());
    // Nine rows are summed in another order than one: the whole batch is run, and one picture kept.
    assert_again(&home, "many-9.png", &[]);
    assert!(!home.path("again-1.png").exists());
    done(&home, &["generate", "--settings", "many-9.png", "--batch", "1", "-o", "alone.png"]);
    let alone = settings(&home, "alone.png");
    assert_eq!((&alone["seed"], &alone["batch_size"]), (&4_294_967_298_u64.into(), &().into()));
    done(&home, &["generate", "--settings", "many-9.png", "-s", "7", "-o", "other.png"]);
    assert_eq!(settings(&home, "other.png")["seed"], 7);
}

#[test]
fn a_flag_wins_over_what_is_recorded() {
    let home = Home::new();
    let first = ["generate", "-p", "a red circle", "-n", "blue", "--true-cfg-scale", "2"];
    done(&home, &[&first[..], &["--prompt-2", "b", "--steps", "2", "-o", "a.png"]].concat());
    let before = settings(&home, "a.png");
    let more = ["--steps", "3", "-W", "48", "-p", "a star", "--cfg-scale", "1", "-o", "b.png"];
    done(&home, &[&["generate", "--settings", "a.png"], &more[..]].concat());
    let after = settings(&home, "b.png");
    assert_eq!((&after["steps"], &after["prompt"]), (&3.into(), &"a star".into()));
    assert_eq!(after["size"], serde_json::json!([48, 64]));
    assert_eq!(after["seed"], before["seed"]);
    // Without guidance the negative prompt has no effect, and a second prompt belongs to the first.
    assert_eq!((&after["negative_prompt"], &after["prompt_2"]), (&().into(), &().into()));
    assert_eq!(before["negative_prompt"], "blue");
}

#[test]
fn a_host_profile_changes_nothing_of_what_is_recorded() {
    let home = Home::new();
    done(&home, &["generate", "-p", "a red circle", "--steps", "2", "-o", "a.png"]);
    fs::write(home.path("tiles.toml"), "name = \"tiles\"\n[policy]\nvae_tile = \"32\"\n").unwrap();
    assert_again(&home, "a.png", &["--host", "tiles.toml"]);
    let tiled = ["--host", "tiles.toml", "--vae-tile", "32", "-o", "tiled.png"];
    done(&home, &[&["generate", "--settings", "a.png"], &tiled[..]].concat());
    assert_eq!(settings(&home, "tiled.png")["vae_tile"], "32x32:0.25");
    assert_again(&home, "tiled.png", &[]);
}

#[test]
fn latents_and_exact_products_are_recorded_where_they_have_an_effect() {
    let home = Home::new();
    let model = fixture("flux_dev");
    let quantised = fixture("gguf/flux_dev-Q8_0.gguf");
    let shape = ["-W", "64", "-H", "64", "--steps", "1", "--exact-matmul"];
    let run = ["generate", model.to_str().unwrap(), "-p", "a"];
    let of_blocks = ["--diffusion-model", quantised.to_str().unwrap(), "-o", "blocks.png"];
    done(&home, &[&run[..], &shape, &of_blocks].concat());
    let in_f32 = fixture("flux_schnell");
    let whole = ["generate", in_f32.to_str().unwrap(), "-p", "a", "-o", "whole.png"];
    done(&home, &[&whole[..], &shape].concat());
    assert_eq!(settings(&home, "blocks.png")["exact_matmul"], true);
    assert_eq!(settings(&home, "whole.png")["exact_matmul"], false);
    assert_again(&home, "blocks.png", &[]);
    write_latents(&home, "latents.safetensors");
    let latents = ["--init-latents", "latents.safetensors", "-o", "latents.png"];
    done(&home, &[&run[..], &shape[..6], &latents].concat());
    let recorded = settings(&home, "latents.png");
    assert_eq!(recorded["init_latents"]["path"], "latents.safetensors");
    assert_eq!(recorded["rng"], serde_json::Value::Null);
    assert_again(&home, "latents.png", &[]);
}

/// Writes latents of a picture of 64x64: 16 channels of 8x8.
fn write_latents(home: &Home, name: &str) {
    use safetensors::tensor::{Dtype, TensorView};
    let values: Vec<u8> =
        (0..16 * 8 * 8).flat_map(|at| ((at % 7) as f32 / 3.0 - 1.0).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![1, 16, 8, 8], &values).expect("a whole tensor");
    safetensors::serialize_to_file([("noise_nchw", view)], None, &home.path(name)).expect("a file");
}
