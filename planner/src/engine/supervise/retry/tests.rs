//! Failures in, requests out. The plan and the request serve the tests beside too.

use protocol::plan::{
    ComponentPlan, DeviceBackend, DevicePlan, HostPlan, MappingPolicy, PartPlan, PhaseBytes, SCHEMA,
};
use protocol::{Division, GraphOptions, JobShape, ModelSource, PredictedMs};

use super::*;
use crate::engine::session::death::Cause;
use crate::inventory::Inventory;
use crate::inventory::tests::{device_of, host_of};
use crate::policy::pins::Pins;
use crate::policy::tile::TileRequest;
use crate::policy::{Budgets, Objective};

const GIB: Bytes = Bytes::gib(1);

fn job() -> JobShape {
    JobShape { width: 16, height: 16, steps: 1, max_sequence_length: 1, ..JobShape::small() }
}

/// Five devices of 1 GiB.
pub fn request() -> Request {
    let devices = (0..5).map(|index| device_of(&format!("virtual{index}"), GIB, GIB));
    Request {
        model: ModelSource::default(),
        side_multiple_pixels: 16,
        job: job(),
        inventory: Inventory {
            source: "test".to_owned(),
            host: host_of(GIB, GIB),
            devices: devices.collect(),
            why_no_devices: None,
        },
        budgets: Budgets {
            devices: vec![GIB; 5],
            ceilings: vec![GIB; 5],
            host: GIB,
            host_ceiling: GIB,
            pinned: None,
            idle: None,
        },
        objective: Objective::Latency,
        failed: Vec::new(),
        left_out: Vec::new(),
        pins: Pins::default(),
        prefetch: true,
        tile: TileRequest::Off,
        explain: false,
        compare_integrated: false,
        longer_max: 0.0,
        few_steps: None,
        options: GraphOptions::default(),
        mapping_policy: MappingPolicy::Keep,
        imagined: false,
        keeps: None,
    }
}

/// A component on virtual0, where it holds weights of 100 B in all phases, and arenas of 20, 300
/// and 50 B in them.
pub fn plan(residency: Residency) -> Plan {
    let id = DeviceId("virtual0".to_owned());
    let arenas = [(Phase::Condition, 20), (Phase::Denoise, 300), (Phase::Decode, 50)];
    let phases = arenas.map(|(phase, compute)| PhaseBytes {
        phase,
        weights_bytes: Bytes(100),
        compute_bytes: Bytes(compute),
        staging_bytes: Bytes::ZERO,
        peak_bytes: Bytes(100 + compute),
    });
    let component = ComponentPlan {
        name: "dit".to_owned(),
        phase: Phase::Denoise,
        devices: vec![id.clone()],
        division: Division::One,
        residency,
        lookahead: 0,
        prefetch: false,
        predicted_load_ms: 0.0,
        predicted_compute_ms: 0.0,
        parts: vec![PartPlan {
            device: id.clone(),
            resident_bytes: Bytes(100),
            lazy_bytes: Bytes::ZERO,
            slot_bytes: Bytes::ZERO,
            slots: 0,
            compute_bytes: Bytes(300),
        }],
        segments: Vec::new(),
        weights_bytes: Bytes(100),
        tensor_bytes: Bytes(100),
        reason: String::new(),
    };
    let device = DevicePlan {
        id,
        name: String::new(),
        backend: DeviceBackend::Cuda { uuid: None, unsupported: Vec::new() },
        total_bytes: GIB,
        free_bytes: GIB,
        budget_bytes: GIB,
        overhead_bytes: Bytes::ZERO,
        overhead_source: "declared".to_owned(),
        integrated: false,
        pinned_bytes: Bytes::ZERO,
        phases: phases.to_vec(),
        peak_bytes: Bytes(400),
        idle_bytes: Bytes(100),
    };
    Plan {
        schema: SCHEMA,
        generation: 1,
        keeps_weights_of: None,
        model: ModelSource::default(),
        family: "flux".to_owned(),
        job: job(),
        options: GraphOptions::default(),
        mapping_policy: MappingPolicy::Keep,
        components: vec![component],
        devices: vec![device],
        host: HostPlan {
            budget_bytes: GIB,
            pool_bytes: GIB,
            peak_bytes: Bytes(1000),
            idle_bytes: Bytes::ZERO,
            pinned_bytes: Bytes::ZERO,
            locked_bytes: Bytes::ZERO,
            changed_bytes: Bytes::ZERO,
            mapped_bytes: Bytes::ZERO,
            threads: 1,
            job_bytes: Bytes(1000),
            phases: Vec::new(),
        },
        predicted_ms: PredictedMs::default(),
    }
}

