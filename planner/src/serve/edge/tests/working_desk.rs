//! A desk that makes pictures at once: of seeds alone, but with all that is told of a job.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread;

use ipc_channel::ipc::IpcSharedMemory;
use protocol::Bytes;
use protocol::message::Image;

use super::super::state::Edge;
use super::super::testing::view_of;
use crate::job::infotext::{self, Settings};
use crate::job::seed::Seed;
use crate::media::PictureFormat;
use crate::media::picture::Picture;
use crate::serve::desk::action::{JobView, ModelView, Note, ProgressView, Reply, SlotState};
use crate::serve::desk::event::{Ask, DeskEvent, FiledPicture, PreviewImage, ServedModel, Ticket};
use crate::serve::desk::job::{
    ErrorCode, JobError, JobId, JobOrder, JobRecord, JobState, PictureRecord,
};

/// From so many steps on a job runs until it is ended by hand.
const ENDLESS_STEPS: u32 = 1000;

/// How a desk treats jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// They are done.
    Working,
    /// They are refused.
    Full,
    /// They fail.
    Broken,
}

/// What a desk was told.
#[derive(Clone, Default)]
pub struct WorkingDesk {
    pub orders: Arc<Mutex<Vec<JobOrder>>>,
    pub left: Arc<Mutex<Vec<Ticket>>>,
    running: Arc<Mutex<Vec<(Ticket, JobView)>>>,
    checkpoint: Arc<Mutex<Option<String>>>,
    loaded: Arc<Mutex<Vec<String>>>,
}

impl WorkingDesk {
    pub fn start(mood: Mood, edge: Edge, events: Receiver<DeskEvent>) -> WorkingDesk {
        let desk = WorkingDesk::default();
        let told = desk.clone();
        thread::spawn(move || {
            for event in events {
                match event {
                    DeskEvent::Asked { ticket, ask, .. } => {
                        if let Some(reply) = told.reply(mood, &edge, ticket, ask) {
                            edge.answer(ticket, reply);
                        }
                    }
                    DeskEvent::Left { ticket } => told.left.lock().unwrap().push(ticket),
                    other => panic!("the edge tells {other:?}"),
                }
            }
        });
        desk
    }

    /// Models that were asked to be loaded.
    pub fn loaded(&self) -> Vec<String> {
        self.loaded.lock().unwrap().clone()
    }

    fn reply(&self, mood: Mood, edge: &Edge, ticket: Ticket, ask: Ask) -> Option<Reply> {
        Some(match ask {
            Ask::Submit { id, order, .. } => {
                self.orders.lock().unwrap().push((*order).clone());
                match mood {
                    Mood::Full => refused(ErrorCode::QueueFull),
                    _ if order.deadline_ms == Some(1) => late(),
                    Mood::Broken => {
                        let mut view = view_of(&id.0, *order, JobState::Failed);
                        let error = JobError::new(ErrorCode::OutOfMemory, "memory was short");
                        Arc::make_mut(&mut view.record).error = Some(error);
                        Reply::Ended(Box::new(view), Vec::new())
                    }
                    Mood::Working if steps(&order) >= ENDLESS_STEPS => {
                        let view = running(&id, *order);
                        edge.tell(Note::State(Box::new(view.clone())));
                        self.running.lock().unwrap().push((ticket, view));
                        return None;
                    }
                    // What a key names was done before: its pictures are files by now.
                    Mood::Working if order.idempotency.is_some() => match make(edge, &id, *order) {
                        Reply::Ended(view, _) => Reply::Ended(view, Vec::new()),
                        other => other,
                    },
                    Mood::Working => make(edge, &id, *order),
                }
            }
            Ask::InterruptSdapi => {
                for (ticket, mut view) in self.running.lock().unwrap().drain(..) {
                    view.state = JobState::Cancelled;
                    edge.answer(ticket, Reply::Ended(Box::new(view), Vec::new()));
                }
                Reply::Accepted
            }
            Ask::Queue => {
                let jobs = self.running.lock().unwrap();
                let jobs = jobs.iter().map(|(_, view)| view.clone()).collect();
                Reply::Queue { jobs, paused: false }
            }
            Ask::Models => {
                Reply::Models(edge.settings().models.keys().map(|name| model(name)).collect())
            }
            Ask::Checkpoint(new) => {
                let mut checkpoint = self.checkpoint.lock().unwrap();
                *checkpoint = new.or(checkpoint.take());
                Reply::Checkpoint(checkpoint.clone())
            }
            Ask::LoadModel { model, .. } => {
                self.loaded.lock().unwrap().push(model);
                Reply::Accepted
            }
            Ask::Show(id) => {
                let order = self.orders.lock().unwrap().last().unwrap().clone();
                let Reply::Ended(view, _) = make(edge, &id, order) else { unreachable!() };
                Reply::Job(view)
            }
            _ => Reply::Accepted,
        })
    }
}

