//! What events, actions and requests come to in the text that Prometheus reads.

use std::sync::Arc;

use protocol::{Phase, UsageReport};
use serde_json::json;

use super::*;
use crate::engine::lanes::Lanes;
use crate::job::FailedAttempt;
use crate::job::infotext::Settings;
use crate::serve::desk::action::{EvictReason, RunOrder, SlotState};
use crate::serve::desk::event::{FinishedWork, FreeChange, MadePicture};
use crate::serve::desk::job::{ErrorCode, JobError, JobId, JobState};
use crate::serve::edge::testing::view;

fn state(id: &str, state: JobState) -> Action {
    let mut view = view(id, "ann", state);
    let record = Arc::make_mut(&mut view.record);
    if state != JobState::Queued {
        record.started_at = Some(record.created_at + 2000);
    }
    if state == JobState::Failed {
        record.error = Some(JobError::new(ErrorCode::OutOfMemory, "short"));
    }
    Action::Tell(Note::State(Box::new(view)))
}

fn work() -> FinishedWork {
    let picture = MadePicture {
        index: 0,
        seed: 7,
        width: 64,
        height: 64,
        pixels: Arc::default(),
        settings: Settings { steps: Some(4), strength: Some(0.5), ..Settings::default() },
    };
    let mut usage = UsageReport {
        devices: Vec::new(),
        components: Vec::new(),
        gpus: Vec::new(),
        measured_ms: Default::default(),
    };
    usage.measured_ms.phases[Phase::Denoise] = 100.0;
    usage.measured_ms.total = 1000.0;
    let failure = FailedAttempt {
        generation: 1,
        phase: None,
        device: None,
        reason: "it died".to_owned(),
        requested_bytes: None,
        free_bytes: None,
    };
    FinishedWork {
        pictures: vec![picture.clone(), picture],
        usage,
        predicted_ms: 800.0,
        measured_ms: 1000.0,
        idle_bytes: Vec::new(),
        failures: vec![failure],
        notices: Vec::new(),
    }
}

fn runner(said: Said) -> DeskEvent {
    DeskEvent::Runner { slot: SlotId(0), epoch: 1, said }
}

fn has(metrics: &Metrics, line: &str) {
    let text = metrics.text();
    assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
}

#[test]
fn a_job_is_counted_where_it_is_and_once_where_it_ends() {
    let metrics = Metrics::new(9);
    metrics.observe_action(&state("a", JobState::Queued));
    metrics.observe_action(&state("b", JobState::Queued));
    has(&metrics, "berth_open_jobs{state=\"queued\",priority=\"batch\"} 2");
    metrics.observe_action(&state("a", JobState::Running));
    has(&metrics, "berth_open_jobs{state=\"queued\",priority=\"batch\"} 1");
    has(&metrics, "berth_queue_wait_seconds_sum{priority=\"batch\"} 2.0");
    has(&metrics, "berth_prediction_ratio_sum{of=\"wait\"} 4.0");
    for _ in 0..2 {
        metrics.observe_action(&state("a", JobState::Done));
        metrics.observe_action(&state("b", JobState::Failed));
    }
    has(&metrics, "berth_open_jobs{state=\"running\",priority=\"batch\"} 0");
    has(&metrics, "berth_jobs_total{outcome=\"done\",code=\"\",api=\"native\",model=\"demo\"} 1");
    let failed = "berth_jobs_total{outcome=\"failed\",code=\"out_of_memory\",api=\"native\",model=\"demo\"} 1";
    has(&metrics, failed);
    has(&metrics, "berth_queue_wait_seconds_count{priority=\"batch\"} 2");
}

fn planned(loads: bool, width: u32) -> DeskEvent {
    let plan = json!({
        "job": {"width": width},
        "predicted_ms": {"load": 5.0, "denoise_step": 50.0, "decode": 1.0},
        "host": {"idle_bytes": 7, "peak_bytes": 9, "budget_bytes": 20, "pinned_bytes": 2},
        "devices": [{"id": "cuda0", "budget_bytes": 30, "idle_bytes": 20, "peak_bytes": 25}],
    });
    runner(Said::Planned { plan: Arc::new(plan), lanes: Lanes::default(), loads, because: None })
}

