//! The daemon, `berth serve`: jobs over HTTP, on executors that stay warm under a budget.
//!
//! ```text
//! edge (HTTP) ──────Asked, Left────►┐                        ┌─► runner: an executor, its model
//! surveyor ─────────Quoted─────────►│ queue ─► main loop ────┼─► surveyor: quotes, descriptions
//! runners ──────────Runner─────────►│   desk.step(event)     ├─► store: what must not be lost
//! store, files ─────Stored, Filed──►│   pure, makes actions  ├─► files: pictures
//! timer, signals ───Rang, Signal───►┘                        └─► edge: replies, notes
//! ```
//! One loop owns the [`desk`]; everything else is a thread that carries out actions and tells of
//! them as events. No thread waits for another but through the queue. Tokio's types stand under
//! `edge/` only.

pub mod catalog;
pub mod conditioning;
pub mod config;
pub mod daemon;
pub mod described;
pub mod desk;
pub mod edge;
pub mod files;
pub mod metrics;
pub mod models;
pub mod nearest;
pub mod runner;
pub mod shared;
pub mod store;
pub mod surveyor;
pub mod watch;

mod failures;
mod held;
mod outages;
#[cfg(test)]
mod testing;
