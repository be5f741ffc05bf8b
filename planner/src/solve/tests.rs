//! The solver against an enumeration of everything, and what holds of every plan, on small made-up
//! problems.

mod brute;
mod made_up;
mod nearby;
mod own_sets;
mod pipelines;
mod refine;
mod times;

use protocol::StorageType;
use protocol::check::check;
use protocol::profile::{ComponentProfile, SummandProfile, Work, WorkKind};
use protocol::{Phase, Plan, Residency};

use super::*;
use crate::inventory::DeviceKind;
use crate::policy::pins::{Pin, Split};
use made_up::{Case, Dice, component, segment};

/// Problems of each objective that are solved by enumeration too.
const ENUMERATED: u64 = 2_000;

/// Problems whose plans are checked: more where `BERTH_CHECKED_MANY` was set when this was
/// compiled.
const CHECKED: u64 = match option_env!("BERTH_CHECKED_MANY") {
    Some(_) => 100_000,
    None => 5_000,
};

/// Places of each component that are left of all for an enumeration.
const PLACES: usize = 9;

const OBJECTIVES: [Objective; 3] = [Objective::Latency, Objective::Throughput, Objective::Memory];

/// The places of a solution.
fn chosen<'p>(problem: &'p Problem<'_>, solution: &Solution) -> Vec<&'p Place> {
    let chosen = solution.chosen.as_ref().expect("it was solved");
    problem.chosen(&problem.indices(&chosen.places).expect("its places"))
}

#[test]
fn the_plan_is_as_good_as_the_best_of_all_combinations() {
    let (mut solved, mut refused) = (0, 0);
    for seed in 0..ENUMERATED {
        let case = Case::random(seed);
        for objective in OBJECTIVES {
            let mut problem = case.problem(objective);
            let dice = &mut Dice(!seed);
            for places in &mut problem.places {
                let mut left = places.to_vec();
                while left.len() > PLACES {
                    left.remove(dice.below(left.len() as u64) as usize);
                }
                *places = left.into();
            }
            let best = brute::best(&case, &problem);
            match (solve(std::slice::from_ref(&problem), 1), best) {
                (Ok(solution), Some(best)) => {
                    solved += 1;
                    let value =
                        brute::value(&case, &problem, objective, &chosen(&problem, &solution));
                    assert_eq!(value, best, "seed {seed}, {objective:?}: {:?}", solution.plan);
                }
                (Err(_), None) => refused += 1,
                (found, best) => panic!("seed {seed}, {objective:?}: {found:?}, of all {best:?}"),
            }
        }
    }
    assert!(solved > 2_000 && refused > 500, "{solved} solved, {refused} refused: one-sided cases");
}

/// How much less a pinned plan may take: of numbers of slots that save less than this only the
/// least is tried.
const PINNED_LESS: f64 = 0.001;

#[test]
fn no_pin_beats_the_plan_that_is_chosen() {
    let mut compared = [0_u64; 2];
    for seed in 0..CHECKED {
        let mut case = Case::random(seed);
        case.pins.fill(Pin::FREE);
        let Ok(chosen) = case.solve_refined(Objective::Latency) else { continue };
        let dice = &mut Dice(!seed);
        let component = dice.below(case.pins.len() as u64) as usize;
        let pin = case.random_pin(dice, component);
        // The host has layers at either end, beside up to three devices.
        let ends = [0, pin.devices.len().saturating_sub(1)];
        let may_be_on_host = |at: usize| {
            let split = pin.devices.len() <= 4 && pin.split == Split::Layer;
            case.inventory.host.compute && ends.contains(&at) && split
        };
        let usable = pin.devices.iter().enumerate().all(|(at, device)| match device {
            Some(index) => case.unusable[*index].is_none(),
            None => may_be_on_host(at),
        });
        // Splits of small components and of the VAE are not tried.
        let large = case.profile.components[component].weights_bytes.0 * 8
            >= case.profile.components.iter().map(|c| c.weights_bytes.0).sum();
        let split = pin.devices.len() > 1;
        let vae = case.profile.components[component].phase == Phase::Decode;
        // Nor are rows where heads can be split: of models they take longer, of these made-up
        // profiles not always.
        let heads_max = case.profile.components[component].heads_max as usize;
        let rows = pin.split == Split::Row && heads_max >= pin.devices.len();
        if !usable || split && (vae || !large || rows || !pin.shares.is_empty()) {
            continue;
        }
        // The host has layers where it is fast, not where a device has no room for the whole.
        if pin.devices.contains(&None) && split {
            let has_room = |device: &Option<usize>| {
                case.pins[component] = Pin { devices: vec![*device], ..Pin::FREE };
                case.solve(Objective::Latency).is_ok()
            };
            if !pin.devices.iter().all(has_room) {
                continue;
            }
        }
        case.pins[component] = pin;
        let Ok(pinned) = case.solve_refined(Objective::Latency) else { continue };
        let [chosen_ms, pinned_ms] = [&chosen, &pinned].map(|s| s.plan.predicted_ms.total);
        let pin = &case.pins[component];
        assert!(
            pinned_ms >= chosen_ms * (1.0 - PINNED_LESS),
            "seed {seed}: {pinned_ms} ms by {pin:?}, {chosen_ms} ms is chosen: {:?}",
            chosen.plan.components
        );
        compared[usize::from(split)] += 1;
    }
    assert!(compared.iter().all(|count| *count > CHECKED / 100), "{compared:?} compared");
}

