//! The table of a curve: budgets with the time that they give, and what is where.

use protocol::plan::ComponentPlan;
use protocol::{Bytes, Division, JobShape, Phase, Plan, Residency};

use super::plan::locked;
use super::{table, text_of};
use crate::demo::shown_name;
use crate::policy::Objective;
use crate::solve::{shown_ms, slots};
use crate::tune::{Mark, Tuning, as_cap};

/// Rows of the table; the JSON document has all steps.
const ROWS_MAX: usize = 24;

/// The steps with a mark, and others evenly between them.
pub fn curve(tuning: &Tuning) -> String {
    let JobShape { width, height, batch, .. } = tuning.job;
    let steps = &tuning.curve.steps;
    let mut text = format!(
        "{} ({}) on {}, {width}x{height}, {} steps, batch {batch}\n\n",
        shown_name(&tuning.model),
        tuning.family,
        tuning.host,
        tuning.job.steps_run(),
    );
    let is_measured = tuning.measured.iter().any(Option::is_some);
    let mut header = vec!["--max-vram", "predicted", "a step"];
    if is_measured {
        header.extend(["measured", "a step"]);
    }
    let numbers = header.len();
    header.extend(["", "what is where"]);
    let mut rows = table(&header, 0);
    for index in numbers..header.len() {
        if let Some(column) = rows.column_mut(index) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
    }
    let shown = shown(tuning);
    for &index in &shown {
        let point = &steps[index].point;
        let mut row = vec![
            budget(point.budget),
            shown_ms(point.ms),
            shown_ms(point.plan.predicted_ms.phases[Phase::Denoise]),
        ];
        if is_measured {
            row.extend(match &tuning.measured[index] {
                Some(run) => [shown_ms(run.total_ms), shown_ms(run.denoise_step_ms)],
                None => [String::new(), String::new()],
            });
        }
        row.push(tuning.mark(index).map_or("", Mark::name).to_owned());
        row.push(summary(&point.plan));
        rows.add_row(row);
    }
    text.push_str(&text_of(&rows));
    if shown.len() < steps.len() {
        let more = steps.len() - shown.len();
        text.push_str(&format!("\nand {more} more steps between these (--json has all)"));
    }
    text.push_str("\n\n");
    text.push_str(&findings(tuning));
    text
}

/// The rows of the table among the steps.
fn shown(tuning: &Tuning) -> Vec<usize> {
    let is_needed = |step: &usize| tuning.mark(*step).is_some() || tuning.measured[*step].is_some();
    let all = 0..tuning.curve.steps.len();
    let (mut shown, rest): (Vec<usize>, Vec<usize>) = all.partition(is_needed);
    let room = ROWS_MAX.saturating_sub(shown.len()).min(rest.len());
    shown.extend((0..room).map(|index| rest[(2 * index + 1) * rest.len() / (2 * room)]));
    shown.sort_unstable();
    shown
}

/// What the curve says, in sentences.
fn findings(tuning: &Tuning) -> String {
    let steps = &tuning.curve.steps;
    let [first, .., last] = steps.as_slice() else {
        return "One plan is best with every budget in the range: more memory changes nothing."
            .to_owned();
    };
    let what = match tuning.objective {
        Objective::Throughput => "the next job on a warm executor",
        Objective::Latency | Objective::Memory => "a cold start",
    };
    let first_budget = match first.point.budget {
        Bytes::ZERO => "No device memory".to_owned(),
        bytes => budget(bytes),
    };
    let mut text = format!(
        "Times are of {what}. {} takes {:.2} times as long as {}, beyond which more changes nothing.",
        first_budget,
        first.point.ms / last.point.ms,
        budget(last.point.budget)
    );
    let knees: Vec<String> =
        tuning.knees.iter().map(|index| budget(steps[*index].point.budget)).collect();
    if !knees.is_empty() {
        let plural = if knees.len() == 1 { "knee" } else { "knees" };
        text.push_str(&format!(
            "\nA little more memory buys most at the {plural}: {}.",
            knees.join(", ")
        ));
    }
    if !tuning.curve.complete {
        text.push_str(&format!(
            "\nBetween these there may be further steps; hint: --points above {} finds them.",
            tuning.curve.plans
        ));
    }
    text
}

/// A budget as it can be given to `--max-vram`.
fn budget(bytes: Bytes) -> String {
    let (number, unit) = as_cap(bytes);
    format!("{number}{unit}")
}

