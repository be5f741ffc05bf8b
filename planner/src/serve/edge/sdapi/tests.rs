//! Bodies of A1111's clients, what they come to, and what is answered.

mod replay;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::request::{self, SdapiRequest, SdapiRoute};
use super::*;
use crate::job::JobRequest;
use crate::job::request::{GuidanceRequest, Prompts, ShapeRequest, StartRequest};
use crate::serve::desk::action::{ModelView, ProgressView, SlotState};
use crate::serve::desk::event::ServedModel;
use crate::serve::desk::job::JobRecord;
use crate::serve::edge::openai::testing::{bodies, kept, object, picture, settings, view};
use protocol::{Sampler, Scheduler};

fn txt2img(body: Value) -> Result<SdapiRequest, EdgeError> {
    request::read(SdapiRoute::Txt2Img, object(body), &settings(), None)
}

#[test]
fn what_clients_send_is_a_job() {
    let read = txt2img(json!({
        "prompt": "a cat", "negative_prompt": "", "steps": 20, "width": 64, "height": 48,
        "sampler_name": "Euler a", "scheduler": "Karras", "cfg_scale": 7, "seed": -1,
        "batch_size": 2, "n_iter": 3, "denoising_strength": 0.7, "enable_hr": false,
        "force_task_id": "task(1)", "do_not_save_grid": true, "eta": 0, "styles": [],
        "override_settings": {"sd_vae": "Automatic"},
    }))
    .unwrap();
    let expected = JobRequest {
        model: crate::job::model::ModelName::Name("demo".to_owned()),
        prompts: Prompts {
            prompt: Some("a cat".to_owned()),
            negative_prompt: Some(String::new()),
            negative_may_be_unused: true,
            ..Prompts::default()
        },
        shape: ShapeRequest {
            width: Some(64),
            height: Some(48),
            steps: Some(20),
            batch: Some(6),
            max_sequence_length: None,
        },
        sampler: Some(Sampler::EulerAncestral),
        scheduler: Some(Scheduler::Karras),
        eta: Some(0.0),
        preview_every: Some(5),
        ..JobRequest::default()
    };
    assert_eq!(read.job, expected);
    assert_eq!((read.seed, read.label.as_deref(), read.batch_size), (None, Some("task(1)"), 2));
    assert!(read.substituted.is_empty(), "{:?}", read.substituted);
    assert!(read.send_images && !read.include_init_images);
    assert_eq!(read.notices.len(), 1, "only of cfg_scale: {:?}", read.notices);
}

#[test]
fn progress_has_a_few_pictures_of_each_job() {
    let every = |body: Value| txt2img(body).unwrap().job.preview_every;
    // The model's own steps are 4.
    for (body, expected) in [
        (json!({}), Some(1)),
        (json!({"steps": 1}), Some(1)),
        (json!({"steps": 12}), Some(3)),
        (json!({"steps": 150}), Some(10)),
        (json!({"override_settings": {"sd_model_checkpoint": "unread"}}), None),
    ] {
        assert_eq!(every(body.clone()), expected, "{body}");
    }
    let started = json!({"steps": 8, "denoising_strength": 0.5, "init_images": ["aGk="]});
    let started = request::read(SdapiRoute::Img2Img, object(started), &settings(), None).unwrap();
    assert_eq!(started.job.preview_every, Some(1));
}

#[test]
fn guidance_is_that_of_the_model() {
    let guidance = |body: Value| txt2img(body).unwrap().job.guidance;
    let of = |true_cfg_scale, guidance_scale| GuidanceRequest {
        true_cfg_scale,
        guidance_scale,
        ..GuidanceRequest::default()
    };
    let body = |model: &str| {
        json!({
            "cfg_scale": 7, "distilled_cfg_scale": 3,
            "override_settings": {"sd_model_checkpoint": model},
        })
    };
    assert_eq!(guidance(body("demo")), of(None, Some(3.0)));
    assert_eq!(guidance(body("guided")), of(Some(7.0), None));
    assert_eq!(guidance(body("unread")), of(None, None));
    let mut settings = settings();
    settings.models.get_mut("demo").unwrap().sdapi_cfg = true;
    let read = request::read(SdapiRoute::Txt2Img, object(body("demo")), &settings, None).unwrap();
    assert_eq!(read.job.guidance, of(Some(7.0), Some(3.0)));
}

