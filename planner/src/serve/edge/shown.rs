//! Answers about running jobs that stand for a moment, so that many clients who ask for one job do
//! not wake the desk each, nor have it written each.
//!
//! Only what is told as [progress](Note::Progress) and previews may be older than the desk's own
//! answer, by 100 ms at most: an answer goes with any other note, and with anything that a client
//! changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;

use crate::serve::desk::action::Note;
use crate::serve::desk::event::{Ask, Asker};
use crate::serve::desk::job::JobId;

/// How long an answer stands. 200 clients who ask once a second then wake the desk 10 times in it;
/// a tenth of a second is felt as at once (Nielsen, Usability Engineering, 1993, chapter 5).
const SHOWN_FOR: Duration = Duration::from_millis(100);

/// Answers that are kept; running jobs are few, but each may be asked for by several clients.
const SHOWN_MAX: usize = 64;

/// The answers.
#[derive(Default)]
pub struct ShownJobs {
    /// Counts what may have changed any answer by more than progress.
    changes: AtomicU64,
    answers: Mutex<HashMap<Key, ShownAnswer>>,
}

/// Which job, and who may see it: the client that asked, or `None` for those who may see all.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    id: JobId,
    client: Option<String>,
}

struct ShownAnswer {
    body: Bytes,
    asked_at: Instant,
    change: u64,
}

/// A question to the desk whose answer may stand: what is known when it is asked.
pub struct AskedFor {
    key: Key,
    at: Instant,
    change: u64,
}

impl ShownJobs {
    /// The answer that stands, or the question to be asked.
    pub fn find(&self, id: &JobId, asker: &Asker, now: Instant) -> Result<Bytes, AskedFor> {
        let change = self.changes.load(Ordering::Acquire);
        let client = (!asker.admin).then(|| asker.client.clone());
        let key = Key { id: id.clone(), client };
        match self.lock().get(&key) {
            Some(shown) if shown.change == change && shown.stands(now) => Ok(shown.body.clone()),
            _ => Err(AskedFor { key, at: now, change }),
        }
    }

    /// Lets an answer of the desk stand.
    pub fn keep(&self, asked: AskedFor, body: Bytes) {
        let AskedFor { key, at, change } = asked;
        let mut answers = self.lock();
        if answers.len() >= SHOWN_MAX {
            answers.retain(|_, shown| shown.change == change && shown.stands(at));
        }
        if answers.len() < SHOWN_MAX {
            answers.insert(key, ShownAnswer { body, asked_at: at, change });
        }
    }

    /// Something was told.
    pub fn told(&self, note: &Note) {
        if !matches!(note, Note::Progress(..) | Note::Preview(..)) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether a question changes nothing.
    pub fn is_read(ask: &Ask) -> bool {
        matches!(
            ask,
            Ask::Show(_) | Ask::List(_) | Ask::Plan { .. } | Ask::Queue | Ask::Models | Ask::Ready
        )
    }

    /// The desk has answered a question that may have changed something.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, ShownAnswer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShownAnswer {
    fn stands(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked_at) < SHOWN_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::desk::action::SlotState;

    fn asker(client: &str, admin: bool) -> Asker {
        Asker { client: client.to_owned(), admin }
    }

    fn id(number: usize) -> JobId {
        JobId(format!("{number:026}"))
    }

    /// Answers to one job, the first of which was asked for at `start`.
    fn kept(start: Instant) -> ShownJobs {
        let shown = ShownJobs::default();
        let Err(asked) = shown.find(&id(1), &asker("ann", false), start) else { panic!() };
        shown.keep(asked, Bytes::from_static(b"running"));
        shown
    }

    #[test]
    fn an_answer_stands_for_a_moment_for_who_asked() {
        let start = Instant::now();
        let shown = kept(start);
        let soon = start + SHOWN_FOR / 2;
        let found = shown.find(&id(1), &asker("ann", false), soon);
        assert_eq!(found.ok().as_deref(), Some(&b"running"[..]));
        assert!(shown.find(&id(1), &asker("ann", true), soon).is_err());
        assert!(shown.find(&id(1), &asker("bob", false), soon).is_err());
        assert!(shown.find(&id(2), &asker("ann", false), soon).is_err());
        assert!(shown.find(&id(1), &asker("ann", false), start + SHOWN_FOR).is_err());
    }

    #[test]
    fn those_who_may_see_all_share_an_answer() {
        let start = Instant::now();
        let shown = ShownJobs::default();
        let Err(asked) = shown.find(&id(1), &asker("ann", true), start) else { panic!() };
        shown.keep(asked, Bytes::from_static(b"running"));
        assert!(shown.find(&id(1), &asker("bob", true), start).is_ok());
        assert!(shown.find(&id(1), &asker("bob", false), start).is_err());
    }

    #[test]
    fn it_goes_with_what_is_told_but_progress() {
        let start = Instant::now();
        let shown = kept(start);
        shown.changed();
        assert!(shown.find(&id(1), &asker("ann", false), start).is_err());
        let shown = kept(start);
        shown.told(&Note::Model("demo".to_owned(), SlotState::Warm));
        assert!(shown.find(&id(1), &asker("ann", false), start).is_err());
    }

    #[test]
    fn an_answer_that_was_on_its_way_meanwhile_does_not_stand() {
        let start = Instant::now();
        let shown = ShownJobs::default();
        let Err(asked) = shown.find(&id(1), &asker("ann", false), start) else { panic!() };
        shown.changed();
        shown.keep(asked, Bytes::from_static(b"running"));
        assert!(shown.find(&id(1), &asker("ann", false), start).is_err());
    }

    #[test]
    fn few_are_kept() {
        let start = Instant::now();
        let shown = ShownJobs::default();
        for number in 0..3 * SHOWN_MAX {
            let Err(asked) = shown.find(&id(number), &asker("ann", false), start) else { panic!() };
            shown.keep(asked, Bytes::new());
        }
        assert_eq!(shown.lock().len(), SHOWN_MAX);
        // Those that stand no more make room.
        let later = start + SHOWN_FOR;
        let Err(asked) = shown.find(&id(0), &asker("ann", false), later) else { panic!() };
        shown.keep(asked, Bytes::new());
        assert_eq!(shown.lock().len(), 1);
    }
}