fn failed(kind: FailureKind) -> SessionError {
    SessionError::Failed(Failure { kind, message: "it hurts".to_owned() })
}

fn device_failed(id: &str) -> SessionError {
    failed(FailureKind::DeviceFailed { device: DeviceId(id.to_owned()) })
}

fn device_lost(id: &str) -> SessionError {
    failed(FailureKind::DeviceLost { device: DeviceId(id.to_owned()) })
}

fn short(device: &str, requested: u64, free: u64) -> SessionError {
    failed(FailureKind::OutOfMemory {
        device: DeviceId(device.to_owned()),
        region: "weights".to_owned(),
        requested_bytes: Bytes(requested),
        free_bytes: Some(Bytes(free)),
    })
}

fn died() -> SessionError {
    died_of(Cause::Accident)
}

fn died_of(cause: Cause) -> SessionError {
    let (phase, status) = ("denoise phase".to_owned(), "signal 9".to_owned());
    SessionError::Died { phase, cause, status, lines: Vec::new() }
}

fn in_phase(phase: Phase, step: u32) -> Option<Progress> {
    Some(Progress { phase, step, of: 1 })
}

/// The budgets of the first device by which the next attempt is planned, the most careful first.
fn limits(retries: &RetryPolicy) -> Vec<Bytes> {
    let requests = retries.requests(&request());
    for request in &requests {
        assert_eq!(request.budgets.devices, request.budgets.ceilings);
        assert_eq!(request.budgets.devices[1..], [GIB; 4], "no other device");
    }
    requests.iter().map(|request| request.budgets.devices[0]).collect()
}

#[test]
fn what_was_missing_is_taken_off_what_the_plan_held_in_that_phase() {
    let request = request();
    let plan = plan(Residency::Resident);
    for (progress, limit) in [
        // Weights alone.
        (in_phase(Phase::Load, 0), 100 - 30),
        // A rehearsal that loaded is somewhere in its phases.
        (in_phase(Phase::Load, 1), 400 - 30),
        (in_phase(Phase::Condition, 0), 120 - 30),
        (in_phase(Phase::Denoise, 1), 400 - 30),
        (in_phase(Phase::Decode, 0), 150 - 30),
        // Before it was loaded, all of it is asked for at once.
        (None, 60),
    ] {
        let mut retries = RetryPolicy::new(true);
        let attempt = Attempt { request: &request, plan: Some(&plan), progress };
        assert_eq!(retries.learn(&short("virtual0", 90, 60), &attempt), Next::Replan);
        assert_eq!(limits(&retries), [Bytes(limit)], "{progress:?}");
    }
}

#[test]
fn the_last_attempt_is_careful_and_a_limit_outlives_a_death() {
    let request = request();
    let plan = plan(Residency::Resident);
    let attempt =
        Attempt { request: &request, plan: Some(&plan), progress: in_phase(Phase::Denoise, 0) };
    let mut retries = RetryPolicy::new(true);
    assert_eq!(retries.learn(&short("virtual0", 200, 100), &attempt), Next::Replan);
    assert_eq!(limits(&retries), [Bytes(300)]);
    assert_eq!(retries.learn(&short("virtual0", 200, 150), &attempt), Next::Replan);
    // A limit never rises.
    assert_eq!(limits(&retries), [0, 150, 187, 225, 262, 300].map(Bytes));
    assert_eq!(retries.learn(&short("virtual0", 200, 150), &attempt), Next::Stop);

    let mut retries = RetryPolicy::new(true);
    assert_eq!(retries.learn(&short("virtual0", 200, 199), &attempt), Next::Replan);
    assert_eq!(limits(&retries), [Bytes(399)]);
    assert_eq!(retries.learn(&died(), &attempt), Next::Restart);
    assert_eq!(limits(&retries), [199, 249, 299, 349, 399].map(Bytes));
    assert_eq!(retries.learn(&died(), &attempt), Next::Stop);
}