#[test]
fn no_plan_breaks_a_constraint() {
    let mut kinds = [0_u64; 9];
    for seed in 0..CHECKED {
        let case = Case::random(seed);
        let objective = OBJECTIVES[(seed % 3) as usize];
        let problem = case.problem(objective);
        let Ok(solution) = solve(std::slice::from_ref(&problem), 1) else { continue };
        let places = chosen(&problem, &solution);
        let plan = &solution.plan;
        check(plan).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(brute::fits(&case, &places), "seed {seed}: {plan:?}");
        let stated = plan.devices.iter().map(|device| &device.phases);
        for (phases, peaks) in stated.chain([&plan.host.phases]).zip(brute::peaks(&case, &places)) {
            let stated: Vec<u64> = phases.iter().map(|entry| entry.peak_bytes.0).collect();
            assert_eq!(stated, peaks, "seed {seed}");
        }
        for (component, place) in places.iter().enumerate() {
            let pin = &case.pins[component];
            for device in &place.spread.devices {
                let pinned = pin.devices.contains(device);
                let usable = device.is_none_or(|index| case.unusable[index].is_none());
                assert!(pinned || usable, "seed {seed}: an unusable device is used");
                assert!(pinned || !pin.forbidden.contains(device), "seed {seed}: a forbidden one");
                let computes = device.is_some() || case.inventory.host.compute;
                assert!(pinned || computes, "seed {seed}: a host that only feeds devices computes");
            }
            kinds[place.spread.placement() as usize] += 1;
            kinds[7] += u64::from(place.residency() == Residency::Streamed);
            kinds[8] += u64::from(place.early);
        }
        for (stated, warm) in
            [(plan.predicted_ms.total, false), (plan.predicted_ms.next_total, true)]
        {
            let ticks = brute::ticks(&case, &problem, &places, warm);
            assert_eq!(stated, timeline::ms(brute::compared(&problem, ticks)), "seed {seed}");
        }
    }
    // One, layer, row, tensor, items, pipeline, host; streamed; early.
    assert!(kinds.iter().all(|count| *count > CHECKED / 300), "{kinds:?}: one-sided cases");
}

#[test]
fn the_same_problem_gives_the_same_answer_on_any_number_of_threads() {
    let [alone, beside] = [1, 3].map(|threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads")
    });
    for seed in 0..300 {
        let case = Case::random(seed);
        for objective in OBJECTIVES {
            let answer = || {
                let problems = [case.problem(objective)];
                solve(&problems, 1).map(|mut solution| {
                    explain(&problems, &mut solution, &mut KnownChoices::default());
                    (serde_json::to_string(&solution.plan).unwrap(), solution.report)
                })
            };
            assert_eq!(alone.install(answer), beside.install(answer), "seed {seed}");
        }
    }
}

