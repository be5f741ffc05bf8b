//! SIGINT, SIGTERM and SIGHUP, from the first moment of the program on: they cancel the session
//! that runs in order, or end the program where nobody listens. A second one ends it at once. The
//! exit code is 128 and the signal's number.
//!
//! ```text
//! Idle ──watch──► Running ──release──► Idle ──hold──► Writing      Idle ──hand_over──► Serving
//!  │ at once        │ cancelled                         │ when the files have their names
//!  ▼                ▼                                   ▼
//! exit          Cancelled in main                     done, with exit code 0
//! ```

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::engine::session::{Interrupts, folder};

/// How long a session may take to hear of a signal. It hears at once, unless the planner computes.
const HEARD_GRACE: Duration = Duration::from_millis(300);

/// How long an ended executor may take to be gone, and how long its planner waits for that.
const KILL_GRACE: Duration = Duration::from_millis(500);

/// How long finished files may take to get their names, and the summary to be told, once a signal
/// came: that may wait for its reader.
const WRITING_GRACE: Duration = Duration::from_millis(500);

/// How long the last folder and the last line may take: standard error may be a full pipe.
const LAST_GRACE: Duration = Duration::from_millis(200);

/// What shells add to a signal's number.
const EXIT_OF_SIGNALS: i32 = 128;

/// What a signal is to do.
static STATE: Mutex<State> = Mutex::new(State::Idle);

/// Wakes who waits for [`STATE`] to change.
static CHANGED: Condvar = Condvar::new();

/// The first signal's number; 0 where none came.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Whether the end was told.
static TOLD: AtomicBool = AtomicBool::new(false);

enum State {
    /// Nothing runs that would need an order to end in.
    Idle,
    Running(Interrupts),
    /// Finished files are about to get their names: all of them, or none.
    Writing,
    /// A daemon runs, which is told of every signal and ends by itself.
    Serving(SignalHandler),
}

/// Hears of a signal by its number. It must not wait.
pub type SignalHandler = Box<dyn Fn(i32) + Send>;

/// Listens for signals, in this process, from now on.
///
/// # Errors
/// The system does not let it.
pub fn install() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    // Who ignores it, as `nohup` does, wants the job to go on.
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    let listen = move || {
        for signal in signals.forever() {
            receive(signal);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(())
}

/// From now on this session is cancelled.
pub fn watch(interrupts: Interrupts) {
    set(State::Running(interrupts));
}

/// From now on every signal is this handler's, for the rest of the program's life.
pub fn hand_over(handler: SignalHandler) {
    set(State::Serving(handler));
}

/// From now on no session runs: a signal ends the program.
pub fn release() {
    set(State::Idle);
}

/// From now on nothing is cancelled: finished files get their names.
pub fn hold() {
    set(State::Writing);
}

/// Tells on standard error that a signal ended the job, and gives the exit code of that.
pub fn cancelled() -> ExitCode {
    tell();
    ExitCode::from(exit_code() as u8)
}

fn exit_code() -> i32 {
    // Only a signal cancels; SIGINT's is the code where none was noted.
    let signal = SIGNAL.load(Ordering::SeqCst);
    EXIT_OF_SIGNALS + if signal == 0 { SIGINT } else { signal }
}

fn tell() {
    if !TOLD.swap(true, Ordering::SeqCst) {
        eprintln!("berth: cancelled");
    }
}

fn set(state: State) {
    *lock() = state;
    CHANGED.notify_all();
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one signal does, on the signals' thread.
fn receive(signal: i32) {
    let is_first = SIGNAL.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let state = lock();
    match &*state {
        State::Serving(tell) => tell(signal),
        State::Idle => end(None),
        State::Running(interrupts) => {
            let interrupts = interrupts.clone();
            drop(state);
            if !(is_first && interrupts.interrupt(HEARD_GRACE)) {
                end(Some(&interrupts));
            }
        }
        State::Writing => {
            if is_first {
                // It ends with the process, where nothing waits.
                let is_writing = |state: &mut State| matches!(state, State::Writing);
                drop(CHANGED.wait_timeout_while(state, WRITING_GRACE, is_writing));
            }
            end(None);
        }
    }
}

/// Ends the process at once, its executor first.
fn end(executor: Option<&Interrupts>) -> ! {
    if let Some(executor) = executor {
        executor.kill(KILL_GRACE);
    }
    let (sender, done) = channel();
    let last_things = move || {
        folder::remove();
        tell();
        // Nobody waits for it any more where it took too long.
        let _ = sender.send(());
    };
    if std::thread::Builder::new().spawn(last_things).is_ok() {
        let _ = done.recv_timeout(LAST_GRACE);
    }
    // Without a last flush of standard output, which may wait for a reader.
    low_level::exit(exit_code())
}

/// Whether this process was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
