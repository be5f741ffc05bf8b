//! Problems with pins: splits, streaming, and what a device cannot do, against an enumeration of everything.
//!
//! A stand-in for the executor's sizes: made up, yet as the protocol says they are.

use protocol::plan::{ComponentPlan, STAGING_BYTES};
use protocol::profile::{ComponentProfile, LayoutPart};
use protocol::{Layout, LayoutBytes, Phase, Placement, Residency};

use super::made_up::{Case, Dice};
use super::*;
use crate::policy::pins::{Params, Split};

/// Made-up problems for each property.
const CASES: u64 = 300;

/// Bytes of a layout: layers hold their segments' weights, rows a share of each in steps of 256 bytes, the host what
/// belongs to every third segment where a device lacks something.
fn sized(component: &ComponentProfile, layout: &Layout) -> LayoutBytes {
    let lanes = layout.lanes.len();
    let lacks = layout.lanes.iter().any(|lane| !lane.unsupported.is_empty());
    let on_host = lacks && layout.lanes.iter().all(|lane| lane.backend != BackendKind::Host);
    let mut parts: Vec<LayoutPart> = (0..lanes + usize::from(on_host))
        .map(|part| LayoutPart {
            compute_bytes: Bytes(256 * (1 + (part as u64 + component.weights_bytes.0 / 256) % 5)),
            segment_bytes: vec![Bytes::ZERO; layout.segments.len()],
        })
        .collect();
    let shares: u64 = layout.row_shares.iter().map(|share| u64::from(*share)).sum();
    for (index, segment) in component.segments.iter().enumerate() {
        let weights = segment.weights_bytes;
        if on_host && index % 3 == 1 {
            parts[lanes].segment_bytes[index] = weights;
        } else if shares > 0 && segment.block {
            for (part, share) in parts.iter_mut().zip(&layout.row_shares) {
                let rows = weights.0 * u64::from(*share) / shares;
                part.segment_bytes[index] = Bytes(rows).align_up(256);
            }
        } else {
            parts[layout.segments[index] as usize].segment_bytes[index] = weights;
        }
    }
    LayoutBytes { parts, crossing_bytes: component.boundary_bytes + Bytes(64 * lanes as u64) }
}

/// The problem of a case with pins, and places made of [`sized`].
fn posed<'a>(case: &'a Case, pins: &[Pin], objective: Objective, prefetch: bool) -> Problem<'a> {
    let mut problem = case.problem(objective);
    problem.pins = pins.to_vec();
    problem.prefetch = prefetch;
    let wanted = wanted(&problem);
    let components = &case.profile.components;
    let bytes: Vec<LayoutBytes> =
        wanted.iter().map(|w| sized(&components[w.component], &w.layout)).collect();
    problem.places = places(&problem, &wanted, &bytes);
    problem
}

/// A pin that makes sense for a component.
fn random_pin(dice: &mut Dice, case: &Case, component: &ComponentProfile) -> Pin {
    let mut devices: Vec<Option<usize>> = (0..case.inventory.devices.len()).map(Some).collect();
    if dice.below(3) == 0 {
        devices.push(None);
    }
    for index in (1..devices.len()).rev() {
        devices.swap(index, dice.below(index as u64 + 1) as usize);
    }
    devices.truncate(dice.below(4) as usize);
    let mut split = Split::Layer;
    if devices.len() > component.segments.len() {
        devices.truncate(1);
    }
    let kinds = |device: &Option<usize>| device.map(|index| case.inventory.devices[index].kind);
    let alike =
        devices.iter().all(|device| device.is_some() && kinds(device) == kinds(&devices[0]));
    if devices.len() > 1 && alike && component.splits_rows && dice.below(2) == 0 {
        split = Split::Row;
    }
    let shared = devices.len() > 1 && dice.below(3) == 0;
    let shares = devices.iter().filter(|_| shared).map(|_| 1 + dice.below(4) as u32).collect();
    let any = [None, Some(Params::Cpu), Some(Params::Disk), Some(Params::Device)];
    let params = if devices == [None] { None } else { any[dice.below(4) as usize] };
    let lookahead = 1 + dice.below(3) as u32;
    Pin { devices, shares, split, params, lookahead }
}

