//! A job on a daemon, from its request to its pictures, told as the events of one that runs here.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::{Image, Progress};
use protocol::{Phase, Plan};
use serde_json::{Map, Value, json};

use super::events::{ClientEvent, follow};
use super::{ClientError, DaemonClient};
use crate::engine::events::EventHandler;
use crate::job::infotext::{self, Settings};
use crate::job::model::ModelName;
use crate::job::seed::Seed;
use crate::job::{JobEvent, JobRequest};
use crate::media::picture::Picture;
use crate::policy::lora::parse_loras;
use crate::solve::PlanReport;

/// How long the daemon may be silent: it pings every 10 s.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a daemon that went may take to be back: a restart.
const LOST: Duration = Duration::from_secs(60);

/// Between two tries to find it again.
const RETRY_EVERY: Duration = Duration::from_millis(500);

/// A job that a daemon did.
#[derive(Debug)]
pub struct RemoteJob {
    /// What the daemon says of it.
    pub document: Value,
    /// Its pictures in order.
    pub images: Vec<Image>,
    /// How each was made.
    pub settings: Vec<Settings>,
}

/// The document of a request, as the daemon's route for jobs takes it.
///
/// # Errors
/// The picture to start from cannot be read, a LoRA is not named as it must be, or the model is
/// named by files of parts.
pub fn body(request: &JobRequest) -> anyhow::Result<Value> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.to_owned(), value);
        }
    };
    set("model", model(&request.model)?);
    set("prompt", json!(request.prompts.prompt));
    set("prompt_2", json!(request.prompts.prompt_2));
    set("negative_prompt", json!(request.prompts.negative_prompt));
    let shape = &request.shape;
    set("width", json!(shape.width));
    set("height", json!(shape.height));
    set("steps", json!(shape.steps));
    set("n", json!(shape.batch));
    set("max_sequence_length", json!(shape.max_sequence_length));
    let guidance = &request.guidance;
    set("guidance_scale", json!(guidance.guidance_scale));
    set("true_cfg_scale", json!(guidance.true_cfg_scale));
    set("cfg_scale", json!(guidance.cfg_scale));
    if guidance.cfg_normalization {
        set("cfg_normalization", json!(true));
    }
    // One that is not given is drawn by the daemon.
    if let Some(Seed::Given(seed)) = request.seed {
        set("seed", json!(seed));
    }
    set("sampler", request.sampler.map_or(Value::Null, |sampler| json!(sampler)));
    set("scheduler", request.scheduler.map_or(Value::Null, |table| json!(table)));
    set("sigmas", json!(request.sigmas));
    set("eta", json!(request.eta));
    set("strength", json!(request.start.strength));
    if let Some(path) = &request.start.image {
        set("image", json!(base64::encode(Picture::open(path)?.bytes())));
    }
    set("preview_every", json!(request.preview_every));
    if let Some(loras) = &request.policy.lora {
        let loras = parse_loras(loras)?;
        let named = loras.iter().map(|lora| json!({"name": lora.path, "weight": lora.weight}));
        set("lora", Value::Array(named.collect()));
    }
    // Somebody waits for it.
    set("priority", json!("interactive"));
    Ok(Value::Object(body))
}

/// The daemon's name of a model.
fn model(name: &ModelName) -> anyhow::Result<Value> {
    match name {
        ModelName::Name(name) => Ok(json!(name)),
        ModelName::Files(source) if source.parts.is_empty() => Ok(json!(source.model)),
        ModelName::Files(_) => anyhow::bail!(
            "a daemon knows its models by their names, not by files of parts; hint: `berth jobs models` lists them"
        ),
    }
}

/// Has a job done. `hear` hears of it as of one that runs here. What happens to the job comes by
/// `events`, and so does [`ClientEvent::Interrupted`] where the user asks for the end; `sender` is
/// its other end.
///
/// # Errors
/// The daemon refuses it, it fails, or the daemon is lost.
pub fn run(
    daemon: &DaemonClient,
    body: &Value,
    hear: &mut EventHandler<'_>,
    sender: &Sender<ClientEvent>,
    events: &Receiver<ClientEvent>,
) -> Result<RemoteJob, ClientError> {
    let accepted = daemon.post("/v1/jobs", body)?;
    let id = accepted["id"].as_str().ok_or_else(|| daemon.strange("a job without id".into()))?;
    let notices = accepted["notices"].as_array().into_iter().flatten();
    for notice in notices.filter_map(Value::as_str) {
        tracing::warn!("{notice}");
    }
    let mut following = Following { daemon, id, sender, events, seen: None, hear };
    let document = following.follow_to_end()?;
    let _ = (following.hear)(JobEvent::Ended { error: None });
    ended(daemon, document)
}