#[test]
fn a_layout_that_memory_was_short_for_is_tried_again_with_much_less_only() {
    let mut retries = RetryPolicy::new(true);
    let request = request();
    let tried = plan(Residency::Streamed);
    let attempt =
        Attempt { request: &request, plan: Some(&tried), progress: in_phase(Phase::Denoise, 0) };
    assert_eq!(retries.learn(&short("virtual0", 200, 190), &attempt), Next::Replan);
    let with_peak = |residency, bytes: u64| {
        let mut plan = plan(residency);
        plan.devices[0].peak_bytes = Bytes(bytes);
        plan
    };
    let smaller = retries.much_less(&request, &with_peak(Residency::Streamed, 390));
    let smaller = smaller.expect("a few bytes less are not much less");
    assert_eq!(smaller.budgets.devices, [Bytes(350), GIB, GIB, GIB, GIB]);
    for other in [with_peak(Residency::Streamed, 350), with_peak(Residency::Lazy, 390)] {
        assert!(retries.much_less(&request, &other).is_none(), "it may be tried");
    }
}

#[test]
fn lessons_follow_a_device_whose_id_changes() {
    let mut retries = RetryPolicy::new(true);
    let with_uuids = |uuids: [&str; 5]| {
        let mut request = request();
        for (device, uuid) in request.inventory.devices.iter_mut().zip(uuids) {
            device.uuid = Some(uuid.to_owned());
        }
        request
    };
    let before = with_uuids(["a", "b", "c", "d", "e"]);
    let plan = plan(Residency::Resident);
    let attempt =
        Attempt { request: &before, plan: Some(&plan), progress: in_phase(Phase::Denoise, 0) };
    assert_eq!(retries.learn(&short("virtual0", 200, 100), &attempt), Next::Replan);
    assert_eq!(retries.learn(&device_failed("virtual1"), &attempt), Next::Replan);
    let after = retries.requests(&with_uuids(["b", "x", "a", "d", "e"]));
    let [careful, .., as_seen] = after.as_slice() else { panic!("{} requests", after.len()) };
    assert_eq!(careful.budgets.devices, [GIB, GIB, Bytes(150), GIB, GIB]);
    assert_eq!(as_seen.budgets.devices, [GIB, GIB, Bytes(300), GIB, GIB]);
    let known =
        FailedDevice { device: DeviceId("virtual0".to_owned()), message: "it hurts".to_owned() };
    assert_eq!(as_seen.failed, [known]);
    // One that is gone needs no lesson.
    let gone = retries.requests(&with_uuids(["p", "q", "r", "s", "t"]));
    assert_eq!(gone.len(), 1);
    assert_eq!((&gone[0].budgets, gone[0].failed.len()), (&request().budgets, 0));
}

#[test]
fn the_host_can_be_short_too() {
    let mut retries = RetryPolicy::new(true);
    let request = request();
    let plan = plan(Residency::Resident);
    let attempt = Attempt { request: &request, plan: Some(&plan), progress: None };
    assert_eq!(retries.learn(&short("host", 1000, 600), &attempt), Next::Replan);
    let requests = retries.requests(&request);
    let [next] = requests.as_slice() else { panic!("{} requests", requests.len()) };
    assert_eq!((next.budgets.host, next.budgets.host_ceiling), (Bytes(600), Bytes(600)));
    assert_eq!(next.budgets.devices, [GIB; 5]);
}

#[test]
fn where_nobody_knows_what_is_free_half_of_the_request_is_taken_to_be_missing() {
    let request = request();
    let plan = plan(Residency::Resident);
    let attempt =
        Attempt { request: &request, plan: Some(&plan), progress: in_phase(Phase::Denoise, 0) };
    let mut retries = RetryPolicy::new(true);
    let short = failed(FailureKind::OutOfMemory {
        device: DeviceId("virtual0".to_owned()),
        region: "denoise arena".to_owned(),
        requested_bytes: Bytes(300),
        free_bytes: None,
    });
    assert_eq!(retries.learn(&short, &attempt), Next::Replan);
    assert_eq!(limits(&retries), [Bytes(250)]);
}

#[test]
fn after_a_kill_for_want_of_memory_much_less_of_the_host_is_planned() {
    let request = request();
    let plan = plan(Residency::Resident);
    let killed = died_of(Cause::OutOfMemory);
    let mut retries = RetryPolicy::new(true);
    let attempt =
        Attempt { request: &request, plan: Some(&plan), progress: in_phase(Phase::Load, 0) };
    assert_eq!(retries.learn(&killed, &attempt), Next::Restart);
    assert_eq!(retries.requests(&request)[0].budgets.host, Bytes(875));
    // Without a plan there is nothing to lower.
    let mut retries = RetryPolicy::new(true);
    let attempt = Attempt { request: &request, plan: None, progress: None };
    assert_eq!(retries.learn(&killed, &attempt), Next::Restart);
    assert_eq!(retries.requests(&request)[0].budgets, request.budgets);
}