fn order(job: Option<&str>) -> Action {
    let job = job.map(|id| JobId(id.to_owned()));
    let order = RunOrder {
        job,
        request: Default::default(),
        company: Vec::new(),
        model: "demo".to_owned(),
        anew: false,
    };
    Action::Run(SlotId(0), 1, Box::new(order))
}

fn cuda0() -> DeviceMemory {
    let bytes = vec![("free", Bytes(5)), ("total", Bytes(9))];
    DeviceMemory { device: "cuda0".to_owned(), uuid: "GPU-1".to_owned(), bytes }
}

#[test]
fn a_plan_that_is_made_anew_is_counted_by_why() {
    let metrics = Metrics::new(9);
    metrics.observe_action(&order(Some("a")));
    metrics.observe_event(&planned(true, 64));
    metrics.observe_event(&planned(false, 64));
    metrics.observe_event(&planned(false, 128));
    has(&metrics, "berth_replans_total{reason=\"shape\"} 1");
    for (because, reason) in [(FreeChange::Less, "less_free"), (FreeChange::More, "more_free")] {
        let plan = Arc::new(json!({"job": {"width": 128}, "host": {}, "devices": []}));
        let said =
            Said::Planned { plan, lanes: Lanes::default(), loads: true, because: Some(because) };
        metrics.observe_event(&runner(said));
        has(&metrics, &format!("berth_replans_total{{reason=\"{reason}\"}} 1"));
    }
    has(&metrics, "berth_replans_total{reason=\"shape\"} 1");
}

#[test]
fn a_run_is_counted_for_its_model() {
    let metrics = Metrics::new(9);
    metrics.observe_action(&order(Some("a")));
    metrics.observe_event(&runner(Said::Started { pid: 1 }));
    metrics.observe_event(&planned(true, 64));
    metrics.observe_event(&runner(Said::Done(Box::new(work()))));
    for line in [
        "berth_model_loads_total{model=\"demo\",source=\"job\"} 1",
        "berth_images_total{model=\"demo\"} 2",
        "berth_steps_total{model=\"demo\"} 2",
        "berth_denoise_step_seconds_sum{model=\"demo\"} 0.1",
        "berth_job_seconds_sum{model=\"demo\",phase=\"denoise\"} 0.2",
        "berth_job_seconds_sum{model=\"demo\",phase=\"total\"} 1.0",
        "berth_prediction_ratio_sum{of=\"total\"} 1.25",
        "berth_prediction_ratio_sum{of=\"denoise_step\"} 2.0",
        "berth_replans_total{reason=\"death\"} 1",
        "berth_batch_size_sum{model=\"demo\"} 2.0",
    ] {
        has(&metrics, line);
    }
    // What was measured of no load is no measure of loads.
    assert!(!metrics.text().contains("prediction_ratio_sum{of=\"load\"}"));
}

