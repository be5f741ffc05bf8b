//! A job as data: what is asked, whoever asks for it, and what becomes of that.
//!
//! ```text
//! command line ─┐                   host's policy      model's description
//! HTTP          ├─► JobRequest ──────► prepare ──────────► resolve ──► JobShape, Job, options
//! a picture ────┘      ▲               PreparedJob         ResolvedJob
//!                      └── recorded ◄── infotext ◄── record ◄── a job that ran
//! ```
//! Not here: how a job is planned ([`crate::planning`]) and run ([`crate::engine`]), where its
//! pictures go ([`crate::output`]), and how any of it is shown. Nothing here knows the command
//! line, but the words of errors: its flags are what the fields of a request are called.
//!
//! Invariant: a [`JobRequest`] is the only thing that a
//! [`Job`](protocol::Job) is made of, and [`resolve`] the only place where it is made.

pub mod error;
pub mod event;
pub mod infotext;
pub mod joined;
pub mod model;
pub mod quote;
pub mod record;
pub mod recorded;
pub mod request;
pub mod resolve;
pub mod sampling;
pub mod seed;

pub use error::RequestError;
pub use event::{FailedAttempt, JobEvent};
pub use quote::Quote;
pub use request::JobRequest;
pub use resolve::{PreparedJob, ResolvedJob};
