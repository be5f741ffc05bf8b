//! Pins against a model and a machine: names become indices, and nonsense is refused.

use protocol::Phase;
use protocol::profile::{ComponentProfile, StepItems};

use super::items::{group_counts, item_counts, item_counts_of};
use super::subject::{SubjectScope, known, reach};
use super::{
    ALL, BACKEND, Entry, Flag, LOOKAHEAD, NamedDevices, PARAMS, Params, PinError, Pins, SPLIT,
    Split,
};
use crate::inventory::Inventory;
use crate::inventory::names::{self, NameError};

/// What is pinned of one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The devices it computes on, in order: indices in the inventory, `None` for the host. Empty
    /// where any may be chosen.
    pub devices: Vec<Option<usize>>,
    /// The share of each of several devices; empty where they are to be chosen.
    pub shares: Vec<u32>,
    /// How it is split over several devices.
    pub split: Split,
    /// Where its weights are while it does not compute; `None` where that may be chosen.
    pub params: Option<Params>,
    /// Stream slots on each device, where it is streamed; `None` where they are chosen.
    pub lookahead: Option<u32>,
    /// Devices that it must not compute on, in the inventory's order, then the host (`None`). It is
    /// never pinned to one of them.
    pub forbidden: Vec<Option<usize>>,
}

impl Pin {
    /// What is pinned of a component that nobody speaks of: nothing.
    pub const FREE: Pin = Pin {
        devices: Vec::new(),
        shares: Vec::new(),
        split: Split::Layer,
        params: None,
        lookahead: None,
        forbidden: Vec::new(),
    };

    /// Whether everything is chosen.
    pub fn is_free(&self) -> bool {
        self.devices.is_empty() && self.params.is_none()
    }

    /// Whether it computes on the host only.
    pub fn on_host(&self) -> bool {
        self.devices == [None]
    }

    /// Whether groups of items follow one another through several devices, which hold all weights.
    pub fn is_pipeline(&self) -> bool {
        self.split == Split::Pipeline && self.devices.len() > 1
    }

    /// Whether weights cannot be changed when they are loaded: they are streamed, or split by rows
    /// or heads.
    pub fn forbids_changes(&self) -> bool {
        let in_parts = matches!(self.split, Split::Row | Split::Tensor) && self.devices.len() > 1;
        in_parts || self.params.is_some_and(Params::is_streamed)
    }

    /// Whether weights may pass through a ring of slots: they must, where RAM is their place; they
    /// may where nobody says where that is.
    pub fn may_stream(&self) -> bool {
        match self.params {
            _ if self.is_pipeline() => false,
            Some(params) => params.is_streamed(),
            None => !self.on_host(),
        }
    }
}

impl Pins {
    /// The devices of the inventory that are named, by index.
    ///
    /// # Errors
    /// A name is no device's, or several devices', in a limit too; or a list has a device twice.
    pub fn named(&self, inventory: &Inventory) -> Result<Vec<usize>, PinError> {
        let mut named = Vec::new();
        for entry in &self.backend {
            named.extend(indices(entry, inventory)?.into_iter().flatten());
        }
        named.sort_unstable();
        named.dedup();
        self.check_limits(inventory)?;
        Ok(named)
    }

