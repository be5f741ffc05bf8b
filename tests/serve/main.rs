//! The daemon: its parts with real executors, and the program itself as its clients meet it.
//! `cargo test --test serve runners::` runs the tests of one file.

#[path = "../support/lib.rs"]
mod support;

mod api;
mod bench;
mod browser;
mod client;
mod daemon;
mod generate;
mod hostile;
mod metrics;
mod open_metrics;
mod page;
mod runners;
mod surveyor;
mod wires;
