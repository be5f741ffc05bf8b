//! What commands and events are called in logs and error messages.

use super::{Command, Event};

impl Command {
    /// Its name, as in the protocol's diagram.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Hello { .. } => "Hello",
            Command::Inspect { .. } => "Inspect",
            Command::Measure { .. } => "Measure",
            Command::Size { .. } => "Size",
            Command::Verify { .. } => "Verify",
            Command::Load { .. } => "Load",
            Command::Calibrate { .. } => "Calibrate",
            Command::SelfTest { .. } => "SelfTest",
            Command::Generate { .. } => "Generate",
            Command::PreviewTaken => "PreviewTaken",
            Command::Cancel => "Cancel",
            Command::Unload => "Unload",
            Command::Bye => "Bye",
        }
    }
}

impl Event {
    /// Its name, as in the protocol's diagram.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Hello { .. } => "Hello",
            Event::Inspected(_) => "Inspected",
            Event::Measured(_) => "Measured",
            Event::Sized(_) => "Sized",
            Event::Verified(_) => "Verified",
            Event::Calibrated(_) => "Calibrated",
            Event::SelfTested(_) => "SelfTested",
            Event::Loaded(_) => "Loaded",
            Event::Progress(_) => "Progress",
            Event::Conditioned(_) => "Conditioned",
            Event::Preview(_) => "Preview",
            Event::Output(_) => "Output",
            Event::Tensors(_) => "Tensors",
            Event::Usage(_) => "Usage",
            Event::Done { .. } => "Done",
            Event::Unloaded => "Unloaded",
            Event::Failed(_) => "Failed",
            Event::Files(_) => "Files",
            Event::Notice(_) => "Notice",
            Event::Heartbeat => "Heartbeat",
        }
    }
}
