//! Files of a model that change while its jobs wait.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::client::Server;
use crate::support::damaged::copy;
use crate::support::{Home, fixture};

const WEIGHTS: &str = "transformer/diffusion_pytorch_model.safetensors";

fn job(seed: u64, steps: u32) -> Value {
    json!({"model": "small", "prompt": "a red circle", "seed": seed, "steps": steps,
           "width": 64, "height": 64})
}

fn slow() -> Value {
    json!({"model": "small", "prompt": "a", "seed": 1, "steps": 300, "width": 256, "height": 256})
}

/// A directory of models with `small` in it.
fn models(home: &Home) -> PathBuf {
    let model = home.path("models/small");
    copy(&fixture("flux_schnell"), &model);
    model
}

/// Puts a file in the place of another, as programs do that download.
fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).expect("it is written");
    fs::rename(new, path).expect("it is there");
}

#[test]
fn a_damaged_model_fails_its_jobs_until_it_is_mended() {
    let home = Home::new();
    let weights = models(&home).join(WEIGHTS);
    let server = Server::start(&home, &["--models", "models"]);
    let before = server.submit(&job(1, 2));
    server.done(&before);
    let running = server.submit(&slow());
    let waiting = [server.submit(&job(1, 2)), server.submit(&job(2, 2))];
    server.until_denoising(&running);
    let good = fs::read(&weights).expect("weights");
    replace(&weights, &good[..good.len() / 2]);
    server.until(&running, &["done", "failed"]);
    for id in &waiting {
        let failed = server.until(id, &["done", "failed"]);
        assert_eq!(failed["error"]["code"], "bad_model", "{failed}");
        assert_eq!(failed["error"]["message"].as_str().map(str::is_empty), Some(false));
    }
    let refused = server.ask("POST", "/v1/jobs", Some(&job(3, 2)));
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, error["code"].as_str()), (422, Some("bad_model")), "{error}");
    // Other models go on.
    server.done(&server.submit(&json!({"prompt": "a", "seed": 1, "steps": 2})));
    replace(&weights, &good);
    assert_eq!(server.ask("POST", "/v1/models/rescan", None).status, 200);
    let after = server.submit(&job(1, 2));
    server.done(&after);
    assert!(server.picture(&after, 0) == server.picture(&before, 0));
}

#[test]
fn a_model_that_is_replaced_is_used_by_the_next_job() {
    let home = Home::new();
    let weights = models(&home).join(WEIGHTS);
    let server = Server::start(&home, &["--models", "models"]);
    let before = server.submit(&job(1, 2));
    server.done(&before);
    let running = server.submit(&slow());
    let waiting = server.submit(&job(1, 2));
    server.until_denoising(&running);
    // Its first numbers are others: of a matrix, as the header's tensors are.
    let mut other = fs::read(&weights).expect("weights");
    let header = u64::from_le_bytes(other[..8].try_into().expect("8 bytes")) as usize;
    let half = 8 + header + (other.len() - 8 - header) / 2;
    let (first, second) = other[8 + header..].split_at_mut(half - 8 - header);
    first[..64].swap_with_slice(&mut second[..64]);
    replace(&weights, &other);
    server.until(&running, &["done", "failed"]);
    server.done(&waiting);
    let [one, two] = [&before, &waiting].map(|id| server.picture(id, 0));
    assert!(one != two, "the waiting job is made by the new file");
    let made = home.run(&[
        "generate",
        "models/small",
        "-p",
        "a red circle",
        "--seed",
        "1",
        "--steps",
        "2",
        "--width",
        "64",
        "--height",
        "64",
        "--host",
        "virtual-2x2g",
        "--output",
        "same.png",
    ]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let same = fs::read(home.path("same.png")).expect("it was written");
    assert_eq!(pixels_of(&same, &home), pixels_of(&two, &home));
}

fn pixels_of(png: &[u8], home: &Home) -> Vec<u8> {
    let path = home.path("looked-at.png");
    fs::write(&path, png).expect("it is written");
    crate::support::pixels(&path)
}
