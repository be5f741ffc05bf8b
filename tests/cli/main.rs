//! The program as its users meet it: each test runs `berth`, and looks at what it says, writes and
//! leaves. One program, so that the engine is linked once: `cargo test --test cli failure::` runs
//! the tests of one file.

#[path = "../support/lib.rs"]
mod support;

mod advice;
mod bad_files;
mod bad_input;
mod calibration;
mod failure;
mod first_use;
mod outputs;
mod pictures;
mod profiles;
mod settings;
mod told;
mod tune;