/// How components are there, with their names.
type Group<'a> = (String, Vec<&'a str>);

/// Where everything is, in short: by device, components that are alike together. What is on the
/// host without a word is computed in place from its file.
pub fn summary(plan: &Plan) -> String {
    let mut places: Vec<(String, Vec<Group<'_>>)> = Vec::new();
    for component in &plan.components {
        let devices: Vec<&str> = component.devices.iter().map(|device| device.0.as_str()).collect();
        let groups = entry(&mut places, devices.join("&"));
        entry(groups, how(component)).push(&component.name);
    }
    let group = |(how, names): &Group<'_>| format!("{}{how}", names.join(" "));
    let place = |(devices, groups): &(String, Vec<Group<'_>>)| {
        format!("{devices}: {}", groups.iter().map(group).collect::<Vec<_>>().join(", "))
    };
    places.iter().map(place).collect::<Vec<_>>().join("; ")
}

/// The list under a name, made where there is none.
fn entry<T>(lists: &mut Vec<(String, Vec<T>)>, name: String) -> &mut Vec<T> {
    let index = lists.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
        lists.push((name, Vec::new()));
        lists.len() - 1
    });
    &mut lists[index].1
}

/// How a component is there, in few words.
fn how(component: &ComponentPlan) -> String {
    let split = match component.division {
        Division::One => "",
        Division::Layer { .. } => " in layers",
        Division::Row { .. } => " in rows",
        Division::Tensor { .. } => " by heads",
        Division::Items { .. } => " by items",
        Division::Pipeline { .. } => " as a pipeline",
    };
    let residency = match component.residency {
        Residency::Mapped => String::new(),
        Residency::Resident | Residency::Lazy => format!(" {}", component.residency),
        Residency::Streamed | Residency::Locked => {
            let segments = &component.segments;
            let streamed = segments.iter().filter(|s| s.is_streamed()).count();
            let slots = slots(component.lookahead);
            let locked = if locked(component) > 0 { ", locked" } else { "" };
            format!(" streamed {streamed}/{} through {slots}{locked}", segments.len())
        }
    };
    format!("{split}{residency}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::tuning;
    use crate::tune::Measured;

    #[test]
    fn components_that_are_alike_stand_together() {
        let plan = crate::render::testing::plan();
        assert_eq!(summary(&plan), "cuda0: te vae lazy, dit streamed 2/4 through 2 slots");
    }

    #[test]
    fn every_mark_has_its_row() {
        let mut tuning = tuning(&[(2, 100_000.0), (4, 30_000.0), (8, 28_000.0), (16, 20_000.0)]);
        tuning.measured[1] = Some(Measured { total_ms: 31_500.0, denoise_step_ms: 450.0 });
        let text = curve(&tuning);
        let row = |budget: &str| {
            let found = text.lines().find(|line| line.trim_start().starts_with(budget));
            found.unwrap_or_else(|| panic!("no {budget} in {text}"))
        };
        assert!(
            row("2.00GiB").contains("1.7 min") && row("2.00GiB").contains("smallest"),
            "{text}"
        );
        assert!(row("4.00GiB").contains("30.0 s") && row("4.00GiB").contains("knee"), "{text}");
        assert!(row("4.00GiB").contains("31.5 s") && row("4.00GiB").contains("450 ms"), "{text}");
        assert!(row("16.0GiB").contains("fastest"), "{text}");
        assert!(text.contains("2.00GiB takes 5.00 times as long as 16.0GiB"), "{text}");
        assert!(text.contains("at the knee: 4.00GiB."), "{text}");
    }

    #[test]
    fn long_curves_are_thinned_and_their_marks_kept() {
        let steps: Vec<(u64, f64)> = (1..=200).map(|at| (at, 1e6 / at as f64)).collect();
        let mut tuning = tuning(&steps);
        tuning.curve.complete = false;
        let text = curve(&tuning);
        assert!(text.contains(&format!("and {} more steps", 200 - ROWS_MAX)), "{text}");
        assert!(text.contains("smallest") && text.contains("fastest"), "{text}");
        assert!(text.contains("hint: --points above 9"), "{text}");
    }

    #[test]
    fn one_plan_for_all_budgets_is_said_so() {
        let text = curve(&tuning(&[(0, 20.0)]));
        assert!(text.contains("fastest") && text.contains("more memory changes nothing"), "{text}");
    }
}
