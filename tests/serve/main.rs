//! The daemon: its parts with real executors, and the program itself as its clients meet it.
//! `cargo test --test serve runners::` runs the tests of one file.

#[path = "../support/lib.rs"]
mod support;

mod api;
mod batch;
mod bench;
mod broken;
mod browser;
mod client;
mod conditioning;
mod corpus;
mod daemon;
mod devices;
mod generate;
mod hostile;
mod kills;
mod lanes;
mod metrics;
mod models;
mod open_metrics;
mod page;
mod room;
mod runners;
mod storage;
mod surveyor;
mod taken;
mod wires;