    /// What is pinned of each component, in their order. `broken` tells of each device why nothing
    /// can be computed there, if so.
    ///
    /// # Errors
    /// A name is unknown or means several; entries contradict each other; a component cannot be
    /// split as asked; a device is broken, or forbidden; a component may be nowhere; or an entry
    /// has no effect on any component that it means.
    pub fn resolve(
        &self,
        components: &[ComponentProfile],
        inventory: &Inventory,
        broken: &[Option<String>],
    ) -> Result<Vec<Pin>, PinError> {
        check_subjects(BACKEND, &self.backend, components)?;
        check_subjects(PARAMS, &self.params, components)?;
        check_subjects(SPLIT, &self.split, components)?;
        check_subjects(LOOKAHEAD, &self.lookahead, components)?;
        let mut pins = vec![Pin::FREE; components.len()];
        self.limit(components, inventory, &mut pins)?;
        for (index, pin) in pins.iter_mut().enumerate() {
            if let Some(entry) = chosen(BACKEND, &self.backend, components, index)? {
                pin.devices = indices(entry, inventory)?;
                pin.shares = entry.value.iter().filter_map(|(_, share)| *share).collect();
                check_broken(entry, &pin.devices, broken)?;
                if let Some(place) = pin.devices.iter().find(|place| pin.forbidden.contains(place))
                {
                    let key = self.forbidding(components, index, *place, inventory)?;
                    return Err(forbidden(entry, &components[index], *place, key, inventory));
                }
            }
        }
        apply(SPLIT, &self.split, components, &mut pins, |pin, split| {
            if pin.devices.len() < 2 {
                return Err("has no list of devices to be split over");
            }
            pin.split = split;
            Ok(())
        })?;
        for (index, pin) in pins.iter().enumerate().filter(|(_, pin)| pin.devices.len() > 1) {
            let entry = chosen(BACKEND, &self.backend, components, index)?;
            check_split(entry.expect("it has a list"), &components[index], pin, inventory)?;
        }
        apply(PARAMS, &self.params, components, &mut pins, |pin, params| match params {
            _ if params.is_streamed() && pin.on_host() => {
                Err("computes on the host, where nothing is streamed")
            }
            _ if params.is_streamed() && pin.is_pipeline() => Err(
                "is a pipeline, where weights stay: each would be streamed once for every group of items",
            ),
            Params::Device if pin.on_host() => Err("computes on the host, not on a device"),
            _ => {
                pin.params = Some(params);
                Ok(())
            }
        })?;
        apply(LOOKAHEAD, &self.lookahead, components, &mut pins, |pin, slots| {
            if pin.is_pipeline() {
                return Err("is a pipeline, where nothing is streamed");
            }
            if !pin.may_stream() {
                return Err("is not streamed: --params-backend cpu would stream it");
            }
            pin.lookahead = Some(slots);
            Ok(())
        })?;
        Ok(pins)
    }
}

/// Every subject means some component.
pub(super) fn check_subjects<T>(
    flag: Flag,
    entries: &[Entry<T>],
    components: &[ComponentProfile],
) -> Result<(), PinError> {
    for entry in entries {
        let means = |index| reach(&entry.subject, components, index).is_some();
        if !(0..components.len()).any(means) {
            let problem = format!("the model has no component `{}`", super::shown(&entry.subject));
            let hint = format!("there is {}", known(components));
            return Err(flag.hinted(&entry.text, problem, hint));
        }
    }
    Ok(())
}

/// The narrowest entry that means a component.
pub(super) fn chosen<'e, T: PartialEq>(
    flag: Flag,
    entries: &'e [Entry<T>],
    components: &[ComponentProfile],
    index: usize,
) -> Result<Option<&'e Entry<T>>, PinError> {
    let mut best: Option<(SubjectScope, &Entry<T>)> = None;
    for entry in entries {
        let Some(reach) = reach(&entry.subject, components, index) else { continue };
        match best {
            Some((narrowest, other)) if narrowest == reach && other.value != entry.value => {
                let component = &components[index].name;
                let problem = format!("`{}` says otherwise of {component}", other.text);
                return Err(flag.hinted(&entry.text, problem, "keep one of them"));
            }
            Some((narrowest, _)) if narrowest >= reach => {}
            _ => best = Some((reach, entry)),
        }
    }
    Ok(best.map(|(_, entry)| entry))
}

