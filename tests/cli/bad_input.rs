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

mod arguments;
mod bounded;
pub mod case;
mod endless;
mod expanding;
mod files;
mod library;
mod messages;
mod parts;
mod pictures;
mod placements;
mod weights;
