//! The solver against an enumeration of everything, and its rules on small made-up problems.

mod made_up;
mod pinned;
mod times;

use protocol::check::check;
use protocol::plan::STAGING_BYTES;
use protocol::profile::ComponentProfile;
use protocol::{Phase, Residency, StorageType};

use super::*;
use made_up::{Case, Dice, TIMELINE, component, random_component, segment};

/// Made-up problems for each property.
const CASES: u64 = 300;

const OBJECTIVES: [Objective; 3] = [Objective::Latency, Objective::Throughput, Objective::Memory];

#[test]
fn the_plan_is_as_good_as_the_best_of_all_combinations() {
    let (mut solved, mut refused) = (0, 0);
    for seed in 0..CASES {
        let case = Case::random(seed);
        let fitting = case.fitting();
        for objective in OBJECTIVES {
            let values = fitting.iter().map(|places| case.value(objective, places));
            let best = values.min_by(|a, b| a.partial_cmp(b).unwrap());
            let solution = case.solve(objective);
            match (&solution, best) {
                (Ok(Solution { plan, .. }), Some(best)) => {
                    solved += 1;
                    let value = case.value(objective, &case.places_of(plan));
                    assert_eq!(value, best, "seed {seed}, {objective:?}: {plan:?}");
                }
                (Err(_), None) => refused += 1,
                _ => panic!("seed {seed}, {objective:?}: {solution:?}, of all {best:?}"),
            }
        }
    }
    assert!(solved > 300 && refused > 300, "{solved} solved, {refused} refused: one-sided cases");
}

#[test]
fn every_plan_passes_the_checker_and_states_its_own_sums() {
    for seed in 0..CASES {
        let case = Case::random(seed);
        for objective in OBJECTIVES {
            let Ok(Solution { plan, .. }) = case.solve(objective) else { continue };
            check(&plan).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
            let places = case.places_of(&plan);
            let stated = plan.devices.iter().map(|device| (&device.phases, device.budget_bytes));
            let stated = stated.chain([(&plan.host.phases, plan.host.budget_bytes)]);
            for ((phases, budget), peaks) in stated.zip(case.peaks(&places)) {
                let stated: Vec<u64> = phases.iter().map(|entry| entry.peak_bytes.0).collect();
                assert_eq!(stated, peaks, "seed {seed}");
                assert!(peaks.iter().all(|peak| *peak <= budget.0), "seed {seed}");
            }
            for place in &places {
                let unusable = place.device.and_then(|index| case.unusable[index].as_ref());
                assert_eq!(unusable, None, "seed {seed}: an unusable device is used");
                let host = case.inventory.host.compute || place.device.is_some();
                assert!(host, "seed {seed}: a host that only feeds devices computes");
            }
            let components = case.profile.components.iter().zip(&places);
            let ms = components.map(|(component, place)| case.seconds(component, *place));
            let total: f64 = ms.map(|(load, compute)| 1e3 * (load + compute)).sum();
            assert_eq!(plan.predicted_ms.total, total, "seed {seed}");
        }
    }
}

#[test]
fn the_same_problem_gives_the_same_answer() {
    for seed in 0..CASES {
        let case = Case::random(seed);
        for objective in OBJECTIVES {
            assert_eq!(case.solve(objective), case.solve(objective), "seed {seed}");
        }
    }
}

#[test]
fn more_memory_never_predicts_a_slower_job() {
    let total_ms =
        |case: &Case| case.solve(Objective::Latency).ok().map(|s| s.plan.predicted_ms.total);
    let mut faster = 0;
    for seed in 0..CASES {
        let mut case = Case::random(seed);
        let less = total_ms(&case);
        let dice = &mut Dice(!seed);
        let Budgets { devices, ceilings, host, host_ceiling } = &mut case.budgets;
        for (budget, ceiling) in devices.iter_mut().zip(ceilings) {
            *budget += Bytes(dice.below((*ceiling - *budget).0 + 1));
        }
        *host += Bytes(dice.below((*host_ceiling - *host).0 + 1));
        let more = total_ms(&case);
        let order = (less.unwrap_or(f64::INFINITY), more.unwrap_or(f64::INFINITY));
        assert!(order.1 <= order.0, "seed {seed}: {order:?}");
        faster += u32::from(order.1 < order.0);
    }
    assert!(faster > 20, "more memory helped in {faster} cases only: nothing was tested");
}