/// Applies each component's entry. One that has no effect on any component that it was chosen for
/// is nonsense, while one for all need not suit each.
fn apply<T: PartialEq + Copy>(
    flag: Flag,
    entries: &[Entry<T>],
    components: &[ComponentProfile],
    pins: &mut [Pin],
    apply: impl Fn(&mut Pin, T) -> Result<(), &'static str>,
) -> Result<(), PinError> {
    let mut without: Vec<(&Entry<T>, String)> = Vec::new();
    let mut with: Vec<&str> = Vec::new();
    for (index, pin) in pins.iter_mut().enumerate() {
        let Some(entry) = chosen(flag, entries, components, index)? else { continue };
        match apply(pin, entry.value) {
            Ok(()) => with.push(&entry.subject),
            Err(why) => without.push((entry, format!("{} {why}", components[index].name))),
        }
    }
    match without.into_iter().find(|(entry, _)| !with.contains(&entry.subject.as_str())) {
        Some((entry, problem)) => {
            Err(flag.hinted(&entry.text, problem, "leave it out, or place the component elsewhere"))
        }
        None => Ok(()),
    }
}

/// The devices of an entry, by index.
pub(super) fn indices(
    entry: &Entry<NamedDevices>,
    inventory: &Inventory,
) -> Result<Vec<Option<usize>>, PinError> {
    let mut indices = Vec::new();
    for (name, _) in &entry.value {
        let index = device(BACKEND, name, &entry.text, inventory)?;
        if indices.contains(&index) {
            let problem = format!("`{}` stands twice in the list", super::shown(name));
            return Err(BACKEND.hinted(&entry.text, problem, "name each device once"));
        }
        indices.push(index);
    }
    Ok(indices)
}

/// The device that a name, or the start of one, means.
pub(super) fn device(
    flag: Flag,
    name: &str,
    text: &str,
    inventory: &Inventory,
) -> Result<Option<usize>, PinError> {
    names::device_or_host(name, &inventory.devices).map_err(|unclear| match unclear {
        NameError::Unknown(known) => {
            let problem = format!("no device `{}`", super::shown(name));
            flag.hinted(text, problem, format!("there is {}", known.join(", ")))
        }
        NameError::Several(several) => {
            let problem = format!("`{}` may be any of {}", super::shown(name), several.join(", "));
            flag.hinted(text, problem, "write more of the name")
        }
    })
}

/// A component is pinned to a place that the profile's `key` keeps it from.
fn forbidden(
    entry: &Entry<NamedDevices>,
    component: &ComponentProfile,
    place: Option<usize>,
    key: Option<String>,
    inventory: &Inventory,
) -> PinError {
    let place = place.map_or("the host", |index| inventory.devices[index].id.as_str());
    let key = key.expect("what is forbidden stands in the profile");
    let problem = format!("the host profile keeps {} from {place} by {key}", component.name);
    BACKEND.hinted(&entry.text, problem, "name another device, or change the profile")
}

fn check_broken(
    entry: &Entry<NamedDevices>,
    devices: &[Option<usize>],
    broken: &[Option<String>],
) -> Result<(), PinError> {
    match devices.iter().flatten().find_map(|index| broken[*index].as_ref()) {
        Some(why) => Err(BACKEND.hinted(&entry.text, why, "name another device")),
        None => Ok(()),
    }
}

/// The items that its devices may have.
fn counts(component: &ComponentProfile, pin: &Pin) -> Vec<Vec<u32>> {
    match pin.shares.as_slice() {
        [] => item_counts(component.items, pin.devices.len(), &[]),
        shares => item_counts_of(component.items, shares),
    }
}

