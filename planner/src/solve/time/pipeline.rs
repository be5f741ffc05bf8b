//! What a pipeline takes: groups of items that follow one another through its devices.
//!
//! ```text
//! stage 0:  group 0 │ group 1 │ group 2 │
//! stage 1:          │ group 0 │ group 1 │ group 2
//! ```

use protocol::{Division, item_runs};

use super::{Timing, sum_s};

impl Timing<'_> {
    /// Whether weights may pass through a ring: not where each group would need all of them anew.
    pub fn may_stream(&self) -> bool {
        !matches!(self.spread.division, Division::Pipeline { .. })
    }

    /// What each segment of a pipeline adds to one call of all passes of a step: its part of all
    /// groups, as much shorter as devices compute beside each other. `None` for other splits.
    pub(super) fn in_groups_s(&self) -> Option<Vec<f64>> {
        let Division::Pipeline { segments, counts } = &self.spread.division else { return None };
        let batch = self.times.component.items.batch;
        let mut groups_s = vec![vec![0.0; segments.len()]; counts.len()];
        for run in item_runs(counts, batch as usize) {
            let part = run.items.len() as f64 / f64::from(batch);
            for (segment, lane) in segments.iter().enumerate() {
                let device = self.spread.devices[*lane as usize];
                groups_s[run.part][segment] += self.of_items_s(device, segment, part);
            }
        }
        let in_stages = |segments_s: &Vec<f64>| {
            let mut stages_s = vec![0.0; self.spread.devices.len()];
            for (segment_s, lane) in segments_s.iter().zip(segments) {
                stages_s[*lane as usize] += segment_s;
            }
            stages_s
        };
        let stages_s: Vec<Vec<f64>> = groups_s.iter().map(in_stages).collect();
        let all_s: f64 = groups_s.iter().map(|segments_s| sum_s(segments_s)).sum();
        let shorter = if all_s > 0.0 { self.call_of_groups_s(&stages_s) / all_s } else { 1.0 };
        let of_segment = |segment: usize| -> f64 {
            shorter * groups_s.iter().map(|segments_s| segments_s[segment]).sum::<f64>()
        };
        Some((0..segments.len()).map(of_segment).collect())
    }

    /// When the last group leaves the last stage; `groups_s` has what each takes in each stage.
    ///
    /// A slot lasts as long as the processor that takes longest in it. Nodes are handed out slot by
    /// slot, and no device is given many of the next one while another is not done with this.
    fn call_of_groups_s(&self, groups_s: &[Vec<f64>]) -> f64 {
        let devices = &self.spread.devices;
        let stages = devices.len();
        let processor = |stage: usize| match self.computes_apart(devices[stage]) {
            true => self.gpus[stage],
            false => stages,
        };
        let slot_s = |slot: usize| {
            let mut busy_s = vec![0.0; stages + 1];
            for stage in 0..stages.min(slot + 1) {
                let group_s = groups_s.get(slot - stage).map(|stages_s| stages_s[stage]);
                busy_s[processor(stage)] += group_s.unwrap_or(0.0);
            }
            busy_s.into_iter().fold(0.0, f64::max)
        };
        (0..groups_s.len() + stages - 1).map(slot_s).sum()
    }
}
