//! Bodies of OpenAI's clients, what they come to, and what is answered.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::answer::AnsweredPicture;
use super::delivery::{Delivery, ImagesRoute};
use super::quality::PictureQuality;
use super::request::{self, ImagesRequest};
use super::testing::{bodies, kept, object, picture, settings, view};
use super::*;
use crate::job::JobRequest;
use crate::job::request::{GuidanceRequest, Prompts, ShapeRequest, StartRequest};
use crate::media::picture::Picture;
use crate::serve::desk::action::ProgressView;
use crate::serve::desk::job::{Class, KeepAlive, OnDisconnect};
use protocol::Sampler;

fn generation(body: Value) -> Result<ImagesRequest, EdgeError> {
    request::read(ImagesRoute::Generations, object(body), &settings())
}

fn edit(body: Value) -> Result<ImagesRequest, EdgeError> {
    request::read(ImagesRoute::Edits, object(body), &settings())
}

#[test]
fn a_prompt_alone_is_a_picture_of_the_default_model() {
    let read = generation(json!({"prompt": "a cat"})).unwrap();
    let expected = JobRequest {
        model: crate::job::model::ModelName::Name("demo".to_owned()),
        prompts: Prompts {
            prompt: Some("a cat".to_owned()),
            negative_may_be_unused: true,
            ..Prompts::default()
        },
        shape: ShapeRequest { batch: Some(1), ..ShapeRequest::default() },
        ..JobRequest::default()
    };
    assert_eq!(read.job, expected);
    assert_eq!((read.model.as_str(), read.seed, read.user), ("demo", None, None));
    assert_eq!(read.notices, Vec::<String>::new());
    assert!(!read.delivery.stream && !read.delivery.as_url);
}

#[test]
fn pictures_come_as_addresses_where_the_host_says_so_and_the_request_does_not() {
    let settings = EdgeSettings { openai_as_url: true, ..settings() };
    for (body, as_url) in [
        (json!({"prompt": "x"}), true),
        (json!({"prompt": "x", "response_format": "b64_json"}), false),
        (json!({"prompt": "x", "response_format": "url"}), true),
    ] {
        let Value::Object(object) = body.clone() else { panic!("an object") };
        let read = request::read(ImagesRoute::Generations, object, &settings).unwrap();
        assert_eq!(read.delivery.as_url, as_url, "{body}");
    }
}

#[test]
fn every_field_has_its_place() {
    let read = generation(json!({
        "prompt": "a cat", "model": "dall-e-3", "n": 4, "size": "128x64", "quality": "high",
        "response_format": "url", "output_format": "jpeg", "output_compression": 40,
        "background": "opaque", "seed": 9, "negative_prompt": "dogs", "guidance_scale": 2.5,
        "true_cfg_scale": 3, "sampler": "euler", "priority": "batch", "deadline_ms": 9000,
        "keep_alive": "5m", "on_disconnect": "finish", "user": "ann", "safety_identifier": "bob",
        "moderation": "low", "style": "vivid", "input_fidelity": "high", "complexity": "low",
        "something": 1,
    }))
    .unwrap();
    assert_eq!(read.job.prompts.negative_prompt.as_deref(), Some("dogs"));
    let shape = ShapeRequest {
        width: Some(128),
        height: Some(64),
        steps: Some(6),
        batch: Some(4),
        ..ShapeRequest::default()
    };
    assert_eq!(read.job.shape, shape);
    let guidance = GuidanceRequest {
        guidance_scale: Some(2.5),
        true_cfg_scale: Some(3.0),
        ..GuidanceRequest::default()
    };
    assert_eq!((read.job.guidance, read.job.sampler), (guidance, Some(Sampler::Euler)));
    assert_eq!((read.seed, read.user.as_deref()), (Some(9), Some("bob")));
    let policy = crate::serve::edge::native::policy::JobPolicy {
        class: Some(Class::Batch),
        deadline_ms: Some(9000),
        on_disconnect: OnDisconnect::Finish,
        keep_alive: Some(KeepAlive::Ms(300_000)),
        ..Default::default()
    };
    assert_eq!(read.policy, policy);
    let delivery = Delivery {
        route: ImagesRoute::Generations,
        format: PictureFormat::Jpeg,
        compression: 40,
        as_url: true,
        quality: PictureQuality::High,
        stream: false,
        partials: 0,
        progress: false,
    };
    assert_eq!(read.delivery, delivery);
    let told = read.notices.join("\n");
    for field in ["moderation", "style", "input_fidelity", "complexity", "\"something\""] {
        assert!(told.contains(field), "{field}: {told}");
    }
    assert_eq!(read.notices.len(), 5, "{told}");
}

