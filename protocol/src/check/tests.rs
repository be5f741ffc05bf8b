//! Good plans, and every single change of them that the checker must refuse.
//!
//! Each refusal is a row: a change of [`good::text`] or of [`good::picture`], and a part of what
//! the checker says.

mod components;
mod devices;
mod good;
mod heads;
mod host;
mod keeps;
mod parts;
mod passes;
mod questions;
mod wire;

use super::*;
use crate::limits::UNSUPPORTED_MAX;
use crate::plan::{DeviceBackend, DeviceId, MappingPolicy};

const KIB: u64 = 1024;

/// One change, and a part of its refusal.
type Change = (fn(&mut Plan), &'static str);

/// Requires that each change alone makes the plan one that is refused, by the right rule.
fn refuses(plan: fn() -> Plan, changes: &[Change]) {
    for (index, (change, says)) in changes.iter().enumerate() {
        let mut plan = plan();
        change(&mut plan);
        let Err(Violation(message)) = check(&plan) else {
            panic!("change {index} passed; expected {says:?}");
        };
        assert!(message.contains(says), "change {index}: {message:?} does not say {says:?}");
    }
}

fn grow(bytes: &mut Bytes) {
    *bytes += Bytes(ALIGNMENT_BYTES);
}

fn device(id: &str) -> DeviceId {
    DeviceId(id.to_owned())
}

fn long() -> String {
    "x".repeat(STRING_BYTES_MAX + 1)
}
