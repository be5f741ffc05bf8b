//! Tables of caps, readable and not, and of budgets.

use super::*;
use crate::inventory::tests::{device_of, host_of};

#[test]
fn caps_are_read_as_people_write_them() {
    for (text, expected) in [
        ("8", Cap::Bytes(Bytes::gib(8))),
        (" 6.5 ", Cap::Bytes(Bytes::mib(6656))),
        ("8GiB", Cap::Bytes(Bytes::gib(8))),
        ("6144MiB", Cap::Bytes(Bytes::mib(6144))),
        ("1048576B", Cap::Bytes(Bytes::mib(1))),
        ("12GB", Cap::Bytes(Bytes(12_000_000_000))),
        ("80%", Cap::Percent(80.0)),
        ("0.5 %", Cap::Percent(0.5)),
        ("100%", Cap::Percent(100.0)),
        ("-1", Cap::FreeLess(Bytes::gib(1))),
        ("-0.5", Cap::FreeLess(Bytes::mib(512))),
        ("-512MiB", Cap::FreeLess(Bytes::mib(512))),
    ] {
        assert_eq!(Cap::parse(text), Ok(expected), "{text:?}");
        let each = VramCaps::parse(text).expect(text);
        assert_eq!((each.of("cuda0"), each.of("virtual7")), (Some(expected), Some(expected)));
    }
    let named = VramCaps::parse("cuda0=12, cuda1 = 6.5,cuda2=-2,cuda3=50%").expect("a list");
    for (device, expected) in [
        ("cuda0", Some(Cap::Bytes(Bytes::gib(12)))),
        ("cuda1", Some(Cap::Bytes(Bytes::mib(6656)))),
        ("cuda2", Some(Cap::FreeLess(Bytes::gib(2)))),
        ("cuda3", Some(Cap::Percent(50.0))),
        ("cuda4", None),
    ] {
        assert_eq!(named.of(device), expected, "{device}");
    }
    assert_eq!(parse_margin("0"), Ok(Bytes::ZERO));
    assert_eq!(parse_margin("512MiB"), Ok(Bytes::mib(512)));
    assert!(parse_margin("-1").is_err() && parse_margin("5%").is_err());
}

#[test]
fn nonsense_is_refused_with_a_hint() {
    for text in [
        "",
        " ",
        "abc",
        "NaN",
        "inf",
        "-inf",
        "-NaN",
        "1e400",
        "1e3",
        "8XB",
        "--1",
        "+8",
        ".",
        "-",
        "%",
        "8 8",
        "1.2.3",
        "é",
        "9999999999999999999999",
        "-99999999999999999999",
        "-80%",
        "8GiB%",
        "GiB",
    ] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::Unreadable { .. }), "{text:?}: {error}");
        assert!(error.to_string().contains("hint:"), "{text:?}: {error}");
    }
    for text in ["0", "0.0", "0GiB", "0B", "0%", "-0", "0.0000000001", "cuda0=0"] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::Zero { .. }), "{text:?}: {error}");
        assert!(error.to_string().starts_with("a budget of 0"), "{error}");
    }
    for text in ["101%", "100.1%", "99999999999999999999999%"] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::AboveAll { .. }), "{text:?}: {error}");
    }
    for text in ["=5", "8,", ",", "8,9", "cuda0=1,5", " = "] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::Unnamed { .. }), "{text:?}: {error}");
    }
    for text in ["cuda0=", "cuda0==5", "cuda0=x", "cuda0=1;cuda1=2"] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::Unreadable { .. }), "{text:?}: {error}");
    }
    let twice = VramCaps::parse("cuda0=1,cuda1=2,cuda0=3").expect_err("a name twice");
    assert_eq!(twice, CapError::Twice { device: "cuda0".to_owned() });
}

#[test]
fn a_cap_for_a_missing_device_names_those_there_are() {
    let devices = [device_of("cuda0", Bytes::gib(8), Bytes::gib(8))];
    let caps = VramCaps::parse("cuda0=4,cuda1=2").expect("a list");
    let error = budgets(&devices, &caps, None).expect_err("cuda1 is missing").to_string();
    assert_eq!(error, "no device `cuda1`; hint: there is cuda0");
    let error = caps.check(&[]).expect_err("nothing is there").to_string();
    assert_eq!(error, "no device `cuda0`; there is none");
    let caps = VramCaps::parse("cuda0=4").expect("a list");
    assert_eq!(budgets(&devices, &caps, None), Ok(vec![Bytes::gib(4)]));
}

#[test]
fn a_device_budget_is_the_least_of_cap_and_free_less_margin() {
    // 24 GiB in all, 20 free; the default margin is 24 GiB / 50.
    let device = device_of("cuda0", Bytes::gib(24), Bytes::gib(20));
    let two_percent = Bytes(Bytes::gib(24).0 / 50);
    let gib = Some(Bytes::gib(1));
    for (caps, margin, expected) in [
        (None, None, Bytes::gib(20) - two_percent),
        (None, gib, Bytes::gib(19)),
        (None, Some(Bytes::gib(99)), Bytes::ZERO),
        (Some("8"), None, Bytes::gib(8)),
        (Some("8"), Some(Bytes::gib(15)), Bytes::gib(5)),
        (Some("30"), gib, Bytes::gib(19)),
        (Some("50%"), gib, Bytes::gib(12)),
        (Some("100%"), gib, Bytes::gib(19)),
        // A negative cap is the margin.
        (Some("-1"), Some(Bytes::gib(5)), Bytes::gib(19)),
        (Some("-30"), None, Bytes::ZERO),
        (Some("cuda1=2"), gib, Bytes::gib(19)),
    ] {
        let caps = caps.map_or_else(VramCaps::default, |text| VramCaps::parse(text).expect(text));
        assert_eq!(budget(&device, &caps, margin), expected, "{caps:?} {margin:?}");
    }
}

#[test]
fn default_margins_follow_the_kind_of_memory() {
    let mut device = device_of("cuda0", Bytes::gib(4), Bytes::gib(4));
    assert_eq!(default_margin(&device), Bytes::mib(256));
    device.integrated = true;
    assert_eq!(default_margin(&device), Bytes::mib(512));
    let virtual_device = device_of("virtual0", Bytes::mib(64), Bytes::mib(64));
    assert_eq!(budget(&virtual_device, &VramCaps::default(), None), Bytes::mib(64));
}

#[test]
fn a_host_budget_respects_the_control_group() {
    let mut host = host_of(Bytes::gib(64), Bytes::gib(40));
    let margin = Bytes(Bytes::gib(64).0 / 20);
    assert_eq!(host_budget(&host, None, None), Bytes::gib(40) - margin);
    assert_eq!(host_budget(&host, Some(Cap::FreeLess(Bytes::gib(1))), None), Bytes::gib(39));
    assert_eq!(host_budget(&host, Some(Cap::Bytes(Bytes::gib(7))), None), Bytes::gib(7));
    assert_eq!(host_budget(&host, Some(Cap::Percent(25.0)), None), Bytes::gib(16));
    host.cgroup_limit_bytes = Some(Bytes::gib(8));
    host.available_bytes = Bytes::gib(6);
    assert_eq!(host_budget(&host, None, None), Bytes::gib(6) - Bytes::mib(512));
    assert_eq!(host_budget(&host, Some(Cap::Percent(25.0)), None), Bytes::gib(2));
    host.available_bytes = Bytes::mib(100);
    assert_eq!(host_budget(&host, None, None), Bytes::ZERO);
}
