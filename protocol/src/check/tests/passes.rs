//! What must pass: the good plans, and all that lies on the right side of a limit.

use super::good::{part, picture, segment, text};
use super::*;
use crate::model::ModelSource;
use crate::plan::DevicePlan;
use crate::times::PredictedMs;

#[test]
fn good_plans_pass() {
    assert_eq!(check(&text()), Ok(()));
    assert_eq!(check(&picture()), Ok(()));
}

#[test]
fn a_plan_may_fill_its_budgets_to_the_byte() {
    for mut plan in [text(), picture()] {
        for device in &mut plan.devices {
            device.total_bytes = device.peak_bytes;
            device.free_bytes = device.peak_bytes;
            device.budget_bytes = device.peak_bytes;
        }
        plan.host.budget_bytes = plan.host.peak_bytes;
        assert_eq!(check(&plan), Ok(()));
    }
}

#[test]
fn limits_are_inclusive() {
    let mut plan = text();
    plan.job = JobShape {
        width: SIDE_PIXELS_MAX,
        height: SIDE_PIXELS_MAX,
        steps: STEPS_MAX,
        batch: BATCH_MAX,
        max_sequence_length: SEQUENCE_TOKENS_MAX,
        ..plan.job
    };
    plan.options.attention_chunk = ATTENTION_CHUNK_MAX;
    let tile = VaeTile { width: SIDE_PIXELS_MAX, height: 1, overlap: 0.5 };
    plan.options.vae_tile = Some(tile);
    plan.options.loras.resize(LORAS_MAX, Lora { path: String::new(), weight: LORA_WEIGHT_MAX });
    plan.options.loras[0].path = "l".repeat(STRING_BYTES_MAX);
    plan.host.threads = THREADS_MAX;
    plan.host.budget_bytes = Bytes(MEMORY_BYTES_MAX);
    plan.generation = u64::MAX;
    plan.model = ModelSource::of("m".repeat(STRING_BYTES_MAX));
    plan.components[2].division = Division::Row { shares: vec![ROW_SHARE_MAX, 1] };
    if let DeviceBackend::Virtual { unsupported, .. } = &mut plan.devices[0].backend {
        unsupported.resize(UNSUPPORTED_MAX, "o".repeat(STRING_BYTES_MAX));
    }
    let spare = plan.devices[2].clone();
    plan.devices[2].total_bytes = Bytes(MEMORY_BYTES_MAX);
    while plan.devices.len() < DEVICES_MAX {
        let id = DeviceId(format!("cuda{}", plan.devices.len()));
        plan.devices.push(DevicePlan { id, ..spare.clone() });
    }
    let segments = &mut plan.components[3].segments;
    segments.resize(SEGMENTS_MAX, segment("empty", Residency::Mapped, &[0]));
    while plan.components.len() < COMPONENTS_MAX {
        let name = format!("vae{}", plan.components.len());
        plan.components.push(ComponentPlan { name, ..plan.components[3].clone() });
    }
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn a_ring_may_have_as_many_slots_as_the_limit_says() {
    let mut plan = picture();
    // No more slots than segments are made.
    plan.components[3].lookahead = LOOKAHEAD_MAX;
    plan.components[3].parts[0].slots = 3;
    let condition = &mut plan.devices[1].phases[1];
    condition.staging_bytes += Bytes(2048);
    condition.peak_bytes += Bytes(2048);
    plan.devices[1].peak_bytes = condition.peak_bytes;
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn layers_may_lie_on_all_devices_and_the_host() {
    let mut plan = text();
    let spare = plan.devices[2].clone();
    while plan.devices.len() < DEVICES_MAX {
        let id = DeviceId(format!("cuda{}", plan.devices.len()));
        plan.devices.push(DevicePlan { id, ..spare.clone() });
    }
    for device in &mut plan.devices[2..] {
        (device.overhead_bytes, device.pinned_bytes) = (Bytes::ZERO, Bytes::ZERO);
    }
    let ids = plan.devices.iter().map(|device| device.id.clone());
    let ids: Vec<DeviceId> = ids.chain([DeviceId::host()]).collect();
    let last = ids.len() - 1;
    let t5 = &mut plan.components[1];
    let [first, second, host] = [0, 1, 2].map(|index| t5.parts[index].clone());
    t5.parts = ids.iter().map(|id| part(&id.0, [0; 5])).collect();
    (t5.parts[0], t5.parts[1], t5.parts[last]) = (first, second, host);
    let layer = |(index, id): (usize, &DeviceId)| {
        let mut bytes = vec![0; ids.len()];
        match index {
            0 => bytes[0] = 4096,
            1 => (bytes[1], bytes[last]) = (2048, 256),
            _ if id.is_host() => bytes[last] = 4096,
            _ => {}
        }
        let residency = if id.is_host() { Residency::Mapped } else { Residency::Lazy };
        segment("block", residency, &bytes)
    };
    t5.segments = ids.iter().enumerate().map(layer).collect();
    t5.division = Division::Layer { segments: (0..ids.len() as u32).collect() };
    t5.devices = ids;
    assert_eq!(t5.devices.len(), DEVICES_MAX + 1);
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn what_is_only_for_people_is_not_judged() {
    let mut plan = text();
    plan.components[0].reason = String::new();
    plan.devices[0].name = "another".to_owned();
    plan.devices[0].overhead_source = "measured".to_owned();
    plan.predicted_ms = PredictedMs::default();
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn faults_need_not_be_planned() {
    let mut plan = text();
    plan.devices[0].backend = DeviceBackend::Virtual {
        link_bytes_per_s: f64::MIN_POSITIVE,
        faults: Faults::default(),
        speed: 1.0,
        threads: None,
        unsupported: Vec::new(),
    };
    plan.devices[2].backend = DeviceBackend::Cuda { uuid: None, unsupported: Vec::new() };
    assert_eq!(check(&plan), Ok(()));
}
