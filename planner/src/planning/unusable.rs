//! Devices that a plan does not use: what cannot be computed on, what failed, what was left out.

use protocol::ModelProfile;

use super::integrated::is_alone;
use super::{PlanError, Request};
use crate::engine::session::Session;
use crate::inventory::{Device, DeviceKind};
use crate::policy::pins::Pin;

/// For each device, why nothing can be computed there, if so.
pub fn broken(session: &Session, request: &Request) -> Vec<Option<String>> {
    let why = |device: &Device| {
        if request.imagined {
            return None;
        }
        if device.kind == DeviceKind::Virtual {
            return None;
        }
        if !session.computes_on_gpus() {
            let why =
                session.why_no_cuda.as_deref().unwrap_or("it has no backend for CUDA devices");
            return Some(format!("{}: this executor does not compute on GPUs: {why}", device.id));
        }
        device
            .uuid
            .is_none()
            .then(|| format!("{}: its profile names no GPU, by `uuid` or `ordinal`", device.id))
    };
    request.inventory.devices.iter().map(why).collect()
}

/// For each device, why it is not used unless it is named, if so.
pub fn unusable(request: &Request, broken: Vec<Option<String>>) -> Vec<Option<String>> {
    let mut unusable = broken;
    for (why, device) in unusable.iter_mut().zip(&request.inventory.devices) {
        if why.is_some() {
            continue;
        }
        let failed = request.failed.iter().find(|failed| failed.device.0 == device.id);
        let left_out = request.left_out.iter().any(|left_out| left_out.0 == device.id);
        if let Some(failed) = failed {
            *why = Some(format!("{}: it failed: {}", device.id, failed.message));
        } else if left_out {
            *why = Some(format!("{} is left out", device.id));
        }
    }
    let works: Vec<bool> = unusable.iter().map(Option::is_none).collect();
    for (index, why) in unusable.iter_mut().enumerate().filter(|(index, _)| works[*index]) {
        let device = &request.inventory.devices[index];
        if device.integrated && !is_alone(&request.inventory, index, |at| works[at]) {
            *why = Some(format!(
                "{} is integrated: its memory is the host's, so it is used where --backend names it",
                device.id
            ));
        }
    }
    unusable
}

/// A device that failed is not used again, not even where it is named.
pub fn check_failed(
    request: &Request,
    profile: &ModelProfile,
    pins: &[Pin],
) -> Result<(), PlanError> {
    for (component, pin) in profile.components.iter().zip(pins) {
        for index in pin.devices.iter().flatten() {
            let id = &request.inventory.devices[*index].id;
            if let Some(failed) = request.failed.iter().find(|failed| failed.device.0 == *id) {
                return Err(PlanError::PinnedToFailed {
                    component: component.name.clone(),
                    device: failed.device.clone(),
                    message: failed.message.clone(),
                });
            }
        }
    }
    Ok(())
}
