//! The two foreign protocols over a real connection, with a desk that makes pictures at once; and
//! the real libraries of their clients, where `BERTH_PYTHON` names a Python that has them.

use std::process::Command;

use serde_json::{Value, json};

use super::client::{read_until, request};
use super::working_desk::{Mood, WorkingDesk};
use super::*;
use crate::media::picture::Picture;
use crate::serve::desk::job::{Api, KeptJson};
use crate::serve::edge::openai::testing::settings;

/// A server with such a desk.
struct Stand {
    handle: Option<EdgeHandle>,
    desk: WorkingDesk,
    _folder: TempDir,
}

impl Stand {
    fn start(mood: Mood) -> Stand {
        Stand::with(mood, None)
    }

    fn with(mood: Mood, tokens: Option<&str>) -> Stand {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder);
        config.settings = settings();
        config.token_file = tokens.map(|tokens| Server::tokens(&folder, tokens));
        let (events, asked) = channel();
        let handle = start(config, events).unwrap();
        let desk = WorkingDesk::start(mood, handle.edge.clone(), asked);
        Stand { handle: Some(handle), desk, _folder: folder }
    }

    fn address(&self) -> SocketAddr {
        self.handle.as_ref().unwrap().address().unwrap()
    }

    fn client(&self) -> Client {
        Client::new(self.address())
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("Content-Type", "application/json")];
        self.client().send("POST", path, &headers, body.to_string().as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.client().send("GET", path, &[], b"")
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.stop(Duration::from_millis(200));
        }
    }
}

fn decoded(text: &Value) -> Vec<u8> {
    base64::decode(text.as_str().unwrap()).unwrap()
}

#[test]
fn openais_pictures_are_in_the_answer_or_at_an_address() {
    let stand = Stand::start(Mood::Working);
    let answer =
        stand.post("/v1/images/generations", &json!({"prompt": "a cat", "n": 2, "seed": 5}));
    assert_eq!(answer.status, 200, "{}", answer.json());
    let document = answer.json();
    assert_eq!((&document["size"], &document["berth"]["seeds"]), (&json!("64x64"), &json!([5, 6])));
    let file = decoded(&document["data"][1]["b64_json"]);
    assert!(crate::media::settings(&file).unwrap().unwrap().contains("Seed: 6"));
    let order = stand.desk.orders.lock().unwrap()[0].clone();
    assert_eq!(
        (order.api, order.class),
        (Api::OpenAi, crate::serve::desk::job::Class::Interactive)
    );
    assert_eq!(order.body, KeptJson::of(&json!({"prompt": "a cat", "n": 2, "seed": 5})));
    let body = json!({"prompt": "x", "response_format": "url", "output_format": "webp"});
    let url = stand.post("/v1/images/generations", &body).json()["data"][0]["url"].clone();
    let url = url.as_str().unwrap();
    assert!(
        url.starts_with("http://localhost/v1/jobs/") && url.ends_with("/pictures/0?format=webp")
    );
    let path = url.strip_prefix("http://localhost").unwrap();
    assert_eq!(stand.get(path).status, 200);
}

#[test]
fn a_job_that_was_done_before_is_answered_from_its_files() {
    let stand = Stand::start(Mood::Working);
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "k")];
    let send = |path, body: Value| {
        stand.client().send("POST", path, &headers, body.to_string().as_bytes()).json()
    };
    let document = send("/v1/images/generations", json!({"prompt": "x"}));
    assert_eq!(decoded(&document["data"][0]["b64_json"]), png());
    let document = send("/sdapi/v1/txt2img", json!({"prompt": "x"}));
    assert_eq!(decoded(&document["images"][0]), png());
    let orders = stand.desk.orders.lock().unwrap().clone();
    let keys = orders.iter().filter_map(|order| order.idempotency.as_ref()).map(|key| &key.key);
    assert_eq!(keys.collect::<Vec<_>>(), ["k", "k"]);
}