/// A case with several segments in each component, some of them pinned, and devices that lack something.
fn random(seed: u64) -> (Case, Vec<Pin>) {
    let mut case = Case::random(seed);
    let dice = &mut Dice(seed ^ 0x5eed);
    case.profile.components.truncate(3);
    let pinned = Bytes(STAGING_BYTES.0 * case.inventory.devices.len() as u64);
    let Budgets { devices, ceilings, host, host_ceiling } = &mut case.budgets;
    for (index, device) in case.inventory.devices.iter_mut().enumerate() {
        if dice.below(5) == 0 {
            device.unsupported = vec!["Conv2d".to_owned()];
        }
        let more = Bytes(dice.below(2) * dice.below(12_000));
        ceilings[index] += more;
        devices[index] += more;
        device.free_bytes += more;
        device.total_bytes += more;
    }
    if dice.below(4) > 0 {
        *host += pinned;
        *host_ceiling += pinned;
    }
    for component in &mut case.profile.components {
        component.splits_rows = dice.below(3) > 0;
        let more = dice.below(3) as usize;
        let first = component.segments[0].clone();
        component.segments.resize(component.segments.len() + more, first);
        for segment in &mut component.segments {
            segment.block = dice.below(4) > 0;
        }
        component.weights_bytes = component.segments.iter().map(|s| s.weights_bytes).sum();
        component.tensor_bytes = component.weights_bytes - Bytes(dice.below(256));
    }
    let pins = case.profile.components.iter().map(|component| random_pin(dice, &case, component));
    let pins = pins.collect();
    (case, pins)
}

/// Peaks by device, the host last, and phase: summed from places alone.
fn peaks(problem: &Problem<'_>, chosen: &[&Place]) -> Vec<Vec<u64>> {
    let devices = problem.inventory.devices.len();
    let uses = |device: usize, place: &&Place| place.parts.iter().any(|p| p.device == Some(device));
    let used = |device: usize| chosen.iter().any(|place| uses(device, place));
    let memory = |device: Option<usize>| {
        let fixed = match device {
            Some(device) if used(device) => problem.inventory.devices[device].overhead_bytes.0,
            Some(_) => 0,
            None => {
                let open = (0..devices).filter(|device| used(*device)).count() as u64;
                let job = problem.profile.job_bytes + problem.profile.changed_bytes;
                job.0 + open * STAGING_BYTES.0
            }
        };
        let peak = |phase: &Phase| {
            let (mut held, mut arena) = (fixed, 0);
            for (component, place) in problem.profile.components.iter().zip(chosen) {
                for part in place.parts.iter().filter(|part| part.device == device) {
                    held += part.resident_bytes.0;
                    if component.phase == *phase {
                        held += part.lazy_bytes.0 + part.slot_bytes.0 * u64::from(part.slots);
                        arena = arena.max(part.compute_bytes.0);
                    }
                }
            }
            held + arena
        };
        problem.job.timeline().iter().map(peak).collect()
    };
    (0..devices).map(Some).chain([None]).map(memory).collect()
}

/// What is compared: bytes for `memory`, time, what is loaded anew, copies in RAM, fullness, bytes.
type Value = (u64, u64, u64, u64, u64, u64);

fn value(problem: &Problem<'_>, chosen: &[&Place]) -> Option<Value> {
    let peaks = peaks(problem, chosen);
    let budgets = problem.budgets.devices.iter().chain([&problem.budgets.host]);
    if peaks.iter().zip(budgets).any(|(peaks, budget)| peaks.iter().any(|p| *p > budget.0)) {
        return None;
    }
    let total = peaks.iter().map(|peaks| peaks.iter().max().unwrap()).sum();
    let warm = problem.objective == Objective::Throughput;
    let mut value = (0, 0, 0, 0, 0, total);
    for place in chosen {
        let lazy = place.parts.iter().any(|part| part.lazy_bytes > Bytes::ZERO);
        let ms = match (warm, lazy) {
            (true, false) => place.ms.compute,
            (true, true) => place.ms.load + place.ms.compute,
            (false, _) => place.ms.load + place.ms.first_read + place.ms.compute,
        };
        let on_host = place.spread.placement == Placement::Host;
        value.1 += (ms * f64::from(1 << 20)).round() as u64;
        value.2 += u64::from(lazy);
        value.3 += u64::from(on_host && place.residency() != Residency::Mapped);
        value.4 += place.fullness;
    }
    value.0 = if problem.objective == Objective::Memory { total } else { 0 };
    Some(value)
}