#[test]
fn the_model_is_the_requests_the_desks_or_the_default() {
    let model = |body: Value, checkpoint| {
        let read = request::read(SdapiRoute::Txt2Img, object(body), &settings(), checkpoint);
        read.map(|read| read.model).map_err(|error| (error.code, error.param))
    };
    let asked = |name: &str| json!({"override_settings": {"sd_model_checkpoint": name}});
    assert_eq!(model(json!({}), None), Ok("demo".to_owned()));
    assert_eq!(model(json!({}), Some("guided")), Ok("guided".to_owned()));
    assert_eq!(model(asked("unread"), Some("guided")), Ok("unread".to_owned()));
    for name in ["guided", "guided [0123abcd]", "guided.safetensors [0123abcd]", "guided.gguf"] {
        assert_eq!(model(asked(name), None), Ok("guided".to_owned()), "{name}");
    }
    let error = ("no_model", Some("sd_model_checkpoint".to_owned()));
    assert_eq!(model(asked("other"), None), Err(error));
}

#[test]
fn loras_of_the_prompt_are_files_of_the_host() {
    let read = txt2img(json!({"prompt": "a cat <lora:ink:0.8><lora:gone>"})).unwrap();
    assert_eq!(read.job.prompts.prompt.as_deref(), Some("a cat"));
    assert_eq!(read.job.policy.lora, Some(vec!["/lora/ink.safetensors:0.8".to_owned()]));
    assert_eq!(read.notices, ["there is no LoRA \"gone\""]);
}

#[test]
fn a_start_from_a_picture_has_a_strength() {
    let read =
        |body: Value| request::read(SdapiRoute::Img2Img, object(body), &settings(), None).unwrap();
    let strength = |body: Value| read(body).job.start;
    let of = |strength| StartRequest { strength: Some(strength), ..StartRequest::default() };
    assert_eq!(strength(json!({})), of(0.75));
    assert_eq!(strength(json!({"denoising_strength": 0.4})), of(0.4));
    let read = read(json!({
        "resize_mode": 1, "mask_blur": 4, "inpainting_fill": 1, "image_cfg_scale": 1.5,
        "include_init_images": true, "mask": null,
    }));
    assert!(read.include_init_images);
    assert_eq!(read.notices.len(), 1, "{:?}", read.notices);
}

#[test]
fn what_is_wrong_names_its_field() {
    for (body, param, status) in [
        (json!({"steps": 0}), "steps", 422),
        (json!({"steps": "many"}), "steps", 422),
        (json!({"width": 100}), "width", 422),
        (json!({"width": 64, "height": 100}), "height", 422),
        (json!({"batch_size": 0}), "batch_size", 422),
        (json!({"batch_size": 9, "n_iter": 9}), "n_iter", 422),
        (json!({"cfg_scale": -1}), "cfg_scale", 422),
        (json!({"denoising_strength": 2}), "denoising_strength", 422),
        (json!({"prompt": 7}), "prompt", 422),
        (json!({"seed": -7}), "seed", 422),
        (json!({"sampler_name": "Better"}), "sampler_name", 404),
        (json!({"scheduler": "Better"}), "scheduler", 404),
        (json!({"override_settings": []}), "override_settings", 422),
        (json!({"override_settings": {"sd_model_checkpoint": "x"}}), "sd_model_checkpoint", 422),
        (json!({"enable_hr": true}), "enable_hr", 422),
    ] {
        let error = txt2img(body).unwrap_err();
        assert_eq!(errors::status(&error).as_u16(), status, "{}", error.message);
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }
}