#[test]
fn the_smallest_budget_fits_and_one_byte_less_does_not() {
    let mut edges = 0;
    for seed in 0..CASES {
        let case = Case::random(seed);
        let usable = case.unusable.iter().any(Option::is_none);
        match smallest_budget(&case.problem(Objective::Latency)) {
            Some(Bytes(edge)) => {
                assert!(!case.capped(Bytes(edge)).fitting().is_empty(), "seed {seed}: {edge}");
                if edge > 0 {
                    edges += 1;
                    let less = case.capped(Bytes(edge - 1)).fitting();
                    assert!(less.is_empty(), "seed {seed}: {edge} is not the smallest");
                }
            }
            None => {
                let most = case.capped(Bytes(u64::MAX)).fitting();
                assert!(!usable || most.is_empty(), "seed {seed}: some budget fits");
            }
        }
    }
    assert!(edges > 50, "{edges} edges only");
}

#[test]
fn a_refusal_names_the_least_host_memory_that_fits() {
    let mut edges = 0;
    for seed in 0..CASES {
        let mut case = Case::random(seed);
        let Err(Infeasible { max_ram: Some(Bytes(edge)), together: false, .. }) =
            case.solve(Objective::Latency)
        else {
            continue;
        };
        edges += 1;
        case.budgets.host = Bytes(edge);
        assert!(!case.fitting().is_empty(), "seed {seed}: {edge} B do not fit");
        case.budgets.host = Bytes(edge - 1);
        assert!(case.fitting().is_empty(), "seed {seed}: {edge} B are not the least");
    }
    assert!(edges > 10, "{edges} edges only");
}

fn blocks(sizes: &[(&str, Phase, u64)]) -> Vec<ComponentProfile> {
    let one = |&(name, phase, bytes): &(&str, Phase, u64)| {
        component(name, phase, vec![segment("all", Bytes(bytes), StorageType::F32, 1e6)])
    };
    sizes.iter().map(one).collect()
}

const THREE: [(&str, Phase, u64); 3] =
    [("t5", Phase::Condition, 2560), ("dit", Phase::Denoise, 7680), ("vae", Phase::Decode, 1280)];

fn residencies(case: &Case) -> Vec<Residency> {
    let plan = case.solve(Objective::Latency).unwrap().plan;
    plan.components.iter().map(|component| component.residency).collect()
}

#[test]
fn what_need_not_be_reloaded_stays() {
    let mut case = Case::plain(1, Bytes(2560 + 7680 + 1280 + 512), blocks(&THREE));
    case.inventory.host.compute = false;
    assert_eq!(residencies(&case), [Residency::Resident; 3]);
    // One byte less, and two have to be lazy: one alone would still meet all others in its own phase.
    case.budgets.devices[0] = case.budgets.devices[0] - Bytes(1);
    let lazy = residencies(&case).iter().filter(|r| **r == Residency::Lazy).count();
    assert_eq!(lazy, 2);
    // A copy in RAM is not made of what can be computed from the mapping.
    let host = Case::plain(0, Bytes::ZERO, blocks(&THREE));
    assert_eq!(residencies(&host), [Residency::Mapped; 3]);
}

#[test]
fn rounding_of_times_does_not_break_a_tie() {
    // Beside a resident t5 with its large arena the dit has to be lazy; on the other of two equal devices it
    // need not. Both take the same time, a sum whose last bit depends on the order of summing.
    let sizes = [
        ("t5", Phase::Condition, 2560),
        ("dit", Phase::Denoise, 7680),
        ("vae", Phase::Decode, 256),
        ("upscaler", Phase::Decode, 256),
    ];
    for seed in 0..50 {
        let dice = &mut Dice(seed);
        let mut components = blocks(&sizes);
        components[0].compute.iter_mut().for_each(|entry| entry.bytes = Bytes(2048));
        for component in &mut components {
            component.segments[0].flops = dice.below(1_000_000_000_007) as f64;
        }
        let mut case = Case::plain(2, Bytes(2560 + 7680 + 256 + 256 + 512), components);
        case.inventory.host.compute = false;
        assert_eq!(residencies(&case), [Residency::Resident; 4], "seed {seed}");
    }
}

