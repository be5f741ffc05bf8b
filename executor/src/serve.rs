//! The executor process: one owner of state, one loop over commands.
//!
//! ```text
//! planner ──commands──► reader thread ──► main loop ──events──► planner
//!                        │  Cancel sets the flag at once
//!                        └─ channel closed, or the planner's process ended: exit
//! ```
//! The executor holds no files of its own and no state worth saving, so the planner's death ends it
//! at once, wherever it is. So does a GPU whose context is broken, once the planner knows.

mod handed_over;
mod heartbeat;
mod opened;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ipc_channel::ipc::{self, IpcReceiver, IpcSender, IpcSharedMemory};
use protocol::calibration::CalibrationDevice;
use protocol::check;
use protocol::message::{Image, Output, Preview, Progress};
use protocol::notice::Notice;
use protocol::self_test::SelfTestShare;
use protocol::{
    Command, Embeddings, Event, Failure, FailureKind, GraphOptions, Handshake, JobShape,
    ModelProfile, ModelSource, PROTOCOL_VERSION, Phase, PieceSizes, Plan, UsageReport,
};

use crate::backend::cuda::cublas_told;
use crate::backend::{CancelFlag, Turn, heap, supported};
use crate::calibrate::calibrate;
use crate::failure::{bad_request, internal, refused};
use crate::families;
use crate::measure;
use crate::models::Model;
use crate::pipeline::{Observer, Picture};
use crate::runtime::{Runtime, verify};
use crate::self_test::{SHARES_MAX, program, self_test};
use heartbeat::Heartbeat;
use opened::OpenModels;

/// The planner is gone: nobody is left to tell.
const EXIT_ORPHANED: i32 = 3;

/// A GPU does nothing more for this process; the planner was told.
const EXIT_DEVICE_LOST: i32 = 4;