#[test]
fn edits_come_as_forms_and_as_json() {
    let stand = Stand::start(Mood::Working);
    let body = json!({"prompt": "x", "image": base64::encode(png()), "strength": 0.5});
    let answer = stand.post("/v1/images/edits", &body);
    assert_eq!(answer.json()["size"], "64x32", "{}", answer.json());
    let form = [
        &b"--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na dog\r\n"[..],
        b"--b\r\nContent-Disposition: form-data; name=\"image[]\"; filename=\"a.png\"\r\n\r\n",
        &png(),
        b"\r\n--b\r\nContent-Disposition: form-data; name=\"image[]\"; filename=\"b.png\"\r\n\r\n",
        &png(),
        b"\r\n--b--\r\n",
    ]
    .concat();
    let headers = [("Content-Type", "multipart/form-data; boundary=b")];
    let answer = stand.client().send("POST", "/v1/images/edits", &headers, &form);
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert!(answer.json()["berth"]["notices"][0].as_str().unwrap().contains("first"));
    let orders = stand.desk.orders.lock().unwrap().clone();
    let strengths: Vec<_> = orders.iter().map(|order| order.request.start.strength).collect();
    assert_eq!(strengths, [Some(0.5), Some(0.75)]);
    let files: Vec<_> = orders.iter().map(|order| order.request.start.image.clone()).collect();
    assert_eq!(files[0], files[1], "the same picture is kept once");
    assert_eq!(Picture::open(&files[0].clone().unwrap()).unwrap().size(), [64, 32]);
    let body = KeptJson::of(&json!({"prompt": "a dog"}));
    assert_eq!(orders[1].body, body, "without its pictures");
    for (body, param) in [
        (json!({"prompt": "x"}), "image"),
        (json!({"prompt": "x", "image": "http://example.com/a.png"}), "image"),
        (json!({"prompt": "x", "image": "aGk="}), "image"),
    ] {
        let answer = stand.post("/v1/images/edits", &body);
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{body}"
        );
    }
}

#[test]
fn openais_streams_tell_of_the_queue_and_end_with_the_picture() {
    let stand = Stand::start(Mood::Working);
    let body = json!({
        "prompt": "x", "stream": true, "partial_images": 2, "steps": 6,
        "stream_options": {"berth_progress": true},
    });
    let answer = stand.post("/v1/images/generations", &body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = String::from_utf8(answer.body).unwrap();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    let places = [
        at(": queued 1"),
        at("event: berth.progress"),
        at("\"partial_image_index\":0"),
        at("\"partial_image_index\":1"),
        at("event: image_generation.completed"),
    ];
    assert!(places.is_sorted(), "{text}");
    assert_eq!(text.matches("image_generation.partial_image\n").count(), 2, "{text}");
    assert_eq!(text.matches("image_generation.completed\n").count(), 1, "{text}");
    let refused = Stand::start(Mood::Full).post("/v1/images/generations", &body);
    assert_eq!(refused.code(), (503, "queue_full".to_owned()), "a refusal is a status");
    let failed = Stand::start(Mood::Broken).post("/v1/images/generations", &body);
    let text = String::from_utf8(failed.body).unwrap();
    assert!(text.contains("event: error") && text.contains("out_of_memory"), "{text}");
}

#[test]
fn who_leaves_a_stream_is_not_waited_for() {
    let stand = Stand::start(Mood::Working);
    let body = json!({"prompt": "x", "stream": true, "steps": 1000}).to_string();
    let mut stream = stand.client().connect();
    let headers = [("Content-Type", "application/json")];
    let sent = request("POST", "/v1/images/generations", &headers, body.as_bytes());
    std::io::Write::write_all(&mut stream, &sent).unwrap();
    read_until(&mut stream, ": ping");
    assert_eq!(stand.desk.left.lock().unwrap().len(), 0);
    drop(stream);
    eventually("the desk is told", || stand.desk.left.lock().unwrap().len() == 1);
}

#[test]
fn errors_are_those_of_each_protocol() {
    let stand = Stand::start(Mood::Working);
    let answer = stand.post("/v1/images/variations", &json!({}));
    assert_eq!(answer.code(), (404, "no_route".to_owned()));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("retired"));
    let answer = stand.post("/v1/images/generations", &json!({"prompt": "x", "size": "100x64"}));
    assert_eq!(answer.code(), (400, "bad_value".to_owned()));
    assert_eq!(answer.json()["error"]["berth"]["nearest"]["sizes"], json!(["96x64", "112x64"]));
    let broken = Stand::start(Mood::Broken);
    let answer = broken.post("/v1/images/generations", &json!({"prompt": "x"}));
    assert_eq!(answer.code(), (500, "out_of_memory".to_owned()));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert!(answer.json()["error"]["berth"]["job"].is_string());
    let answer = broken.post("/sdapi/v1/txt2img", &json!({"prompt": "x"}));
    assert_eq!((answer.status, &answer.json()["detail"]), (500, &json!("memory was short")));
    for (path, body, status, body_key) in [
        ("/sdapi/v1/txt2img", json!({"steps": 0}), 422, "steps"),
        ("/sdapi/v1/txt2img", json!({"sampler_name": "Better"}), 404, "sampler_name"),
        ("/sdapi/v1/img2img", json!({}), 404, "init_images"),
        ("/sdapi/v1/options", json!({"sd_model_checkpoint": "x"}), 422, "sd_model_checkpoint"),
        ("/sdapi/v1/png-info", json!({"image": "aGk="}), 422, "image"),
        ("/sdapi/v1/nothing", json!({}), 404, ""),
    ] {
        let answer = stand.post(path, &body);
        assert_eq!(answer.status, status, "{path} {body}");
        let document = answer.json();
        assert!(document["detail"].is_string() && document["errors"].is_string(), "{document}");
        assert_eq!(document["body"], body_key, "{path} {document}");
        assert_eq!(answer.header("x-request-id").map(str::len), Some(26));
    }
}

