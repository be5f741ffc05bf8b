//! The daemon that a command asks, and `berth generate` on it.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use super::confirm::Confirm;
use super::interrupt;
use super::listen::Terminal;
use super::outputs::PictureFormats;
use crate::client::events::ClientEvent;
use crate::client::job::{self, RemoteJob};
use crate::client::{ClientError, DaemonClient};
use crate::job::infotext;
use crate::job::{JobEvent, JobRequest};
use crate::output::Outputs;
use crate::policy::PolicyText;
use crate::preview::PreviewFile;
use crate::render::{self, document};

/// The variable with a client's token: an argument would be seen by all users of the machine.
const TOKEN: &str = "BERTH_TOKEN";

/// Where the daemon is.
#[derive(Debug, Args)]
pub struct ServerArguments {
    /// Have a daemon (`berth serve`) do it: its address, as http://127.0.0.1:8642. BERTH_TOKEN has
    /// the token where it wants one [default: no daemon]
    #[arg(long, value_name = "URL", env = "BERTH_SERVER", global = true)]
    pub server: Option<String>,
}

impl ServerArguments {
    /// The daemon, where one is named.
    pub fn daemon(&self) -> Result<Option<DaemonClient>> {
        let url = self.server.as_deref().filter(|url| !url.is_empty());
        url.map(daemon).transpose()
    }
}

/// The daemon at an address, with the user's token.
pub fn daemon(url: &str) -> Result<DaemonClient> {
    let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    Ok(DaemonClient::at(url, token)?)
}

/// An error for what is asked and is the daemon's own to decide.
pub fn check_request(request: &JobRequest) -> Result<()> {
    let without_loras = PolicyText { lora: None, ..request.policy.clone() };
    if without_loras != PolicyText::default() {
        bail!(
            "with --server, the daemon's own budgets and placement hold; hint: leave out --max-vram, --backend and \
             what else says where a job runs, or give it to `berth serve`"
        );
    }
    if request.start.latents.is_some() || request.dump_tensors {
        bail!(
            "--init-latents and --dump-tensors work on this machine's files; hint: leave out --server"
        );
    }
    Ok(())
}

/// The names of a daemon's models.
pub fn models(daemon: &DaemonClient) -> Result<Vec<String>> {
    let document = daemon.get("/v1/models")?;
    let models = document["data"].as_array().into_iter().flatten();
    Ok(models.filter_map(|model| model["id"].as_str().map(str::to_owned)).collect())
}

/// Warns of a job that the daemon will take long for, and asks where somebody is there, as before
/// one that runs here.
///
/// # Errors
/// It is not to run.
pub fn confirm(daemon: &DaemonClient, body: &Value, yes: bool) -> Result<()> {
    // What is wrong with a request is told when it is made.
    let Ok(document) = daemon.post("/v1/plan", body) else { return Ok(()) };
    let quote = &document["quote"];
    let ms = |name: &str| quote[name].as_f64().unwrap_or_default();
    match (Confirm { yes, told: false }).ask_for(ms("load_ms") + ms("run_ms")) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ClientError::Cancelled.into()),
    }
}

/// Where a job's pictures go, and how it is told.
pub struct Writing<'a> {
    /// How they are written.
    pub formats: &'a PictureFormats,
    /// Where they go: checked, and pipes are open.
    pub outputs: Outputs,
    /// The only one of the job that is wanted, from 0; `None` for all.
    pub position: Option<u32>,
    /// Whether a document is printed.
    pub json: bool,
}

/// Has a daemon make the pictures, and writes them as if they had been made here. `previews`:
/// what the first will be like is shown beside it.
pub fn generate(
    daemon: &DaemonClient,
    body: &Value,
    mut terminal: Terminal,
    previews: bool,
    writing: Writing<'_>,
) -> Result<()> {
    let Writing { formats, outputs, position, json } = writing;
    if previews {
        // Their size is known when the job is planned; whether they can be written, now.
        drop(PreviewFile::new(&outputs, [1, 1])?);
    }
    let (sender, events) = channel();
    let signals = sender.clone();
    interrupt::hand_over(Box::new(move |_| {
        // Where nobody listens any more, the pictures are being written.
        let _ = signals.send(ClientEvent::Interrupted);
    }));
    let mut hear = |event| {
        if let JobEvent::Planned { plan, .. } = &event
            && let Some(file) = previews
                .then(|| PreviewFile::new(&outputs, [plan.job.width, plan.job.height]).ok())
                .flatten()
        {
            terminal.set_preview(file);
        }
        terminal.hear(event)
    };
    let result = job::run(daemon, body, &mut hear, &sender, &events);
    interrupt::release();
    let RemoteJob { document, mut images, settings } = result?;
    let to_stderr = outputs.take_stdout();
    let indices: Vec<u32> = images.iter().map(|image| image.index).collect();
    images.retain(|image| position.is_none_or(|position| image.index == position));
    let pictures = formats.encode(&images, |image, quality| {
        let of_image = settings.iter().zip(&indices).find(|(_, index)| **index == image.index);
        let settings = of_image.map(|(settings, _)| settings.clone()).unwrap_or_default();
        infotext::write(&infotext::Settings { quality, ..settings })
    })?;
    let contents: Vec<&[u8]> = pictures.iter().map(Vec::as_slice).collect();
    let names = outputs.write(&contents, interrupt::hold)?;
    if json {
        let seeds: Vec<u64> = images.iter().map(|image| image.seed).collect();
        return document::print(&document::RemoteDocument { job: &document, images: names, seeds });
    }
    render::print_beside(to_stderr, &render::jobs::done(&document, &names))
}

/// Whether it is a signal that ended a job on a daemon.
pub fn is_cancelled(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Cancelled))
}

/// Whether a daemon says that nothing fits.
pub fn is_infeasible(error: &anyhow::Error) -> bool {
    let code = match error.downcast_ref() {
        Some(ClientError::Refused { code, .. }) => code.as_str(),
        _ => return false,
    };
    code == "does_not_fit"
}