/// The pictures of a job that has ended.
fn ended(daemon: &DaemonClient, document: Value) -> Result<RemoteJob, ClientError> {
    match document["state"].as_str() {
        Some("done") => {}
        Some("cancelled") => return Err(ClientError::Cancelled),
        _ => {
            let error = &document["error"];
            let message = error["message"].as_str().unwrap_or("the job failed").to_owned();
            let code = error["code"].as_str().unwrap_or_default().to_owned();
            return Err(ClientError::Refused { status: 200, code, message });
        }
    }
    let (mut images, mut settings) = (Vec::new(), Vec::new());
    for told in document["pictures"].as_array().into_iter().flatten() {
        let (image, made) = picture(daemon, told)?;
        images.push(image);
        settings.push(made);
    }
    Ok(RemoteJob { document, images, settings })
}

fn picture(daemon: &DaemonClient, told: &Value) -> Result<(Image, Settings), ClientError> {
    let strange = |what: String| daemon.strange(what);
    let url = told["url"].as_str().ok_or_else(|| strange("a picture without a file".into()))?;
    let bytes = daemon.picture(url)?;
    let number = |name: &str| told[name].as_u64().unwrap_or_default();
    let side = |name: &str| number(name) as u32;
    let (width, height) = (side("width"), side("height"));
    let picture = Picture::of(bytes, Path::new(url)).map_err(|error| strange(error.to_string()))?;
    if picture.size() != [width as usize, height as usize] {
        return Err(strange(format!("{url} is not of {width}x{height} pixels")));
    }
    let pixels = picture.pixels(width as usize, height as usize);
    let pixels = pixels.map_err(|error| strange(error.to_string()))?;
    let pixels = IpcSharedMemory::from_bytes(&pixels);
    let text = told["settings"].as_str().unwrap_or_default();
    let settings = infotext::read(text).map_err(|error| strange(error.to_string()))?.settings;
    let image = Image { index: side("index"), seed: number("seed"), width, height, pixels };
    Ok((image, settings))
}

/// A job that is followed to its end.
struct Following<'a, 'h, 'e> {
    daemon: &'a DaemonClient,
    id: &'a str,
    sender: &'a Sender<ClientEvent>,
    events: &'a Receiver<ClientEvent>,
    seen: Option<String>,
    hear: &'h mut EventHandler<'e>,
}

