//! What text encoders give, on its way between this process and the planner, which keeps it for
//! later jobs with the same prompts.

use ipc_channel::ipc::IpcSharedMemory;
use protocol::{Bytes, DeviceId, Embeddings, Failure};

use super::Observer;
use crate::backend::{OutOfMemory, SharedBytes, limits};
use crate::failure::bad_request;

/// How often ipc-channel maps the memory: when it is made, and when it is sent.
const MAPPINGS: u64 = 2;

/// Writes what a job brings to where the text encoders would have written it: `prompts` has the
/// parts of each prompt.
///
/// # Errors
/// `BadRequest`: there is not just one for each prompt, or one of another size.
pub fn take(brought: &[Embeddings], prompts: &mut [Vec<&mut [f32]>]) -> Result<(), Failure> {
    let (count, wanted) = (brought.len(), prompts.len());
    if count != wanted {
        return Err(bad_request(format!("{count} embeddings for {wanted} prompts")));
    }
    for (embeddings, parts) in brought.iter().zip(prompts) {
        let (got, wanted) = (embeddings.values.len(), bytes(parts));
        if got != wanted {
            let message = format!("a prompt's embeddings have {got} B, they take {wanted} B");
            return Err(bad_request(message));
        }
        let mut rest = &embeddings.values[..];
        for part in parts {
            let part: &mut [u8] = bytemuck::cast_slice_mut(part);
            let (own, others) = rest.split_at(part.len());
            part.copy_from_slice(own);
            rest = others;
        }
    }
    Ok(())
}

/// Tells the planner what the text encoders gave for each prompt.
///
/// # Errors
/// `OutOfMemory`: the process's limits leave too little for a copy.
pub fn tell(prompts: &mut [Vec<&mut [f32]>], observer: &mut dyn Observer) -> Result<(), Failure> {
    for parts in prompts {
        observer.conditioned(Embeddings { values: copy(parts)? });
    }
    Ok(())
}

/// One prompt's parts, one after the other. ipc-channel panics where the system refuses the memory,
/// so limits are asked before.
fn copy(parts: &[&mut [f32]]) -> Result<IpcSharedMemory, OutOfMemory> {
    let length = bytes(parts);
    let requested_bytes = Bytes(MAPPINGS * length as u64);
    if let Some(left) = limits::left().filter(|left| *left < requested_bytes) {
        return Err(OutOfMemory {
            device: DeviceId::host(),
            region: "a copy of embeddings for the planner".to_owned(),
            requested_bytes: Some(requested_bytes),
            free_bytes: Some(left),
            limited: true,
        });
    }
    let memory = SharedBytes::allocate(length).write_and_lend(|bytes| {
        let mut rest = bytes;
        for part in parts {
            let part: &[u8] = bytemuck::cast_slice(part);
            let (own, others) = rest.split_at_mut(part.len());
            own.copy_from_slice(part);
            rest = others;
        }
    });
    Ok(memory.expect("memory that was just made is lent to nobody"))
}

fn bytes(parts: &[&mut [f32]]) -> usize {
    parts.iter().map(|part| size_of_val(&**part)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_can_be_brought_again_and_nothing_of_another_size() {
        let (mut short, mut long) = ([1.5, -2.0], [3.0, f32::MIN, 5.0]);
        let told = copy(&[&mut short, &mut long]).expect("memory");
        assert_eq!(told.len(), 20);
        let brought = [Embeddings { values: told }];
        let (mut one, mut other) = ([0.0; 3], [0.0; 2]);
        take(&brought, &mut [vec![&mut one[..], &mut other[..]]]).expect("20 B");
        assert_eq!((one, other), ([1.5, -2.0, 3.0], [f32::MIN, 5.0]));
        let error = take(&brought, &mut [vec![&mut one[..]]]).unwrap_err();
        assert!(error.message.contains("20 B") && error.message.contains("12 B"), "{error}");
        let error = take(&brought, &mut []).unwrap_err();
        assert!(error.message.contains("1 embeddings for 0 prompts"), "{error}");
    }
}