#[test]
fn info_has_all_keys_that_clients_know() {
    let read = txt2img(json!({
        "prompt": "a cat", "negative_prompt": "dogs", "batch_size": 2, "sampler_name": "DDIM",
    }))
    .unwrap();
    let pictures = [picture(0, 7), picture(1, 8)];
    let view = view(JobState::Done, read.job.clone(), &pictures);
    let parameters = object(json!({"prompt": "a cat"}));
    let images = vec!["aGk=".to_owned()];
    let answer = info::answer(&view, &read, parameters.clone(), images.clone());
    assert_eq!(
        (&answer["images"], &answer["parameters"]),
        (&json!(["aGk="]), &json!({"prompt": "a cat"}))
    );
    let told: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    let expected = json!({
        "prompt": "a cat", "all_prompts": ["a cat", "a cat"],
        "negative_prompt": "dogs", "all_negative_prompts": ["dogs", "dogs"],
        "seed": 7, "all_seeds": [7, 8], "subseed": -1, "all_subseeds": [-1, -1],
        "subseed_strength": 0, "width": 2, "height": 1, "sampler_name": "Euler",
        "cfg_scale": 1.0, "steps": 4, "batch_size": 2, "restore_faces": false,
        "face_restoration_model": null, "sd_model_name": "demo", "sd_model_hash": "abc",
        "sd_vae_name": null, "sd_vae_hash": null, "seed_resize_from_w": -1,
        "seed_resize_from_h": -1, "denoising_strength": null,
        "extra_generation_params": {"Distilled CFG Scale": 3.5}, "index_of_first_image": 0,
        "infotexts": [pictures[0].record.infotext, pictures[1].record.infotext],
        "styles": [], "job_timestamp": "20231114221320", "clip_skip": 1,
        "is_using_inpainting_conditioning": false,
        "version": crate::job::infotext::Settings::this_version(), "interrupted": false,
        "berth": {
            "job": "01JOB", "substituted": ["sampler: DDIM -> Euler"],
            "notices": [
                "negative_prompt has no effect on this model, which is guided without one",
                "from the run",
            ],
            "predicted_ms": 1500.0, "measured_ms": 2500,
        },
    });
    assert_eq!(told, expected);
    let silent = SdapiRequest { send_images: false, ..read };
    assert_eq!(info::answer(&view, &silent, parameters, images)["images"], json!([]));
}

#[test]
fn an_interrupted_job_has_an_info_too() {
    let read = txt2img(json!({"prompt": "a cat", "width": 32, "height": 16})).unwrap();
    let view = view(JobState::Cancelled, read.job.clone(), &[]);
    let told = info::info(&view, &read);
    assert_eq!((&told["interrupted"], &told["infotexts"]), (&json!(true), &json!([])));
    assert_eq!(
        (&told["seed"], &told["width"], &told["height"]),
        (&json!(7), &json!(32), &json!(16))
    );
}

fn with(view: &mut JobView, change: impl FnOnce(&mut JobRecord)) {
    change(Arc::make_mut(&mut view.record));
}

#[test]
fn progress_tells_of_the_oldest_job_that_runs_or_of_the_one_that_is_named() {
    let of = |id: &str, state, api, label: &str| {
        let mut view = view(state, JobRequest::default(), &[]);
        with(&mut view, |record| {
            record.id.0 = id.to_owned();
            record.order.api = api;
            record.order.label = Some(label.to_owned());
        });
        view
    };
    let jobs = [
        of("04", JobState::Running, Api::Sdapi, "d"),
        of("03", JobState::Loading, Api::Sdapi, "c"),
        of("02", JobState::Queued, Api::Sdapi, "b"),
        of("01", JobState::Running, Api::Native, "a"),
    ];
    let told = |label| progress::told(&jobs, label).map(|view| view.record.id.0.as_str());
    assert_eq!(told(None), Some("03"));
    assert_eq!(told(Some("")), Some("03"));
    assert_eq!(told(Some("b")), Some("02"));
    assert_eq!(told(Some("a")), None);
    assert_eq!(progress::told(&jobs[2..], None).map(|view| &view.record.id.0), None);
}

#[test]
fn progress_is_a_part_of_all_pictures() {
    let request = JobRequest {
        shape: ShapeRequest { batch: Some(2), ..ShapeRequest::default() },
        ..JobRequest::default()
    };
    let mut job = view(JobState::Running, request, &[picture(0, 7)]);
    let at = |phase: &str, step| {
        Some(ProgressView { phase: phase.to_owned(), step, of: 4, eta_ms: Some(1500.0) })
    };
    job.progress = at("denoise", 2);
    let told = progress::of_job(&job, Some("aGk=".to_owned()));
    assert!((told["progress"].as_f64().unwrap() - 0.76).abs() < 1e-9, "{told}");
    assert_eq!((&told["eta_relative"], &told["current_image"]), (&json!(1.5), &json!("aGk=")));
    let state = json!({
        "skipped": false, "interrupted": false, "stopping_generation": false, "job": "01JOB",
        "job_count": 2, "job_timestamp": "20231114221320", "job_no": 1, "sampling_step": 2,
        "sampling_steps": 4,
    });
    assert_eq!(told["state"], state);
    for (state, progress, least, most) in [
        (JobState::Loading, None, 0.5, 0.52),
        (JobState::Running, at("decode", 1), 0.5, 0.52),
        (JobState::Filing, None, 1.0, 1.0),
        (JobState::Queued, None, 0.0, 0.0),
    ] {
        job.state = state;
        job.progress = progress;
        let told = progress::of_job(&job, None)["progress"].as_f64().unwrap();
        assert!((least..=most).contains(&told), "{state:?}: {told}");
    }
}

