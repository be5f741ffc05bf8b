//! The daemon's main loop: everything that happens comes by one queue, the desk says what is to be
//! done, and each of its actions is handed to the thread that does it.
//!
//! ```text
//! start: store ─► files ─► models ─► runners, surveyor, watch ─► desk ─► edge listens ─► READY
//! loop:  event, or the timer ─► Desk::step ─► actions, in order
//! end:   Action::Exit ─► edge ─► runners and surveyor ─► files ─► store
//! ```
//! Invariants: no action waits for anything; what an action makes happen comes back as an event. A
//! second daemon on the same directory is refused before anything is touched.

mod reading;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use protocol::PROTOCOL_VERSION;
use sd_notify::NotifyState;

use super::catalog::Catalog;
use super::config::{ConfigError, ServeConfig};
use super::desk::Desk;
use super::desk::action::Action;
use super::desk::event::{DeskEvent, Now, OperatorSignal};
use super::edge::{self, EdgeHandle};
use super::files::PictureFiles;
use super::metrics::Metrics;
use super::runner::Runners;
use super::shared::ServedHost;
use super::store::{self, JobStore, Restored};
use super::surveyor::Surveyor;
use super::watch::{HostReading, HostWatch};
use crate::engine::host::Host;
use crate::engine::lanes::Lanes;
use crate::engine::session::ExecutorProgram;

/// The longest sleep of the loop: the watch's readings are taken up as often.
const TICK: Duration = Duration::from_secs(1);

/// How long answers that are under way may take at the end.
const ANSWERS_GRACE: Duration = Duration::from_secs(2);

/// How long executors may take to be gone at the end: a word and 5 s, then by force.
const EXECUTORS_GRACE: Duration = Duration::from_secs(8);

/// How long files and records that were ordered may take to be written at the end.
const WRITES_GRACE: Duration = Duration::from_secs(10);

/// What the daemon is started with.
pub struct ServeStart {
    /// What the operator sets.
    pub config: ServeConfig,
    /// Whether everybody may ask, wherever it listens.
    pub no_token: bool,
    /// Reads the configuration again.
    pub reload: Box<dyn Fn() -> Result<ServeConfig, ConfigError>>,
    /// The machine.
    pub host: Host,
    /// How executors are started.
    pub program: ExecutorProgram,
    /// Where jobs and pictures are kept.
    pub state: PathBuf,
    /// The desk's queue, to which signals come too.
    pub queue: (Sender<DeskEvent>, Receiver<DeskEvent>),
}

/// Serves until it is to end; the exit code then.
///
/// # Errors
/// It cannot be started: another daemon has the directory, or the address, or something that is
/// configured is not there.
pub fn run(start: ServeStart) -> Result<ExitCode> {
    let (mut daemon, events) = Daemon::open(start)?;
    let code = daemon.serve(&events);
    daemon.close();
    Ok(ExitCode::from(code))
}

/// The threads and the desk.
struct Daemon {
    started: Instant,
    desk: Desk,
    edge: EdgeHandle,
    metrics: Arc<Metrics>,
    store: JobStore,
    files: PictureFiles,
    runners: Runners,
    surveyor: Surveyor,
    watch: HostWatch,
    catalog: Catalog,
    shared: Arc<ServedHost>,
    config: ServeConfig,
    reload: Box<dyn Fn() -> Result<ServeConfig, ConfigError>>,
    /// When the timer rings.
    wake_at: Option<Instant>,
    /// How often descriptions had changed when the edge was last told of them.
    descriptions: u64,
    watchdog: Option<Duration>,
    /// The machine's lanes, as the desk last heard of them.
    lanes: Lanes,
}

