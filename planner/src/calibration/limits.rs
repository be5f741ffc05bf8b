//! What a calibration file may hold. Anything outside is taken for damage: it would only mislead
//! the solver.

use std::ops::RangeInclusive;

use protocol::Bytes;

/// The largest file that is read or written. The limits below make about a third of it, with
/// ordinary names.
pub const FILE_BYTES_MAX: Bytes = Bytes::mib(4);

/// Most devices that are kept; the one that was updated longest ago goes first.
pub const DEVICES_MAX: usize = 32;

/// Most corrections that are kept of one device; the one that was updated longest ago goes first.
pub const CORRECTIONS_MAX: usize = 32;

/// Longest name of a model, profile or device that something is kept for, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 1024;

/// Floating-point operations per second: from a microcontroller to twenty times the fastest GPU of
/// today.
pub const FLOPS_PER_S: RangeInclusive<f64> = 1e6..=1e17;

/// Bytes per second: from a modem to a hundred times the fastest memory of today.
pub const BYTES_PER_S: RangeInclusive<f64> = 1e4..=1e15;

/// Operations per second that can be started: a nanosecond each would be a single addition.
pub const STARTS_PER_S: RangeInclusive<f64> = 1.0..=1e9;

/// How many times longer than its rates say a component may be taken to compute. A figure outside
/// says that the run was disturbed, or that the model of it is wrong, and no factor would mend
/// that.
pub const RATIO: RangeInclusive<f64> = 1.0 / 50.0..=50.0;

/// What a GPU's context and libraries may take: half of the least that is reported for recent
/// drivers (107 MiB), to several times the most (555 MiB).
pub const OVERHEAD: RangeInclusive<Bytes> = Bytes::mib(53)..=Bytes::gib(4);
