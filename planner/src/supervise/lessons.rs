//! What each failure means for the next attempt. Pure: it changes a request, and starts nothing.

use protocol::{Bytes, DeviceId, Failure, FailureKind, Plan};

use crate::planning::{FailedDevice, Request};
use crate::session::SessionError;

/// How often a job is started anew after its executor died.
const DEATHS_MAX: u32 = 1;

/// How often a job is planned anew after an allocation failed.
const SHORTAGES_MAX: u32 = 3;

/// How often a job is planned anew without a device that failed.
const FAILED_DEVICES_MAX: usize = 3;

/// How a job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It does not.
    Stop,
    /// With a new plan on the same executor.
    Replan,
    /// With a new plan on a new executor.
    Restart,
}

/// What a job's failures have taught so far.
#[derive(Debug)]
pub struct Lessons {
    /// Whether another plan may be made: not where one was given.
    plans: bool,
    deaths: u32,
    shortages: u32,
}

impl Lessons {
    /// Of a job that has not failed yet.
    pub fn new(plans: bool) -> Lessons {
        Lessons { plans, deaths: 0, shortages: 0 }
    }

    /// Learns from a failure of an attempt by the plan `tried`.
    pub fn learn(
        &mut self,
        error: &SessionError,
        tried: Option<&Plan>,
        request: &mut Request,
    ) -> Next {
        let Failure { kind, message } = match error {
            SessionError::Died { .. } if self.deaths < DEATHS_MAX => {
                self.deaths += 1;
                return Next::Restart;
            }
            SessionError::Failed(failure) if self.plans => failure,
            _ => return Next::Stop,
        };
        match kind {
            FailureKind::OutOfMemory { device, requested_bytes, free_bytes, .. }
                if self.shortages < SHORTAGES_MAX =>
            {
                self.shortages += 1;
                if let Some(plan) = tried {
                    let missing = requested_bytes.saturating_sub(*free_bytes);
                    shrink(request, plan, device, missing, self.shortages);
                }
                Next::Replan
            }
            FailureKind::DeviceFailed { device } if can_do_without(request, device) => {
                let (device, message) = (device.clone(), message.clone());
                request.failed.push(FailedDevice { device, message });
                Next::Replan
            }
            _ => Next::Stop,
        }
    }
}

/// Whether a device that failed can be left out: another plan may be made without it, as it is one of the
/// inventory's and has not failed before.
fn can_do_without(request: &Request, device: &DeviceId) -> bool {
    let failed = &request.failed;
    let again = failed.iter().any(|known| known.device == *device);
    request.inventory.device(&device.0).is_some() && !again && failed.len() < FAILED_DEVICES_MAX
}

/// Lowers a device's budget, so that the next plan uses less of it than `plan` did: at first less by what was
/// missing, then half, and in the last attempt nothing at all, as what the device says is not to be relied on.
fn shrink(request: &mut Request, plan: &Plan, device: &DeviceId, missing: Bytes, shortages: u32) {
    let planned = plan.devices.iter().find(|d| d.id == *device);
    let peak = planned.map_or(plan.host.peak_bytes, |device| device.peak_bytes);
    let limit = match shortages {
        1 => peak.saturating_sub(missing.max(Bytes(1))),
        2.. if shortages < SHORTAGES_MAX => Bytes(peak.0 / 2),
        _ => Bytes::ZERO,
    };
    let budgets = &mut request.budgets;
    let (budget, ceiling) = match request.inventory.devices.iter().position(|d| d.id == device.0) {
        Some(index) => (&mut budgets.devices[index], &mut budgets.ceilings[index]),
        None => (&mut budgets.host, &mut budgets.host_ceiling),
    };
    *budget = limit.min(*budget);
    *ceiling = limit.min(*ceiling);
}

#[cfg(test)]
mod tests {
    use protocol::plan::MappingPolicy;
    use protocol::{GraphOptions, JobShape};

    use super::*;
    use crate::inventory::Inventory;
    use crate::inventory::tests::{device_of, host_of};
    use crate::policy::pins::Pins;
    use crate::policy::{Budgets, Objective};