impl Daemon {
    fn open(start: ServeStart) -> Result<(Daemon, Receiver<DeskEvent>)> {
        let ServeStart { config, no_token, reload, mut host, program, state, queue } = start;
        host.conditioning_cache = config.conditioning_cache;
        let (sender, events) = queue;
        let started = Instant::now();
        let (store, restored) = store::open(&state, sender.clone())?;
        for told in restored.damaged.iter().chain(&restored.unread) {
            eprintln!("berth: {told}");
            let _ = sender.send(DeskEvent::Warned(told.clone()));
        }
        let files = PictureFiles::open(&state, sender.clone())
            .with_context(|| format!("cannot make the folders in {}", state.display()))?;
        sweep(&files, &restored);
        let shared = Arc::new(ServedHost::new(host, config.policy.clone(), program));
        let catalog = Catalog::open(&config, Arc::clone(&shared), sender.clone());
        let catalog = catalog.map_err(|error| anyhow!(error))?;
        for problem in catalog.now().problems() {
            eprintln!("berth: {problem}");
        }
        let metrics = Arc::new(Metrics::new(PROTOCOL_VERSION));
        let records = store.reader();
        let edge = settings::edge_config(&config, no_token, &files, records, &catalog, &metrics);
        let edge = edge::start(edge, sender.clone())?;
        let runners = Runners::new(Arc::clone(&shared), sender.clone());
        let surveyor = Surveyor::start(Arc::clone(&shared), sender)?;
        let watch = HostWatch::start(Arc::clone(&shared), catalog.clone())?;
        let unix_ms = unix_ms();
        let removed = restored.removed.into_iter().map(|id| (id, unix_ms)).collect();
        let limits = settings::desk_config(&config);
        let now = Now { ms: 0, unix_ms };
        let (desk, actions) = Desk::new(limits, restored.settings, restored.records, removed, now);
        let mut daemon = Daemon {
            started,
            desk,
            edge,
            metrics,
            store,
            files,
            runners,
            surveyor,
            watch,
            catalog,
            shared,
            config,
            reload,
            wake_at: None,
            descriptions: u64::MAX,
            watchdog: sd_notify::watchdog_enabled(),
            lanes: Lanes::default(),
        };
        daemon.show_models();
        for action in actions {
            daemon.carry_out(action);
        }
        Ok((daemon, events))
    }

