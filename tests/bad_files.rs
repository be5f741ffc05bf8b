//! Weight files with one thing wrong, each as a component of a sound model: the real program names
//! the file and the fault, and ends with exit code 2.
//!
//! What holds in every case is as in `bad_input.rs`, whose cases these go on from: headers field by
//! field.

#![allow(dead_code, reason = "the cases of bad_input.rs share more than is needed here")]

#[path = "bad_input/case.rs"]
mod case;
#[path = "bad_files/gguf.rs"]
mod gguf;
#[path = "support/gguf.rs"]
mod gguf_file;
#[path = "bad_files/safetensors.rs"]
mod safetensors;
mod support;