#[test]
fn executors_and_models_go_for_a_reason() {
    let metrics = Metrics::new(9);
    let gone = "berth_model_evictions_total{model=\"demo\",reason=";
    let exits = "berth_executor_exits_total{how=";
    for (count, (reason, word)) in
        [(EvictReason::Idle, "idle"), (EvictReason::Room, "room"), (EvictReason::Asked, "asked")]
            .into_iter()
            .enumerate()
    {
        metrics.observe_action(&order(None));
        metrics.observe_event(&runner(Said::Started { pid: 1 }));
        metrics.observe_event(&planned(true, 64));
        metrics.observe_action(&Action::End(SlotId(0), reason));
        metrics.observe_event(&runner(Said::Gone));
        has(&metrics, &format!("{gone}\"{word}\"}} 1"));
        has(&metrics, &format!("{exits}\"asked\"}} {}", count + 1));
    }
    has(&metrics, "berth_model_loads_total{model=\"demo\",source=\"ahead\"} 3");
    metrics.observe_action(&order(Some("a")));
    for pid in [1, 2] {
        metrics.observe_event(&runner(Said::Started { pid }));
    }
    has(&metrics, &format!("{exits}\"replaced\"}} 1"));
    metrics.observe_event(&planned(true, 64));
    metrics.observe_event(&planned(true, 128));
    has(&metrics, "berth_replans_total{reason=\"shape\"} 1");
    let error = Box::new(JobError::new(ErrorCode::ExecutorDied, "it died"));
    metrics.observe_event(&runner(Said::Failed { error, failures: Vec::new() }));
    has(&metrics, &format!("{gone}\"failed\"}} 1"));
    has(&metrics, &format!("{exits}\"failed\"}} 1"));
    metrics.observe_event(&runner(Said::Gone));
    has(&metrics, &format!("{exits}\"asked\"}} 3"));
}

#[test]
fn memory_is_what_plans_say_while_they_are_loaded() {
    let metrics = Metrics::new(9);
    metrics.devices(&[cuda0()]);
    metrics.observe_action(&order(None));
    metrics.observe_event(&planned(true, 64));
    let of = |what: &str| {
        format!("berth_device_memory_bytes{{device=\"cuda0\",uuid=\"GPU-1\",what=\"{what}\"}}")
    };
    has(&metrics, &format!("{} 30", of("budget")));
    has(&metrics, &format!("{} 25", of("planned_peak")));
    has(&metrics, "berth_host_memory_bytes{what=\"idle\"} 7");
    has(&metrics, "berth_pinned_bytes 2");

    // Another one beside it is idle, or the first one is, while one of them runs.
    if let Action::Run(_, epoch, beside) = order(None) {
        metrics.observe_action(&Action::Run(SlotId(1), epoch, beside));
    }
    if let DeskEvent::Runner { epoch, said, .. } = planned(true, 64) {
        metrics.observe_event(&DeskEvent::Runner { slot: SlotId(1), epoch, said });
    }
    has(&metrics, &format!("{} 45", of("planned_peak")));
    has(&metrics, "berth_host_memory_bytes{what=\"planned_peak\"} 16");
    let gone = DeskEvent::Runner { slot: SlotId(1), epoch: 1, said: Said::Gone };
    metrics.observe_event(&gone);
    metrics.observe_event(&runner(Said::Gone));
    has(&metrics, &format!("{} 0", of("planned_peak")));
    has(&metrics, "berth_pinned_bytes 0");
}

#[test]
fn writes_models_requests_and_memory_are_shown() {
    let metrics = Metrics::new(9);
    metrics.observe_action(&Action::Store(WriteId(1), Change::Settings(Default::default())));
    metrics.observe_event(&DeskEvent::Stored { write: WriteId(1), result: Ok(()) });
    for state in [SlotState::Loading, SlotState::Warm] {
        metrics.observe_action(&Action::Tell(Note::Model("demo".to_owned(), state)));
    }
    metrics.request("/v1/jobs/{id}", "GET", 404, Duration::from_millis(3));
    metrics.devices(&[cuda0()]);
    metrics.host(&[("free", Bytes(3))]);
    metrics.event_lag(Duration::from_millis(1));
    for line in [
        "berth_store_seconds_count{op=\"settings\"} 1",
        "berth_models{state=\"loading\"} 0",
        "berth_models{state=\"warm\"} 1",
        "berth_http_requests_total{route=\"/v1/jobs/{id}\",method=\"GET\",code=\"404\"} 1",
        "berth_device_memory_bytes{device=\"cuda0\",uuid=\"GPU-1\",what=\"free\"} 5",
        "berth_host_memory_bytes{what=\"free\"} 3",
        "berth_event_lag_seconds_count 1",
    ] {
        has(&metrics, line);
    }
}