#[test]
fn a_device_that_failed_is_left_out_and_one_that_is_not_there_cannot_be() {
    let mut retries = RetryPolicy::new(true);
    let request = request();
    let attempt = Attempt { request: &request, plan: None, progress: None };
    assert_eq!(retries.learn(&device_failed("virtual1"), &attempt), Next::Replan);
    let known =
        FailedDevice { device: DeviceId("virtual1".to_owned()), message: "it hurts".to_owned() };
    assert_eq!(retries.requests(&request)[0].failed, [known]);
    // What is not used cannot fail again.
    assert_eq!(retries.learn(&device_failed("virtual1"), &attempt), Next::Stop);
    assert_eq!(RetryPolicy::new(true).learn(&device_failed("host"), &attempt), Next::Stop);
}

#[test]
fn a_device_that_is_lost_is_tried_once_more_and_left_out_when_it_is_lost_again() {
    let request = request();
    let attempt = Attempt { request: &request, plan: None, progress: None };
    let mut retries = RetryPolicy::new(true);
    // Each device has its second try, which is none of a job's attempts.
    for id in ["virtual0", "virtual1", "virtual2", "virtual3"] {
        let lost = retries.judge(device_lost(id), &request.inventory);
        assert!(lost.failed_device().is_none(), "{lost}");
        assert_eq!(retries.learn(&lost, &attempt), Next::Replan);
        assert_eq!(retries.requests(&request)[0].failed, []);
    }
    let failed = retries.judge(device_lost("virtual0"), &request.inventory);
    assert_eq!(failed.failed_device().map(|device| device.0.as_str()), Some("virtual0"));
    assert_eq!(retries.learn(&failed, &attempt), Next::Replan);
    let [known] = &retries.requests(&request)[0].failed[..] else { panic!("one failed") };
    assert_eq!(known.device.0, "virtual0");
    assert!(known.message.starts_with("it hurts; and so"), "{}", known.message);
    // What is not used cannot be lost, and what is not here cannot be tried.
    assert_eq!(retries.learn(&device_failed("virtual0"), &attempt), Next::Stop);
    assert_eq!(RetryPolicy::new(true).learn(&device_lost("virtual9"), &attempt), Next::Stop);
}

#[test]
fn a_given_plan_is_tried_again_on_a_device_that_was_lost_and_not_changed() {
    let request = request();
    let attempt = Attempt { request: &request, plan: None, progress: None };
    let mut retries = RetryPolicy::new(false);
    assert_eq!(retries.learn(&device_lost("virtual0"), &attempt), Next::Replan);
    let again = retries.judge(device_lost("virtual0"), &request.inventory);
    assert_eq!(retries.learn(&again, &attempt), Next::Stop);
}

#[test]
fn a_death_is_the_sessions_to_follow_and_a_given_plan_is_not_replaced() {
    let request = request();
    let plan = plan(Residency::Resident);
    let attempt = Attempt { request: &request, plan: Some(&plan), progress: None };
    assert_eq!(RetryPolicy::new(false).learn(&died(), &attempt), Next::Restart);
    let killed = died_of(Cause::OutOfMemory);
    assert_eq!(RetryPolicy::new(false).learn(&killed, &attempt), Next::Stop);
    for error in [device_failed("virtual0"), short("virtual0", 2, 1), SessionError::Cancelled] {
        assert_eq!(RetryPolicy::new(false).learn(&error, &attempt), Next::Stop, "{error}");
    }
}

#[test]
fn attempts_are_bounded_whatever_fails_and_other_failures_end_a_job() {
    let request = request();
    let plan = plan(Residency::Resident);
    let attempt = Attempt { request: &request, plan: Some(&plan), progress: None };
    let failures = [short("virtual0", 2, 1), device_failed("virtual1"), died()];
    for first in &failures {
        for second in &failures {
            let mut retries = RetryPolicy::new(true);
            assert_ne!(retries.learn(first, &attempt), Next::Stop);
            retries.learn(second, &attempt);
            for third in &failures {
                assert_eq!(retries.learn(third, &attempt), Next::Stop, "{first}, {second}");
            }
        }
    }
    for kind in [FailureKind::PlanRefused, FailureKind::Internal, FailureKind::BadModel] {
        assert_eq!(RetryPolicy::new(true).learn(&failed(kind), &attempt), Next::Stop);
    }
}
