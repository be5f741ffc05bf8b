//! Whose turn it is.
//!
//! By class; within a class the earliest deadline, then who was put in front, then age. A job is of
//! the next class up after each [`CLASS_UP_MS`] of waiting. A younger job whose model is loaded may
//! pass an older one of its class, within limits, where the change of models costs much.

use std::cmp::Reverse;

use super::config::{CLASS_UP_MS, PASS_SHARE, PASSED_MAX, PASSED_MS_MAX};
use super::job::{Class, JobId};

/// A job that waits, as far as its turn depends on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiter {
    /// Its name; later ones are greater.
    pub id: JobId,
    /// Its class when it came.
    pub class: Class,
    /// When it came.
    pub since_ms: u64,
    /// When it must be done.
    pub deadline_at: Option<u64>,
    /// The greater, the further in front of its class.
    pub front: u64,
    /// How often younger ones passed it.
    pub passed: u32,
    /// When the first of those passed it.
    pub passed_since: Option<u64>,
    /// Whether its model is loaded, or being loaded.
    pub warm: bool,
    /// What it takes without a load, in milliseconds.
    pub run_ms: f64,
    /// What the load of its model takes, in milliseconds.
    pub load_ms: f64,
}

impl Waiter {
    /// Its class by now.
    pub fn class_now(&self, now_ms: u64) -> u64 {
        let classes_up = now_ms.saturating_sub(self.since_ms) / CLASS_UP_MS;
        (self.class as u64).saturating_sub(classes_up)
    }

    /// Whether a younger one may still pass it.
    fn may_be_passed(&self, now_ms: u64) -> bool {
        let in_time = self.passed_since.is_none_or(|first| now_ms < first + PASSED_MS_MAX);
        let worth = self.load_ms > PASS_SHARE * (self.run_ms + self.load_ms);
        !self.warm && worth && in_time && self.passed < PASSED_MAX && self.deadline_at.is_none()
    }
}

impl Waiter {
    /// Whether one behind it may run before it, with another job: as often and as long as it may
    /// be passed at all.
    pub fn may_be_passed_by_company(&self, now_ms: u64) -> bool {
        let in_time = self.passed_since.is_none_or(|first| now_ms < first + PASSED_MS_MAX);
        in_time && self.passed < PASSED_MAX && self.deadline_at.is_none()
    }
}

/// Sorts jobs by their turns, passing left aside.
pub fn sort(waiters: &mut [Waiter], now_ms: u64) {
    waiters.sort_by_cached_key(|waiter| {
        let deadline = waiter.deadline_at.unwrap_or(u64::MAX);
        (waiter.class_now(now_ms), deadline, Reverse(waiter.front), waiter.id.clone())
    });
}

/// The place of the next job among sorted ones; all before it are passed by it.
pub fn choose(sorted: &[Waiter], now_ms: u64) -> Option<usize> {
    let first = sorted.first()?;
    if first.warm {
        return Some(0);
    }
    let class = first.class_now(now_ms);
    for (place, waiter) in sorted.iter().enumerate() {
        if waiter.class_now(now_ms) != class {
            break;
        }
        if waiter.warm {
            return Some(place);
        }
        if !waiter.may_be_passed(now_ms) {
            break;
        }
    }
    Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(id: &str, class: Class) -> Waiter {
        Waiter {
            id: JobId(id.to_owned()),
            class,
            since_ms: 0,
            deadline_at: None,
            front: 0,
            passed: 0,
            passed_since: None,
            warm: false,
            run_ms: 1000.0,
            load_ms: 1000.0,
        }
    }

    fn order(mut waiters: Vec<Waiter>, now_ms: u64) -> String {
        sort(&mut waiters, now_ms);
        waiters.iter().map(|waiter| waiter.id.0.as_str()).collect()
    }

    #[test]
    fn class_then_deadline_then_front_then_age() {
        use Class::{Background, Batch, Interactive};
        let with =
            |id, class, deadline_at, front| Waiter { deadline_at, front, ..waiter(id, class) };
        let waiters = vec![
            with("a", Background, None, 9),
            with("b", Batch, None, 0),
            with("c", Batch, None, 1),
            with("d", Batch, None, 2),
            with("e", Batch, Some(70), 0),
            with("f", Batch, Some(60), 0),
            with("g", Interactive, None, 0),
        ];
        assert_eq!(order(waiters, 0), "gfedcba");
    }

    #[test]
    fn who_waits_is_of_the_next_class_up_in_time() {
        let old = waiter("a", Class::Background);
        let young = Waiter { since_ms: 2 * CLASS_UP_MS, ..waiter("b", Class::Interactive) };
        assert_eq!(order(vec![old.clone(), young.clone()], 2 * CLASS_UP_MS - 1), "ba");
        assert_eq!(order(vec![old, young], 2 * CLASS_UP_MS), "ab");
    }

    #[test]
    fn a_loaded_model_goes_first_within_limits() {
        let cold = waiter("a", Class::Batch);
        let warm = Waiter { warm: true, ..waiter("b", Class::Batch) };
        let chosen = |first: Waiter, second: &Waiter| choose(&[first, second.clone()], 100_000);
        assert_eq!(chosen(cold.clone(), &warm), Some(1));
        for kept in [
            Waiter { passed: PASSED_MAX, ..cold.clone() },
            Waiter { passed_since: Some(100_000 - PASSED_MS_MAX), ..cold.clone() },
            Waiter { deadline_at: Some(500_000), ..cold.clone() },
            // The load is a fifth of the older one's time.
            Waiter { run_ms: 4000.0, ..cold.clone() },
            Waiter { warm: true, ..cold.clone() },
            Waiter { class: Class::Interactive, ..cold.clone() },
        ] {
            assert_eq!(chosen(kept.clone(), &warm), Some(0), "{kept:?}");
        }
        assert_eq!(choose(&[], 0), None);
        // One that may not be passed also stands before those behind it.
        let firm = Waiter { passed: PASSED_MAX, ..cold.clone() };
        assert_eq!(choose(&[cold, firm, warm], 100_000), Some(0));
    }
}