/// Runs the executor until the planner says goodbye or ends. Arguments: the name of the planner's
/// one-shot server, and its process id.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    // The planner refuses what makes no sense.
    let filter = tracing_subscriber::EnvFilter::try_from_env("BERTH_LOG").unwrap_or_default();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(false).init();
    let arguments: Vec<String> = arguments.collect();
    let [server, planner] = arguments.as_slice() else {
        eprintln!("berth-executor is started by berth; hint: run `berth generate`");
        return ExitCode::from(2);
    };
    match planner.parse().map_err(anyhow::Error::from).and_then(|planner| serve(server, planner)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-executor: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn serve(server: &str, planner: i32) -> anyhow::Result<()> {
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::debug!(version, pid, planner, "the executor begins");
    watch::exit_with(planner, EXIT_ORPHANED)?;
    let (command_sender, commands) = ipc::channel()?;
    let (events, event_receiver) = ipc::channel()?;
    IpcSender::connect(server.to_owned())?
        .send(Handshake { commands: command_sender, events: event_receiver })?;
    let (queue, queued) = channel();
    let previews = LentPreview::default();
    let taken = previews.clone();
    std::thread::Builder::new()
        .name("command-reader".to_owned())
        .spawn(move || read(&commands, &queue, &taken))?;
    let _heartbeat = Heartbeat::start(events.clone())?;
    let cancel = CancelFlag::default();
    Executor {
        events,
        cancel,
        previews,
        models: OpenModels::default(),
        last_model: measure::LastModel::default(),
        runtime: None,
        greeted: false,
        generation: 0,
    }
    .run(&queued);
    Ok(())
}

/// Passes commands on in order, each with a flag of its own. A cancel is not queued: it concerns
/// the command before it, which may run, wait, or have ended. Neither is what the planner says of a
/// running job's preview.
fn read(
    commands: &IpcReceiver<Command>,
    queue: &Sender<(Command, CancelFlag)>,
    previews: &LentPreview,
) {
    let mut last = CancelFlag::default();
    loop {
        match commands.recv() {
            Ok(Command::Cancel) => last.set(),
            Ok(Command::PreviewTaken) => previews.take_back(),
            Ok(command) => {
                last = CancelFlag::default();
                if queue.send((command, last.clone())).is_err() {
                    return;
                }
            }
            Err(_) => std::process::exit(EXIT_ORPHANED),
        }
    }
}

struct Executor {
    events: IpcSender<Event>,
    cancel: CancelFlag,
    previews: LentPreview,
    models: OpenModels,
    last_model: measure::LastModel,
    runtime: Option<Runtime>,
    greeted: bool,
    generation: u64,
}

impl Executor {
    fn run(&mut self, commands: &Receiver<(Command, CancelFlag)>) {
        while let Some((command, cancel)) = self.next(commands) {
            self.cancel = cancel;
            if matches!(command, Command::Bye) {
                tracing::debug!("the planner says goodbye");
                return;
            }
            let (name, begun) = (command.name(), Instant::now());
            tracing::debug!(command = name, "begins");
            let answer = self.answer(command).unwrap_or_else(Event::Failed);
            let ms = begun.elapsed().as_millis() as u64;
            tracing::debug!(command = name, answer = answer.name(), ms, "done");
            let ends = ends_process(&answer);
            self.send(answer);
            if ends {
                // Nothing is freed one by one: of a broken context a driver may wait for ever.
                std::process::exit(EXIT_DEVICE_LOST);
            }
        }
    }

    /// The next command; `None` when there is none any more. What the last one left is kept for the
    /// next one, and not for long.
    fn next(
        &mut self,
        commands: &Receiver<(Command, CancelFlag)>,
    ) -> Option<(Command, CancelFlag)> {
        match commands.recv_timeout(measure::FRESH) {
            Err(RecvTimeoutError::Timeout) => self.forget_last_model(),
            next => return next.ok(),
        }
        commands.recv().ok()
    }

    /// Lets the graphs of a plan go, and gives their memory back.
    fn forget_last_model(&mut self) {
        self.last_model = measure::LastModel::default();
        heap::give_back();
    }

    fn send(&self, event: Event) {
        if self.events.send(event).is_err() {
            std::process::exit(EXIT_ORPHANED);
        }
    }

    fn answer(&mut self, command: Command) -> Result<Event, Failure> {
        command.check_limits().map_err(bad_request)?;
        if !self.greeted && !matches!(command, Command::Hello { .. }) {
            return Err(bad_request("the first command is not Hello"));
        }
        if matches!(command, Command::Measure { .. } | Command::Size { .. }) {
            heap::keep_for_plans();
        }
        match command {
            Command::Hello { version, libraries } => self.hello(version, libraries),
            Command::Inspect { model, makes_tokenizers } => {
                let description = families::describe_source(&model, makes_tokenizers)?;
                Ok(Event::Inspected(Box::new(description)))
            }
            Command::Measure { model, job, options, pieces, threads } => {
                self.measure(&model, &job, &options, &pieces, threads)
            }
            Command::Size { model, job, options, threads, layouts } => {
                check_threads(threads)?;
                check::check_options(&options).map_err(bad_request)?;
                check::check_layouts(&layouts).map_err(bad_request)?;
                let known = self.last_model.of(&model, &options.loras);
                let model = self.models.sized(&model, &job, &options)?;
                let threads = threads as usize;
                let sizes = measure::sizes(&*model, &job, &options, threads, &layouts, known)?;
                Ok(Event::Sized(sizes))
            }
            Command::Verify { plan } => {
                check::check(&plan).map_err(refused)?;
                let model = self.models.sized(&plan.model, &plan.job, &plan.options)?;
                Ok(Event::Verified(verify(&plan, &*model)?))
            }
            Command::Calibrate { devices, threads, directory } => {
                self.calibrate(&devices, threads, &directory)
            }
            Command::SelfTest { devices, threads, share } => {
                self.self_test(&devices, threads, share)
            }
            Command::Load { plan, rehearse } => self.load(*plan, rehearse),
            Command::Generate { generation, job } => {
                let Some(runtime) = self.runtime.as_mut() else {
                    return Err(bad_request("no plan is loaded"));
                };
                if runtime.plan.generation != generation {
                    return Err(stale(generation, runtime.plan.generation));
                }
                let mut teller = EventSender { events: &self.events, previews: &self.previews };
                let done = families::generate(runtime, &job, &self.cancel, &mut teller);
                for path in runtime.watched.changed() {
                    self.send(Event::Notice(Notice::FileChanged { path }));
                }
                let usage = done?;
                self.send(Event::Usage(Box::new(usage)));
                Ok(Event::Done { generation })
            }
            Command::Unload => {
                self.runtime = None;
                Ok(Event::Unloaded)
            }
            Command::Cancel | Command::PreviewTaken | Command::Bye => {
                unreachable!("handled by the reader and the loop")
            }
        }
    }

    fn hello(&mut self, version: u32, libraries: bool) -> Result<Event, Failure> {
        if version != PROTOCOL_VERSION {
            let message = format!(
                "the planner speaks protocol {version}, this executor {PROTOCOL_VERSION}; hint: use both from one release"
            );
            return Err(Failure { kind: FailureKind::WrongVersion, message });
        }
        self.greeted = true;
        let (backends, why_no_cuda) = supported();
        let cublas = if libraries { cublas_told() } else { None };
        let program = if why_no_cuda.is_none() { program() } else { String::new() };
        Ok(Event::Hello { version: PROTOCOL_VERSION, backends, why_no_cuda, cublas, program })
    }

    fn measure(
        &mut self,
        model: &ModelSource,
        job: &JobShape,
        options: &GraphOptions,
        pieces: &[PieceSizes],
        threads: u32,
    ) -> Result<Event, Failure> {
        check_threads(threads)?;
        check::check_measured(options, pieces).map_err(bad_request)?;
        let notices = self.models.notices(model, options)?;
        let known = self.last_model.of(model, &options.loras);
        let model = self.models.sized(model, job, options)?;
        let options: Vec<GraphOptions> =
            pieces.iter().map(|sizes| options.in_pieces(*sizes)).collect();
        let profiles = measure::profiles(&*model, job, &options, threads as usize, known)?;
        let profiles = profiles.into_iter();
        let told = |profile| ModelProfile { notices: notices.clone(), ..profile };
        Ok(Event::Measured(profiles.map(told).collect()))
    }

    fn calibrate(
        &self,
        devices: &[CalibrationDevice],
        threads: u32,
        directory: &str,
    ) -> Result<Event, Failure> {
        check_threads(threads)?;
        check::check_calibration(devices).map_err(bad_request)?;
        if self.runtime.is_some() {
            return Err(bad_request(
                "a plan is loaded, beside which nothing can be measured; hint: unload it first",
            ));
        }
        let directory = Path::new(directory);
        let measured = calibrate(devices, threads as usize, directory, &self.cancel)?;
        Ok(Event::Calibrated(Box::new(measured)))
    }

    fn self_test(
        &self,
        devices: &[CalibrationDevice],
        threads: u32,
        share: SelfTestShare,
    ) -> Result<Event, Failure> {
        check_threads(threads)?;
        check::check_calibration(devices).map_err(bad_request)?;
        let SelfTestShare { index, count } = share;
        if index >= count || count > SHARES_MAX {
            return Err(bad_request(format!("share {index} of {count} of the self-test")));
        }
        let tested = self_test(devices, threads as usize, share, &self.cancel)?;
        Ok(Event::SelfTested(Box::new(tested)))
    }

    fn load(&mut self, plan: Plan, rehearse: bool) -> Result<Event, Failure> {
        if plan.generation <= self.generation {
            return Err(stale(plan.generation, self.generation));
        }
        self.generation = plan.generation;
        // Its graphs would be in RAM that the plan does not state.
        self.forget_last_model();
        // What the plan before held is free before this one allocates, unless it is kept.
        let before = self.runtime.take().filter(|_| plan.keeps_weights_of.is_some());
        let start = Instant::now();
        self.send(Event::Progress(Progress { phase: Phase::Load, step: 0, of: 1 }));
        check::check(&plan).map_err(refused)?;
        let mut runtime = match (plan.keeps_weights_of, before) {
            (Some(generation), None) => {
                return Err(refused(format!(
                    "it keeps the weights of generation {generation}, and no plan is loaded"
                )));
            }
            (Some(_), Some(before)) => {
                make_tokenizers(&plan, &*before.model)?;
                before.follow(plan, &self.cancel)?
            }
            (None, _) => {
                let model = self.models.loaded(&plan, &self.cancel)?;
                make_tokenizers(&plan, &*model)?;
                let watched = self.models.watched(&plan, &*model);
                self.send(Event::Files(watched.states()));
                let mut runtime = Runtime::load(plan, model, &self.cancel)?;
                runtime.watched = watched;
                runtime
            }
        };
        self.send(Event::Progress(Progress { phase: Phase::Load, step: 1, of: 1 }));
        let mut usage = UsageReport::default();
        if rehearse {
            runtime.rehearse(&self.cancel)?;
            let total_ms = start.elapsed().as_secs_f64() * 1e3;
            usage = runtime.report(total_ms);
        }
        self.runtime = Some(runtime);
        Ok(Event::Loaded(Box::new(usage)))
    }
}

/// Whether this process can do nothing more with a GPU after this answer.
fn ends_process(answer: &Event) -> bool {
    let Event::Failed(failure) = answer else { return false };
    matches!(failure.kind, FailureKind::DeviceLost { .. })
}

/// Makes the tokenizers of a plan's model before anything is loaded, unless its jobs bring what
/// these are for.
fn make_tokenizers(plan: &Plan, model: &dyn Model) -> Result<(), Failure> {
    if !plan.job.conditioned {
        model.make_tokenizers()?;
    }
    Ok(())
}

fn check_threads(threads: u32) -> Result<(), Failure> {
    let known = (1..=protocol::limits::THREADS_MAX).contains(&threads);
    if known { Ok(()) } else { Err(bad_request(format!("{threads} threads"))) }
}

fn stale(got: u64, current: u64) -> Failure {
    let message = format!("generation {got} is stale, {current} is current");
    Failure { kind: FailureKind::StaleGeneration, message }
}

/// The turn of the running job's preview, where the reader finds it.
#[derive(Clone, Default)]
struct LentPreview(Arc<Mutex<Turn>>);

impl LentPreview {
    fn set(&self, turn: Turn) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = turn;
    }

    fn take_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take_back();
    }
}

