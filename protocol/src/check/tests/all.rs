//! Several broken rules at once: each is told, typed, with its figures.

use super::good::{segment, text};
use super::*;

#[test]
fn every_planted_fault_is_told() {
    let mut plan = text();
    plan.job.width = 0;
    plan.host.threads = 0;
    declare_link(&mut plan, -1.0);
    plan.components[0].lookahead = 1;
    plan.components[1].segments[0].weights_bytes = Bytes(1);
    plan.options.attention_chunk = 0;
    plan.devices[1].phases[1].compute_bytes = Bytes(7);
    plan.host.pinned_bytes = Bytes(1499);
    let component = |name: &str, rule| Violation::Component { component: name.to_owned(), rule };
    let memory = |id: &str, phase, rule| Violation::Memory { device: device(id), phase, rule };
    let expected = [
        JobRule::OutOfRange { what: "width", value: 0, max: SIDE_PIXELS_MAX }.into(),
        PlanRule::Threads { threads: 0 }.into(),
        Violation::Device { device: device("virtual0"), rule: DeviceRule::Link { link: -1.0 } },
        component(
            "clip",
            ComponentRule::Lookahead { residency: Residency::Resident, lookahead: 1 },
        ),
        component(
            "t5",
            ComponentRule::SegmentSum { segment: "block.0".to_owned(), held: 4096, stated: 1 },
        ),
        component("t5", ComponentRule::Sum { held: 6401, weights: 10_496 }),
        OptionsRule::Chunk { chunk: 0 }.into(),
        memory(
            "virtual1",
            Some(Phase::Denoise),
            MemoryRule::Sum { what: "compute", stated: 7, expected: 1024 },
        ),
        memory("host", None, MemoryRule::Idle { stated: 9692, expected: 9691 }),
        memory("host", None, MemoryRule::Pinned { stated: 1499, expected: 1500 }),
    ];
    let found = check(&plan).unwrap_err();
    assert_eq!(found.iter().cloned().collect::<Vec<_>>(), expected);
    let shown = found.to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), SHOWN_MAX + 1);
    assert_eq!(lines[0], "the plan breaks a rule: width 0 is not within 1 to 16384");
    assert_eq!(lines[1], "also: host: 0 threads are not within 1 to 1024");
    assert_eq!(lines[3], "also: clip, resident, has a lookahead of 1");
    assert_eq!(lines[SHOWN_MAX], "and 2 more");
}

fn declare_link(plan: &mut Plan, rate: f64) {
    if let DeviceBackend::Virtual { link_bytes_per_s, .. } = &mut plan.devices[0].backend {
        *link_bytes_per_s = rate;
    }
}

#[test]
fn one_broken_rule_is_one_violation() {
    let mut plan = text();
    plan.components[1].predicted_compute_ms = -1.0;
    let found = check(&plan).unwrap_err();
    assert_eq!((found.len(), found.is_empty()), (1, false));
    assert_eq!(found.to_string(), "the plan breaks a rule: t5 is predicted to take -1 ms");
    assert_eq!(found.sentences(), "t5 is predicted to take -1 ms");
}

#[test]
fn of_another_schema_nothing_else_is_said() {
    let mut plan = text();
    plan.schema = SCHEMA + 1;
    plan.job.width = 0;
    let found = check(&plan).unwrap_err();
    let all: Vec<&Violation> = found.iter().collect();
    assert_eq!(all, [&PlanRule::Schema { schema: SCHEMA + 1 }.into()]);
}

#[test]
fn so_many_violations_are_listed_and_no_more() {
    let mut plan = text();
    // Each segment is not aligned, and the whole is wrong too.
    let segments = vec![segment("s", Residency::Mapped, &[1]); SEGMENTS_MAX];
    plan.components[3].segments = segments;
    assert_eq!(check(&plan).unwrap_err().len(), VIOLATIONS_MAX);
}

#[test]
fn what_is_too_long_to_be_a_name_is_not_shown_whole() {
    let mut plan = text();
    plan.components[0].name = long();
    let shown = check(&plan).unwrap_err().to_string();
    assert!(shown.len() < 10 * 256, "{} bytes", shown.len());
    assert!(shown.contains("a component's text of 16385 bytes"), "{shown}");
}

#[test]
fn of_a_question_and_of_kept_weights_all_is_told_too() {
    let mut plan = text();
    plan.keeps_weights_of = Some(2);
    plan.family = "other".to_owned();
    let found = check_keeps(&plan, &text()).unwrap_err();
    let all: Vec<Violation> = found.iter().cloned().collect();
    let generation = KeptRule::Generation { generation: 2, loaded: 3 };
    assert_eq!(all, [generation.into(), KeptRule::Family.into()]);

    let options = GraphOptions {
        attention_chunk: 0,
        vae_tile: Some(VaeTile { width: 0, height: 64, overlap: 1.0 }),
        ..GraphOptions::default()
    };
    let found = check_options(&options).unwrap_err();
    let all: Vec<Violation> = found.iter().cloned().collect();
    let rules = [
        OptionsRule::Chunk { chunk: 0 },
        OptionsRule::TileSide { side: 0 },
        OptionsRule::Overlap { overlap: 1.0 },
    ];
    assert_eq!(all, rules.map(Violation::from));
}
