//! Beside each other: which jobs may begin while others run.
//!
//! A job begins beside others where its plan shares no lane with theirs, and fits beside what they
//! take at their peaks: the surveyor is asked for such a plan, with the devices left out that the
//! others compute on. It begins by that plan only where it is sooner done than by its own after
//! them.
//!
//! ```text
//! in the order of turns:  free lanes? ──no──► held back
//!                             │yes
//!                         holds nobody back who was before it, or within the limits of passing?
//!                             │yes                      else held back too
//!                         Weigh ─► Weighed: sooner done beside them? ──no──► held back
//!                             │yes
//!                         begins
//! ```
//! Who is held back keeps its lanes free: what passes it on one of them ends, as predicted, before
//! the others of its lanes are free, and it is passed as often and as long as any job (serve.md,
//! section 5). Nothing begins while a run's plan is not known yet, so that each is planned beside
//! plans that stand.

use super::Desk;
use super::action::{Action, RoomOrder, SlotState};
use super::config::{BESIDE_ASKED_MAX, WEIGH_MS_MAX};
use super::entry::{BesideTimes, Entry};
use super::event::{RoomTimes, SlotId};
use super::job::JobId;
use super::queue::{Waiter, choose};
use super::room::{RoomFor, Weighing};
use crate::engine::lanes::Lanes;

/// A job whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextTurn {
    /// Which.
    pub id: JobId,
    /// Those that it passes.
    pub passed: Vec<JobId>,
}

/// Whether a job can begin beside what runs.
enum Chance {
    /// As soon as the surveyor has said so.
    Asks,
    /// Now. Its milliseconds, and the lanes that it computes on.
    Begins(f64, Lanes),
    /// Not before one of the runs has ended.
    Waits,
    /// Its client has as many running as it may.
    Quota,
}

impl Desk {
    /// The job that begins next, if any may now.
    pub(super) fn next_start(&self) -> Option<NextTurn> {
        match self.is_busy() {
            // A queue may be long: it is not sorted in vain.
            true if !self.may_any_begin_beside() => None,
            true => self.next_beside(&self.ready_jobs()),
            false => self.next_of(&self.ready_jobs()),
        }
    }

    /// The job whose turn is next, whether it can begin now or when what runs has ended.
    pub(super) fn next_in_turn(&self) -> Option<JobId> {
        let ready = self.ready_jobs();
        let beside = self.is_busy() && self.may_any_begin_beside();
        let next = beside.then(|| self.next_beside(&ready)).flatten();
        next.or_else(|| self.next_of(&ready)).map(|next| next.id)
    }

    /// Jobs that nothing holds back but their turn and what runs, in the order of their turns.
    pub(super) fn ready_jobs(&self) -> Vec<Waiter> {
        let mut ready = self.waiters();
        ready.retain(|waiter| self.may_begin(&waiter.id));
        ready
    }

    /// The next of jobs in the order of their turns, where nothing runs.
    fn next_of(&self, ready: &[Waiter]) -> Option<NextTurn> {
        let place = choose(ready, self.now.ms)?;
        let passed = ready[..place].iter().map(|waiter| waiter.id.clone()).collect();
        Some(NextTurn { id: ready[place].id.clone(), passed })
    }

    /// Whether the plans of all that runs are known, and there is a lane that none of them is on.
    fn may_any_begin_beside(&self) -> bool {
        let known = self.busy_slots().all(|(_, slot)| slot.lanes.is_some() && !slot.runs_alone);
        known && self.config.several_loaded && !self.lanes.is_within(&self.lanes_taken())
    }

    /// The next of jobs beside what runs.
    fn next_beside(&self, ready: &[Waiter]) -> Option<NextTurn> {
        let taken = self.lanes_taken();
        let mut held_back: Vec<&Waiter> = Vec::new();
        for (at, waiter) in ready.iter().enumerate() {
            let passed = match self.chance(&waiter.id, &taken) {
                Chance::Quota => continue,
                Chance::Waits => None,
                Chance::Asks => {
                    let offer = &self.jobs[&waiter.id].record.offer;
                    self.passes(&held_back, waiter.run_ms, &offer.lanes)
                }
                Chance::Begins(ms, lanes) => self.passes(&held_back, ms, &lanes),
            };
            match passed {
                Some(passed) => return Some(self.warm_instead(&ready[at..], passed, &taken)),
                None => held_back.push(waiter),
            }
        }
        None
    }

