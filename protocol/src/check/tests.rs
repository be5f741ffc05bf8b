//! Good plans, and every single change of them that the checker must refuse.
//!
//! Each refusal is a row: a change of [`good::text`] or of [`good::picture`], and a part of what
//! the checker says of it.

mod all;
mod components;
mod devices;
mod good;
mod heads;
mod host;
mod items;
mod keeps;
mod own_sets;
mod parts;
mod passes;
mod pipelines;
mod questions;
mod wire;

use super::*;
use crate::division::Division;
use crate::faults::Faults;
use crate::limits::{
    ATTENTION_CHUNK_MAX, BATCH_MAX, COMPONENTS_MAX, DEVICES_MAX, LAYOUTS_MAX, LOOKAHEAD_MAX,
    LORA_WEIGHT_MAX, LORAS_MAX, MEMORY_BYTES_MAX, ROW_SHARE_MAX, SEGMENTS_MAX, SEQUENCE_TOKENS_MAX,
    SIDE_PIXELS_MAX, STEP_ITEMS_MAX, STEPS_MAX, UNSUPPORTED_MAX,
};
use crate::phase::Phase;
use crate::plan::{
    ALIGNMENT_BYTES, ComponentPlan, DeviceBackend, DeviceId, GraphOptions, JobShape, Lora,
    MappingPolicy, PartPlan, PhaseBytes, Residency, SegmentPlan, VaeTile,
};
use crate::profile::{BackendKind, Layout};
use crate::units::Bytes;

const KIB: u64 = 1024;

/// One change, and a part of its refusal.
type Change = (fn(&mut Plan), &'static str);

/// Requires that each change alone makes the plan one that is refused, by the right rule.
fn refuses(plan: fn() -> Plan, changes: &[Change]) {
    for (index, (change, says)) in changes.iter().enumerate() {
        let mut plan = plan();
        change(&mut plan);
        let Err(found) = check(&plan) else {
            panic!("change {index} passed; expected {says:?}");
        };
        assert!(is_said(&found, says), "change {index}: none says {says:?} of {found}");
    }
}

/// Whether one of the violations has these words.
fn is_said(found: &Violations, words: &str) -> bool {
    found.iter().any(|violation| violation.to_string().contains(words))
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