impl Following<'_, '_, '_> {
    /// The job as it is when it has ended.
    fn follow_to_end(&mut self) -> Result<Value, ClientError> {
        loop {
            if let Some(document) = self.stream()? {
                return Ok(document);
            }
            // The stream broke: the daemon may be about to come back.
            if let Some(document) = self.find_again()? {
                return Ok(document);
            }
        }
    }

    /// Hears of the job until it has ended, or the stream breaks.
    fn stream(&mut self) -> Result<Option<Value>, ClientError> {
        let begun = follow(self.daemon, self.id, self.seen.as_deref(), self.sender.clone());
        match begun {
            Err(ClientError::Unreachable { .. } | ClientError::Strange { .. }) => return Ok(None),
            result => result?,
        }
        loop {
            match self.events.recv_timeout(SILENCE) {
                Ok(ClientEvent::Told { name, data, id }) => {
                    self.seen = id.or(self.seen.take());
                    if name == "state" && is_ended(&data) {
                        return self.document().map(Some);
                    }
                    if self.tell(&name, &data).is_break() {
                        self.cancel()?;
                    }
                }
                Ok(ClientEvent::Ping) => {}
                Ok(ClientEvent::Interrupted) => self.cancel()?,
                Ok(ClientEvent::Closed) | Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => unreachable!("this end has a sender too"),
            }
        }
    }

    /// Waits until the daemon answers again; its document where the job has ended meanwhile.
    fn find_again(&mut self) -> Result<Option<Value>, ClientError> {
        let since = Instant::now();
        loop {
            match self.document() {
                Ok(document) if is_ended(&document) => return Ok(Some(document)),
                Ok(_) => return Ok(None),
                Err(error @ ClientError::Refused { .. }) => return Err(error),
                Err(_) if since.elapsed() < LOST => {}
                Err(_) => {
                    let (url, seconds) = (self.daemon.base().to_owned(), LOST.as_secs());
                    return Err(ClientError::Lost { url, seconds });
                }
            }
            if let Ok(ClientEvent::Interrupted) = self.events.recv_timeout(RETRY_EVERY) {
                return Err(ClientError::Cancelled);
            }
        }
    }

    fn document(&self) -> Result<Value, ClientError> {
        self.daemon.get(&format!("/v1/jobs/{}", self.id))
    }

    /// Has the daemon end the job, which its events tell. One that has ended already stays so.
    fn cancel(&self) -> Result<(), ClientError> {
        match self.daemon.post(&format!("/v1/jobs/{}/cancel", self.id), &json!({})) {
            Ok(_) | Err(ClientError::Refused { status: 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Tells one event as what happens here would be told.
    fn tell(&mut self, name: &str, data: &Value) -> ControlFlow<()> {
        let event = match name {
            "progress" => progress(&data["progress"]).map(JobEvent::Progress),
            "plan" => serde_json::from_value::<Plan>(data["plan"].clone()).ok().map(|plan| {
                let report = Box::new(PlanReport::default());
                JobEvent::Planned { plan: Box::new(plan), report }
            }),
            "preview" => preview(data),
            _ => None,
        };
        event.map_or(ControlFlow::Continue(()), |event| (self.hear)(event))
    }
}

fn is_ended(document: &Value) -> bool {
    matches!(document["state"].as_str(), Some("done" | "failed" | "cancelled"))
}

fn progress(told: &Value) -> Option<Progress> {
    let name = told["phase"].as_str()?;
    let phase = Phase::ALL.into_iter().find(|phase| phase.to_string() == name)?;
    let number = |name: &str| u32::try_from(told[name].as_u64()?).ok();
    Some(Progress { phase, step: number("step")?, of: number("of")? })
}

fn preview(told: &Value) -> Option<JobEvent> {
    let bytes = base64::decode(told["png"].as_str()?).ok()?;
    let picture = Picture::of(bytes, Path::new("preview")).ok()?;
    let [width, height] = picture.size();
    let pixels = picture.pixels(width, height).ok()?;
    Some(JobEvent::Preview { width: width as u32, height: height as u32, pixels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::request::{Prompts, ShapeRequest};

    #[test]
    fn a_request_says_what_was_given_and_nothing_else() {
        let request = JobRequest {
            model: ModelName::Name("demo".to_owned()),
            prompts: Prompts { prompt: Some("a house".to_owned()), ..Prompts::default() },
            shape: ShapeRequest { width: Some(64), batch: Some(2), ..ShapeRequest::default() },
            seed: Some(Seed::Given(7)),
            ..JobRequest::default()
        };
        let expected = json!({
            "model": "demo", "prompt": "a house", "width": 64, "n": 2, "seed": 7,
            "priority": "interactive",
        });
        assert_eq!(body(&request).expect("a body"), expected);
        let mut request = JobRequest { seed: Some(Seed::Random), ..JobRequest::default() };
        let drawn = json!({"priority": "interactive"});
        assert_eq!(body(&request).expect("a body"), drawn, "the daemon draws and chooses");
        request.policy.lora = Some(vec!["style:0.5".to_owned()]);
        let lora = body(&request).expect("a body")["lora"].clone();
        assert_eq!(lora, json!([{"name": "style", "weight": 0.5}]));
    }

    #[test]
    fn progress_is_that_of_a_phase() {
        let told = json!({"phase": "denoise", "step": 1, "of": 4, "eta_ms": 3.0});
        let expected = Progress { phase: Phase::Denoise, step: 1, of: 4 };
        assert_eq!(progress(&told), Some(expected));
        assert_eq!(progress(&json!({"phase": "nothing", "step": 1, "of": 4})), None);
        assert_eq!(progress(&json!({"phase": "denoise", "step": -1, "of": 4})), None);
    }
}
