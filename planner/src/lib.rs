//! Berth's planner: reads what is there, solves for a placement, drives the executor; and the
//! command line.
//!
//! Invariants:
//! - The planner never touches CUDA and holds no weights: a crash of the executor is an event to
//!   it.
//! - [`solve`] is pure and deterministic; everything it depends on is in its arguments.
//! - All files that a user asks for are written by the planner, whole or not at all.
//! - Data goes to stdout, everything else to stderr.

#![forbid(unsafe_code)]

pub mod budget;
pub mod calibration;
pub mod cli;
pub mod client;
pub mod demo;
pub mod engine;
pub mod fingerprint;
pub mod inventory;
pub mod job;
pub mod media;
pub mod output;
pub mod planning;
pub mod policy;
pub mod preview;
pub mod profile;
pub mod read;
pub mod render;
pub mod self_test;
pub mod serve;
pub mod solve;
pub mod temporary;
pub mod tune;
