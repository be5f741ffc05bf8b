//! Weight files with one thing wrong, each as a component of a sound model: the real program names
//! the file and the fault, and ends with exit code 2.
//!
//! What holds in every case is as in `bad_input.rs`, whose cases these go on from: headers field by
//! field.

mod gguf;
mod safetensors;
