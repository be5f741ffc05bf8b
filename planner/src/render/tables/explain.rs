//! Why a plan is as it is: each decision with its reason, what lost and by how much, and what
//! bounds the job.
//!
//! A report may lack any of its figures; what is not known is not shown.

use std::cmp::Ordering;

use comfy_table::CellAlignment;
use protocol::{Bytes, Plan};

use super::{table, text_of};
use crate::policy::Objective;
use crate::solve::{PlanReport, Rejected, Shortfall, options, shown_ms};

/// The least part of the job's time that a place must cost to be told.
const TOLD_PART_MIN: f64 = 0.005;

/// Places that are told for each component; the JSON document has all.
const SHOWN_MAX: usize = 5;

/// Each component's reason with its runners-up, best first by the objective, then what bounds the
/// job.
pub fn explanation(plan: &Plan, report: &PlanReport, objective: Objective) -> String {
    let costs = Telling::of(plan, objective);
    let mut text = String::from("why");
    let mut told = vec![false; report.rejected.len()];
    for component in &plan.components {
        text.push_str(&format!("\n  {}: {}", component.name, component.reason));
        let mut others: Vec<(String, &Rejected)> = Vec::new();
        for (rejected, told) in report.rejected.iter().zip(&mut told) {
            let of_it = rejected.placement.strip_prefix(&component.name);
            if let Some(place) = of_it.and_then(|rest| rest.strip_prefix(' ')) {
                others.push((place.to_owned(), rejected));
                *told = true;
            }
        }
        text.push_str(&rejections(others, costs));
    }
    let rest = report.rejected.iter().zip(&told).filter(|(_, told)| !**told);
    let (others, rest): (Vec<_>, Vec<_>) =
        rest.map(|(rejected, _)| rejected).partition(|rejected| rejected.more_ms.is_some());
    if !others.is_empty() {
        text.push_str(&format!("\n  options: {}", options(&plan.options)));
        let others = others.into_iter().map(|rejected| (rejected.placement.clone(), rejected));
        text.push_str(&rejections(others.collect(), costs));
    }
    for (index, rejected) in rest.into_iter().enumerate() {
        text.push_str(if index == 0 { "\n\nleft out\n" } else { "\n" });
        text.push_str(&format!("  {}: {}", rejected.placement, because(rejected, objective)));
    }
    if !report.bounds.is_empty() {
        text.push_str("\n\nwhat bounds it");
        for bound in &report.bounds {
            text.push_str(&format!("\n  {bound}"));
        }
    }
    text
}

/// Which of the places that lost are told, and which are only counted.
#[derive(Clone, Copy)]
struct Telling {
    objective: Objective,
    /// The least cost that is told, in milliseconds.
    least_ms: f64,
}

impl Telling {
    fn of(plan: &Plan, objective: Objective) -> Telling {
        let job_ms = match objective {
            Objective::Throughput => plan.predicted_ms.next_total,
            Objective::Latency | Objective::Memory => plan.predicted_ms.total,
        };
        Telling { objective, least_ms: TOLD_PART_MIN * job_ms }
    }

    /// Whether a place costs next to nothing of what the objective counts.
    fn is_as_good(self, rejected: &Rejected) -> bool {
        let no_ms = rejected.more_ms.is_some_and(|ms| ms < self.least_ms);
        let no_bytes = rejected.more_bytes == Some(0);
        match self.objective {
            Objective::Memory => no_bytes && no_ms,
            Objective::Latency | Objective::Throughput => no_ms,
        }
    }
}

/// The places that a component did not get: how many are as good, and a handful of the others.
fn rejections(others: Vec<(String, &Rejected)>, told: Telling) -> String {
    let Telling { objective, .. } = told;
    let (as_good, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|(_, rejected)| told.is_as_good(rejected));
    // Stable: those that cost the same stay in the report's order.
    others.sort_by(|(_, a), (_, b)| order(a, b, objective));
    let others_shown = &others[..others.len().min(SHOWN_MAX)];
    // Columns of figures that nobody knows are left out.
    let any_ms = others_shown.iter().any(|(_, rejected)| rejected.more_ms.is_some());
    let any_bytes = others_shown.iter().any(|(_, rejected)| rejected.more_bytes.is_some());
    let columns = 2 + usize::from(any_ms) + usize::from(any_bytes);
    let mut rows = table(&vec![""; columns], 1);
    if let Some(column) = rows.column_mut(columns - 1) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    for (place, rejected) in others_shown {
        let mut row = vec![place.clone()];
        row.extend(any_ms.then(|| rejected.more_ms.map(more_ms).unwrap_or_default()));
        row.extend(any_bytes.then(|| rejected.more_bytes.map(more_bytes).unwrap_or_default()));
        row.push(because(rejected, objective));
        rows.add_row(row);
    }
    let mut text = String::new();
    if let count @ 1.. = as_good.len() {
        let places =
            if count == 1 { "1 other place is" } else { &format!("{count} other places are") };
        let like = if objective == Objective::Memory { "as small and as fast" } else { "as fast" };
        text.push_str(&format!("\n    {places} {like}, or nearly so (--json has all)"));
    }
    // The first line is the header, which has no names here.
    for line in text_of(&rows).lines().skip(1) {
        text.push_str(&format!("\n    not {line}"));
    }
    if others.len() > SHOWN_MAX {
        let hidden = &others[SHOWN_MAX..];
        let too_large = hidden.iter().filter(|(_, rejected)| rejected.short.is_some()).count();
        let which = match too_large {
            0 => String::new(),
            count if count == hidden.len() => ", which do not fit".to_owned(),
            count => format!(", of which {count} do not fit"),
        };
        text.push_str(&format!("\n    and {} more{which} (--json has all)", hidden.len()));
    }
    text
}

