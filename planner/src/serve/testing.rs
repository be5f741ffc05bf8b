//! Records for the tests of several modules, and processes that are this very test.

use std::process::Command;
use std::sync::Arc;

use protocol::Bytes;
use serde_json::json;

use super::desk::action::JobView;
use super::desk::job::{
    Api, Class, Confidence, JobId, JobOrder, JobRecord, JobState, KeptJson, Offer, OnDisconnect,
    PictureRecord, RECORD_VERSION,
};
use crate::engine::lanes::Lanes;
use crate::job::JobRequest;

/// A queued job.
pub fn record(id: &str) -> JobRecord {
    JobRecord {
        v: RECORD_VERSION,
        id: JobId(id.to_owned()),
        order: JobOrder {
            request: JobRequest::default(),
            model: "demo".to_owned(),
            class: Class::Batch,
            api: Api::Native,
            client: "tester".to_owned(),
            label: None,
            deadline_ms: None,
            on_disconnect: OnDisconnect::Finish,
            keep_alive: None,
            idempotency: None,
            body: KeptJson::of(&json!({"prompt": "a house"})),
        },
        synchronous: false,
        state: JobState::Queued,
        created_at: 1_785_500_000_000,
        started_at: None,
        ended_at: None,
        offer: Offer {
            warm: false,
            load_ms: 20.5,
            run_ms: 300.25,
            batch: 1,
            peak_bytes: vec![("host".to_owned(), Bytes::mib(64))],
            lanes: Lanes::default(),
            confidence: Confidence::Predicted,
            notices: Vec::new(),
        },
        predicted_wait_ms: 0.0,
        attempts: 0,
        daemon_deaths: 0,
        failures: Vec::new(),
        pictures: Vec::new(),
        plan: None,
        usage: None,
        notices: Vec::new(),
        error: None,
    }
}

/// A job of a record, as it is shown where nothing of it is under way.
pub fn view(record: JobRecord) -> JobView {
    JobView {
        state: record.state,
        record: Arc::new(record),
        whole: true,
        position: None,
        progress: None,
        waiting: None,
        starts_in_ms: None,
        ends_in_ms: None,
        preview: None,
    }
}

/// A picture of a record.
pub fn picture(index: u32, size_bytes: u64) -> PictureRecord {
    PictureRecord {
        index,
        seed: 7,
        width: 64,
        height: 64,
        size_bytes,
        file: Some(format!("2026-07-31/x-{index}.png")),
        infotext: "a house".to_owned(),
    }
}

/// A process that runs one test of this program alone, with what it works on in the environment
/// variable [`CHILD`]. It gets an error where a file grows past its limit, and no signal.
pub fn child(test: &str, work: &str) -> Command {
    let program = std::env::current_exe().expect("the test's own program");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, work);
    command
}

/// What a child works on; unset in the test's own process.
pub const CHILD: &str = "BERTH_TEST_CHILD";
