//! How far a job is and how long it will take: what the plan predicts, corrected by what was
//! measured so far. Pure: it is told the time.

use protocol::message::Progress;
use protocol::{Phase, Plan};

/// What is known of a job's time. All times are in milliseconds, from the start of its load.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// The job's phases in order, each with its predicted time.
    phases: Vec<(Phase, f64)>,
    /// Place in `phases` of the one that runs.
    current: usize,
    /// On the clock of whoever asks.
    began_ms: f64,
    /// When the last of its steps was done.
    told_ms: f64,
    /// Its part that was done then, 0 to 1.
    done: f64,
    /// How much longer than predicted the steps of denoising take: 1 until one was measured.
    slowness: f64,
}

impl Estimate {
    /// Of a job by a plan, before it begins.
    pub fn of(plan: &Plan) -> Estimate {
        let predicted = &plan.predicted_ms;
        let phase = |&phase: &Phase| {
            let ms = match phase {
                Phase::Denoise => predicted.phases[phase] * f64::from(plan.job.calls_run()),
                _ => predicted.phases[phase],
            };
            (phase, ms.max(0.0))
        };
        let phases = [Phase::Load].iter().chain(plan.job.timeline()).map(phase).collect();
        Estimate { phases, current: 0, began_ms: 0.0, told_ms: 0.0, done: 0.0, slowness: 1.0 }
    }

    /// Notes how far the job is now.
    pub fn note(&mut self, progress: Progress, now_ms: f64) {
        let Progress { phase, step, of } = progress;
        let Some(place) = self.phases.iter().position(|(other, _)| *other == phase) else { return };
        if place != self.current {
            (self.current, self.began_ms) = (place, now_ms);
        }
        self.told_ms = now_ms;
        self.done = f64::from(step.min(of)) / f64::from(of.max(1));
        let (phase, predicted_ms) = self.phases[place];
        if phase == Phase::Denoise && self.done > 0.0 && predicted_ms > 0.0 {
            self.slowness = (now_ms - self.began_ms) / (predicted_ms * self.done);
        }
    }

    /// What is left of the job.
    pub fn left_ms(&self, now_ms: f64) -> f64 {
        let (_, predicted_ms) = self.phases[self.current];
        let rest = 1.0 - self.done;
        let current_ms = if self.done > 0.0 {
            // The phase's own steps say best how long the others take.
            (self.told_ms - self.began_ms) / self.done * rest
        } else {
            predicted_ms * self.slowness
        };
        let since_ms = now_ms - self.told_ms;
        let later_ms: f64 = self.phases[self.current + 1..].iter().map(|(_, ms)| ms).sum();
        (current_ms - since_ms).max(0.0) + later_ms * self.slowness
    }

    /// The part of the job that is done, in time: 0 to 1.
    pub fn part(&self, now_ms: f64) -> f64 {
        let all_ms = now_ms + self.left_ms(now_ms);
        if all_ms > 0.0 { now_ms / all_ms } else { 0.0 }
    }
}

/// A time left, for people: `about 40 s left`.
pub fn shown_left(ms: f64) -> String {
    let seconds = (ms / 1e3).ceil().max(1.0);
    match seconds {
        s if s < 90.0 => format!("about {s:.0} s left"),
        s if s < 90.0 * 60.0 => format!("about {:.0} min left", s / 60.0),
        s => format!("about {:.1} h left", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn estimate() -> Estimate {
        let mut plan = testing::plan();
        plan.job.steps = 10;
        plan.predicted_ms.phases[Phase::Load] = 1000.0;
        plan.predicted_ms.phases[Phase::Condition] = 500.0;
        plan.predicted_ms.phases[Phase::Denoise] = 100.0;
        plan.predicted_ms.phases[Phase::Decode] = 500.0;
        Estimate::of(&plan)
    }

    fn at(phase: Phase, step: u32, of: u32) -> Progress {
        Progress { phase, step, of }
    }

    #[test]
    fn before_anything_was_measured_it_is_what_was_predicted() {
        let estimate = estimate();
        assert_eq!(estimate.left_ms(0.0), 3000.0);
        assert_eq!(estimate.left_ms(600.0), 2400.0);
        // A load that takes longer than predicted: nothing of it is known to be left.
        assert_eq!(estimate.left_ms(4000.0), 2000.0);
        assert_eq!(estimate.part(2000.0), 0.5);
    }

    #[test]
    fn steps_that_were_measured_correct_what_follows() {
        let mut estimate = estimate();
        estimate.note(at(Phase::Load, 1, 1), 1000.0);
        estimate.note(at(Phase::Condition, 0, 1), 1000.0);
        estimate.note(at(Phase::Denoise, 0, 1), 1500.0);
        assert_eq!(estimate.left_ms(1500.0), 1500.0);
        // Five steps of 200 ms, twice as long as predicted: so are the others, and the decoder.
        estimate.note(at(Phase::Denoise, 5, 10), 2500.0);
        assert_eq!(estimate.left_ms(2500.0), 2000.0);
        assert_eq!(estimate.left_ms(2600.0), 1900.0);
        estimate.note(at(Phase::Denoise, 10, 10), 3500.0);
        estimate.note(at(Phase::Decode, 0, 1), 3500.0);
        assert_eq!(estimate.left_ms(3500.0), 1000.0);
        estimate.note(at(Phase::Decode, 1, 1), 4500.0);
        assert_eq!((estimate.left_ms(4500.0), estimate.part(4500.0)), (0.0, 1.0));
    }

    #[test]
    fn times_are_shown_in_units_that_people_read() {
        let shown = [0.0, 900.0, 89_000.0, 90_500.0, 3.6e6, 1.8e7].map(shown_left);
        let expected =
            ["about 1 s", "about 1 s", "about 89 s", "about 2 min", "about 60 min", "about 5.0 h"];
        assert_eq!(shown, expected.map(|text| format!("{text} left")));
    }
}
