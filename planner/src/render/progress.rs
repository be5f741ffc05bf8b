//! Progress on standard error: a bar on a terminal; elsewhere a line for each tenth of a job that
//! lasts; with `--verbose` a line for each step in place of both.
//!
//! ```text
//! planned ──► clock thread: looks after FIRST_BAR or FIRST_LINE, ──┐
//!             then every LOOKS_EVERY                               ├─► Shown, behind a lock
//! progress ────────────────────────────────────────────────────────┘
//! ```
//! The thread ends with the job. Nothing is drawn or told before its first look, so that short jobs
//! show nothing.

mod estimate;

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use protocol::message::Progress;
use protocol::{Phase, Plan};

use self::estimate::{Estimate, shown_left};
use super::notices::sentence;
use crate::job::JobEvent;
use crate::solve::shown_ms;

/// When a bar first shows: what is done by then needs none, and would only flash.
const FIRST_BAR: Duration = Duration::from_millis(200);

/// When the first line is told where there is no terminal: a script's short jobs stay silent.
const FIRST_LINE: Duration = Duration::from_secs(2);

/// How often the time left is looked at between the executor's steps, which may last minutes.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// What must be left of a job for its first line to be worth it.
const LEFT_MS_MIN: f64 = 1000.0;

/// Shows a running job on standard error.
pub struct ProgressLine {
    shown: Arc<Mutex<ProgressDisplay>>,
    clock: Option<Clock>,
    verbose: bool,
    tells_time: bool,
    /// Whether the first plan's notices were told.
    noticed: bool,
}

impl ProgressLine {
    /// A bar on a terminal, lines for all steps where `verbose`.
    pub fn new(verbose: bool) -> ProgressLine {
        let terminal = stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let job = None;
        ProgressLine {
            shown: Arc::new(Mutex::new(ProgressDisplay { bar, terminal, visible: false, job })),
            clock: None,
            verbose,
            tells_time: false,
            noticed: false,
        }
    }

    /// What tells of the executors beside the bar.
    pub fn executors(&self) -> ExecutorLines {
        ExecutorLines { shown: Arc::clone(&self.shown), verbose: self.verbose }
    }

    /// From now on also tells how long a job will take: for jobs whose plan is carried out whole.
    pub fn tell_time(&mut self) {
        self.tells_time = !self.verbose;
    }

    /// Shows one thing that happened to the job.
    pub fn show(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Planned { plan, report } => self.planned(plan, &report.notices),
            JobEvent::Progress(progress) => {
                let Progress { phase, step, of } = progress;
                self.line(&format!("{phase} {step}/{of}"));
                lock(&self.shown).progress(*progress);
            }
            JobEvent::Ended { .. } => self.clear(),
            event => tell_beside(&self.shown, event, self.verbose),
        }
    }

    fn planned(&mut self, plan: &Plan, notices: &[String]) {
        if !std::mem::replace(&mut self.noticed, true) {
            lock(&self.shown).bar.suspend(|| super::tell(notices));
        }
        let total = shown_ms(plan.predicted_ms.total);
        self.line(&format!("plan {} predicts {total}", plan.generation));
        if !self.verbose {
            self.clock = None;
            lock(&self.shown).begin(JobProgress::new(plan, self.tells_time));
            self.clock = Some(Clock::start(Arc::clone(&self.shown)));
        }
    }

    /// Removes the bar. Nothing is shown after this.
    fn clear(&mut self) {
        self.clock = None;
        lock(&self.shown).bar.finish_and_clear();
    }

    fn line(&self, text: &str) {
        if self.verbose {
            eprintln!("berth: {text}");
        }
    }
}

/// Tells of a session's executors on standard error.
pub struct ExecutorLines {
    shown: Arc<Mutex<ProgressDisplay>>,
    verbose: bool,
}

impl ExecutorLines {
    /// Tells of one thing that happened to an executor.
    pub fn show(&self, event: &JobEvent) {
        tell_beside(&self.shown, event, self.verbose);
    }
}

/// Tells on standard error, above the bar, of what people should know.
fn tell_beside(shown: &Mutex<ProgressDisplay>, event: &JobEvent, verbose: bool) {
    let text = match event {
        JobEvent::ExecutorStarted { pid } if verbose => format!("executor {pid} started"),
        JobEvent::ExecutorDied { because } => {
            format!("{because}\nberth: trying again with a new executor")
        }
        JobEvent::ExecutorSilent { seconds } => {
            format!("the executor has not answered for {seconds} s")
        }
        JobEvent::ExecutorAnswers => "the executor answers again".to_owned(),
        JobEvent::Noticed { notice } => sentence(notice),
        JobEvent::Retrying { because, .. } => {
            format!("{because}\nberth: trying again with a new plan")
        }
        JobEvent::NotLearned { because } => {
            format!("nothing is learned from this run: {because}")
        }
        _ => return,
    };
    lock(shown).bar.suspend(|| eprintln!("berth: {text}"));
}