fn late() -> Reply {
    let error = JobError::new(ErrorCode::Deadline, "it takes longer; hint: ask for less");
    let error = JobError { param: Some("deadline_ms".to_owned()), ..error };
    Reply::Refused { error: Box::new(error), retry_after_s: None }
}

fn refused(code: ErrorCode) -> Reply {
    let error = Box::new(JobError::new(code, "it cannot be; hint: ask for less"));
    Reply::Refused { error, retry_after_s: Some(1) }
}

fn steps(order: &JobOrder) -> u32 {
    order.request.shape.steps.unwrap_or(4)
}

fn running(id: &JobId, order: JobOrder) -> JobView {
    let mut view = view_of(&id.0, order, JobState::Running);
    view.position = Some(0);
    view.progress = Some(ProgressView {
        phase: "denoise".to_owned(),
        step: 100,
        of: ENDLESS_STEPS,
        eta_ms: Some(1000.0),
    });
    view
}

/// Tells of a job, and answers it with pictures.
fn make(edge: &Edge, id: &JobId, order: JobOrder) -> Reply {
    let mut view = view_of(&id.0, order.clone(), JobState::Queued);
    view.position = Some(1);
    edge.tell(Note::State(Box::new(view.clone())));
    let every = order.request.preview_every.unwrap_or(u32::MAX);
    let steps = steps(&order);
    for step in 1..=steps {
        let progress = ProgressView { phase: "denoise".to_owned(), step, of: steps, eta_ms: None };
        edge.tell(Note::Progress(id.clone(), progress));
        if step % every == 0 {
            let preview = PreviewImage { width: 8, height: 8, pixels: vec![step as u8; 192] };
            edge.tell(Note::Preview(id.clone(), Arc::new(preview)));
        }
    }
    let Some(Seed::Given(seed)) = order.request.seed else { panic!("a seed is drawn") };
    let wanted = order.request.shape.batch.unwrap_or(1);
    let pictures: Vec<FiledPicture> =
        (0..wanted).map(|index| picture(&order, index, seed + u64::from(index))).collect();
    view.state = JobState::Done;
    view.position = None;
    let record: &mut JobRecord = Arc::make_mut(&mut view.record);
    record.state = JobState::Done;
    record.created_at += 700_000_000_000;
    record.started_at = Some(record.created_at + 100);
    record.ended_at = Some(record.created_at + 900);
    record.pictures = pictures.iter().map(|picture| picture.record.clone()).collect();
    Reply::Ended(Box::new(view), pictures)
}

fn picture(order: &JobOrder, index: u32, seed: u64) -> FiledPicture {
    let start = order.request.start.image.as_deref();
    let of_start = start.map(|path| Picture::open(path).unwrap().size().map(|side| side as u32));
    let [width, height] = of_start.unwrap_or([64, 64]);
    let shape = &order.request.shape;
    let size = [shape.width.unwrap_or(width), shape.height.unwrap_or(height)];
    let settings = Settings {
        prompt: order.request.prompts.prompt.clone().unwrap_or_default(),
        steps: Some(steps(order)),
        sampler: Some(order.request.sampler.unwrap_or_default().names().label.to_owned()),
        cfg_scale: Some(1.0),
        seed: Some(seed),
        size: Some(size),
        strength: order.request.start.strength,
        version: Some(Settings::this_version()),
        ..Settings::default()
    };
    let infotext = infotext::write(&settings);
    let [width, height] = size;
    let value = |place: u64| (place.wrapping_mul(seed * 2 + 3) >> 3) as u8;
    let pixels: Vec<u8> = (0..u64::from(width) * u64::from(height) * 3).map(value).collect();
    let pixels = IpcSharedMemory::from_bytes(&pixels);
    let image = Image { index, seed, width, height, pixels };
    let png = PictureFormat::Png.encode(&image, Some(&infotext), 90).unwrap().bytes;
    let (size_bytes, file) = (png.len() as u64, Some(format!("{index}.png")));
    let record = PictureRecord { index, seed, width, height, size_bytes, file, infotext };
    FiledPicture { record, png: Arc::new(png) }
}

fn model(name: &str) -> ModelView {
    ModelView {
        model: ServedModel {
            name: name.to_owned(),
            files_bytes: Bytes(7),
            modified_ms: 5000,
            keep_alive: None,
            class: None,
            preload: false,
        },
        state: SlotState::Warm,
        idle_bytes: Vec::new(),
        expires_in_ms: None,
        problem: None,
    }
}
