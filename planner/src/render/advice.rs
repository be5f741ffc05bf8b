//! Other plans that the user may prefer: lines under a plan's table, hints on standard error.

use protocol::Plan;

use crate::planning::LONG_MS;
use crate::solve::{Advice, Integrated, shown_ms};

/// Of each integrated device, what the plan takes without it, or with it: lines under the plan.
pub fn lines(plan: &Plan, advice: &Advice) -> String {
    let here = shown_ms(plan.predicted_ms.total);
    let line = |entry: &Integrated| {
        let Integrated { device, used, arguments, other_total_ms } = entry;
        let way = if *used { "without" } else { "with" };
        let flags = arguments.as_ref().map(|flags| format!(" ({flags})")).unwrap_or_default();
        let told = match other_total_ms {
            Some(ms) => format!("{} in place of {here}", shown_ms(*ms)),
            None => "no plan fits".to_owned(),
        };
        format!("\n{way} {device}, which is integrated{flags}: {told}")
    };
    advice.integrated.iter().map(line).collect()
}

/// A warning of a job that takes long, with what would be faster; else hints to name integrated
/// devices that are. Nothing where there is nothing to say.
pub fn hints(plan: &Plan, advice: &Advice) -> Vec<String> {
    let total_ms = plan.predicted_ms.total;
    if total_ms > LONG_MS {
        let warning = long_warning(total_ms);
        let faster = advice.faster.iter();
        let hints = faster.map(|f| format!("hint: {} would take {}", f.what, shown_ms(f.total_ms)));
        return [warning].into_iter().chain(hints).collect();
    }
    let hint = |entry: &Integrated| {
        let (arguments, ms) = (entry.arguments.as_ref()?, entry.other_total_ms?);
        (ms < total_ms).then(|| {
            let (there, here) = (shown_ms(ms), shown_ms(total_ms));
            format!("hint: {arguments} would take {there} in place of {here}")
        })
    };
    advice.integrated.iter().filter_map(hint).collect()
}

/// The warning of a job that takes long.
pub fn long_warning(total_ms: f64) -> String {
    format!("berth: this job is predicted to take {}", shown_ms(total_ms))
}

/// Tells the hints on standard error.
pub fn tell(plan: &Plan, advice: &Advice) {
    for line in hints(plan, advice) {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use protocol::DeviceId;

    use super::*;
    use crate::render::testing::plan;
    use crate::solve::Faster;

    fn unused(other_total_ms: Option<f64>) -> Advice {
        let entry = Integrated {
            device: DeviceId("cuda1".to_owned()),
            used: false,
            arguments: Some("--backend all=cuda1".to_owned()),
            other_total_ms,
        };
        Advice { integrated: vec![entry], ..Advice::default() }
    }

    #[test]
    fn only_what_is_faster_is_a_hint() {
        let plan = plan();
        let faster = unused(Some(1000.0));
        let hint = "hint: --backend all=cuda1 would take 1.0 s in place of 18.3 s";
        assert_eq!(hints(&plan, &faster), [hint]);
        assert!(lines(&plan, &faster).contains("(--backend all=cuda1): 1.0 s in place of 18.3 s"));
        let slower = unused(Some(60_000.0));
        assert!(hints(&plan, &slower).is_empty());
        assert!(lines(&plan, &slower).contains("1.0 min in place of 18.3 s"));
        assert!(lines(&plan, &unused(None)).ends_with(": no plan fits"));
        assert_eq!(lines(&plan, &Advice::default()), "");
    }

    #[test]
    fn a_long_job_is_warned_of_with_what_would_be_faster() {
        let mut plan = plan();
        plan.predicted_ms.total = LONG_MS;
        assert!(hints(&plan, &Advice::default()).is_empty());
        plan.predicted_ms.total = 6.0 * LONG_MS;
        let faster = Faster { what: "--steps 14".to_owned(), total_ms: 1_800_000.0 };
        let advice = Advice { faster: vec![faster], ..unused(Some(1000.0)) };
        let said = hints(&plan, &advice);
        assert_eq!(said[0], "berth: this job is predicted to take 60.0 min");
        assert_eq!(said[1..], ["hint: --steps 14 would take 30.0 min"]);
    }
}