    /// The first of some jobs that can begin; or a younger one on the same lanes whose model is
    /// loaded, where it may pass those before it.
    fn warm_instead(&self, ready: &[Waiter], passed: Vec<JobId>, taken: &Lanes) -> NextTurn {
        let first = &ready[0];
        let lanes = |waiter: &Waiter| &self.jobs[&waiter.id].record.offer.lanes;
        let is_rival = |waiter: &&Waiter| {
            waiter.id == first.id
                || lanes(waiter) == lanes(first)
                    && matches!(self.chance(&waiter.id, taken), Chance::Asks | Chance::Begins(..))
        };
        // Whom the first one passes the other would pass too: then it is left to the first.
        let rivals: Vec<Waiter> = match passed.is_empty() && !first.warm {
            true => ready.iter().filter(is_rival).cloned().collect(),
            false => vec![first.clone()],
        };
        match self.next_of(&rivals) {
            Some(next) if passed.is_empty() => next,
            _ => NextTurn { id: first.id.clone(), passed },
        }
    }

    fn chance(&self, id: &JobId, taken: &Lanes) -> Chance {
        let entry = &self.jobs[id];
        let slot = self.find_slot(entry.model()).map(|slot| &self.slots[&slot]);
        if slot.is_some_and(|slot| slot.is_busy()) || entry.needs_quiet() {
            return Chance::Waits;
        }
        if self.runs_of(&entry.record.order.client) >= self.config.client_running_max {
            return Chance::Quota;
        }
        let room_is_made = matches!(&self.room_made, Some(RoomFor::Job(made)) if made == id);
        match &entry.beside {
            Some(known) if known.standing == self.standing || room_is_made => match &known.times {
                Some((times, _)) if room_is_made || self.is_sooner(entry, times, taken) => {
                    Chance::Begins(times.job_ms, times.lanes.clone())
                }
                _ => Chance::Waits,
            },
            _ if self.may_be_asked(entry, taken) => Chance::Asks,
            _ => Chance::Waits,
        }
    }

    /// Whether a job may have a plan on lanes that are free: its own, or another one on a device
    /// that nobody computes on.
    fn may_be_asked(&self, entry: &Entry, taken: &Lanes) -> bool {
        let own = &entry.record.offer.lanes;
        let own_are_free = !own.is_empty() && !own.shares(taken);
        let is_left = self.beside_asked < BESIDE_ASKED_MAX;
        is_left && (own_are_free || self.lanes.has_device_beside(taken))
    }

    /// Whether a job is sooner done by a plan beside what runs than by its own after that.
    fn is_sooner(&self, entry: &Entry, times: &RoomTimes, taken: &Lanes) -> bool {
        let offer = &entry.record.offer;
        let load_ms = if self.is_warm(entry.model()) { 0.0 } else { offer.load_ms };
        let wait_ms = self.left_ms_of(&offer.lanes);
        times.job_ms <= wait_ms + load_ms + offer.run_ms || !offer.lanes.shares(taken)
    }

    /// The jobs held back that another one passes, which takes `ms` milliseconds on these lanes;
    /// `None` where it may not pass one of them.
    fn passes(&self, held_back: &[&Waiter], ms: f64, lanes: &Lanes) -> Option<Vec<JobId>> {
        let mut passed = Vec::new();
        for waiter in held_back {
            let entry = &self.jobs[&waiter.id];
            let needs = self.lanes_of_held_back(entry);
            if !needs.is_empty() && !lanes.is_empty() && !needs.shares(lanes) {
                continue;
            }
            let in_time = ms <= self.left_ms_of(&needs);
            if !in_time || !waiter.may_be_passed_by_company(self.now.ms) {
                return None;
            }
            passed.push(waiter.id.clone());
        }
        Some(passed)
    }

    /// The lanes that a job is kept from; none, which are all, where it is kept by something else.
    fn lanes_of_held_back(&self, entry: &Entry) -> Lanes {
        let own = &entry.record.offer.lanes;
        let slot = self.find_slot(entry.model()).map(|slot| &self.slots[&slot]);
        let is_running = slot.is_some_and(|slot| slot.is_busy());
        let is_kept_by_lanes = own.shares(&self.lanes_taken()) || is_running;
        match is_kept_by_lanes && !entry.needs_quiet() {
            true => own.clone(),
            false => Lanes::default(),
        }
    }

