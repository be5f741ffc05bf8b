//! What was told of late, numbered, so that a stream of events can go on where it was broken off.
//!
//! Readers go through it at their own pace. What a newer entry makes worthless (an older state of
//! the same job or model, progress, previews, readings) gives way to that, so that slow readers
//! skip it; what is pushed out by age is counted as lost to them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::watch;

use super::limits::NOTES_KEPT;
use crate::serve::desk::action::Note;
use crate::serve::desk::event::Asker;
use crate::serve::desk::job::{JobId, JobState, PictureRecord};

/// Jobs whose owners are known at a time: more than a queue holds. Of others only administrators
/// are told.
const OWNERS_MAX: usize = 4096;

/// Ended jobs of which all is held, for those who listen now; of an older one who comes back is
/// told as it is then.
const ENDED_KEPT: usize = 8;

/// A note, or what the edge itself tells beside those.
#[derive(Debug, Clone)]
pub enum Told {
    /// By the desk.
    Note(Arc<Note>),
    /// A job has ended so, a while ago.
    Ended(JobId, JobState),
    /// A job has one more picture.
    Picture(JobId, Box<PictureRecord>),
    /// What devices hold now.
    Reading(Arc<Value>),
}

/// Who may hear of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audience {
    /// Everybody who may ask.
    All,
    /// The client whose job it is of.
    Owner(String),
    /// Who administers this host.
    Admins,
}

/// A line of the journal.
#[derive(Debug, Clone)]
pub struct JournalEntry {
    /// From 1, in order; some numbers are missing.
    pub number: u64,
    /// What happened.
    pub told: Told,
    /// Who may hear of it.
    pub audience: Audience,
}

/// The newest entries.
pub struct Journal {
    kept: Mutex<KeptEntries>,
    last: watch::Sender<u64>,
    /// Tells numbers of this process from those of an earlier one.
    run: String,
}

#[derive(Default)]
struct KeptEntries {
    entries: VecDeque<JournalEntry>,
    last: u64,
    /// The largest number that age pushed out.
    pushed_out: u64,
    owners: HashMap<JobId, Owned>,
    /// Numbers of ended jobs of which all is held.
    ended: VecDeque<u64>,
}

struct Owned {
    client: String,
    pictures: usize,
}

impl Journal {
    /// An empty one.
    pub fn new() -> Journal {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Journal {
            kept: Mutex::default(),
            last: watch::channel(0).0,
            run: format!("{:x}", since.as_millis()),
        }
    }

    /// Adds what the desk tells.
    pub fn add(&self, note: Arc<Note>) {
        let mut kept = self.lock();
        kept.note(note);
        self.last.send_replace(kept.last);
    }

    /// Adds what devices hold now.
    pub fn add_reading(&self, reading: Arc<Value>) {
        let mut kept = self.lock();
        kept.push(Told::Reading(reading), Audience::All);
        self.last.send_replace(kept.last);
    }

    /// The number of the newest entry: changes whenever there is one more.
    pub fn last(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// What came behind a number, and how many entries of those at most are lost.
    pub fn after(&self, number: u64) -> (Vec<JournalEntry>, u64) {
        let kept = self.lock();
        let newer = kept.entries.iter().skip_while(|entry| entry.number <= number);
        (newer.cloned().collect(), kept.pushed_out.saturating_sub(number))
    }

    /// An entry's number as clients are told it.
    pub fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }

    /// The number of what [`Journal::id`] gave; 0, before all, for that of an earlier process.
    pub fn number(&self, id: &str) -> u64 {
        let ours = id.rsplit_once('-').filter(|(run, _)| *run == self.run);
        ours.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, KeptEntries> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Journal {
    fn default() -> Journal {
        Journal::new()
    }
}

impl KeptEntries {
    fn note(&mut self, note: Arc<Note>) {
        let has_ended = matches!(&*note, Note::State(view) if view.state.is_ended());
        let audience = match &*note {
            Note::State(view) => {
                let owned = Owned { client: view.record.order.client.clone(), pictures: 0 };
                let (id, ended) = (&view.record.id, view.state.is_ended());
                if self.owners.len() < OWNERS_MAX || self.owners.contains_key(id) {
                    self.owners.entry(id.clone()).or_insert(owned);
                }
                let audience = self.audience(id);
                self.pictures(id, &view.record.pictures, &audience);
                if ended {
                    self.owners.remove(id);
                }
                audience
            }
            Note::Progress(id, _) | Note::Preview(id, _) | Note::Plan(id, _) => self.audience(id),
            Note::Reordered(id, _) => self.audience(id),
            Note::Model(..) => Audience::All,
        };
        self.push(Told::Note(note), audience);
        if has_ended {
            self.ended.push_back(self.last);
        }
        if self.ended.len() > ENDED_KEPT
            && let Some(oldest) = self.ended.pop_front()
        {
            self.shorten(oldest);
        }
    }

    /// Keeps of a job's end only that it has come.
    fn shorten(&mut self, number: u64) {
        let place = self.entries.binary_search_by_key(&number, |entry| entry.number);
        let Some(entry) = place.ok().and_then(|place| self.entries.get_mut(place)) else { return };
        if let Told::Note(note) = &entry.told
            && let Note::State(view) = &**note
        {
            entry.told = Told::Ended(view.record.id.clone(), view.state);
        }
    }

    fn audience(&self, id: &JobId) -> Audience {
        match self.owners.get(id) {
            Some(owned) => Audience::Owner(owned.client.clone()),
            None => Audience::Admins,
        }
    }

    /// An entry for each picture that is new.
    fn pictures(&mut self, id: &JobId, pictures: &[PictureRecord], audience: &Audience) {
        let Some(owned) = self.owners.get_mut(id) else { return };
        let told = owned.pictures.min(pictures.len());
        owned.pictures = pictures.len();
        for picture in &pictures[told..] {
            let told = Told::Picture(id.clone(), Box::new(picture.clone()));
            self.push(told, audience.clone());
        }
    }

    fn push(&mut self, told: Told, audience: Audience) {
        self.entries.retain(|entry| !told.replaces(&entry.told));
        self.last += 1;
        self.entries.push_back(JournalEntry { number: self.last, told, audience });
        if self.entries.len() > NOTES_KEPT
            && let Some(oldest) = self.entries.pop_front()
        {
            self.pushed_out = oldest.number;
        }
    }
}

impl Told {
    /// The job that it is of.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Told::Note(note) => match &**note {
                Note::State(view) => Some(&view.record.id),
                Note::Progress(id, _) | Note::Preview(id, _) | Note::Plan(id, _) => Some(id),
                Note::Reordered(id, _) => Some(id),
                Note::Model(..) => None,
            },
            Told::Ended(id, _) | Told::Picture(id, _) => Some(id),
            Told::Reading(_) => None,
        }
    }

    /// Whether an older entry says nothing any more.
    fn replaces(&self, older: &Told) -> bool {
        match (self, older) {
            (Told::Reading(_), Told::Reading(_)) => true,
            (Told::Note(new), Told::Note(old)) => match (&**new, &**old) {
                (Note::Progress(new, _), Note::Progress(old, _)) => new == old,
                (Note::Preview(new, _), Note::Preview(old, _)) => new == old,
                (Note::Plan(new, _), Note::Plan(old, _)) => new == old,
                (Note::Model(new, _), Note::Model(old, _)) => new == old,
                // A state shows all of its job: with the last one the rest is history.
                (Note::State(new), old) => {
                    let same = older.job() == Some(&new.record.id);
                    same && (new.state.is_ended() || matches!(old, Note::State(_)))
                }
                _ => false,
            },
            _ => false,
        }
    }
}