#[test]
fn an_edit_starts_from_its_picture_and_keeps_its_size() {
    let read = edit(json!({"prompt": "a dog", "size": "auto"})).unwrap();
    assert_eq!(read.job.start, StartRequest { strength: Some(0.75), ..StartRequest::default() });
    assert_eq!((read.job.shape.width, read.job.shape.height), (None, None));
    let read = edit(json!({"prompt": "a dog", "strength": "0.4", "n": "2"})).unwrap();
    assert_eq!((read.job.start.strength, read.job.shape.batch), (Some(0.4), Some(2)));
    let read = generation(json!({"prompt": "a dog", "strength": 0.4})).unwrap();
    assert_eq!(read.job.start.strength, None);
    assert!(read.notices[0].contains("\"strength\""), "{:?}", read.notices);
}

#[test]
fn quality_is_steps_where_nobody_says_how_many() {
    for (body, steps) in [
        (json!({"quality": "low"}), Some(2)),
        (json!({"quality": "auto"}), None),
        (json!({"quality": "standard"}), None),
        (json!({"quality": "hd"}), Some(6)),
        (json!({"quality": "xhigh"}), Some(8)),
        (json!({"quality": "max"}), Some(12)),
        (json!({"quality": "max", "steps": 3}), Some(3)),
        (json!({"quality": "max", "num_inference_steps": "5"}), Some(5)),
    ] {
        let mut body = object(body);
        body.insert("prompt".to_owned(), json!("x"));
        let read = generation(Value::Object(body.clone())).unwrap();
        assert_eq!(read.job.shape.steps, steps, "{body:?}");
    }
    let read = generation(json!({"prompt": "x", "model": "unread", "quality": "max"})).unwrap();
    assert_eq!(read.job.shape.steps, None);
    assert!(read.notices[0].starts_with("quality has no effect"), "{:?}", read.notices);
}

#[test]
fn pictures_on_the_way_are_asked_of_the_executor() {
    let previews = |body: Value| generation(body).unwrap().job.preview_every;
    let body = |partials: u32, steps: u32, stream: bool| json!({"prompt": "x", "stream": stream, "partial_images": partials, "steps": steps});
    assert_eq!(previews(body(0, 8, true)), None);
    assert_eq!(previews(body(2, 8, false)), None);
    assert_eq!(previews(body(1, 8, true)), Some(4));
    assert_eq!(previews(body(3, 8, true)), Some(2));
    assert_eq!(previews(body(3, 1, true)), Some(1));
    // The first steps are left out where a picture is started from.
    let read = edit(json!({
        "prompt": "x", "stream": "true", "partial_images": "1", "steps": 10, "strength": 0.4,
        "stream_options": {"berth_progress": true, "include_usage": true},
    }));
    let read = read.unwrap();
    assert_eq!((read.job.preview_every, read.delivery.progress), (Some(2), true));
    assert!(read.notices[0].starts_with("stream_options: \"include_usage\""), "{:?}", read.notices);
}