#[test]
fn more_memory_never_predicts_a_slower_job() {
    let solved =
        |case: &Case, objective| case.solve_refined(objective).ok().map(|s| s.plan.predicted_ms);
    let mut faster = 0;
    for seed in 0..1_000 {
        let less = Case::random(seed);
        let mut more = less.clone();
        let dice = &mut Dice(!seed);
        let Budgets { devices, ceilings, host, host_ceiling, .. } = &mut more.budgets;
        for (budget, ceiling) in devices.iter_mut().zip(ceilings) {
            *budget += Bytes(dice.below((*ceiling - *budget).0 + 1));
        }
        *host += Bytes(dice.below((*host_ceiling - *host).0 + 1));
        for objective in [Objective::Latency, Objective::Throughput] {
            let [less, more] = [&less, &more].map(|case| {
                let ms = solved(case, objective);
                ms.map_or(f64::INFINITY, |ms| match objective {
                    Objective::Throughput => ms.next_total,
                    _ => ms.total,
                })
            });
            assert!(more <= less, "seed {seed}, {objective:?}: {less} ms, with more {more} ms");
            faster += u32::from(more < less);
        }
    }
    assert!(faster > 100, "more memory helped in {faster} cases only: nothing was tested");
}

#[test]
fn the_smallest_budget_fits_and_one_byte_less_does_not() {
    let mut edges = 0;
    for seed in 0..500 {
        let case = Case::random(seed);
        let fits = |cap: u64| {
            let mut case = case.clone();
            let ceilings = case.budgets.ceilings.iter();
            case.budgets.devices = ceilings.map(|&most| most.min(Bytes(cap))).collect();
            case.solve(Objective::Latency).is_ok()
        };
        match smallest_budget(&[case.problem(Objective::Latency)]) {
            Some(Bytes(edge)) => {
                assert!(fits(edge), "seed {seed}: {edge}");
                assert!(edge == 0 || !fits(edge - 1), "seed {seed}: {edge} is not the smallest");
                edges += u32::from(edge > 0);
            }
            None => {
                let named = |index| case.pins.iter().any(|p| p.devices.contains(&Some(index)));
                let mut usable = case.unusable.iter().enumerate();
                let any = usable.any(|(index, why)| why.is_none() || named(index));
                assert!(!any || !fits(u64::MAX), "seed {seed}: a budget would do");
            }
        }
    }
    assert!(edges > 50, "{edges} edges");
}

#[test]
fn what_is_infeasible_says_what_would_fit() {
    let mut told = [0, 0, 0];
    for seed in 0..500 {
        let mut case = Case::random(seed);
        case.budgets.idle = None;
        let Err(infeasible) = case.solve(Objective::Latency) else { continue };
        let Infeasible { because, max_vram, max_ram, together, .. } = infeasible;
        assert!(!because.is_empty());
        let with = |vram: Option<Bytes>, ram: Option<Bytes>| {
            let mut case = case.clone();
            if let Some(cap) = vram {
                let ceilings = case.budgets.ceilings.iter();
                case.budgets.devices = ceilings.map(|&most| most.min(cap)).collect();
            }
            case.budgets.host = ram.unwrap_or(case.budgets.host);
            case.solve(Objective::Latency).is_ok()
        };
        if together {
            assert!(with(max_vram, max_ram), "seed {seed}");
            told[0] += 1;
            continue;
        }
        assert!(max_vram.is_none() || with(max_vram, None), "seed {seed}");
        assert!(max_ram.is_none() || with(None, max_ram), "seed {seed}");
        told[1] += u32::from(max_vram.is_some());
        told[2] += u32::from(max_ram.is_some());
    }
    assert!(told.iter().all(|count| *count > 3), "{told:?}: one-sided cases");
}

