//! Planning beside a loaded plan: its components stay as they are, the others go where it is open.

use std::sync::Arc;

use protocol::Plan;

use crate::solve::{LayoutQuery, Lists, Place, Problem, kept_layout, wanted};

/// Components of a loaded plan have the layouts of that plan; the others have those over these
/// lists of devices. A component with `None` has no layouts here.
pub fn wanted_beside(
    problem: &Problem<'_>,
    of: &[Option<Lists>],
    loaded: &Plan,
) -> Vec<LayoutQuery> {
    let components = 0..problem.profile.components.len();
    let of_loaded =
        components.filter(|index| of[*index].is_some() && is_of(loaded, problem, *index));
    let kept = of_loaded.filter_map(|index| kept_layout(problem, index, loaded));
    let mut all: Vec<LayoutQuery> = kept.collect();
    let others = wanted(problem, of).into_iter();
    all.extend(others.filter(|wanted| !is_of(loaded, problem, wanted.component)));
    all
}

/// Of a component that a loaded plan does not have, the places on the devices that it uses, and on
/// the host: what is open stays as it is.
pub fn on_open_devices(problem: &Problem<'_>, loaded: &Plan, places: &[Place]) -> Arc<[Place]> {
    let at = problem.inventory.places_of(loaded);
    let devices = loaded.devices.iter().zip(at);
    let open: Vec<usize> =
        devices.filter(|(device, _)| loaded.uses(&device.id)).filter_map(|(_, at)| at).collect();
    let is_open =
        |place: &&Place| place.spread.devices.iter().flatten().all(|device| open.contains(device));
    places.iter().filter(is_open).cloned().collect()
}

/// Whether a plan has one of a problem's components.
pub fn is_of(plan: &Plan, problem: &Problem<'_>, index: usize) -> bool {
    let name = &problem.profile.components[index].name;
    plan.components.iter().any(|component| component.name == *name)
}