#[test]
fn what_is_wrong_names_its_field() {
    let long = "x".repeat(32_001);
    let wide = "赤".repeat(31_000);
    for (body, param, code, message) in [
        (json!({}), "prompt", "bad_value", "missing"),
        (json!({"prompt": 1}), "prompt", "bad_value", "text"),
        (json!({"prompt": long}), "prompt", "bad_value", "32001 characters"),
        (json!({"prompt": wide}), "prompt", "bad_value", "31000 characters (93000 bytes)"),
        (json!({"prompt": "x", "model": "dall-e-9"}), "model", "no_model", "dall-e-2"),
        (json!({"prompt": "x", "n": 0}), "n", "bad_value", "1 to 10"),
        (json!({"prompt": "x", "n": 11}), "n", "bad_value", "1 to 10"),
        (json!({"prompt": "x", "size": "big"}), "size", "bad_value", "WIDTHxHEIGHT"),
        (json!({"prompt": "x", "size": "100x64"}), "size", "bad_value", "96x64 or 112x64"),
        (json!({"prompt": "x", "quality": "best"}), "quality", "bad_value", "one of auto"),
        (
            json!({"prompt": "x", "output_format": "gif"}),
            "output_format",
            "unsupported_value",
            "png",
        ),
        (json!({"prompt": "x", "output_format": "bmp"}), "output_format", "bad_value", "webp"),
        (
            json!({"prompt": "x", "output_compression": 101}),
            "output_compression",
            "bad_value",
            "100",
        ),
        (json!({"prompt": "x", "response_format": "file"}), "response_format", "bad_value", "url"),
        (
            json!({"prompt": "x", "background": "transparent"}),
            "background",
            "unsupported_value",
            "",
        ),
        (json!({"prompt": "x", "mask": "a file"}), "mask", "unsupported_value", "as a whole"),
        (json!({"prompt": "x", "partial_images": 4}), "partial_images", "bad_value", "0 to 3"),
        (json!({"prompt": "x", "stream": "yes"}), "stream", "bad_value", "true or false"),
        (json!({"prompt": "x", "stream_options": 1}), "stream_options", "bad_value", "object"),
        (json!({"prompt": "x", "sampler": "better"}), "sampler", "bad_value", "euler"),
        (json!({"prompt": "x", "steps": 0}), "steps", "bad_value", "from 1"),
        (json!({"prompt": "x", "guidance_scale": -1}), "guidance_scale", "bad_value", "from 0"),
        (json!({"prompt": "x", "keep_alive": "long"}), "keep_alive", "bad_value", "10m"),
    ] {
        let error = generation(body).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{}", error.message);
        assert!(error.message.contains(message), "{}", error.message);
    }
    let error = edit(json!({"prompt": "x", "strength": 1.5})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("strength"));
}

#[test]
fn a_negative_prompt_without_effect_is_told() {
    let told = |body: Value| !generation(body).unwrap().notices.is_empty();
    assert!(told(json!({"prompt": "x", "negative_prompt": "y"})));
    assert!(!told(json!({"prompt": "x", "negative_prompt": ""})));
    assert!(!told(json!({"prompt": "x", "negative_prompt": "y", "true_cfg_scale": 2})));
    assert!(!told(json!({"prompt": "x", "negative_prompt": "y", "model": "guided"})));
    let off =
        json!({"prompt": "x", "negative_prompt": "y", "model": "guided", "guidance_scale": 0});
    assert!(told(off));
}

#[test]
fn an_answer_has_all_that_the_api_has_and_what_only_we_tell() {
    let read = generation(json!({"prompt": "a cat", "n": 2, "quality": "hd"})).unwrap();
    let pictures = [picture(0, 7), picture(1, 8)];
    let view = view(JobState::Done, read.job, &pictures);
    let held =
        [AnsweredPicture::Held("aGk=".to_owned()), AnsweredPicture::At("http://a/1".to_owned())];
    let document = answer::document(&view, &held, &read.delivery, &["told".to_owned()]);
    let none = json!({"image_tokens": 0, "text_tokens": 0});
    let expected = json!({
        "created": 1_700_000_003,
        "background": "opaque",
        "output_format": "png",
        "quality": "high",
        "size": "2x1",
        "data": [{"b64_json": "aGk="}, {"url": "http://a/1"}],
        "usage": {
            "input_tokens": 0, "input_tokens_details": none, "output_tokens": 0,
            "output_tokens_details": none, "total_tokens": 0,
        },
        "berth": {
            "job": "01JOB", "seeds": [7, 8], "notices": ["told", "from the run"],
            "predicted_ms": 1500.0, "measured_ms": 2500,
        },
    });
    assert_eq!(document, expected);
}

