//! A request and its document stand for one another, and what is beyond the limits is refused.

use super::*;
use crate::job::JobRequest;

fn full() -> JobRequest {
    JobRequest {
        model: ModelName::Files("/m --vae /v".parse().unwrap()),
        prompts: Prompts {
            prompt: Some("a \"red\" circle\n".to_owned()),
            prompt_2: Some(String::new()),
            negative_prompt: Some("blue".to_owned()),
            negative_may_be_unused: true,
        },
        shape: ShapeRequest {
            width: Some(64),
            height: Some(48),
            steps: Some(2),
            batch: Some(3),
            max_sequence_length: Some(256),
        },
        guidance: GuidanceRequest { true_cfg_scale: Some(1.5), ..GuidanceRequest::default() },
        start: StartRequest {
            image: Some("a.png".into()),
            strength: Some(0.55),
            latents: Some("b.safetensors".into()),
        },
        seed: Some(Seed::Given(u64::MAX)),
        rng: Some(Rng::Cpu),
        sampler: Some(Sampler::Euler),
        scheduler: Some(Scheduler::Automatic),
        sigmas: Some(vec![1.0, 0.5]),
        eta: Some(0.5),
        sampler_may_be_unused: true,
        policy: PolicyText {
            max_vram: Some("cuda0=8".to_owned()),
            lora: Some(vec!["a:b.safetensors:0.5".to_owned()]),
            exact_matmul: Some(false),
            ..PolicyText::default()
        },
        lora_at_run_time: vec!["dit".to_owned()],
        preview_every: Some(1),
        dump_tensors: true,
        weights_as: Some(StorageType::Q8_0),
    }
}

#[test]
fn a_request_and_its_document_stand_for_one_another() {
    let named = JobRequest { model: ModelName::Name("flux".to_owned()), ..JobRequest::default() };
    for request in [JobRequest::default(), named, full()] {
        let json = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<JobRequest>(&json).unwrap(), request, "{json}");
    }
    assert_eq!(serde_json::from_str::<JobRequest>("{}").unwrap(), JobRequest::default());
}

#[test]
fn what_no_request_has_is_refused() {
    for text in [
        r#"{"promt": "a"}"#,
        r#"{"prompts": {"text": "a"}}"#,
        r#"{"shape": {"width": -1}}"#,
        r#"{"shape": {"width": 64.5}}"#,
        r#"{"policy": {"max_gpu": "8"}}"#,
        r#"{"model": "flux"}"#,
        r#"{"model": {"files": "/m --vae /a --vae /b"}}"#,
        r#"{"sampler": "dpm"}"#,
        r#"{"seed": 1.5}"#,
        "7",
    ] {
        assert!(serde_json::from_str::<JobRequest>(text).is_err(), "{text}");
    }
}

#[test]
fn what_is_beyond_its_limits_is_refused() {
    full().check().expect("all of it within its limits");
    let long = Some("a".repeat(PROMPT_BYTES_MAX + 1));
    let error = |change: &dyn Fn(&mut JobRequest)| {
        let mut request = full();
        change(&mut request);
        request.check().expect_err("beyond a limit").to_string()
    };
    let says = [
        (error(&|r| r.prompts.prompt = long.clone()), "the prompt is 65537 bytes long"),
        (error(&|r| r.prompts.negative_prompt = long.clone()), "the negative prompt is 65537"),
        (error(&|r| r.shape.batch = Some(BATCH_MAX + 1)), "--batch 65 is more than 64"),
        (error(&|r| r.guidance.cfg_scale = Some(f32::NAN)), "--cfg-scale must be a number ≥ 0"),
        (error(&|r| r.guidance.guidance_scale = Some(-1.0)), "--guidance-scale must be"),
        (error(&|r| r.start.strength = Some(1.5)), "--strength must be a number from 0 to 1"),
        (error(&|r| r.start.strength = Some(f64::NAN)), "--strength must be a number from 0"),
        (error(&|r| r.policy.backend = long.clone()), "the policy is 65537 bytes long"),
        (
            error(&|r| r.model = ModelName::Name(long.clone().expect("a text"))),
            "the model's name is 65537 bytes long",
        ),
    ];
    for (error, expected) in says {
        assert!(error.contains(expected), "{error}");
    }
}
