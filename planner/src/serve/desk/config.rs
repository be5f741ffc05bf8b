//! What the desk goes by: limits that the operator sets, and constants of its rules.

use protocol::Bytes;

/// How long a write that failed waits to be done again.
pub const STORE_RETRY_MS: u64 = 1_000;

/// How long a job that found too little memory waits to be planned again.
pub const ROOM_RETRY_MS: u64 = 2_000;

/// After so long in the queue, a job is of the next class up: serve.md, section 5.
pub const CLASS_UP_MS: u64 = 10 * 60_000;

/// How often a job may be passed by younger ones whose model is loaded: serve.md, section 5.
pub const PASSED_MAX: u32 = 8;

/// For how long, from the first time on.
pub const PASSED_MS_MAX: u64 = 60_000;

/// A younger job passes only where the change of models costs more than this part of the older
/// one's time: serve.md, section 5.
pub const PASS_SHARE: f64 = 0.2;

/// How long a slot waits after a start that failed: twice as long after each, up to the second.
pub const BACKOFF_MS: [u64; 2] = [1_000, 60_000];

/// How fast what was asked for is forgotten, to know what will be: serve.md, section 4.
pub const DEMAND_HALF_LIFE_MS: f64 = 600_000.0;

/// For how long ahead models are kept loaded or not: serve.md, section 4.
pub const DEMAND_HORIZON_MS: f64 = 600_000.0;

/// Every set of models is weighed where there are no more than this.
pub const WEIGHED_EACH_MAX: usize = 6;

/// For how long what was weighed for a quote stands, where the same models are loaded: less than a
/// load takes, so that a job which begins at once is not weighed twice.
pub const WEIGHED_MS_MAX: u64 = 5_000;

/// How many jobs are asked about beside what runs, until something else runs or is loaded.
pub const BESIDE_ASKED_MAX: usize = 8;

/// How long a client's question waits for the surveyor: serve.md, section 14.
pub const SURVEY_MS_MAX: u64 = 5_000;

/// How long the desk waits for the surveyor to weigh: a survey of a model that nobody has measured
/// takes a second.
pub const WEIGH_MS_MAX: u64 = 10_000;

/// For how long more must be free before a plan is made for it: serve.md, section 4.
pub const MORE_FREE_MS: u64 = 30_000;

/// How much more: the larger of this and [`MORE_FREE_SHARE`]: serve.md, section 4.
pub const MORE_FREE_MIN: Bytes = Bytes::mib(512);

/// Of what was free when the plan was made: one part of so many.
pub const MORE_FREE_SHARE: u64 = 20;

/// When what more free memory is worth is asked again, where it was not worth a load: models are
/// asked for more often or less by then.
pub const MORE_FREE_AGAIN_MS: u64 = 300_000;

/// How long a removed job is remembered.
pub const REMOVED_MS: u64 = 24 * 3_600_000;

/// How long a client's key stands for its job, from the job's acceptance.
pub const KEY_MS: u64 = 24 * 3_600_000;

/// A job during which the daemon ended so often is not begun again.
pub const DAEMON_DEATHS_MAX: u32 = 2;

/// Bounds of `Retry-After`, in seconds.
pub const RETRY_AFTER_S: [u64; 2] = [1, 120];

/// Most jobs of one run.
pub const JOINED_JOBS_MAX: usize = 8;

/// How long a job that could begin waits for company at most: serve.md, section 5.
pub const COMPANY_MS_MAX: u64 = 20;

/// For how long what the surveyor says of jobs that run together stands.
pub const COMPANY_ASKED_MS_MAX: u64 = 60_000;

/// What the operator sets.
#[derive(Debug, Clone, PartialEq)]
pub struct DeskConfig {
    /// Most jobs that wait.
    pub queue_max: usize,
    /// How long an idle model stays loaded; `None` until its memory is wanted.
    pub keep_alive_ms: Option<u64>,
    /// Whether several models stay loaded where that is the cheapest; else one at a time.
    pub several_loaded: bool,
    /// Whether jobs that are alike run together where that is faster.
    pub join_jobs: bool,
    /// How long a job waits for memory that others use.
    pub room_wait_ms: u64,
    /// How long the running job may take once the daemon is to end.
    pub drain_ms: u64,
    /// Most jobs of one client that wait.
    pub client_queued_max: usize,
    /// Most runs of one client at a time.
    pub client_running_max: usize,
    /// Most predicted seconds of one client's waiting jobs.
    pub client_queued_s_max: f64,
    /// Most ended jobs that are kept.
    pub keep_jobs: usize,
    /// Most bytes of pictures that are kept.
    pub keep_bytes: u64,
    /// Where less is free for pictures, no job is accepted.
    pub min_free: Bytes,
}
