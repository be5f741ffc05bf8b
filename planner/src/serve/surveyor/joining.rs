//! Which jobs gain by running together: by the plan of all of them, and the plans of each.

use protocol::{Job, JobShape};

use super::super::desk::action::JoinOrder;
use super::super::desk::event::{JoinTimes, SlotId};
use super::super::desk::job::JobError;
use super::super::failures::{of_plan, of_request};
use super::bench::{Away, JobQuestion, SurveyBench};
use super::offer::PlannedMs;
use crate::engine::session::Session;
use crate::job::joined::{JoinedJob, JoiningJob};
use crate::job::{PreparedJob, ResolvedJob};
use crate::planning::PlanError;

/// Jobs run together where that takes at most this part of what they take one after another:
/// serve.md, section 5.
const JOINED_MS_PART: f64 = 0.9;

impl SurveyBench {
    /// Which jobs gain by running with the first one; `None` where none do. Those that cannot run
    /// with it are left out; then all are tried, half of them, and so on.
    ///
    /// # Errors
    /// Why the first job cannot be.
    pub fn join(&mut self, order: &JoinOrder) -> Result<Option<JoinTimes>, JobError> {
        let JoinOrder { requests, slot, unloaded, busy } = order;
        let [first, others @ ..] = &requests[..] else { return Ok(None) };
        self.about(first, *slot, *busy, |bench, session, question| {
            let host = bench.shared.host();
            let prepared = others.iter().map(|request| bench.shared.prepare(request, &host));
            let others = prepared.collect::<Result<Vec<PreparedJob>, JobError>>()?;
            let description = &question.model.description;
            let all = [&question.asked].into_iter().chain(&others);
            let all = all.map(|asked| JoiningJob::new(asked, description));
            let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| of_request(&error))?;
            let job = question.asked.job(&all[0].resolved).map_err(|error| of_request(&error))?;
            let mut asks =
                JoinQuestion { bench, session, question, job, unloaded, found: Vec::new() };
            let mut jobs = asks.with_first(&all)?;
            while jobs.len() > 1 {
                if let Some(times) = asks.gain(&all, &jobs)? {
                    return Ok(Some(times));
                }
                jobs.truncate(jobs.len() / 2);
            }
            Ok(None)
        })
    }
}

/// What a question about jobs is answered with.
struct JoinQuestion<'a> {
    bench: &'a mut SurveyBench,
    session: &'a mut Session,
    question: &'a JobQuestion,
    /// The one whose turn it is: the others join it.
    job: Job,
    unloaded: &'a [SlotId],
    /// What was found so far, by shape: most jobs alone have the same.
    found: Vec<(JobShape, Option<PlannedMs>)>,
}

impl JoinQuestion<'_> {
    /// The places of those that may run with the first job.
    fn with_first(&self, all: &[JoiningJob<'_>]) -> Result<Vec<usize>, JobError> {
        let mut places = vec![0];
        for place in 1..all.len() {
            if self.joined(all, &[0, place])?.is_some() {
                places.push(place);
            }
        }
        Ok(places)
    }

    fn joined(
        &self,
        all: &[JoiningJob<'_>],
        jobs: &[usize],
    ) -> Result<Option<JoinedJob>, JobError> {
        let members: Vec<&JoiningJob<'_>> = jobs.iter().map(|job| &all[*job]).collect();
        let joined = JoinedJob::of(&members, &self.question.model.description);
        joined.map_err(|error| of_request(&error))
    }

    /// What some take together, where that is enough less than one after another.
    fn gain(
        &mut self,
        all: &[JoiningJob<'_>],
        jobs: &[usize],
    ) -> Result<Option<JoinTimes>, JobError> {
        let Some(together) = self.times(all, jobs)? else { return Ok(None) };
        let (mut load_ms, mut run_ms) = (None, 0.0);
        for job in jobs {
            let Some(alone) = self.times(all, &[*job])? else { return Ok(None) };
            load_ms.get_or_insert(alone.load_ms);
            run_ms += alone.run_ms;
        }
        let gains = together.run_ms <= JOINED_MS_PART * run_ms
            && together.load_ms + together.run_ms <= load_ms.unwrap_or(0.0) + run_ms;
        let PlannedMs { load_ms, run_ms } = together;
        Ok(gains.then(|| JoinTimes { jobs: jobs.to_vec(), load_ms, run_ms }))
    }

    /// What some take in one run; `None` where they do not run together, or do not fit.
    fn times(
        &mut self,
        all: &[JoiningJob<'_>],
        jobs: &[usize],
    ) -> Result<Option<PlannedMs>, JobError> {
        let Some(joined) = self.joined(all, jobs)? else { return Ok(None) };
        let JobQuestion { asked, model, .. } = self.question;
        let mut resolved = ResolvedJob { shape: joined.shape, ..all[jobs[0]].resolved.clone() };
        let conditioning = &self.bench.shared.conditioning;
        let job = Job { items: joined.items, ..self.job.clone() };
        let keys = conditioning.keys(asked, &resolved, model, &job);
        resolved.shape.conditioned = keys.is_some_and(|keys| conditioning.has(&keys));
        if let Some((_, known)) = self.found.iter().find(|(shape, _)| *shape == resolved.shape) {
            return Ok(*known);
        }
        let away = Away { unloaded: self.unloaded, running: &[] };
        let request = self.bench.request(self.question, &resolved, away, false)?;
        let times = match self.bench.plan_on_slot(self.session, self.question, &request) {
            Ok(planned) => Some(planned.ms(&request, resolved.shape.batch)),
            Err(PlanError::Infeasible(_)) => None,
            Err(error) => return Err(of_plan(&error, &asked.model)),
        };
        self.found.push((resolved.shape, times));
        Ok(times)
    }
}
