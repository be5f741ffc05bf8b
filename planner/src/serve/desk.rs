//! The desk: which job runs when, and what becomes of each. Pure: no files, clock or randomness.
//!
//! It is told of everything that happens as a [`DeskEvent`](event::DeskEvent) and answers with
//! [`Action`](action::Action)s; the same events give the same actions.

pub mod action;
pub mod event;
pub mod job;