#[test]
fn a_model_that_is_loaded_counts_as_a_job_and_nothing_as_none() {
    let model = |state| ModelView {
        model: ServedModel {
            name: "demo".to_owned(),
            files_bytes: protocol::Bytes::ZERO,
            modified_ms: 0,
            keep_alive: None,
            class: None,
            preload: false,
        },
        state,
        idle_bytes: Vec::new(),
        expires_in_ms: None,
        problem: None,
    };
    let idle = progress::of_models(&[model(SlotState::Warm), model(SlotState::Cold)]);
    assert_eq!((&idle["progress"], &idle["state"]["job_count"]), (&json!(0.0), &json!(0)));
    let loads = progress::of_models(&[model(SlotState::Cold), model(SlotState::Loading)]);
    assert_eq!((&loads["progress"], &loads["state"]["job_count"]), (&json!(0.01), &json!(1)));
}

#[test]
fn options_come_back_whole() {
    let settings = settings();
    let options = options::document("demo");
    let keys: Vec<&String> = options.as_object().unwrap().keys().collect();
    let expected = ["CLIP_stop_at_last_layers", "samples_format", "sd_model_checkpoint", "sd_vae"];
    assert_eq!(keys.len(), 4);
    assert!(expected.iter().all(|key| options.get(key).is_some()), "{keys:?}");
    let read = |body: Value| options::read(object(body), &settings);
    assert_eq!(read(options).unwrap().as_deref(), Some("demo"));
    assert_eq!(read(json!({"CLIP_stop_at_last_layers": 2})).unwrap(), None);
    let unknown = read(json!({"sd_model_checkpoint": "other"})).unwrap_err();
    assert_eq!(errors::status(&unknown).as_u16(), 422);
}

#[test]
fn lists_have_the_keys_that_clients_read() {
    let settings = settings();
    let titles: Vec<Value> =
        lists::models(&settings).as_array().unwrap().iter().map(|m| m["title"].clone()).collect();
    assert_eq!(titles, ["demo", "guided", "unread"]);
    let samplers = lists::samplers(&settings);
    let names: Vec<_> = samplers.as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["Euler", "Euler a", "DPM++ 2M"]);
    assert_eq!(samplers[1]["aliases"][0], "euler_ancestral");
    let schedulers = lists::schedulers(&settings);
    let labels: Vec<_> = schedulers.as_array().unwrap().iter().map(|row| &row["label"]).collect();
    assert_eq!(labels, ["Automatic", "Karras"]);
    assert_eq!(lists::upscalers()[0]["name"], "None");
    assert_eq!(lists::loras(&settings)[0]["name"], "ink");
    let memory = lists::memory().unwrap();
    let ram = &memory["ram"];
    let sum = ram["free"].as_u64().unwrap() + ram["used"].as_u64().unwrap();
    assert_eq!(sum, ram["total"].as_u64().unwrap());
    assert!(memory["cuda"].is_object());
}

/// Fields that mean something.
const NAMES: &[&str] = &[
    "prompt",
    "negative_prompt",
    "steps",
    "width",
    "height",
    "batch_size",
    "n_iter",
    "seed",
    "sampler_name",
    "sampler_index",
    "scheduler",
    "cfg_scale",
    "distilled_cfg_scale",
    "denoising_strength",
    "override_settings",
    "alwayson_scripts",
    "enable_hr",
    "send_images",
    "force_task_id",
    "styles",
    "mask",
    "subseed_strength",
    "resize_mode",
    "script_name",
];

proptest! {
    #[test]
    fn any_body_is_read_or_refused_by_a_field(body in bodies(NAMES), img2img: bool) {
        let route = if img2img { SdapiRoute::Img2Img } else { SdapiRoute::Txt2Img };
        match request::read(route, object(body.clone()), &settings(), Some("guided")) {
            Ok(read) => {
                prop_assert!(read.job.check().is_ok());
                prop_assert!(kept(&read.job).check().is_ok());
            }
            Err(error) => {
                prop_assert!(error.param.is_some(), "{}", error.message);
                prop_assert!(matches!(errors::status(&error).as_u16(), 404 | 422));
            }
        }
        let _ = options::read(object(body), &settings());
    }
}