    /// Five devices of 1 GiB.
    fn request() -> Request {
        let gib = Bytes::gib(1);
        let devices = (0..5).map(|index| device_of(&format!("virtual{index}"), gib, gib));
        Request {
            model: String::new(),
            side_multiple_pixels: 16,
            job: JobShape {
                width: 16,
                height: 16,
                steps: 1,
                batch: 1,
                max_sequence_length: 1,
                true_cfg: false,
                init_image: false,
                first_step: 0,
            },
            inventory: Inventory {
                source: "test".to_owned(),
                host: host_of(gib, gib),
                devices: devices.collect(),
                why_no_devices: None,
            },
            budgets: Budgets {
                devices: vec![gib; 5],
                ceilings: vec![gib; 5],
                host: gib,
                host_ceiling: gib,
            },
            objective: Objective::Latency,
            failed: Vec::new(),
            pins: Pins::default(),
            prefetch: true,
            options: GraphOptions::default(),
            mapping_policy: MappingPolicy::Keep,
            imagined: false,
        }
    }

    fn failed(kind: FailureKind) -> SessionError {
        SessionError::Failed(Failure { kind, message: "it hurts".to_owned() })
    }

    fn device_failed(id: &str) -> SessionError {
        failed(FailureKind::DeviceFailed { device: DeviceId(id.to_owned()) })
    }

    fn died() -> SessionError {
        let (phase, status) = ("denoise phase".to_owned(), "signal 9".to_owned());
        SessionError::Died { phase, status, lines: Vec::new() }
    }

    #[test]
    fn each_failed_device_is_left_out_once_and_not_too_many_are() {
        let (mut lessons, mut request) = (Lessons::new(true), request());
        let mut learn =
            |id: &str, request: &mut Request| lessons.learn(&device_failed(id), None, request);
        assert_eq!(learn("virtual1", &mut request), Next::Replan);
        let known = FailedDevice {
            device: DeviceId("virtual1".to_owned()),
            message: "it hurts".to_owned(),
        };
        assert_eq!(request.failed, [known]);
        // What is not used cannot fail again, and what is not there cannot be left out.
        assert_eq!(learn("virtual1", &mut request), Next::Stop);
        assert_eq!(learn("host", &mut request), Next::Stop);
        assert_eq!(learn("virtual2", &mut request), Next::Replan);
        assert_eq!(learn("virtual3", &mut request), Next::Replan);
        assert_eq!(learn("virtual4", &mut request), Next::Stop);
        assert_eq!(request.failed.len(), FAILED_DEVICES_MAX);
    }

    #[test]
    fn a_death_is_survived_once_and_a_given_plan_is_not_replaced() {
        let (mut lessons, mut request) = (Lessons::new(false), request());
        assert_eq!(lessons.learn(&device_failed("virtual0"), None, &mut request), Next::Stop);
        assert_eq!(lessons.learn(&died(), None, &mut request), Next::Restart);
        assert_eq!(lessons.learn(&died(), None, &mut request), Next::Stop);
        assert_eq!(lessons.learn(&SessionError::Cancelled, None, &mut request), Next::Stop);
    }

    #[test]
    fn shortages_are_bounded_and_other_failures_end_a_job() {
        let (mut lessons, mut request) = (Lessons::new(true), request());
        let short = || {
            failed(FailureKind::OutOfMemory {
                device: DeviceId("virtual0".to_owned()),
                region: "weights".to_owned(),
                requested_bytes: Bytes(2),
                free_bytes: Bytes(1),
            })
        };
        for _ in 0..SHORTAGES_MAX {
            assert_eq!(lessons.learn(&short(), None, &mut request), Next::Replan);
        }
        assert_eq!(lessons.learn(&short(), None, &mut request), Next::Stop);
        for kind in [FailureKind::PlanRefused, FailureKind::Internal, FailureKind::BadModel] {
            assert_eq!(lessons.learn(&failed(kind), None, &mut request), Next::Stop);
        }
    }
}