#[test]
fn events_are_called_as_the_api_calls_them() {
    let picture = picture(0, 7);
    let view = view(JobState::Done, JobRequest::default(), std::slice::from_ref(&picture));
    let mut delivery = edit(json!({"prompt": "x", "output_format": "webp"})).unwrap().delivery;
    let event = answer::completed(&delivery, &view.record, &picture.record, "aGk=", &[]);
    assert_eq!(event["type"], "image_edit.completed");
    assert_eq!((&event["b64_json"], &event["size"]), (&json!("aGk="), &json!("2x1")));
    assert_eq!(
        (&event["output_format"], &event["usage"]["total_tokens"]),
        (&json!("webp"), &json!(0))
    );
    delivery.route = ImagesRoute::Generations;
    let event = answer::partial(&delivery, 1, 5, "aGk=", "8x8");
    let expected = json!({
        "type": "image_generation.partial_image", "b64_json": "aGk=", "background": "opaque",
        "created_at": 5, "output_format": "webp", "partial_image_index": 1, "quality": "medium",
        "size": "8x8",
    });
    assert_eq!(event, expected);
    let progress = ProgressView { phase: "denoise".to_owned(), step: 1, of: 4, eta_ms: None };
    assert_eq!(answer::progress(&progress)["type"], answer::PROGRESS_EVENT);
}

#[test]
fn pictures_are_sent_in_each_format() {
    let picture = picture(0, 7);
    let own = Picture::of(picture.png.to_vec(), Path::new("a")).unwrap().pixels(2, 1).unwrap();
    for (format, quality) in
        [(PictureFormat::Png, 100), (PictureFormat::Jpeg, 0), (PictureFormat::WebP, 100)]
    {
        let file = encode::picture(&picture, format, quality).unwrap();
        assert_eq!(PictureFormat::of_bytes(&file), Some(format));
        let settings = crate::media::settings(&file).unwrap();
        assert_eq!(settings.as_deref(), Some(picture.record.infotext.as_str()), "{format:?}");
    }
    let webp = encode::picture(&picture, PictureFormat::WebP, 0).unwrap();
    assert_eq!(&*webp::Decoder::new(&webp).decode().unwrap(), &own[..], "webp loses nothing");
}

#[test]
fn addresses_begin_as_clients_reach_this_server() {
    let mut settings = settings();
    assert_eq!(base_url(&settings, Some("localhost:8642")), "http://localhost:8642");
    settings.public_url = Some("https://pictures.example/".to_owned());
    assert_eq!(base_url(&settings, Some("localhost:8642")), "https://pictures.example");
}

/// Fields that mean something.
const NAMES: &[&str] = &[
    "prompt",
    "n",
    "size",
    "model",
    "quality",
    "seed",
    "stream",
    "stream_options",
    "strength",
    "partial_images",
    "output_format",
    "keep_alive",
    "steps",
    "negative_prompt",
    "mask",
    "user",
];

proptest! {
    #[test]
    fn any_body_is_read_or_refused_by_a_field(body in bodies(NAMES), edits: bool) {
        let route = if edits { ImagesRoute::Edits } else { ImagesRoute::Generations };
        match request::read(route, object(body), &settings()) {
            Ok(read) => {
                prop_assert!(read.job.check().is_ok());
                prop_assert!(kept(&read.job).check().is_ok());
            }
            Err(error) => prop_assert!(error.param.is_some(), "{}", error.message),
        }
    }
}
