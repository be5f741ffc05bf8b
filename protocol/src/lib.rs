//! The contract between Berth's two processes: messages, the plan as plain data, and its checker.
//!
//! Invariants:
//! - Nothing here decides or computes: no solver, no executor types, no files, no devices.
//! - Every type is plain data that both processes read the same way; a change of meaning is a new
//!   [`PROTOCOL_VERSION`], a change of the plan's document a new [`plan::SCHEMA`].
//! - [`check`] shares no code with the solver that makes plans.

pub mod calibration;
pub mod check;
pub mod division;
pub mod faults;
pub mod limits;
pub mod message;
pub mod model;
pub mod notice;
pub mod phase;
pub mod plan;
pub mod profile;
pub mod sampler;
pub mod self_test;
pub mod storage;
pub mod times;
pub mod units;
pub mod usage;

pub use division::{Division, Placement, dealt, item_runs};
pub use faults::Faults;
pub use message::{
    Command, Embeddings, Event, Failure, FailureKind, Handshake, Job, JobItem, PROTOCOL_VERSION,
};
pub use model::{ModelSource, PartFlag};
pub use phase::Phase;
pub use plan::{DeviceId, GraphOptions, JobShape, MappingPolicy, PieceSizes, Plan, Residency};
pub use profile::{BackendKind, Layout, LayoutBytes, ModelDescription, ModelProfile};
pub use sampler::{Sampler, Scheduler};
pub use storage::StorageType;
pub use times::{MeasuredMs, PhaseMs, PredictedMs};
pub use units::Bytes;
pub use usage::UsageReport;
