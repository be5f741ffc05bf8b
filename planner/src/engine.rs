//! What runs jobs on this host: the host itself with what was learnt of it, executor processes, a
//! job's attempts, and what all Berth processes here have planned.
//!
//! It knows no screen and no command line: what happens is told to listeners, and what is wanted
//! comes as plain data.

pub mod events;
pub mod files;
pub mod host;
pub mod idle;
pub mod lanes;
pub mod reservations;
pub mod room;
pub mod session;
pub mod settling;
pub mod supervise;
pub mod warm;
