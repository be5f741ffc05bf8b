//! Scales that stand beside weights: what eight-bit floats were divided by when they were rounded.
//! A weight `<stem>.weight` is multiplied by the number `<stem>.scale_weight` or
//! `<stem>.weight_scale` (ComfyUI's `scaled_fp8` checkpoints, older and newer). Beside weights of
//! other types the number can only be 1.

use std::os::unix::fs::FileExt;

use protocol::StorageType;

use super::{Location, WeightFiles};
use crate::weights::view::widen;
use crate::weights::{Dtype, WeightsError};

/// What a weight's name ends in, and what its scale's does in its place.
const WEIGHT: &str = ".weight";
const SCALES: [&str; 2] = [".scale_weight", ".weight_scale"];

impl WeightFiles {
    /// Gives every weight the scale beside it.
    pub(super) fn take_scales(&mut self) -> Result<(), WeightsError> {
        let mut scales = Vec::new();
        for (name, location) in &self.tensors {
            let stem = SCALES.iter().find_map(|ending| name.strip_suffix(ending));
            let Some(weight) = stem.map(|stem| format!("{stem}{WEIGHT}")) else { continue };
            let Some(scaled) = self.tensors.get(&weight) else { continue };
            let scale = self.scale(name, location)?;
            if scale != 1.0 && !matches!(scaled.dtype, Dtype::F8E4M3 | Dtype::F8E5M2) {
                let fault = format!("is {scale}, beside a weight of type {}", scaled.dtype);
                return Err(self.refused(name, location, fault));
            }
            scales.push((weight, scale));
        }
        for (weight, scale) in scales {
            self.tensors.get_mut(&weight).expect("it was found").scale *= scale;
        }
        Ok(())
    }

    /// The one finite number of a tensor. Read instead of mapped, as headers are.
    fn scale(&self, name: &str, location: &Location) -> Result<f32, WeightsError> {
        let refused = |fault| self.refused(name, location, fault);
        let file = &self.files[location.file_index];
        let elements: usize = location.shape.as_slice().iter().product();
        let storage = match location.dtype.storage() {
            Some(storage @ (StorageType::F32 | StorageType::F16 | StorageType::BF16))
                if elements == 1 =>
            {
                storage
            }
            _ => {
                let (shape, dtype) = (location.shape.as_slice(), location.dtype);
                return Err(refused(format!(
                    "of type {dtype} and shape {shape:?} is no single number"
                )));
            }
        };
        let mut bytes = [0; 4];
        let bytes = &mut bytes[..storage.element_bytes()];
        let read = file.file().read_exact_at(bytes, location.offset_bytes as u64);
        read.map_err(|cause| WeightsError::Read { path: file.path().to_owned(), cause })?;
        let mut value = [0.0];
        widen(storage, bytes, &mut value);
        let [value] = value;
        if value.is_finite() { Ok(value) } else { Err(refused(format!("is {value}"))) }
    }

    fn refused(&self, name: &str, location: &Location, fault: String) -> WeightsError {
        let path = self.files[location.file_index].path().to_owned();
        WeightsError::Scale { path, tensor: name.to_owned(), fault }
    }
}