#[test]
fn a_job_of_the_web_ui_is_answered_in_its_words() {
    let stand = Stand::start(Mood::Working);
    let body = json!({
        "prompt": "a cat", "seed": 3, "steps": 2, "width": 32, "height": 48, "batch_size": 2,
        "sampler_name": "DDIM", "init_images": [base64::encode(png())],
    });
    let answer = stand.post("/sdapi/v1/img2img", &body);
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(answer.header("berth-substituted"), Some("sampler: DDIM -> Euler"));
    let document = answer.json();
    let info: Value = serde_json::from_str(document["info"].as_str().unwrap()).unwrap();
    assert_eq!((&info["all_seeds"], &info["width"]), (&json!([3, 4]), &json!(32)));
    assert_eq!(document["parameters"]["init_images"], Value::Null);
    let file = decoded(&document["images"][1]);
    let info = json!({"image": base64::encode(&file)});
    let info = stand.post("/sdapi/v1/png-info", &info).json();
    assert_eq!(
        (&info["parameters"]["Seed"], &info["parameters"]["Size-2"]),
        (&json!("4"), &json!("48"))
    );
    let order = stand.desk.orders.lock().unwrap()[0].clone();
    let body = serde_json::to_value(&order.body).unwrap();
    assert_eq!((order.api, body.get("init_images")), (Api::Sdapi, None));
}

#[test]
fn a_checkpoint_that_changes_is_loaded() {
    let stand = Stand::start(Mood::Working);
    let options = stand.get("/sdapi/v1/options").json();
    assert_eq!(options["sd_model_checkpoint"], "demo");
    assert_eq!(stand.post("/sdapi/v1/options", &options).json(), Value::Null);
    assert_eq!(stand.desk.loaded(), Vec::<String>::new(), "it is the same");
    stand.post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "guided"}));
    assert_eq!(stand.desk.loaded(), ["guided"]);
    assert_eq!(stand.get("/sdapi/v1/options").json()["sd_model_checkpoint"], "guided");
    stand.post("/sdapi/v1/txt2img", &json!({"prompt": "x"}));
    assert_eq!(stand.desk.orders.lock().unwrap()[0].model, "guided");
}

#[test]
fn everything_that_the_web_ui_lists_is_there() {
    let stand = Stand::start(Mood::Working);
    for name in [
        "sd-models",
        "samplers",
        "schedulers",
        "upscalers",
        "latent-upscale-modes",
        "sd-vae",
        "sd-modules",
        "loras",
        "memory",
        "scripts",
        "cmd-flags",
        "embeddings",
        "hypernetworks",
        "face-restorers",
        "prompt-styles",
        "progress",
        "options",
    ] {
        let answer = stand.get(&format!("/sdapi/v1/{name}"));
        assert_eq!(answer.status, 200, "{name}");
        assert!(answer.json().is_array() || answer.json().is_object(), "{name}");
    }
    let options = stand.client().send("OPTIONS", "/sdapi/v1/txt2img", &[], b"");
    assert_eq!(options.status, 204);
    for name in
        ["interrupt", "skip", "refresh-checkpoints", "unload-checkpoint", "reload-checkpoint"]
    {
        assert_eq!(stand.post(&format!("/sdapi/v1/{name}"), &json!({})).status, 200, "{name}");
    }
}

#[test]
fn the_clients_own_libraries_agree() {
    let Some(python) = std::env::var_os("BERTH_PYTHON") else {
        eprintln!("skipped: BERTH_PYTHON names no Python with the clients' packages");
        return;
    };
    let [working, full, broken] = [Mood::Working, Mood::Full, Mood::Broken].map(Stand::start);
    let token = "0123456789abcdef0123456789abcdef";
    let guarded = Stand::with(Mood::Working, Some(&format!("me:{token}:admin\n")));
    let url = |stand: &Stand| format!("http://{}", stand.address());
    let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/clients");
    let more = |words: [&str; 2]| words.map(str::to_owned).to_vec();
    let refusing = [more(["--full", &url(&full)]), more(["--broken", &url(&broken)])].concat();
    for (script, stand, more) in [
        ("openai_client.py", &working, refusing),
        ("webuiapi_client.py", &working, more(["--other", "guided"])),
        ("webuiapi_client.py", &guarded, more(["--token", token])),
    ] {
        let mut command = Command::new(&python);
        command.arg(scripts.join(script)).arg(url(stand)).args(more);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {told}");
        println!("{}", String::from_utf8_lossy(&output.stdout));
    }
}
