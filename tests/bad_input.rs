//! Whatever is wrong with a model, a profile, a plan or an argument: the real program says what and
//! where, ends with the documented exit code, and leaves nothing behind.
//!
//! Cases are tables; a failing one is named. Not here: failures while a job runs (`failure.rs`).
//!
//! Rules that hold in every case:
//! - one message, with `berth: ` or the argument parser's `error: ` before it, that names the fault
//!   once;
//! - no panic, and no blame on Berth for what its user gave;
//! - no file is made, changed or left over, in the home or among the temporary files.

#[path = "bad_input/arguments.rs"]
mod arguments;
#[path = "bad_input/bounded.rs"]
mod bounded;
#[path = "bad_input/case.rs"]
mod case;
#[path = "bad_input/endless.rs"]
mod endless;
#[path = "bad_input/expanding.rs"]
mod expanding;
#[path = "bad_input/files.rs"]
mod files;
#[path = "bad_input/library.rs"]
mod library;
#[path = "bad_input/messages.rs"]
mod messages;
#[path = "bad_input/parts.rs"]
mod parts;
#[path = "bad_input/pictures.rs"]
mod pictures;
#[path = "bad_input/placements.rs"]
mod placements;
mod support;
#[path = "bad_input/weights.rs"]
mod weights;
