//! How errors of the executor become the protocol's typed failures.

use std::fmt::Display;

use protocol::{Failure, FailureKind};

use crate::backend::virtual_device::VirtualOpenError;
use crate::backend::{Cancelled, OutOfMemory, Stopped};
use crate::models::ModelError;
use crate::weights::WeightsError;
use crate::weights::lora::LoraError;

/// The plan breaks a rule or disagrees with its schedule.
pub fn refused(message: impl Display) -> Failure {
    Failure { kind: FailureKind::PlanRefused, message: message.to_string() }
}

/// The request makes no sense for the model.
pub fn bad_request(message: impl Display) -> Failure {
    Failure { kind: FailureKind::BadRequest, message: message.to_string() }
}

/// A file of the model is at fault.
pub fn bad_model(message: impl Display) -> Failure {
    Failure { kind: FailureKind::BadModel, message: message.to_string() }
}

/// A fault of the executor or of the system under it.
pub fn internal(message: impl Display) -> Failure {
    Failure { kind: FailureKind::Internal, message: message.to_string() }
}

impl From<Cancelled> for Failure {
    fn from(cancelled: Cancelled) -> Failure {
        Failure { kind: FailureKind::Cancelled, message: cancelled.to_string() }
    }
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Failure {
        let message = stopped.to_string();
        match stopped {
            Stopped::Cancelled(cancelled) => cancelled.into(),
            Stopped::OutOfMemory(error) => error.into(),
            Stopped::DeviceFailed { device, .. } => {
                Failure { kind: FailureKind::DeviceFailed { device }, message }
            }
            Stopped::DeviceLost { device, .. } => {
                Failure { kind: FailureKind::DeviceLost { device }, message }
            }
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        match error {
            ModelError::Job(message) => bad_request(message),
            ModelError::Lora(LoraError::Stopped) => Cancelled.into(),
            other => bad_model(other.with_causes()),
        }
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        bad_model(error)
    }
}

impl From<OutOfMemory> for Failure {
    fn from(error: OutOfMemory) -> Failure {
        let message = error.to_string();
        let OutOfMemory { device, region, requested_bytes, free_bytes, .. } = error;
        let requested_bytes = requested_bytes.unwrap_or(OutOfMemory::DRIVER_BYTES);
        let kind = FailureKind::OutOfMemory { device, region, requested_bytes, free_bytes };
        Failure { kind, message }
    }
}

impl From<VirtualOpenError> for Failure {
    fn from(error: VirtualOpenError) -> Failure {
        match error {
            VirtualOpenError::OutOfMemory(error) => error.into(),
            error @ VirtualOpenError::Thread { .. } => internal(error),
        }
    }
}
