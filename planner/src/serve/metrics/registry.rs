//! Names, kinds and buckets of all figures.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::serve::desk::action::SlotState;

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// Histograms by label, all with the same buckets.
pub type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// What only grows, by label.
pub type Counters = Family<Labels, Counter>;

/// What rises and falls, by label.
pub type Gauges = Family<Labels, Gauge>;

/// Seconds of what runs, by label.
pub type SecondsCounters = Family<Labels, Counter<f64, AtomicU64>>;

/// A figure of some labels.
pub trait Labelled<M> {
    /// The figure of these, made where there was none.
    fn with(&self, labels: &[(&'static str, &str)]) -> M;
}

impl<M: Clone, C: MetricConstructor<M>> Labelled<M> for Family<Labels, M, C> {
    fn with(&self, labels: &[(&'static str, &str)]) -> M {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned()));
        self.get_or_create_owned(&labels.collect())
    }
}

/// All of them.
pub struct Figures {
    pub jobs: Counters,
    pub open_jobs: Gauges,
    pub queue_wait_seconds: Histograms,
    pub job_seconds: Histograms,
    pub denoise_step_seconds: Histograms,
    pub http_request_seconds: Histograms,
    pub store_seconds: Histograms,
    pub event_lag_seconds: Histogram,
    pub prediction_ratio: Histograms,
    pub images: Counters,
    pub steps: Counters,
    pub http_requests: Counters,
    pub device_memory_bytes: Gauges,
    pub host_memory_bytes: Gauges,
    pub pinned_bytes: Gauge,
    pub device_busy_seconds: SecondsCounters,
    pub streamed_bytes: Counters,
    pub models: Gauges,
    pub model_loads: Counters,
    pub model_load_seconds: Histograms,
    pub model_evictions: Counters,
    pub replans: Counters,
    pub executor_exits: Counters,
    pub batch_size: Histograms,
    pub conditioning_cache_bytes: Gauge,
    pub conditioning_hits: Counter,
    pub conditioning_misses: Counter,
    pub conditioning_evictions: Counter,
}

/// What all names begin with.
const PREFIX: &str = "berth";

/// Seconds of jobs and loads: 0.1 s to 55 min.
fn long() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 2.0, 16))
}

/// Seconds of answers, writes and steps: 1 ms to 33 s.
fn short() -> Histogram {
    Histogram::new(exponential_buckets(1e-3, 2.0, 16))
}

/// Seconds of an event in the queue: 0.1 ms to 0.8 s.
fn quick() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 14))
}

/// Measured by predicted: a tenth more or less is good.
fn ratios() -> Histogram {
    Histogram::new([0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0])
}

/// Pictures of a run.
fn sizes() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 7))
}

/// All figures, and what writes them.
pub fn figures(protocol: u32) -> (Registry, Figures) {
    let mut registry = Registry::with_prefix(PREFIX);
    let mut to = Names(&mut registry);
    let histograms = |of: fn() -> Histogram| Histograms::new_with_constructor(of);
    let figures = Figures {
        jobs: to.name("jobs", "Jobs that have ended", Counters::default()),
        open_jobs: to.name("open_jobs", "Jobs that have not ended", Gauges::default()),
        queue_wait_seconds: to.name(
            "queue_wait_seconds",
            "From acceptance to start",
            histograms(long),
        ),
        job_seconds: to.name("job_seconds", "Parts of runs", histograms(long)),
        denoise_step_seconds: to.name(
            "denoise_step_seconds",
            "A denoising step",
            histograms(short),
        ),
        http_request_seconds: to.name(
            "http_request_seconds",
            "From headers to answer",
            histograms(short),
        ),
        store_seconds: to.name("store_seconds", "Until a record is on the disk", histograms(short)),
        event_lag_seconds: to.name("event_lag_seconds", "Until a question is handled", quick()),
        prediction_ratio: to.name("prediction_ratio", "Measured by predicted", histograms(ratios)),
        images: to.name("images", "Pictures made", Counters::default()),
        steps: to.name("steps", "Denoising steps done", Counters::default()),
        http_requests: to.name("http_requests", "Answered requests", Counters::default()),
        device_memory_bytes: to.name("device_memory_bytes", "Memory of devices", Gauges::default()),
        host_memory_bytes: to.name("host_memory_bytes", "Memory of the host", Gauges::default()),
        pinned_bytes: to.name("pinned_bytes", "Page-locked memory", Gauge::default()),
        device_busy_seconds: to.name(
            "device_busy_seconds",
            "Work of devices by their clocks",
            SecondsCounters::default(),
        ),
        streamed_bytes: to.name("streamed_bytes", "Weights sent to devices", Counters::default()),
        models: to.name("models", "Models by where they are", Gauges::default()),
        model_loads: to.name("model_loads", "Loads of weights", Counters::default()),
        model_load_seconds: to.name("model_load_seconds", "A load of weights", histograms(long)),
        model_evictions: to.name(
            "model_evictions",
            "Models that were unloaded",
            Counters::default(),
        ),
        replans: to.name("replans", "Attempts that were planned anew", Counters::default()),
        executor_exits: to.name("executor_exits", "Executors that have ended", Counters::default()),
        batch_size: to.name("batch_size", "Pictures of a run", histograms(sizes)),
        conditioning_cache_bytes: to.name(
            "conditioning_cache_bytes",
            "What text encoders gave, kept for later jobs",
            Gauge::default(),
        ),
        conditioning_hits: to.name(
            "conditioning_hits",
            "Prompts of runs that needed no text encoder",
            Counter::default(),
        ),
        conditioning_misses: to.name(
            "conditioning_misses",
            "Prompts of runs that needed text encoders",
            Counter::default(),
        ),
        conditioning_evictions: to.name(
            "conditioning_evictions",
            "Prompts that are kept no longer, for want of room",
            Counter::default(),
        ),
    };
    let build: Gauges = to.name("build_info", "What this is", Gauges::default());
    let version = env!("CARGO_PKG_VERSION");
    build.with(&[("version", version), ("protocol", &protocol.to_string())]).set(1);
    let start: Gauge = to.name("start_time_seconds", "When it began", Gauge::default());
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    start.set(since.as_secs() as i64);
    (registry, figures)
}

/// Gives figures their names.
struct Names<'a>(&'a mut Registry);

impl Names<'_> {
    /// A name that ends with a unit has it as its unit, as OpenMetrics wants.
    fn name<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        let with_unit = name.rsplit_once('_').and_then(|(rest, unit)| match unit {
            "seconds" => Some((rest, Unit::Seconds)),
            "bytes" => Some((rest, Unit::Bytes)),
            "ratio" => Some((rest, Unit::Other(unit.to_owned()))),
            _ => None,
        });
        match with_unit {
            Some((rest, unit)) => {
                self.0.register_with_unit(rest, help, unit, metric.clone());
            }
            None => self.0.register(name, help, metric.clone()),
        }
        metric
    }
}

/// How a slot's state is written.
pub fn slot_state(state: SlotState) -> &'static str {
    match state {
        SlotState::Cold => "cold",
        SlotState::Kept => "kept",
        SlotState::Loading => "loading",
        SlotState::Running => "running",
        SlotState::Warm => "warm",
        SlotState::Evicting => "evicting",
    }
}
