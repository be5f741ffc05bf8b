//! Policies met with machines: budgets of memory that is shared, and limits of what is page-locked.

use protocol::Bytes;

use super::*;
use crate::inventory::Device;
use crate::inventory::tests::{device_of, host_of};

/// 16 GiB, 12 of them available; an integrated GPU with as much, and a card of 8 GiB.
fn machine() -> Inventory {
    let shared = device_of("cuda0", Bytes::gib(16), Bytes::gib(12));
    Inventory {
        source: "test".to_owned(),
        host: host_of(Bytes::gib(16), Bytes::gib(12)),
        devices: vec![
            Device { integrated: true, ..shared },
            device_of("cuda1", Bytes::gib(8), Bytes::gib(8)),
        ],
        why_no_devices: None,
    }
}

/// Budgets of the integrated device, the card and the host, and their ceilings.
fn budgets(text: PolicyText) -> ([Bytes; 3], [Bytes; 3], Option<Bytes>) {
    let policy = Policy::of(&text).expect("a good text");
    let Budgets { devices, ceilings, host, host_ceiling, pinned, .. } =
        policy.budgets(&machine()).expect("devices that are there");
    ([devices[0], devices[1], host], [ceilings[0], ceilings[1], host_ceiling], pinned)
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn an_integrated_device_has_no_more_than_the_host() {
    let gib = Bytes::gib;
    let margin = || text("0,host=2");
    for (max_vram, max_ram, of_devices, ceilings) in [
        (None, None, [gib(10), gib(8), gib(10)], [gib(10), gib(8), gib(10)]),
        (None, text("4"), [gib(4), gib(8), gib(4)], [gib(10), gib(8), gib(10)]),
        (text("3"), text("4"), [gib(3), gib(3), gib(4)], [gib(10), gib(8), gib(10)]),
        (text("cuda0=6"), text("4"), [gib(4), gib(8), gib(4)], [gib(10), gib(8), gib(10)]),
        // A negative cap keeps less free than the margin; it is the largest that there is.
        (text("-1"), text("-1"), [gib(11), gib(7), gib(11)], [gib(11), gib(8), gib(11)]),
    ] {
        let text = PolicyText { max_vram, max_ram, margin: margin(), ..PolicyText::default() };
        assert_eq!(budgets(text.clone()), (of_devices, ceilings, Some(gib(8))), "{text:?}");
    }
}

#[test]
fn page_locked_memory_has_a_limit_within_the_hosts_budget() {
    for (max_pinned, max_ram, expected) in [
        (None, None, Some(Bytes::gib(8))),
        (None, text("1"), Some(Bytes::gib(8))),
        (text("2"), None, Some(Bytes::gib(2))),
        (text("25%"), None, Some(Bytes::gib(4))),
        (text("2"), text("1"), Some(Bytes::gib(1))),
    ] {
        let text = PolicyText { max_pinned, max_ram, ..PolicyText::default() };
        assert_eq!(budgets(text.clone()).2, expected, "{text:?}");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_of_caps_and_of_margins() {
    for text in [
        PolicyText { max_vram: text("cuda2=1"), ..PolicyText::default() },
        PolicyText { margin: text("cuda2=1"), ..PolicyText::default() },
    ] {
        let policy = Policy::of(&text).expect("readable");
        let error = policy.budgets(&machine()).expect_err("cuda2").to_string();
        assert_eq!(error, "no device `cuda2`; hint: there is cuda0, cuda1");
    }
}