/// What costs least first; then what is not known; then what does not fit, the least short first.
fn order(a: &Rejected, b: &Rejected, objective: Objective) -> Ordering {
    let short = |rejected: &Rejected| rejected.short.as_ref().map(missing);
    let cost = |rejected: &Rejected| {
        let bytes = rejected.more_bytes.map(|bytes| bytes as f64);
        match objective {
            Objective::Memory => [bytes, rejected.more_ms],
            Objective::Latency | Objective::Throughput => [rejected.more_ms, bytes],
        }
        .map(|figure| figure.unwrap_or(f64::INFINITY))
    };
    let ([a1, a2], [b1, b2]) = (cost(a), cost(b));
    short(a).cmp(&short(b)).then(a1.total_cmp(&b1)).then(a2.total_cmp(&b2))
}

fn missing(short: &Shortfall) -> Bytes {
    short.needed_bytes.saturating_sub(short.budget_bytes)
}

/// Why a place lost, where its cost beside it does not say that already.
fn because(rejected: &Rejected, objective: Objective) -> String {
    if let Some(short) = &rejected.short {
        return format!(
            "does not fit: {} is {} short in the {} phase, {} of {}",
            short.device,
            missing(short),
            short.phase,
            short.needed_bytes,
            short.budget_bytes
        );
    }
    let costs = match objective {
        Objective::Memory => rejected.more_bytes.is_some_and(|bytes| bytes > 0),
        Objective::Latency | Objective::Throughput => rejected.more_ms.is_some_and(|ms| ms > 0.0),
    };
    if costs { String::new() } else { rejected.because.clone() }
}

fn more_ms(ms: f64) -> String {
    format!("{}{}", if ms < 0.0 { '-' } else { '+' }, shown_ms(ms.abs()))
}

fn more_bytes(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { '-' } else { '+' }, Bytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use protocol::{DeviceId, Phase};

    use super::*;
    use crate::render::testing::plan;

    fn rejected(placement: &str, more_ms: Option<f64>, more_bytes: Option<i64>) -> Rejected {
        let because = format!("{placement} lost");
        Rejected { placement: placement.to_owned(), because, more_ms, more_bytes, short: None }
    }

    fn short(placement: &str, needed_gib: u64) -> Rejected {
        let short = Shortfall {
            device: DeviceId("cuda0".to_owned()),
            phase: Phase::Denoise,
            needed_bytes: Bytes::gib(needed_gib),
            budget_bytes: Bytes::gib(10),
        };
        Rejected { short: Some(short), ..rejected(placement, None, None) }
    }

    #[test]
    fn what_lost_is_told_by_component_and_best_first() {
        let report = PlanReport {
            rejected: vec![
                short("dit on cuda0, resident", 24),
                rejected("dit on host, mapped", Some(60_000.0), Some(-(2 << 30))),
                rejected("vae on host, mapped", Some(0.0), Some(0)),
                rejected("dit on cuda0&cuda1, streamed", Some(1500.0), Some(1 << 30)),
                rejected("anything on cuda9", None, None),
            ],
            bounds: vec!["cuda0 is full: 1 GiB more would save 2 s".to_owned()],
            ..PlanReport::default()
        };
        let text = explanation(&plan(), &report, Objective::Latency);
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}"));
        let order = [
            "  te: on cuda0, as it is made up",
            "  dit: on cuda0, as it is made up",
            "    not on cuda0&cuda1, streamed    +1.5 s  +1.00 GiB\n",
            "    not on host, mapped           +1.0 min  -2.00 GiB\n",
            "    not on cuda0, resident",
            "does not fit: cuda0 is 14.0 GiB short in the denoise phase, 24.0 GiB of 10.0 GiB",
            "  vae: on cuda0, as it is made up",
            "    1 other place is as fast, or nearly so (--json has all)\n",
            "left out\n  anything on cuda9: anything on cuda9 lost",
            "what bounds it\n  cuda0 is full: 1 GiB more would save 2 s",
        ];
        assert!(order.map(place).is_sorted(), "{text}");
    }

    #[test]
    fn the_objective_decides_what_is_best() {
        let report = PlanReport {
            rejected: vec![
                rejected("dit on a", Some(1e3), Some(500)),
                rejected("dit on b", Some(2e3), Some(100)),
            ],
            ..PlanReport::default()
        };
        let text = explanation(&plan(), &report, Objective::Latency);
        assert!(text.find("not on a") < text.find("not on b"), "{text}");
        let text = explanation(&plan(), &report, Objective::Memory);
        assert!(text.find("not on b") < text.find("not on a"), "{text}");
    }

    #[test]
    fn many_are_counted_and_unknown_figures_left_out() {
        let mut places: Vec<Rejected> =
            (0..7).map(|index| rejected(&format!("dit on d{index}"), None, None)).collect();
        places.push(short("dit on cuda0, resident", 30));
        let report = PlanReport { rejected: places, ..PlanReport::default() };
        let text = explanation(&plan(), &report, Objective::Throughput);
        assert_eq!(text.matches("    not ").count(), SHOWN_MAX, "{text}");
        assert!(text.contains("and 3 more, of which 1 do not fit (--json has all)"), "{text}");
        assert!(text.contains("d0") && text.contains("dit on d0 lost"), "{text}");
        assert!(!text.contains("what bounds it") && !text.contains("left out"), "{text}");
    }
}