    /// The loop; the exit code that ends it.
    fn serve(&mut self, events: &Receiver<DeskEvent>) -> u8 {
        println!("berth serve: listening on {}", self.edge.listening());
        notify(&[NotifyState::Ready]);
        loop {
            let event = match events.recv_timeout(self.sleep()) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the threads that send live as long as this loop")
                }
            };
            if let Some(event) = event
                && let Some(code) = self.happened(event)
            {
                return code;
            }
            if self.wake_at.is_some_and(|at| Instant::now() >= at) {
                self.wake_at = None;
                if let Some(code) = self.happened(DeskEvent::Rang) {
                    return code;
                }
            }
            if let Some(code) = self.look_around() {
                return code;
            }
        }
    }

    /// How long nothing has to be done that nobody tells of.
    fn sleep(&self) -> Duration {
        let until_wake = self.wake_at.map(|at| at.saturating_duration_since(Instant::now()));
        let watchdog = self.watchdog.map(|every| every / 2);
        until_wake.into_iter().chain(watchdog).fold(TICK, Duration::min)
    }

    /// Takes up what other threads have found; an exit code ends the loop.
    fn look_around(&mut self) -> Option<u8> {
        if self.watchdog.is_some() {
            notify(&[NotifyState::Watchdog]);
        }
        let mut code = None;
        for HostReading { shown, free, lanes } in self.watch.readings().collect::<Vec<_>>() {
            self.metrics.devices(&reading::memory(&shown));
            self.metrics.host(&reading::host(&shown));
            self.edge.set_reading(shown);
            if self.lanes != lanes {
                self.lanes = lanes.clone();
                code = code.or(self.happened(DeskEvent::Lanes(lanes)));
            }
            if let Some(free) = free.filter(|free| !free.is_empty()) {
                code = code.or(self.happened(DeskEvent::Free(free)));
            }
            if let Ok(free) = self.files.free_bytes() {
                code = code.or(self.happened(DeskEvent::DiskFree(free)));
            }
        }
        if self.descriptions != self.shared.descriptions() {
            self.show_models();
        }
        code
    }

    /// One thing that happened, and all that is to be done for it; an exit code ends the loop.
    fn happened(&mut self, event: DeskEvent) -> Option<u8> {
        match &event {
            DeskEvent::Signal(OperatorSignal::Reload) => {
                self.load_again();
                return None;
            }
            DeskEvent::Signal(OperatorSignal::Stop) => notify(&[NotifyState::Stopping]),
            DeskEvent::Models(_) => self.show_models(),
            DeskEvent::Asked { ticket, .. } => {
                self.edge.waited(*ticket).into_iter().for_each(|lag| self.metrics.event_lag(lag));
            }
            _ => {}
        }
        self.metrics.observe_event(&event);
        self.metrics.conditioning(self.shared.conditioning.figures());
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now = Now { ms, unix_ms: unix_ms() };
        let mut code = None;
        for action in self.desk.step(now, event) {
            self.metrics.observe_action(&action);
            code = code.or(self.carry_out(action));
        }
        code
    }

    /// Has an action done; the exit code where that is the daemon's end.
    fn carry_out(&mut self, action: Action) -> Option<u8> {
        match action {
            Action::Answer(ticket, reply) => self.edge.answer(ticket, reply),
            Action::Tell(note) => self.edge.tell(note),
            Action::Survey(query, order) => self.surveyor.quote(query, order),
            Action::Weigh(query, order) => self.surveyor.weigh(query, order),
            Action::Regain(query, order) => self.surveyor.regain(query, order),
            Action::Join(query, order) => self.surveyor.join(query, order),
            Action::Run(slot, epoch, order) => self.runners.run(slot, epoch, order),
            Action::Cancel(slot) => self.runners.cancel(slot),
            Action::End(slot, _) => self.runners.end(slot),
            Action::Store(write, change) => self.store.change(write, change),
            Action::File(order) => self.files.file(order),
            Action::Erase(record) => self.files.erase(record),
            Action::Wake(ms) => self.wake_at = Some(Instant::now() + Duration::from_millis(ms)),
            Action::Exit(code) => return Some(code),
        }
        None
    }

    /// Tells the edge of the models as they are known, and has the rest of them looked into.
    fn show_models(&mut self) {
        self.descriptions = self.shared.descriptions();
        let models = self.catalog.now();
        self.edge.set_settings(settings::edge_settings(&self.config, &models, &self.shared));
        if !self.shared.undescribed().is_empty() {
            self.surveyor.describe();
        }
    }

    /// Reads configuration and tokens again. What cannot be used leaves all as it was.
    fn load_again(&mut self) {
        notify(&[NotifyState::Reloading]);
        match (self.reload)() {
            Ok(config) => match self.catalog.configure(&config) {
                Ok(()) => {
                    self.config.model = config.model;
                    self.config.aliases = config.aliases;
                    self.config.models = config.models;
                    self.config.loras = config.loras;
                }
                Err(error) => eprintln!("berth: the models stay as they were: {error}"),
            },
            Err(error) => eprintln!("berth: the configuration stays as it was: {error}"),
        }
        if let Err(error) = self.edge.reload_tokens() {
            eprintln!("berth: the tokens stay as they were: {error}");
        }
        notify(&[NotifyState::Ready]);
    }

    /// Ends everything in order.
    fn close(self) {
        let Daemon { edge, runners, surveyor, files, store, .. } = self;
        edge.stop(ANSWERS_GRACE);
        runners.finish(EXECUTORS_GRACE);
        surveyor.finish(EXECUTORS_GRACE);
        if !files.settle(WRITES_GRACE) {
            eprintln!("berth: not all pictures were written in time");
        }
        if !store.close(WRITES_GRACE) {
            eprintln!("berth: not all of the job store was written in time");
        }
    }
}

/// Removes pictures of requests whose jobs are gone.
fn sweep(files: &PictureFiles, restored: &Restored) {
    let used =
        restored.records.iter().filter_map(|record| record.order.request.start.image.clone());
    if let Err(error) = files.sweep(&used.collect::<Vec<_>>()) {
        tracing::warn!(%error, "pictures of earlier requests are not removed");
    }
}

/// Tells systemd, where it listens.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd is not told");
    }
}

/// Milliseconds since 1970, by the system's clock.
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
