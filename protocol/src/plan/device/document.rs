//! How a device is reached, as it stands in documents and on the wire.

use serde::{Deserialize, Serialize};

use super::DeviceBackend;
use crate::faults::Faults;
use crate::phase::Phase;
use crate::units::Bytes;

/// The keys of [`DeviceBackend`]: those of [`Faults`] stand among them.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BackendDocument {
    Virtual {
        link_bytes_per_s: f64,
        fail_allocation: Option<u32>,
        fail_copy: Option<u32>,
        taken_bytes: Bytes,
        taken_in: Option<Phase>,
        speed: f64,
        threads: Option<u32>,
        unsupported: Vec<String>,
    },
    Cuda {
        uuid: Option<String>,
    },
    /// A GPU that cannot do some operations: few are so, and the document of others stays as it is.
    #[serde(rename = "cuda_without")]
    CudaWithout {
        uuid: Option<String>,
        unsupported: Vec<String>,
    },
}

impl From<DeviceBackend> for BackendDocument {
    fn from(backend: DeviceBackend) -> BackendDocument {
        match backend {
            DeviceBackend::Virtual { link_bytes_per_s, faults, speed, threads, unsupported } => {
                let Faults { fail_allocation, fail_copy, taken_bytes, taken_in } = faults;
                BackendDocument::Virtual {
                    link_bytes_per_s,
                    fail_allocation,
                    fail_copy,
                    taken_bytes,
                    taken_in,
                    speed,
                    threads,
                    unsupported,
                }
            }
            DeviceBackend::Cuda { uuid, unsupported } if unsupported.is_empty() => {
                BackendDocument::Cuda { uuid }
            }
            DeviceBackend::Cuda { uuid, unsupported } => {
                BackendDocument::CudaWithout { uuid, unsupported }
            }
        }
    }
}

impl From<BackendDocument> for DeviceBackend {
    fn from(document: BackendDocument) -> DeviceBackend {
        match document {
            BackendDocument::Virtual {
                link_bytes_per_s,
                fail_allocation,
                fail_copy,
                taken_bytes,
                taken_in,
                speed,
                threads,
                unsupported,
            } => {
                let faults = Faults { fail_allocation, fail_copy, taken_bytes, taken_in };
                DeviceBackend::Virtual { link_bytes_per_s, faults, speed, threads, unsupported }
            }
            BackendDocument::Cuda { uuid } => DeviceBackend::Cuda { uuid, unsupported: Vec::new() },
            BackendDocument::CudaWithout { uuid, unsupported } => {
                DeviceBackend::Cuda { uuid, unsupported }
            }
        }
    }
}