#[test]
fn with_many_devices_a_plan_is_no_worse_than_on_any_one_of_them() {
    for seed in 0..40 {
        let mut case = Case::random(seed);
        case.pins = vec![Pin::FREE; case.profile.components.len()];
        case.budgets.idle = None;
        let dice = &mut Dice(seed);
        for index in case.inventory.devices.len()..9 {
            let mut device = case.inventory.devices[0].clone();
            device.id = format!("virtual{index}");
            device.kind = DeviceKind::Virtual;
            device.speeds.f32_flops_per_s = dice.rate();
            case.inventory.devices.push(device);
            case.unusable.push(None);
            case.budgets.devices.push(Bytes(dice.below(12_000)));
            case.budgets.ceilings.push(Bytes(12_000));
        }
        let total_ms = |case: &Case| {
            case.solve_refined(Objective::Latency).ok().map(|s| s.plan.predicted_ms.total)
        };
        let all = total_ms(&case);
        for index in 0..9 {
            let mut one = case.clone();
            for (other, why) in one.unusable.iter_mut().enumerate() {
                if other != index {
                    *why = Some("not this one".to_owned());
                }
            }
            if let Some(alone) = total_ms(&one) {
                assert!(all.is_some_and(|all| all <= alone), "seed {seed}: {all:?}, alone {alone}");
            }
        }
    }
}

#[test]
fn places_on_gpus_are_those_of_a_problem_in_which_gpus_do_the_same() {
    let mut known_ones = 0;
    for seed in 0..300 {
        let mut case = Case::random(seed);
        for component in &mut case.profile.components {
            let attention = Work {
                kind: WorkKind::Attention,
                operations: 1,
                flops: 1e3,
                moved_bytes: Bytes(100),
            };
            component.segments[0].work.push(attention);
        }
        let known = case.problem(Objective::Latency).places;
        case.options.attention_chunk = SHORT_ATTENTION_CHUNK;
        let problem = case.problem(Objective::Latency);
        let (wanted, bytes) = case.sized(&problem, Lists::All);
        for (index, places) in problem.places.iter().enumerate() {
            let known_there = KnownPlaces { places: &known[index], in_lists: KnownLists::OfGpus };
            let beside =
                places_beside(&problem, index, (&wanted, &bytes), &[known_there], Within::Memory);
            assert_eq!(beside, *places, "seed {seed}");
            let is_known = |place: &&Place| known[index].contains(place);
            known_ones += places.iter().filter(is_known).count();
        }
    }
    assert!(known_ones > 1_000, "{known_ones} places are the same: nothing was tested");
}

#[test]
fn splits_in_turns_are_left_out_only_where_none_is_better() {
    let [mut left_out, mut better_ones, mut asked_for, mut fewer] = [0; 4];
    for seed in 0..CHECKED {
        let case = Case::random(seed);
        for objective in [Objective::Latency, Objective::Throughput] {
            let first = [case.problem_over(objective, Lists::First)];
            let all = [case.problem(objective)];
            let known = KnownChoices::default;
            let Some(best) = better(&first, 1, None, &mut known()) else { continue };
            let with_turns = better(&all, 1, Some(&best), &mut known());
            let may_beat = turns_that_may_beat(&first, &best, 0.0);
            for (component, allowance) in may_beat.iter().enumerate() {
                let in_turns = |chosen: &Chosen| {
                    let first = &first[0].places[component];
                    !first.contains(&chosen.places[component])
                };
                let better = with_turns.as_ref().and_then(|better| better.chosen.as_ref());
                let is_better = better.is_some_and(in_turns);
                assert!(!is_better || allowance.is_some(), "seed {seed}, {objective:?}");
            }
            let of_plan = [case.problem_of_plan(&first[0], &may_beat)];
            let best_of_plan = better(&of_plan, 1, Some(&best), &mut known());
            let score = |plan: &Option<Solution>| {
                let chosen = plan.as_ref().unwrap_or(&best).chosen.as_ref();
                chosen.expect("it was solved").score
            };
            // Rings that are as fast to 0.05 % cover each other: of some the slower is too slow.
            let scores = [&best_of_plan, &with_turns].map(score);
            assert!(scores[0] <= scores[1], "seed {seed}, {objective:?}: {scores:?}");
            let count = |problem: &Problem<'_>| -> usize {
                problem.places.iter().map(|places| places.len()).sum()
            };
            let counts = [&all, &of_plan].map(|problems| count(&problems[0]));
            fewer += u64::from(counts[1] < counts[0]);
            match (may_beat.iter().any(Option::is_some), with_turns) {
                (false, Some(better)) => {
                    panic!("seed {seed}, {objective:?}: {:?} beats {:?}", better.plan, best.plan)
                }
                (false, None) => left_out += u64::from(all[0].places != first[0].places),
                (true, Some(_)) => better_ones += 1,
                (true, None) => asked_for += 1,
            }
        }
    }
    let seen = [left_out, better_ones, asked_for, fewer];
    assert!(seen.iter().all(|count| *count > CHECKED / 100), "{seen:?}: one-sided cases");
}