#[test]
fn a_refusal_names_the_component_the_device_and_the_bytes() {
    let mut case = Case::plain(1, Bytes(5000), blocks(&THREE));
    case.inventory.host.compute = false;
    let refused = case.solve(Objective::Latency).unwrap_err();
    for part in ["dit", "virtual0", "denoise", "8192 B", "5000 B"] {
        assert!(refused.because.contains(part), "no {part} in: {}", refused.because);
    }
    assert_eq!((refused.max_vram, refused.max_ram), (Some(Bytes(7680 + 512)), None));

    case.unusable[0] = Some("virtual0: it is a stone".to_owned());
    let refused = case.solve(Objective::Latency).unwrap_err();
    for part in ["t5", "stone"] {
        assert!(refused.because.contains(part), "no {part} in: {}", refused.because);
    }
    assert_eq!((refused.max_vram, refused.max_ram), (None, None));
}

#[test]
fn four_devices_and_six_components_are_searched_whole() {
    let names = ["clip", "clip2", "t5", "dit", "vae", "upscaler"];
    let phase = |index: usize| TIMELINE[[0, 0, 0, 1, 2, 2][index]];
    for seed in 0..3 {
        let dice = &mut Dice(seed);
        let components = names.iter().enumerate();
        let components = components.map(|(index, name)| random_component(dice, name, phase(index)));
        let mut case = Case::plain(4, Bytes(3500), components.collect());
        for device in &mut case.inventory.devices {
            (device.f32_flops_per_s, device.link_bytes_per_s) = (dice.rate(), dice.rate());
        }
        for objective in OBJECTIVES {
            let Solution { plan, .. } = case.solve(objective).expect("the host takes anything");
            check(&plan).expect("a good plan");
            // No single change of place makes it better.
            let places = case.places_of(&plan);
            let value = case.value(objective, &places);
            for (index, component) in case.profile.components.iter().enumerate() {
                for place in case.places(component) {
                    let mut changed = places.clone();
                    changed[index] = place;
                    let no_better = case.value(objective, &changed) >= value;
                    assert!(no_better || !case.fits(&changed), "seed {seed}, {objective:?}");
                }
            }
        }
    }
}

#[test]
fn an_integrated_device_is_used_when_named_and_shares_the_hosts_memory() {
    let mut case = Case::plain(1, Bytes::gib(1), blocks(&THREE));
    case.inventory.devices[0].integrated = true;
    case.unusable[0] = Some("virtual0 is integrated".to_owned());
    let solved = |case: &Case, named: bool| {
        let mut problem = case.problem(Objective::Latency);
        let pin = Pin { devices: vec![Some(0)], ..Pin::FREE };
        problem.pins = vec![Pin::FREE, if named { pin } else { Pin::FREE }, Pin::FREE];
        problem.places = places(&problem, &[], &[]);
        let plan = solve(&problem, 1).map(|solution| solution.plan);
        plan.map(|plan| {
            plan.components.into_iter().map(|c| c.devices[0].clone()).collect::<Vec<_>>()
        })
    };
    let (host, device) = (DeviceId::host, DeviceId("virtual0".to_owned()));
    assert_eq!(solved(&case, false), Ok(vec![host(); 3]));
    assert_eq!(solved(&case, true), Ok(vec![host(), device, host()]));
    // What both take at one time: the device its DiT with the arena, the host its buffers, and what is pinned.
    let (on_device, on_host) = (7680 + 512, 100 + STAGING_BYTES.0);
    case.budgets.host_ceiling = Bytes(on_device + on_host);
    assert!(solved(&case, true).is_ok());
    case.budgets.host_ceiling = Bytes(on_device + on_host - 1);
    let refused = solved(&case, true).expect_err("one pool");
    assert!(
        refused.because.contains(&format!("needs {} B on host", on_device + on_host)),
        "{}",
        refused.because
    );
}