/// What is shown of the job, and what of it is known.
struct ProgressDisplay {
    bar: ProgressBar,
    terminal: bool,
    visible: bool,
    job: Option<JobProgress>,
}

/// The job that runs.
struct JobProgress {
    start: Instant,
    steps: u32,
    /// How long it will take, where that is told.
    estimate: Option<Estimate>,
    now: Progress,
    /// Tenths of it that were told, the first one as 0.
    told: Option<u32>,
}

impl JobProgress {
    fn new(plan: &Plan, tells_time: bool) -> JobProgress {
        JobProgress {
            start: Instant::now(),
            steps: plan.job.calls_run(),
            estimate: tells_time.then(|| Estimate::of(plan)),
            now: Progress { phase: Phase::Load, step: 0, of: 1 },
            told: None,
        }
    }

    fn now_ms(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e3
    }

    /// Steps done and in all, where there are several.
    fn steps(&self) -> Option<[u32; 2]> {
        let Progress { phase, step, of } = self.now;
        let of = if phase == Phase::Denoise { self.steps } else { of };
        (of > 1).then_some([step, of])
    }

    fn left(&self) -> Option<String> {
        self.estimate.as_ref().map(|estimate| shown_left(estimate.left_ms(self.now_ms())))
    }

    /// The next line: `denoise 14/28, 50 %, about 3 min left`, once for each tenth.
    fn line(&mut self) -> Option<String> {
        let now_ms = self.now_ms();
        let estimate = self.estimate.as_ref()?;
        let (part, left_ms) = (estimate.part(now_ms), estimate.left_ms(now_ms));
        let tenth = (part * 10.0) as u32;
        let is_first = self.told.is_none();
        if now_ms < FIRST_LINE.as_secs_f64() * 1e3
            || is_first && left_ms < LEFT_MS_MIN
            || self.told.is_some_and(|told| tenth <= told)
            || tenth >= 10
        {
            return None;
        }
        self.told = Some(tenth);
        let steps = self.steps().map(|[step, of]| format!(" {step}/{of}")).unwrap_or_default();
        let percent = part * 100.0;
        Some(format!("{}{steps}, {percent:.0} %, {}", self.now.phase, shown_left(left_ms)))
    }
}

impl ProgressDisplay {
    /// Another job, or another attempt at one, of which nothing is to be seen yet.
    fn begin(&mut self, job: JobProgress) {
        self.bar.finish_and_clear();
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
        self.bar.reset();
        (self.visible, self.job) = (false, Some(job));
    }

    fn progress(&mut self, progress: Progress) {
        let Some(job) = &mut self.job else { return };
        job.now = progress;
        let now_ms = job.now_ms();
        if let Some(estimate) = &mut job.estimate {
            estimate.note(progress, now_ms);
        }
        self.look();
    }

    /// The clock's first look: from now on there is something to see.
    fn reveal(&mut self) {
        self.visible = true;
        if self.terminal {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.look();
    }

    /// Brings what is shown up to the present.
    fn look(&mut self) {
        let Some(job) = self.job.as_mut().filter(|_| self.visible) else { return };
        if !self.terminal {
            if let Some(line) = job.line() {
                eprintln!("berth: {line}");
            }
            return;
        }
        let steps = job.steps();
        let left = job.left();
        let mut template = String::from("{prefix:>9}");
        template += if steps.is_some() { " [{bar:30}] {pos}/{len}" } else { "" };
        template += if left.is_some() { ", {msg}" } else { "" };
        let style = ProgressStyle::with_template(&template).expect("the template is well-formed");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.set_prefix(job.now.phase.name());
        self.bar.set_message(left.unwrap_or_default());
        let [step, of] = steps.unwrap_or([0, 1]);
        self.bar.set_length(u64::from(of));
        self.bar.set_position(u64::from(step));
        self.bar.tick();
    }
}

/// A thread that looks at the clock while a job runs; ended by dropping it.
struct Clock {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Clock {
    fn start(shown: Arc<Mutex<ProgressDisplay>>) -> Clock {
        let (stop, stopped) = channel::<()>();
        let mut wait = if lock(&shown).terminal { FIRST_BAR } else { FIRST_LINE };
        let look = move || {
            let mut first = true;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let mut shown = lock(&shown);
                if first {
                    shown.reveal()
                } else {
                    shown.look()
                }
                (first, wait) = (false, LOOKS_EVERY);
            }
        };
        // Without a thread nothing is shown, and the job is none the worse.
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(look).ok();
        Clock { stop: Some(stop), thread }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told when it happened.
            let _ = thread.join();
        }
    }
}

fn lock(shown: &Mutex<ProgressDisplay>) -> MutexGuard<'_, ProgressDisplay> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}