#[test]
fn known_places_of_the_first_lists_are_not_made_anew() {
    for seed in 0..300 {
        let case = Case::random(seed);
        let first = case.problem_over(Objective::Latency, Lists::First);
        let all = case.problem(Objective::Latency);
        let (wanted, bytes) = case.sized(&all, Lists::All);
        for (index, places) in all.places.iter().enumerate() {
            let known = KnownPlaces { places: &first.places[index], in_lists: KnownLists::First };
            assert!(known.places.iter().all(|place| places.contains(place)), "seed {seed}");
            let beside = places_beside(&all, index, (&wanted, &bytes), &[known], Within::Memory);
            assert_eq!(beside, *places, "seed {seed}");
        }
    }
}

#[test]
fn heads_are_shared_by_many_devices_only_where_their_summands_take_less_than_one_of_them() {
    let block = segment("block", Bytes(1 << 20), StorageType::BF16, 1e12);
    let mut dit = component("dit", Phase::Denoise, vec![block]);
    dit.heads_max = 8;
    let most = |bytes| {
        let summands = SummandProfile { bytes, ..SummandProfile::default() };
        let dit = ComponentProfile { summands, ..dit.clone() };
        let case = Case::plain(6, Bytes::mib(8), vec![dit]);
        let problem = case.problem(Objective::Latency);
        let layouts = wanted(&problem, &[Some(Lists::All)]).into_iter().map(|query| query.layout);
        let shared = layouts.filter(|layout| layout.division.tensor_shares().is_some());
        shared.map(|layout| layout.lanes.len()).max().expect("two devices may share them")
    };
    let case = Case::plain(1, Bytes::mib(8), vec![dit.clone()]);
    let times = time::SegmentTimes::new(&case.inventory, &dit, 0);
    // Read and written once for each of the others: 20 copies among five devices, 30 among six.
    let host = &case.inventory.host.speeds.memory_bytes_per_s;
    let once = times.once_s(Some(0)) * host.value / 2.0;
    assert_eq!(most(Bytes::ZERO), 6);
    assert_eq!(most(Bytes((once / 31.0) as u64)), 6);
    assert_eq!(most(Bytes((once / 29.0) as u64)), 5);
    assert_eq!(most(Bytes((once / 19.0) as u64)), 4);
    assert_eq!(most(Bytes(u64::MAX >> 8)), 4);
}

#[test]
fn rules_of_placement() {
    let big = |bytes| segment("block", Bytes(bytes), StorageType::BF16, 1e12);
    let dit = component("dit", Phase::Denoise, vec![big(1 << 20), big(1 << 20)]);
    // For the next job: one that starts cold may be faster streamed, as it computes while it loads.
    let solved = |case: &Case| -> Plan { case.solve(Objective::Throughput).expect("it fits").plan };
    // One device can take it: no split.
    let mut case = Case::plain(2, Bytes::mib(8), vec![dit.clone()]);
    case.inventory.host.compute = false;
    let plan = solved(&case);
    assert_eq!(
        (plan.components[0].devices.len(), plan.components[0].residency),
        (1, Residency::Resident)
    );
    // An integrated device is used only when named: the planner says so by calling it unusable.
    case.unusable[0] = Some("integrated".to_owned());
    assert_eq!(solved(&case).components[0].devices[0].0, "virtual1");
    // With room for half of it on each device it is split, or streamed, and each budget holds.
    let case = Case {
        budgets: Budgets { devices: vec![Bytes(1_200_000); 2], ..case.budgets.clone() },
        unusable: vec![None; 2],
        ..case
    };
    let plan = solved(&case);
    check(&plan).expect("a good plan");
    assert!(
        plan.components[0].devices.len() == 2
            || plan.components[0].residency == Residency::Streamed
    );
}