impl Audience {
    /// Whether somebody is of it.
    pub fn has(&self, asker: &Asker) -> bool {
        match self {
            Audience::All => true,
            Audience::Owner(client) => asker.admin || *client == asker.client,
            Audience::Admins => asker.admin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::desk::action::{ProgressView, SlotState};
    use crate::serve::edge::testing::{picture, view};

    fn progress(id: &str, step: u32) -> Arc<Note> {
        let view = ProgressView { phase: "denoise".to_owned(), step, of: 4, eta_ms: None };
        Arc::new(Note::Progress(JobId(id.to_owned()), view))
    }

    fn model(index: usize) -> Arc<Note> {
        Arc::new(Note::Model(index.to_string(), SlotState::Warm))
    }

    #[test]
    fn progress_gives_way_to_newer_progress_of_the_same_job() {
        let journal = Journal::new();
        for (id, step) in [("a", 1), ("b", 1), ("a", 2)] {
            journal.add(progress(id, step));
        }
        let numbers = |after| -> Vec<u64> {
            journal.after(after).0.iter().map(|entry| entry.number).collect()
        };
        assert_eq!((numbers(0), numbers(2)), (vec![2, 3], vec![3]));
        assert_eq!(journal.after(0).1, 0, "what gave way is not lost");
        assert_eq!(*journal.last().borrow(), 3);
    }

    #[test]
    fn of_an_ended_job_its_end_and_its_pictures_are_kept() {
        let journal = Journal::new();
        let state = |state| {
            let mut view = view("a", "ann", state);
            Arc::make_mut(&mut view.record).pictures = vec![picture(0)];
            Arc::new(Note::State(Box::new(view)))
        };
        journal.add(state(JobState::Queued));
        journal.add(progress("a", 1));
        journal.add(progress("b", 1));
        journal.add(state(JobState::Running));
        journal.add(progress("a", 2));
        assert_eq!(journal.after(0).0.len(), 4);
        journal.add(state(JobState::Done));
        let numbers: Vec<u64> = journal.after(0).0.iter().map(|entry| entry.number).collect();
        assert_eq!((numbers, journal.after(0).1), (vec![1, 4, 7], 0));
    }

    #[test]
    fn of_few_ended_jobs_all_is_held() {
        let journal = Journal::new();
        for index in 0..ENDED_KEPT + 2 {
            let view = view(&index.to_string(), "ann", JobState::Done);
            journal.add(Arc::new(Note::State(Box::new(view))));
        }
        let (entries, _) = journal.after(0);
        for (index, entry) in entries.iter().enumerate() {
            let id = JobId(index.to_string());
            assert_eq!(entry.audience, Audience::Owner("ann".to_owned()));
            match &entry.told {
                Told::Ended(ended, JobState::Done) => assert!(*ended == id && index < 2),
                Told::Note(_) => assert!(entry.told.job() == Some(&id) && index >= 2),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(entries.len(), ENDED_KEPT + 2);
    }

    #[test]
    fn what_age_pushes_out_is_lost_to_slow_readers_only() {
        let journal = Journal::new();
        for index in 0..NOTES_KEPT + 5 {
            journal.add(model(index));
        }
        let (entries, lost) = journal.after(0);
        assert_eq!((entries.len(), entries[0].number, lost), (NOTES_KEPT, 6, 5));
        assert_eq!(journal.after(5).1, 0);
        assert_eq!(journal.after(3).1, 2);
    }

    #[test]
    fn numbers_of_an_earlier_process_are_before_all() {
        let journal = Journal::new();
        assert_eq!(journal.number(&journal.id(7)), 7);
        for other in ["", "7", "0-7", "x-y", "-"] {
            assert_eq!(journal.number(other), 0, "{other}");
        }
    }

    #[test]
    fn only_the_owner_and_administrators_hear_of_a_job() {
        let journal = Journal::new();
        journal.add(progress("a", 1));
        journal.add(Arc::new(Note::State(Box::new(view("a", "ann", JobState::Running)))));
        journal.add(progress("a", 2));
        journal.add(model(0));
        let heard = |client: &str, admin| -> usize {
            let asker = Asker { client: client.to_owned(), admin };
            journal.after(0).0.iter().filter(|entry| entry.audience.has(&asker)).count()
        };
        // The first progress gave way to the second.
        assert_eq!((heard("ann", false), heard("bob", false), heard("bob", true)), (3, 1, 3));
    }

    #[test]
    fn each_picture_of_a_job_is_told_once() {
        let journal = Journal::new();
        let mut running = view("a", "ann", JobState::Running);
        let record = Arc::make_mut(&mut running.record);
        record.pictures = vec![picture(0)];
        journal.add(Arc::new(Note::State(Box::new(running.clone()))));
        journal.add(Arc::new(Note::State(Box::new(running.clone()))));
        Arc::make_mut(&mut running.record).pictures.push(picture(1));
        running.state = JobState::Done;
        journal.add(Arc::new(Note::State(Box::new(running))));
        let told: Vec<u32> = (journal.after(0).0.iter())
            .filter_map(|entry| match &entry.told {
                Told::Picture(_, picture) => Some(picture.index),
                _ => None,
            })
            .collect();
        assert_eq!(told, [0, 1]);
    }
}
