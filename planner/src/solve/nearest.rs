//! What would fit, when nothing does.

use protocol::Bytes;

use super::compose::Composition;
use super::{Infeasible, Problem, fits};

/// The answer for problems without a solution, of which any would do.
pub fn infeasible(problems: &[Problem<'_>]) -> Infeasible {
    if problems.iter().any(|problem| problem.budgets.idle.is_some()) {
        return beside_others();
    }
    let (because, margin_flag) = problems.first().map_or((String::new(), None), because);
    let (max_vram, max_ram) = (smallest_budget(problems), smallest_ram(problems));
    if max_vram.is_some() || max_ram.is_some() {
        return Infeasible { because, max_vram, max_ram, together: false, margin_flag };
    }
    // Both are short: the least device memory beside all of the host's, then the least of the
    // host's.
    let mut roomy = problems.to_vec();
    roomy.iter_mut().for_each(|problem| problem.budgets.host = problem.budgets.host_ceiling);
    let max_vram = smallest_budget(&roomy);
    let max_ram = max_vram.and_then(|cap| smallest_ram(&capped(&roomy, cap)));
    Infeasible { because, max_vram, max_ram, together: max_vram.is_some(), margin_flag }
}

/// The answer where models that are loaded beside limit what stays between two jobs: what would fit
/// is asked for again without them.
fn beside_others() -> Infeasible {
    Infeasible {
        because: "models that are loaded beside it leave too little".to_owned(),
        max_vram: None,
        max_ram: None,
        together: false,
        margin_flag: None,
    }
}

/// The least cap, the same for every device, with which a plan exists; `None` where none does, or
/// where no usable device is there. Exact: what fits in a budget fits in a larger one, so halving
/// finds the edge.
pub fn smallest_budget(problems: &[Problem<'_>]) -> Option<Bytes> {
    let problem = problems.first()?;
    let named = |index| problem.pins.iter().any(|pin| pin.devices.contains(&Some(index)));
    let devices = problem.unusable.iter().enumerate();
    let usable = devices.filter(|(index, why)| why.is_none() || named(*index));
    let largest = usable.map(|(index, _)| problem.budgets.ceilings[index]).max()?;
    edge(largest, |cap| fits(&capped(problems, cap)))
}

/// The problems with the devices' budgets under one cap.
fn capped<'a>(problems: &[Problem<'a>], cap: Bytes) -> Vec<Problem<'a>> {
    let mut problems = problems.to_vec();
    for problem in &mut problems {
        let ceilings = problem.budgets.ceilings.iter();
        problem.budgets.devices = ceilings.map(|&ceiling| ceiling.min(cap)).collect();
    }
    problems
}

/// The least cap of host memory with which a plan exists.
fn smallest_ram(problems: &[Problem<'_>]) -> Option<Bytes> {
    let ceiling = problems.first()?.budgets.host_ceiling;
    edge(ceiling, |cap| {
        let mut problems = problems.to_vec();
        problems.iter_mut().for_each(|problem| problem.budgets.host = cap);
        fits(&problems)
    })
}

/// The least size up to `largest` for which `fits` holds, given that it holds for all larger ones.
fn edge(largest: Bytes, fits: impl Fn(Bytes) -> bool) -> Option<Bytes> {
    if !fits(largest) {
        return None;
    }
    let (mut too_small, mut enough) = (None, largest.0);
    loop {
        let low = too_small.map_or(0, |size: u64| size + 1);
        if low >= enough {
            return Some(Bytes(enough));
        }
        let middle = low + (enough - low) / 2;
        if fits(Bytes(middle)) { enough = middle } else { too_small = Some(middle) }
    }
}

/// Which memory is short for the component that needs the most of it; and where that is all margin,
/// the flag by which less of it is kept free.
fn because(problem: &Problem<'_>) -> (String, Option<&'static str>) {
    let names: Vec<&str> = problem.inventory.devices.iter().map(|d| d.id.as_str()).collect();
    for (index, component) in problem.profile.components.iter().enumerate() {
        let places = &problem.places[index];
        if places.is_empty() && !problem.pins[index].is_free() {
            return no_margin(format!(
                "{} has no place where it is pinned: it cannot be computed there, or the host does not compute in place of a device",
                component.name
            ));
        }
        let devices = problem.inventory.devices.iter().zip(&problem.unusable);
        let usable = devices.filter(|(_, why)| why.is_none()).map(|(device, _)| device);
        let largest = usable.max_by_key(|device| device.total_bytes);
        if let (true, Some(largest)) = (places.is_empty(), largest) {
            return no_margin(format!(
                "{} has no place: the host does not compute, and even streamed it takes more than {} has, {}",
                component.name, largest.id, largest.total_bytes
            ));
        }
        if places.is_empty() {
            let why = problem.unusable.iter().flatten().next().cloned();
            return no_margin(format!(
                "{} has no place: the host does not compute, and of {} devices none can be used{}",
                component.name,
                names.len(),
                why.map(|why| format!(" ({why})")).unwrap_or_default()
            ));
        }
        // Alone in its least demanding place a component either fits, or nothing will.
        let profile = problem.profile_alone(index);
        let alone = problem.alone(index, &profile);
        if !fits(std::slice::from_ref(&alone)) {
            let bytes = places.iter().map(|place| Composition::of(&alone, &[place]));
            let least = bytes.min_by_key(Composition::total).expect("it has places");
            let over = least.over(&alone).expect("it does not fit");
            let device = problem.device_id(over.device);
            let needs = format!(
                "{} needs {} B on {device} in the {} phase, the budget is {} B",
                component.name, over.needed_bytes.0, over.phase, over.budget_bytes.0
            );
            let (free, flag) = match over.device {
                Some(index) => (problem.inventory.devices[index].free_bytes, "--max-vram"),
                None => (problem.inventory.host.available_bytes, "--max-ram"),
            };
            let is_margin = over.budget_bytes == Bytes::ZERO && free > Bytes::ZERO;
            if !is_margin {
                return no_margin(needs);
            }
            let all = format!(
                "the {free} that are free there are no more than its margin, which is kept free"
            );
            return (format!("{needs}: {all}"), Some(flag));
        }
    }
    no_margin("each component fits alone, all together do not".to_owned())
}

fn no_margin(because: String) -> (String, Option<&'static str>) {
    (because, None)
}