/// The best value of all combinations, without last resorts where that is possible.
fn best(problem: &Problem<'_>) -> Option<Value> {
    [false, true].into_iter().find_map(|last_resorts| {
        let mut combinations: Vec<Vec<&Place>> = vec![Vec::new()];
        for places in problem.places.iter() {
            let allowed = || places.iter().filter(|place| last_resorts || !place.last_resort);
            let extend = |chosen: &Vec<_>| {
                allowed().map(|p| [chosen.as_slice(), &[p]].concat()).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(extend).collect();
        }
        combinations.iter().filter_map(|chosen| value(problem, chosen)).min()
    })
}

/// The place that a plan gives a component.
fn place_of<'p>(problem: &'p Problem<'_>, index: usize, plan: &ComponentPlan) -> &'p Place {
    let residencies: Vec<Residency> = plan.segments.iter().map(|s| s.residency).collect();
    let same = |place: &&Place| {
        let devices = place.spread.devices.iter().map(|d| problem.device_id(*d));
        let segments = place.spread.segments.iter().map(|lane| &plan.devices[*lane as usize]);
        devices.eq(plan.devices.iter().cloned())
            && segments.eq(plan.segments.iter().map(|s| &s.device))
            && (0..residencies.len()).all(|s| place.segment_residency(s) == residencies[s])
            && place.residency() == plan.residency
            && place.spread.row_shares == plan.row_shares
    };
    problem.places[index].iter().find(same).expect("a plan has one of the places")
}

const OBJECTIVES: [Objective; 3] = [Objective::Latency, Objective::Throughput, Objective::Memory];

#[test]
fn the_plan_is_as_good_as_the_best_of_all_combinations() {
    let (mut solved, mut refused, mut kinds) = (0, 0, Vec::new());
    for seed in 0..CASES {
        let (case, pins) = random(seed);
        for objective in OBJECTIVES {
            let problem = posed(&case, &pins, objective, false);
            match (solve(&problem, 1), best(&problem)) {
                (Ok(Solution { plan, .. }), Some(best)) => {
                    solved += 1;
                    let components = plan.components.iter().enumerate();
                    let chosen: Vec<&Place> =
                        components.map(|(index, c)| place_of(&problem, index, c)).collect();
                    assert_eq!(value(&problem, &chosen), Some(best), "seed {seed}, {objective:?}");
                    kinds.extend(plan.components.iter().zip(chosen).map(|(planned, place)| {
                        (planned.placement, planned.residency, place.last_resort)
                    }));
                }
                (Err(_), None) => refused += 1,
                (found, best) => panic!("seed {seed}, {objective:?}: {found:?}, of all {best:?}"),
            }
        }
    }
    assert!(solved > 300 && refused > 200, "{solved} solved, {refused} refused: one-sided cases");
    let placements = [Placement::One, Placement::Layer, Placement::Row];
    let residencies = [Residency::Resident, Residency::Lazy, Residency::Streamed];
    for placement in placements {
        for residency in residencies {
            let kind = (placement, residency, false);
            assert!(kinds.contains(&kind), "no {kind:?}");
        }
    }
    assert!(kinds.iter().any(|(.., last_resort)| *last_resort), "nothing is a last resort");
}

#[test]
fn every_plan_passes_the_checker_and_has_each_weight_once() {
    let mut early = 0;
    for seed in 0..2 * CASES {
        let (case, pins) = random(seed);
        for objective in OBJECTIVES {
            let problem = posed(&case, &pins, objective, true);
            let Ok(Solution { plan, report }) = solve(&problem, 1) else { continue };
            check(&plan).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
            assert_eq!(report.reasons.len(), plan.components.len());
            for ((profile, pin), planned) in
                case.profile.components.iter().zip(&pins).zip(&plan.components)
            {
                let name = &planned.name;
                if !pin.devices.is_empty() {
                    let ids: Vec<DeviceId> =
                        pin.devices.iter().map(|d| problem.device_id(*d)).collect();
                    assert_eq!(planned.devices, ids, "seed {seed}: {name} is elsewhere");
                }
                let held = |residency| planned.segments.iter().any(|s| s.residency == residency);
                match pin.params {
                    Some(Params::Cpu) => assert_eq!(planned.residency, Residency::Streamed),
                    Some(Params::Disk) => {
                        assert!(!held(Residency::Resident), "seed {seed}: {name}")
                    }
                    Some(Params::Device) => assert!(!held(Residency::Lazy), "seed {seed}: {name}"),
                    None => {}
                }
                for (segment, planned) in profile.segments.iter().zip(&planned.segments) {
                    let (weights, all) = (segment.weights_bytes, planned.weights_bytes);
                    // Rows are rounded up on each device.
                    let spare = Bytes(256 * pin.devices.len().max(1) as u64);
                    assert!(weights <= all && all < weights + spare, "seed {seed}: {name}");
                    assert_eq!(planned.part_bytes.iter().copied().sum::<Bytes>(), all);
                }
                early += usize::from(planned.prefetch);
                assert!(!planned.prefetch || planned.placement != Placement::Host, "seed {seed}");
            }
        }
    }
    assert!(early > 100, "{early} loads are early: nothing was tested");
}

#[test]
fn the_same_problem_gives_the_same_answer() {
    for seed in 0..CASES {
        let (case, pins) = random(seed);
        let solved = || solve(&posed(&case, &pins, Objective::Latency, true), 1);
        assert_eq!(solved(), solved(), "seed {seed}");
    }
}

#[test]
fn the_smallest_budget_fits_and_one_byte_less_does_not() {
    let mut edges = 0;
    for seed in 0..CASES {
        let (case, pins) = random(seed);
        let problem = posed(&case, &pins, Objective::Latency, false);
        let Some(Bytes(edge)) = smallest_budget(&problem) else { continue };
        // With other budgets there are other places; those that last are among them.
        assert!(
            solve(&posed(&case.capped(Bytes(edge)), &pins, Objective::Latency, true), 1).is_ok()
        );
        let lasting = problem.without_adapted();
        let fits = |cap: u64| {
            let mut capped = lasting.clone();
            let ceilings = problem.budgets.ceilings.iter();
            capped.budgets.devices = ceilings.map(|most| (*most).min(Bytes(cap))).collect();
            best(&capped).is_some()
        };
        assert!(fits(edge), "seed {seed}: {edge}");
        if edge > 0 {
            edges += 1;
            assert!(!fits(edge - 1), "seed {seed}: {edge} is not the smallest");
        }
    }
    assert!(edges > 30, "{edges} edges only");
}

#[test]
fn early_loads_never_make_a_job_slower_and_hide_some() {
    let mut hidden = 0;
    for seed in 0..CASES {
        let (case, pins) = random(seed);
        let total_ms = |prefetch| {
            let solved = solve(&posed(&case, &pins, Objective::Latency, prefetch), 1);
            solved.ok().map(|s| (s.plan.predicted_ms.load, s.plan.predicted_ms.total))
        };
        let (Some(late), Some(early)) = (total_ms(false), total_ms(true)) else { continue };
        assert_eq!(early.0, late.0, "seed {seed}: loads are the same");
        assert!(early.1 <= late.1 * (1.0 + 1e-12), "seed {seed}: {early:?}, {late:?}");
        hidden += u32::from(early.1 < late.1);
    }
    assert!(hidden > 20, "{hidden} jobs were faster: nothing was tested");
}
