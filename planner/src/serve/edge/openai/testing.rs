//! Models, jobs and bodies for the tests of this wire and of A1111's.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use protocol::message::Image;
use protocol::profile::{GuidanceScale, JobDefaults};
use protocol::{ModelDescription, ModelSource};
use serde_json::{Map, Value};

use crate::job::JobRequest;
use crate::job::infotext::{self, Settings};
use crate::job::seed::Seed;
use crate::media::PictureFormat;
use crate::serve::desk::action::JobView;
use crate::serve::desk::event::FiledPicture;
use crate::serve::desk::job::{
    Api, Class, JobOrder, JobRecord, JobState, KeptJson, Offer, OnDisconnect, PictureRecord,
};
use crate::serve::edge::settings::{EdgeModel, EdgeSettings};
use crate::serve::testing;

/// A model of 64×64 pixels in 4 steps, whose sides are multiples of 16.
pub fn description(guidance: GuidanceScale, true_cfg_scale: f32) -> ModelDescription {
    ModelDescription {
        model: ModelSource::default(),
        family: "test".to_owned(),
        files: Vec::new(),
        components: Vec::new(),
        defaults: JobDefaults {
            width: 64,
            height: 64,
            steps: 4,
            max_sequence_length: 64,
            guidance_scale: 3.5,
            true_cfg_scale,
        },
        side_multiple_pixels: 16,
        sequence_tokens_max: 64,
        own_prompts: true,
        guidance,
        samplers: vec![
            protocol::Sampler::Euler,
            protocol::Sampler::EulerAncestral,
            protocol::Sampler::Dpmpp2m,
        ],
        schedulers: vec![protocol::Scheduler::Automatic, protocol::Scheduler::Karras],
        few_steps: None,
        lacks: Vec::new(),
        problems: Vec::new(),
    }
}

/// A host with `demo`, which has embedded guidance, `guided`, which is guided by a second run, and
/// `unread`, of which nothing is known; and a LoRA `ink`.
pub fn settings() -> EdgeSettings {
    let model = |guidance, true_cfg| EdgeModel {
        description: Some(Arc::new(description(guidance, true_cfg))),
        ..EdgeModel::default()
    };
    let mut settings = EdgeSettings { default_model: "demo".to_owned(), ..Default::default() };
    settings.models.insert("demo".to_owned(), model(GuidanceScale::Embedded, 1.0));
    settings.models.insert("guided".to_owned(), model(GuidanceScale::BeyondPrompt, 5.0));
    settings.models.insert("unread".to_owned(), EdgeModel::default());
    for alias in ["dall-e-2", "dall-e-3", "gpt-image-1"] {
        settings.aliases.insert(alias.to_owned(), "demo".to_owned());
    }
    settings.loras.insert("ink".to_owned(), PathBuf::from("/lora/ink.safetensors"));
    settings
}

/// A job as it comes out of the store.
pub fn kept(job: &JobRequest) -> JobRequest {
    let text = serde_json::to_vec(job).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The members of an object.
pub fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

/// A file of 2×1 pixels with settings.
pub fn picture(index: u32, seed: u64) -> FiledPicture {
    let settings = Settings {
        prompt: "a cat".to_owned(),
        steps: Some(4),
        sampler: Some("Euler".to_owned()),
        cfg_scale: Some(1.0),
        guidance_scale: Some(3.5),
        seed: Some(seed),
        size: Some([2, 1]),
        fingerprint: Some("abc".to_owned()),
        ..Settings::default()
    };
    let infotext = infotext::write(&settings);
    let pixels = ipc_channel::ipc::IpcSharedMemory::from_bytes(&[10, 200, 30, 40, 50, 60]);
    let image = Image { index, seed, width: 2, height: 1, pixels };
    let png = PictureFormat::Png.encode(&image, Some(&infotext), 90).unwrap().bytes;
    let record = PictureRecord {
        index,
        seed,
        width: 2,
        height: 1,
        size_bytes: png.len() as u64,
        file: Some(format!("{index}.png")),
        infotext,
    };
    FiledPicture { record, png: Arc::new(png) }
}

/// A job with pictures, 1500 ms after 1 second of loading that was predicted.
pub fn view(state: JobState, request: JobRequest, pictures: &[FiledPicture]) -> JobView {
    let seed = Seed::Given(7);
    let order = JobOrder {
        request: JobRequest { seed: Some(seed), ..request },
        model: "demo".to_owned(),
        class: Class::Interactive,
        api: Api::Sdapi,
        client: "me".to_owned(),
        label: Some("mine".to_owned()),
        deadline_ms: None,
        on_disconnect: OnDisconnect::Cancel,
        keep_alive: None,
        idempotency: None,
        body: KeptJson::of(&Value::Null),
    };
    let sample = testing::record("01JOB");
    let offer = Offer { load_ms: 1000.0, run_ms: 500.0, ..sample.offer.clone() };
    testing::view(JobRecord {
        order,
        state,
        created_at: 1_700_000_000_000,
        started_at: Some(1_700_000_001_000),
        ended_at: state.is_ended().then_some(1_700_000_003_500),
        offer,
        attempts: 1,
        pictures: pictures.iter().map(|picture| picture.record.clone()).collect(),
        notices: vec!["from the run".to_owned()],
        ..sample
    })
}

/// Objects whose fields have these names or any, and any JSON in them: also what looks right.
pub fn bodies(names: &'static [&'static str]) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-2..70_i64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(PLAUSIBLE).prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        let key = prop_oneof![prop::sample::select(INNER).prop_map(str::to_owned), any::<String>()];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let name = prop_oneof![
        8 => prop::sample::select(names).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::btree_map(name, value, 0..12)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
        .boxed()
}

/// Values that some field takes.
const PLAUSIBLE: &[&str] = &[
    "",
    "a cat",
    "demo",
    "guided",
    "unread",
    "dall-e-3",
    "auto",
    "64x64",
    "1000x7",
    "true",
    "4",
    "0.5",
    "-1",
    "high",
    "png",
    "webp",
    "url",
    "10m",
    "Euler",
    "Euler a",
    "karras",
    "None",
    "<lora:ink:0.5> x",
    "<lora:",
    "finish",
    "batch",
];

/// Names of fields of fields.
const INNER: &[&str] = &["sd_model_checkpoint", "sd_vae", "args", "enabled", "berth_progress"];
