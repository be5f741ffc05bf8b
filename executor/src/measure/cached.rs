//! How much of a model's weights is in the page cache, looked at once for several questions.
//!
//! The system counts cached pages one by one: 20 ms for the 10 GB of a large text encoder
//! (`perf record` of `plan --dry-run`: 60 % of its time). A plan asks for several sizes of one job
//! within a second, and what is cached hardly changes meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::plan::Lora;
use protocol::{Bytes, ModelSource};

/// For how long a look at the page cache counts.
const FRESH: Duration = Duration::from_secs(1);

/// What was seen last: of one model, with one list of LoRA files.
#[derive(Debug, Default)]
pub struct CachedWeights {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    model: ModelSource,
    loras: Vec<Lora>,
    at: Instant,
    components: BTreeMap<String, Bytes>,
}

impl CachedWeights {
    /// What was seen of this model's components lately; to be filled where it was not.
    pub fn of(&mut self, model: &ModelSource, loras: &[Lora]) -> &mut BTreeMap<String, Bytes> {
        let is_fresh =
            |seen: &Seen| seen.model == *model && seen.loras == loras && seen.at.elapsed() < FRESH;
        if !self.seen.as_ref().is_some_and(is_fresh) {
            self.seen = None;
        }
        let seen = self.seen.get_or_insert_with(|| Seen {
            model: model.clone(),
            loras: loras.to_vec(),
            at: Instant::now(),
            components: BTreeMap::new(),
        });
        &mut seen.components
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_counts_for_the_same_model_and_not_for_long() {
        let mut cached = CachedWeights::default();
        let [one, other] = ["/a", "/b"].map(|path| ModelSource::of(path.to_owned()));
        let lora = Lora { path: "/l".to_owned(), weight: 1.0 };
        cached.of(&one, &[]).insert("dit".to_owned(), Bytes(7));
        assert_eq!(cached.of(&one, &[]).get("dit"), Some(&Bytes(7)));
        assert!(cached.of(&one, &[lora]).is_empty());
        cached.of(&one, &[]).insert("dit".to_owned(), Bytes(7));
        assert!(cached.of(&other, &[]).is_empty());
        cached.of(&one, &[]).insert("dit".to_owned(), Bytes(7));
        cached.seen.as_mut().expect("it was just seen").at -= FRESH;
        assert!(cached.of(&one, &[]).is_empty());
    }
}
