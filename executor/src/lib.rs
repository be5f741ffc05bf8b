//! Berth's executor: maps weights, allocates exactly what a plan says, runs the scheduled graph,
//! and reports what it really used.
//!
//! Invariants:
//! - The executor has no choices: it may refuse a plan, never adjust one.
//! - [`graph`] and [`schedule`] are pure and know no backend; [`ops`] stands above all three.
//!   Measuring runs the same code as running, with nothing allocated.
//! - [`models`] and [`components`] never import a backend; only [`families`] know families;
//!   `unsafe` lives in `weights::mapping` and under [`backend`] only.
//! - Every allocation that grows with a model or a job is charged to a device's account.

pub mod backend;
pub mod calibrate;
pub mod components;
pub mod failure;
pub mod families;
pub mod graph;
pub mod measure;
pub mod models;
pub mod ops;
pub mod pipeline;
pub mod race;
pub mod read;
pub mod runtime;
pub mod sampling;
pub mod schedule;
pub mod self_test;
pub mod serve;
pub mod tokenizer;
pub mod weights;

pub use serve::main;
