//! The buffers of a running job: allocated at once, charged to the host as one, and taken by name
//! before the first phase.

use std::sync::Arc;

use crate::backend::memory::Charge;
use crate::backend::{Memory, OutOfMemory, SharedBytes, limits};
use crate::models::buffers::{BufferElement, BufferPlace, BufferPlan, BufferSpec};

/// Allocated buffers, each under its name until it is taken; charged until this is dropped, taken
/// or not.
pub struct JobBuffers {
    floats: Vec<(&'static str, Vec<Vec<f32>>)>,
    pixels: Vec<(&'static str, Vec<Vec<u8>>)>,
    lent: Vec<(&'static str, Vec<SharedBytes>)>,
    _charge: Charge,
}

impl JobBuffers {
    /// Allocates all buffers, charged to the host as one.
    pub fn allocate(plan: &BufferPlan, memory: &Arc<Memory>) -> Result<JobBuffers, OutOfMemory> {
        let charge = memory.charge("job buffers", plan.bytes())?;
        // Before any of them: what is asked for is their sum.
        let left = limits::left();
        let refused = || memory.refused_within("job buffers", plan.bytes(), left);
        let (mut floats, mut pixels, mut lent) = (Vec::new(), Vec::new(), Vec::new());
        for spec in &plan.0 {
            match (spec.place, spec.element) {
                (BufferPlace::Own, BufferElement::F32) => {
                    floats.push((spec.name, copies(spec, 0.0).ok_or_else(refused)?));
                }
                (BufferPlace::Own, BufferElement::U8) => {
                    pixels.push((spec.name, copies(spec, 0).ok_or_else(refused)?));
                }
                (BufferPlace::Lent, _) => {
                    let bytes = spec.elements() * spec.element.bytes() as usize;
                    let copies = (0..spec.copies).map(|_| SharedBytes::allocate(bytes));
                    lent.push((spec.name, copies.collect()));
                }
                (BufferPlace::HandedOver, _) => {}
            }
        }
        Ok(JobBuffers { floats, pixels, lent, _charge: charge })
    }

    /// Takes all copies of a buffer of activations. A name that the plan does not have is a bug of
    /// the caller.
    pub fn take_all(&mut self, name: &str) -> Vec<Vec<f32>> {
        take(&mut self.floats, name)
    }

    /// Takes the only copy of a buffer of activations; an empty one where the job has no use for
    /// it.
    pub fn take(&mut self, name: &str) -> Vec<f32> {
        self.take_all(name).pop().unwrap_or_default()
    }

    /// As [`JobBuffers::take`], of pixels.
    pub fn take_pixels(&mut self, name: &str) -> Vec<u8> {
        take(&mut self.pixels, name).pop().unwrap_or_default()
    }

    /// Takes memory that is lent to the planner, if the job has a use for it.
    pub fn take_lent(&mut self, name: &str) -> Option<SharedBytes> {
        take(&mut self.lent, name).pop()
    }
}

fn take<T>(buffers: &mut Vec<(&'static str, Vec<T>)>, name: &str) -> Vec<T> {
    match buffers.iter().position(|(own, _)| *own == name) {
        Some(at) => buffers.swap_remove(at).1,
        None => panic!("the job has no buffer named {name}, or it was taken before"),
    }
}

/// Zeroed copies; `None` where the system has no room.
fn copies<T: Clone>(spec: &BufferSpec, zero: T) -> Option<Vec<Vec<T>>> {
    (0..spec.copies).map(|_| zeroed(spec.elements(), zero.clone())).collect()
}

/// A buffer of exactly this length; `None` where the system has no room.
fn zeroed<T: Clone>(length: usize, zero: T) -> Option<Vec<T>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).ok()?;
    buffer.resize(length, zero);
    Some(buffer)
}
