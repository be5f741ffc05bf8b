//! The executors that share a test of GPUs: each computes some of its cases, as long as all their
//! contexts are within what the plan may take.
//!
//! A driver compiles kernels one after the other within a process, and this is what a test takes
//! when a GPU is new. What a helper fails to find out, the session's own executor does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::calibration::CalibrationDevice;
use protocol::self_test::{SelfTest, SelfTestShare};
use protocol::{Bytes, Command, Event};

use crate::engine::session::{
    ExecutorListener, ExecutorProgram, Interrupts, Session, SessionError,
};
use crate::engine::settling::settle;
use crate::inventory::HostFacts;
use crate::self_test::ToTest;

/// Executors that share a test, at most.
const TESTERS_MAX: u64 = 8;

/// The host's memory that an executor with a GPU's context takes (docs/gpu-runs.md).
const TESTER_RAM: Bytes = Bytes::mib(512);

/// A part of the host's available memory that all of them may take.
const RAM_PART: u64 = 4;

/// What a test takes of a GPU beside the context: values and weights of its largest case.
const TESTED_BYTES: Bytes = Bytes::mib(16);

/// Has executors test GPUs: the session's own, and others that end with the test.
///
/// # Errors
/// The failure of the session's executor.
pub fn test(
    session: &mut Session,
    to_test: &ToTest,
    host: &HostFacts,
) -> Result<SelfTest, SessionError> {
    let count = count(&to_test.devices, host);
    let threads = (host.cores / count as usize).max(1) as u32;
    let command = |index| Command::SelfTest {
        devices: to_test.devices.clone(),
        threads,
        share: SelfTestShare { index, count },
    };
    let program = session.executor_program().clone();
    let helpers = Helpers::default();
    std::thread::scope(|scope| {
        let others = (1..count).map(|index| {
            let (command, program, helpers) = (command(index), &program, helpers.clone());
            (index, scope.spawn(move || help(program, helpers, command)))
        });
        let others: Vec<_> = others.collect();
        let mut found = ask(session, command(0));
        if found.is_err() {
            helpers.end();
        }
        for (index, other) in others {
            let of_share = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let Ok(whole) = &mut found else { continue };
            let of_share = of_share.or_else(|error| {
                tracing::debug!("a helper of the self-test: {error}");
                ask(session, command(index))
            });
            match of_share {
                Ok(of_share) => whole.add(of_share),
                Err(error) => {
                    helpers.end();
                    found = Err(error);
                }
            }
        }
        found
    })
}

/// How many executors share a test: one a core, as memory allows.
fn count(devices: &[CalibrationDevice], host: &HostFacts) -> u32 {
    let contexts = devices
        .iter()
        .map(|device| device.budget_bytes.0 / (device.overhead_bytes + TESTED_BYTES).0);
    let in_ram = host.available_bytes.0 / RAM_PART / TESTER_RAM.0;
    let least = contexts.chain([host.cores as u64, in_ram, TESTERS_MAX]).min();
    least.unwrap_or(1).max(1) as u32
}

/// Starts an executor that computes a share, and ends it, until what it had of GPUs is free.
fn help(
    program: &ExecutorProgram,
    helpers: Helpers,
    command: Command,
) -> Result<SelfTest, SessionError> {
    let mut session = Session::start(program, helpers)?;
    let found = ask(&mut session, command);
    let pid = session.pid();
    session.end();
    settle(pid);
    found
}

fn ask(session: &mut Session, command: Command) -> Result<SelfTest, SessionError> {
    session.ask("SelfTest", command, |event| match event {
        Event::SelfTested(found) => Ok(*found),
        other => Err(other),
    })
}

/// The ways to end the helpers of a test. Of their executors nobody else hears.
#[derive(Clone, Default)]
struct Helpers(Arc<Mutex<Interrupted>>);

/// Whether helpers are to end, and those that run.
#[derive(Default)]
struct Interrupted {
    is_over: bool,
    running: Vec<Interrupts>,
}

impl Helpers {
    fn state(&self) -> MutexGuard<'_, Interrupted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends those that run, and those that are about to start.
    fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        for interrupts in state.running.drain(..) {
            // One that has ended needs none.
            let _ = interrupts.ask_for_end();
        }
    }
}

impl ExecutorListener for Helpers {
    fn starting(&mut self, interrupts: Interrupts) {
        let mut state = self.state();
        if state.is_over {
            let _ = interrupts.ask_for_end();
        } else {
            state.running.push(interrupts);
        }
    }

    fn started(&mut self, _: u32) {}

    fn died(&mut self, _: &SessionError) {}

    fn silent(&mut self, _: u64) {}

    fn answers(&mut self) {}
}

#[cfg(test)]
mod tests {
    use protocol::DeviceId;
    use protocol::plan::{CUDA_STAGING_BYTES, DeviceBackend};

    use super::super::retry::tests::request;
    use super::*;

    fn count_of(gpu_budgets_mib: &[u64], cores: usize, available: Bytes) -> u32 {
        let gpu = |&mib: &u64| CalibrationDevice {
            id: DeviceId("cuda0".to_owned()),
            backend: DeviceBackend::Cuda { uuid: None, unsupported: Vec::new() },
            budget_bytes: Bytes::mib(mib),
            overhead_bytes: Bytes::mib(384),
            pinned_bytes: CUDA_STAGING_BYTES,
        };
        let devices: Vec<CalibrationDevice> = gpu_budgets_mib.iter().map(gpu).collect();
        let host = HostFacts { cores, available_bytes: available, ..request().inventory.host };
        count(&devices, &host)
    }

    #[test]
    fn executors_share_a_test_as_far_as_cores_and_memory_go() {
        assert_eq!(count_of(&[8000], 16, Bytes::gib(64)), 8);
        assert_eq!(count_of(&[8000], 6, Bytes::gib(64)), 6);
        assert_eq!(count_of(&[8000, 1300], 16, Bytes::gib(64)), 3);
        assert_eq!(count_of(&[8000], 16, Bytes::gib(8)), 4);
        // One tests whatever there is.
        assert_eq!(count_of(&[300], 16, Bytes::gib(64)), 1);
        assert_eq!(count_of(&[8000], 16, Bytes::mib(100)), 1);
    }
}