/// Tells the planner of a running job.
struct EventSender<'a> {
    events: &'a IpcSender<Event>,
    previews: &'a LentPreview,
}

impl EventSender<'_> {
    fn tell(&self, event: Event) {
        // A closed channel ends the process by its reader thread.
        if let Err(error) = self.events.send(event) {
            tracing::warn!(%error, "an event did not reach the planner");
        }
    }
}

impl Observer for EventSender<'_> {
    fn progress(&mut self, progress: Progress) {
        self.tell(Event::Progress(progress));
    }

    fn notice(&mut self, notice: Notice) {
        self.tell(Event::Notice(notice));
    }

    fn previews(&mut self, turn: Turn) {
        self.previews.set(turn);
    }

    fn preview(&mut self, [width, height]: [u32; 2], pixels: IpcSharedMemory) {
        self.tell(Event::Preview(Preview { width, height, pixels }));
    }

    fn picture(&mut self, picture: Picture<'_>) -> Result<(), Failure> {
        let Picture { index, seed, width, height, pixels } = picture;
        let pixels = handed_over::shared("a picture's copy for the planner", pixels)?;
        let image = Image { index, seed, width, height, pixels };
        self.events.send(Event::Output(Output::Picture(image))).map_err(internal)
    }

    fn conditioned(&mut self, embeddings: Embeddings) {
        self.tell(Event::Conditioned(embeddings));
    }

    fn tensors(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let tensors = handed_over::shared("the tensors' copy for the planner", bytes)?;
        self.tell(Event::Tensors(tensors));
        Ok(())
    }
}