/// Whether a component can be split over its devices.
fn check_split(
    entry: &Entry<NamedDevices>,
    component: &ComponentProfile,
    pin: &Pin,
    inventory: &Inventory,
) -> Result<(), PinError> {
    let name = &component.name;
    let (segments, count) = (component.segments.len(), pin.devices.len());
    let kinds = || pin.devices.iter().map(|device| device.map(|i| inventory.devices[i].kind));
    let first = kinds().next().flatten();
    let lacks = |index: &usize| !inventory.devices[*index].unsupported.is_empty();
    let one = format!("name one device for it, as {name}={}", entry.value[0].0);
    let problem = match pin.split {
        Split::Layer | Split::Pipeline if segments < count => {
            (format!("{name} has {segments} segments, too few for {count} devices"), one)
        }
        Split::Row if !component.splits_rows => {
            (format!("{name} has no weights whose rows can be split"), one)
        }
        Split::Row if pin.devices.contains(&None) => {
            let layer = format!("leave out the host, or add --split-mode {name}=layer");
            (format!("the host takes no rows of {name}"), layer)
        }
        Split::Row if kinds().any(|kind| kind != first) => {
            let layer = format!("add --split-mode {name}=layer");
            (format!("{name} cannot be split by rows over devices of different kinds"), layer)
        }
        Split::Tensor if component.heads_max < 2 => (
            format!("{name} has no heads and features that devices could share"),
            format!("add --split-mode {name}=layer or {name}=row, or {one}"),
        ),
        Split::Tensor if (component.heads_max as usize) < count => {
            let most = component.heads_max;
            (
                format!(
                    "{name} can be shared by {most} devices, not by {count}, as its heads come in {most} parts of whole blocks of its weights"
                ),
                format!("name {most} devices at most, or add --split-mode {name}=row"),
            )
        }
        Split::Tensor if pin.devices.contains(&None) => {
            let layer = format!("leave out the host, or add --split-mode {name}=layer");
            (format!("the host takes no heads of {name}"), layer)
        }
        Split::Tensor if kinds().any(|kind| kind != first) => {
            let layer = format!("add --split-mode {name}=layer");
            (format!("{name} cannot be split by heads over devices of different kinds"), layer)
        }
        Split::Tensor if pin.devices.iter().flatten().any(lacks) => {
            let layer = format!("add --split-mode {name}=layer");
            (format!("{name} cannot be split by heads over devices that lack operations"), layer)
        }
        Split::Items if (component.items.count() as usize) < count => {
            let items = match component.items.count() {
                1 => "1 item".to_owned(),
                items => format!("{items} items"),
            };
            let more = match component.phase {
                Phase::Denoise => "make more pictures together, as with --batch, or ",
                _ => "",
            };
            (
                format!("{name} has {items} in each step, too few for {count} devices"),
                format!("{more}{one}"),
            )
        }
        Split::Items if pin.devices.contains(&None) => {
            let layer = format!("leave out the host, or add --split-mode {name}=layer");
            (format!("the host takes no items of {name}"), layer)
        }
        Split::Items if counts(component, pin).is_empty() => {
            let StepItems { batch, run_min, .. } = component.items;
            (
                format!(
                    "fewer than {run_min} pictures of {batch} apart would differ in the last bits from those of {name} as a whole"
                ),
                "make fewer pictures together, name fewer devices, or leave out their shares"
                    .to_owned(),
            )
        }
        Split::Pipeline if component.items.count() < 2 => {
            let layer = format!("add --split-mode {name}=layer");
            let more = match component.phase {
                Phase::Denoise => {
                    format!("make more pictures together, as with --batch, or {layer}")
                }
                _ => layer,
            };
            (format!("{name} has 1 item in each step, and a pipeline needs 2 at least"), more)
        }
        Split::Pipeline if pin.devices.contains(&None) => {
            let layer = format!("leave out the host, or add --split-mode {name}=layer");
            (format!("the host takes no part in a pipeline of {name}"), layer)
        }
        Split::Pipeline if group_counts(component.items, count).is_empty() => {
            let StepItems { batch, run_min, .. } = component.items;
            (
                format!(
                    "groups of fewer than {run_min} pictures of {batch} would differ in the last bits from those of {name} as a whole"
                ),
                format!("make fewer pictures together, or add --split-mode {name}=layer"),
            )
        }
        Split::Layer | Split::Row | Split::Tensor | Split::Items | Split::Pipeline => {
            return Ok(());
        }
    };
    let (problem, mut hint) = problem;
    if entry.subject == ALL {
        hint = format!("{hint}; a narrower entry wins over `all`");
    }
    Err(BACKEND.hinted(&entry.text, problem, hint))
}