    /// All lanes that something runs on.
    fn lanes_taken(&self) -> Lanes {
        let mut taken = Lanes::default();
        let known = self.busy_slots().filter_map(|(_, slot)| slot.lanes.as_ref());
        known.for_each(|lanes| taken.join(lanes));
        taken
    }

    /// Predicted milliseconds until nothing runs any more on any of these lanes; on any at all
    /// where there are none.
    pub(super) fn left_ms_of(&self, lanes: &Lanes) -> f64 {
        let is_on = |slot: &super::slots::Slot| {
            lanes.is_empty() || slot.lanes.as_ref().is_none_or(|taken| taken.shares(lanes))
        };
        let on = self.busy_slots().filter(|(_, slot)| is_on(slot));
        on.map(|(id, _)| self.left_ms(id)).fold(0.0, f64::max)
    }

    /// Runs of a client.
    fn runs_of(&self, client: &str) -> usize {
        let is_theirs =
            |id: &JobId| self.jobs.get(id).is_some_and(|entry| entry.record.order.client == client);
        self.busy_slots().filter(|(_, slot)| slot.members().iter().any(is_theirs)).count()
    }

    /// Whether a job that begins beside others has its room; where not, it is asked for, or made.
    pub(super) fn make_room_beside(&mut self, slot: SlotId, id: &JobId) -> bool {
        let room_for = RoomFor::Job(id.clone());
        if self.room_made.take_if(|made| *made == room_for).is_some() {
            return true;
        }
        let known = self.jobs[id].beside.as_ref();
        let known = known.filter(|known| known.standing == self.standing);
        if let Some((_, unloaded)) = known.and_then(|known| known.times.clone()) {
            if unloaded.is_empty() {
                return true;
            }
            self.unload_for(room_for, &unloaded);
            return false;
        }
        self.ask_beside(slot, id);
        false
    }

    fn ask_beside(&mut self, slot: SlotId, id: &JobId) {
        let query = self.ids.query();
        let mut idle = self.idle_slots();
        idle.retain(|other| *other != slot);
        let choices = self.room_choices(&idle);
        let running: Vec<SlotId> = self.busy_slots().map(|(id, _)| id).collect();
        let request = self.jobs[id].record.order.request.clone();
        let order =
            RoomOrder { request, slot: Some(slot), choices: choices.clone(), running, busy: true };
        self.out.push(Action::Weigh(query, Box::new(order)));
        self.beside_asked += 1;
        let model = self.slots[&slot].model.clone();
        let until_ms = self.now.ms + WEIGH_MS_MAX;
        let (room_for, beside) = (RoomFor::Job(id.clone()), Some(self.standing));
        self.weighing = Some(Weighing { query, room_for, model, choices, beside, until_ms });
    }

    /// The surveyor has said what a job takes beside what runs.
    pub(super) fn weighed_beside(
        &mut self,
        id: &JobId,
        standing: u64,
        times: Option<(RoomTimes, Vec<SlotId>)>,
    ) {
        if let Some(entry) = self.jobs.get_mut(id) {
            entry.beside = Some(BesideTimes { standing, times });
        }
    }

    /// Something else runs, or is loaded, than before: what was said of it stands no more.
    pub(super) fn standing_changed(&mut self) {
        self.standing += 1;
        self.beside_asked = 0;
    }

    /// A run's plan is known.
    pub(super) fn set_lanes(&mut self, id: SlotId, lanes: Lanes) {
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.is_busy()) else { return };
        if slot.lanes.as_ref() != Some(&lanes) {
            slot.lanes = Some(lanes);
            self.standing_changed();
        }
    }

    /// A run came into another one's way: its jobs are begun again, the second time when nothing
    /// runs.
    pub(super) fn run_in_the_way(&mut self, slot: SlotId, jobs: &[JobId]) {
        self.set_idle(slot, None);
        for id in jobs {
            self.end_run(id);
            let Some(entry) = self.jobs.get_mut(id) else { continue };
            entry.conflicts += 1;
            match entry.ending {
                Some(reason) => self.ended_early(id, reason),
                None => self.requeue(id, super::job::JobState::Queued),
            }
        }
        if self.slots.get(&slot).is_some_and(|slot| slot.pid.is_none()) {
            self.set_slot(slot, SlotState::Cold);
        }
    }
}
