//! The checker of questions for sizes.

use super::device::unsupported;
use super::{ListRule, Violation, Violations, runs};
use crate::division::Division;
use crate::limits::{
    DEVICES_MAX, LAYOUTS_MAX, ROW_SHARE_MAX, SEGMENTS_MAX, STEP_ITEMS_MAX, STRING_BYTES_MAX,
};
use crate::profile::{BackendKind, Layout};

rules! {
    /// What holds of a layout; told after its component's name.
    pub enum LayoutRule {
        Name { length: usize } = ": a name of {length} bytes",
        Lanes { count: usize } = ": {count} lanes",
        Unsupported { count: usize } = ": {count} unsupported operations",
        Operation = ": an operation's name that is too long",
        Hosts { hosts: usize } = ": {hosts} lanes on the host",
        Undivided { count: usize } = ": undivided over {count} lanes",
        Segments { count: usize } = ": {count} segments",
        UnknownLane = ": a segment on an unknown lane",
        Order = ": its segments skip or mix lanes",
        Shares { shares: usize, lanes: usize } = ": {shares} shares, {lanes} lanes",
        RowsOnHost = ": a row split with the host",
        HeadsOnHost = ": a tensor split with the host",
        Share = ": a share is not within 1 to {ROW_SHARE_MAX}",
        Items { counts: usize, lanes: usize } = ": {counts} counts of items, {lanes} lanes",
        ItemsOnHost = ": an item split with the host",
        Groups { counts: usize } = ": {counts} groups of items that follow one another",
        GroupsOnHost = ": a pipeline with the host",
        ItemCount = ": a count of items is not within 1 to {STEP_ITEMS_MAX}",
    }
}

/// Checks a question for sizes against the limits of the protocol. What a model can do is narrower.
///
/// # Errors
/// The rules that its layouts break.
pub fn check_layouts(layouts: &[Layout]) -> Result<(), Violations> {
    let mut found = Violations::default();
    let count = layouts.len();
    found.ensure(count <= LAYOUTS_MAX, || ListRule::Layouts { count });
    for layout in layouts.iter().take(LAYOUTS_MAX) {
        for rule in broken(layout) {
            let component = layout.component.clone();
            found.add(Violation::Layout { component, rule });
        }
    }
    found.result()
}

fn broken(layout: &Layout) -> Vec<LayoutRule> {
    let Layout { component, lanes, division } = layout;
    let mut broken = Vec::new();
    let mut ensure = |holds: bool, rule: LayoutRule| {
        if !holds {
            broken.push(rule);
        }
    };
    let length = component.len();
    ensure(length <= STRING_BYTES_MAX, LayoutRule::Name { length });
    let count = lanes.len();
    ensure((1..=DEVICES_MAX + 1).contains(&count), LayoutRule::Lanes { count });
    for lane in lanes.iter().take(DEVICES_MAX + 1) {
        let [few, short] = unsupported(&lane.unsupported);
        ensure(few, LayoutRule::Unsupported { count: lane.unsupported.len() });
        ensure(short, LayoutRule::Operation);
    }
    let hosts = lanes.iter().filter(|lane| lane.backend == BackendKind::Host).count();
    ensure(hosts <= 1, LayoutRule::Hosts { hosts });
    match division {
        Division::One => ensure(count == 1, LayoutRule::Undivided { count }),
        Division::Layer { segments } => in_layers(segments, count, &mut ensure),
        Division::Row { shares } | Division::Tensor { shares } => {
            let fits = shares.len() == count && count >= 2;
            ensure(fits, LayoutRule::Shares { shares: shares.len(), lanes: count });
            let on_host = match division.row_shares() {
                Some(_) => LayoutRule::RowsOnHost,
                None => LayoutRule::HeadsOnHost,
            };
            ensure(hosts == 0, on_host);
            let in_range = shares.iter().all(|share| (1..=ROW_SHARE_MAX).contains(share));
            ensure(in_range, LayoutRule::Share);
        }
        Division::Items { counts } => {
            let items = counts.len() == count && count >= 2;
            ensure(items, LayoutRule::Items { counts: counts.len(), lanes: count });
            ensure(hosts == 0, LayoutRule::ItemsOnHost);
            ensure(counts_in_range(counts), LayoutRule::ItemCount);
        }
        Division::Pipeline { segments, counts } => {
            in_layers(segments, count, &mut ensure);
            let groups = (2..=STEP_ITEMS_MAX as usize).contains(&counts.len());
            ensure(groups, LayoutRule::Groups { counts: counts.len() });
            ensure(hosts == 0, LayoutRule::GroupsOnHost);
            ensure(counts_in_range(counts), LayoutRule::ItemCount);
        }
    }
    broken
}

/// Segments name each of so many lanes, and lie together, in the order of the lanes.
fn in_layers(segments: &[u32], lanes: usize, ensure: &mut impl FnMut(bool, LayoutRule)) {
    let all = segments.len();
    ensure(all <= SEGMENTS_MAX, LayoutRule::Segments { count: all });
    let known = segments.iter().all(|&lane| (lane as usize) < lanes);
    ensure(known, LayoutRule::UnknownLane);
    let order = runs(segments.iter().map(|&lane| lane as usize)).into_iter();
    ensure(order.eq(0..lanes), LayoutRule::Order);
}

fn counts_in_range(counts: &[u32]) -> bool {
    counts.iter().all(|count| (1..=STEP_ITEMS_MAX).contains(count))
}
