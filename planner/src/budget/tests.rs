//! Tables of caps, readable and not, and of budgets.

use proptest::prelude::*;

use super::*;
use crate::inventory::tests::{device_of, host_of};

/// Four GPUs and a virtual device of 8 GiB, all free.
fn devices() -> Vec<Device> {
    let ids = ["cuda0", "cuda1", "cuda2", "cuda3", "virtual0"];
    let device = |id: &str| Device {
        uuid: id.starts_with("cuda").then(|| format!("GPU-{id}")),
        ..device_of(id, Bytes::gib(8), Bytes::gib(8))
    };
    ids.into_iter().map(device).collect()
}

/// What a text means for [`devices`].
fn caps(text: &str) -> Result<Vec<Option<Cap>>, CapError> {
    VramCaps::parse(text)?.of(&devices())
}

fn margins(text: &str) -> Margins {
    Margins::parse(text).expect(text)
}

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
        assert_eq!(caps(text), Ok(vec![Some(expected); 5]), "{text:?}");
    }
    let gib = |count| Some(Cap::Bytes(Bytes::gib(count)));
    let (half, kept) = (Some(Cap::Percent(50.0)), Some(Cap::FreeLess(Bytes::gib(2))));
    for (text, expected) in [
        ("cuda0=12, cuda1 = 6,cuda2=-2,cuda3=50%", [gib(12), gib(6), kept, half, None]),
        ("8,cuda1=6", [gib(8), gib(6), gib(8), gib(8), gib(8)]),
        (" 50% , CUDA2=-2", [half, half, kept, half, half]),
        ("v=1,GPU-cuda1=2,gpu-CUDA3=50%", [None, gib(2), None, half, gib(1)]),
    ] {
        assert_eq!(caps(text), Ok(expected.to_vec()), "{text:?}");
    }
    // A name that is an amount is no device's.
    assert!(matches!(caps("-2GiB=3"), Err(CapError::UnknownDevice { .. })));
    assert_eq!(parse_margin("0"), Ok(Bytes::ZERO));
    assert_eq!(parse_margin("512MiB"), Ok(Bytes::mib(512)));
    assert!(parse_margin("-1").is_err() && parse_margin("5%").is_err());
}

#[test]
fn nonsense_is_refused_with_a_hint() {
    for text in [
        "",
        " ",
        ",",
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
    for text in ["=5", "8,", "8,9", "cuda0=1,5", " = ", "8,cuda1=6,7", "cuda0=1,"] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::Unnamed { .. }), "{text:?}: {error}");
    }
    for text in ["cuda0=", "cuda0==5", "cuda0=x", "cuda0=1;cuda1=2"] {
        let error = VramCaps::parse(text).expect_err(text);
        assert!(matches!(error, CapError::Unreadable { .. }), "{text:?}: {error}");
    }
    for text in ["cuda0=1,cuda1=2,cuda0=3", "cuda0=1,CUDA0=2", "cuda0=1,GPU-cuda0=2"] {
        assert_eq!(caps(text), Err(CapError::Twice { device: "cuda0".to_owned() }), "{text}");
    }
    for text in ["host=4", "8,CPU=2"] {
        let error = VramCaps::parse(text).expect_err(text).to_string();
        assert!(error.contains("hint: --max-ram limits the host's memory"), "{text}: {error}");
    }
    for (text, several) in [("cuda=4", "cuda0, cuda1, cuda2, cuda3"), ("c=1", "cuda0, cuda1")] {
        let error = caps(text).expect_err(text).to_string();
        assert!(error.contains(&format!("may be any of {several}")), "{text}: {error}");
    }
    for text in ["-1", "-512MiB"] {
        assert!(matches!(parse_limit(text), Err(CapError::Relative { .. })), "{text}");
    }
    assert_eq!(parse_limit("10%"), Ok(Cap::Percent(10.0)));
}

#[test]
fn a_cap_for_a_missing_device_names_those_there_are() {
    let devices = [device_of("cuda0", Bytes::gib(8), Bytes::gib(8))];
    let none = Margins::default();
    let caps = VramCaps::parse("cuda0=4,cuda1=2").expect("a list");
    let error = budgets(&devices, &caps, &none).expect_err("cuda1 is missing").to_string();
    assert_eq!(error, "no device `cuda1`; hint: there is cuda0");
    let error = caps.of(&[]).expect_err("nothing is there").to_string();
    assert_eq!(error, "no device `cuda0`; there is none");
    let caps = VramCaps::parse("cuda0=4").expect("a list");
    assert_eq!(budgets(&devices, &caps, &none), Ok(vec![Bytes::gib(4)]));
    let error = budgets(&devices, &caps, &margins("cuda3=1")).expect_err("missing").to_string();
    assert_eq!(error, "no device `cuda3`; hint: there is cuda0");
}

#[test]
fn a_device_budget_is_the_least_of_cap_and_free_less_margin() {
    // 24 GiB in all, 20 free; the default margin is 24 GiB / 50.
    let device = device_of("cuda0", Bytes::gib(24), Bytes::gib(20));
    let two_percent = Bytes(Bytes::gib(24).0 / 50);
    for (caps, margin, expected) in [
        ("", "", Bytes::gib(20) - two_percent),
        ("", "1", Bytes::gib(19)),
        ("", "99", Bytes::ZERO),
        ("8", "", Bytes::gib(8)),
        ("8", "15", Bytes::gib(5)),
        ("30", "1", Bytes::gib(19)),
        ("50%", "1", Bytes::gib(12)),
        ("100%", "1", Bytes::gib(19)),
        // A negative cap is the margin.
        ("-1", "5", Bytes::gib(19)),
        ("-30", "", Bytes::ZERO),
    ] {
        let read = |text: &str| match text {
            "" => VramCaps::default(),
            text => VramCaps::parse(text).expect(text),
        };
        let margin = if margin.is_empty() { Margins::default() } else { margins(margin) };
        let budgets = budgets(std::slice::from_ref(&device), &read(caps), &margin);
        assert_eq!(budgets, Ok(vec![expected]), "{caps:?} {margin:?}");
    }
}

#[test]
fn the_margin_that_is_said_most_narrowly_counts() {
    let mut devices = devices();
    devices[1].margin_bytes = Some(Bytes::gib(2));
    devices[2].margin_bytes = Some(Bytes::gib(3));
    let host = host_of(Bytes::gib(64), Bytes::gib(40));
    let mib = Bytes::mib;
    for (text, of_devices, of_host) in [
        ("1", [mib(1024), mib(2048), mib(3072), mib(1024), mib(1024)], mib(1024)),
        (
            "512MiB,GPU-cuda2=0,host=4",
            [mib(512), mib(2048), Bytes::ZERO, mib(512), mib(512)],
            mib(4096),
        ),
        ("cuda0=1,cpu=2", [mib(1024), mib(2048), mib(3072), mib(256), Bytes::ZERO], mib(2048)),
    ] {
        let margins = margins(text);
        assert_eq!(margins.of(&devices), Ok(of_devices.to_vec()), "{text}");
        assert_eq!(margins.of_host(&host), of_host, "{text}");
        assert_eq!(host_budget(&host, None, &margins), Bytes::gib(40) - of_host, "{text}");
    }
    assert_eq!(Margins::default().of_host(&host), default_host_margin(&host));
    for text in ["-1", "5%", "host=1,cpu=2", "cuda0=1,cuda0=2", "1,2", "cuda0=", ""] {
        assert!(Margins::parse(text).is_err(), "{text}");
    }
}

#[test]
fn default_margins_follow_the_kind_of_memory() {
    let mut device = device_of("cuda0", Bytes::gib(4), Bytes::gib(4));
    assert_eq!(default_margin(&device), Bytes::mib(256));
    device.integrated = true;
    assert_eq!(default_margin(&device), Bytes::mib(512));
    let virtual_device = device_of("virtual0", Bytes::mib(64), Bytes::mib(64));
    assert_eq!(default_margin(&virtual_device), Bytes::ZERO);
}

#[test]
fn a_host_budget_respects_the_control_group() {
    let mut host = host_of(Bytes::gib(64), Bytes::gib(40));
    let margin = Bytes(Bytes::gib(64).0 / 20);
    let budget = |host: &HostFacts, cap| host_budget(host, cap, &Margins::default());
    assert_eq!(budget(&host, None), Bytes::gib(40) - margin);
    assert_eq!(budget(&host, Some(Cap::FreeLess(Bytes::gib(1)))), Bytes::gib(39));
    assert_eq!(budget(&host, Some(Cap::Bytes(Bytes::gib(7)))), Bytes::gib(7));
    assert_eq!(budget(&host, Some(Cap::Percent(25.0))), Bytes::gib(16));
    assert_eq!(pinned_budget(&host, Cap::Percent(25.0), Bytes::gib(30)), Bytes::gib(16));
    assert_eq!(pinned_budget(&host, Cap::Percent(25.0), Bytes::gib(3)), Bytes::gib(3));
    host.cgroup_limit_bytes = Some(Bytes::gib(8));
    host.available_bytes = Bytes::gib(6);
    assert_eq!(budget(&host, None), Bytes::gib(6) - Bytes::mib(512));
    assert_eq!(budget(&host, Some(Cap::Percent(25.0))), Bytes::gib(2));
    host.available_bytes = Bytes::mib(100);
    assert_eq!(budget(&host, None), Bytes::ZERO);
}

/// Texts near the grammar: its words, in any order.
fn texts() -> impl Strategy<Value = String> {
    let words = [
        "8",
        "6.5",
        "GiB",
        "MiB",
        "B",
        "%",
        "-",
        "-1",
        "=",
        ",",
        "cuda0",
        "cuda",
        "GPU-",
        "host",
        "virtual0",
        " ",
        "0",
        "99999999999999999999",
        ".",
        "é",
        "e9",
        "NaN",
    ];
    prop_oneof![
        prop::collection::vec(prop::sample::select(words.to_vec()), 0..8)
            .prop_map(|words| words.concat()),
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn no_text_makes_it_panic_and_no_budget_is_above_what_is_free(
        text in texts(), margin in texts(), total in 1..1u64 << 50, free in 0..1u64 << 50,
    ) {
        let total_bytes = Bytes(total);
        let mut devices = devices();
        for device in &mut devices {
            device.total_bytes = total_bytes;
            device.free_bytes = Bytes(free.min(total));
        }
        let caps = VramCaps::parse(&text).unwrap_or_default();
        let margins = Margins::parse(&margin).unwrap_or_default();
        if let Ok(budgets) = budgets(&devices, &caps, &margins) {
            prop_assert!(budgets.iter().all(|budget| *budget <= Bytes(free.min(total))));
        }
        let host = host_of(total_bytes, Bytes(free.min(total)));
        let budget = host_budget(&host, Cap::parse(&text).ok(), &margins);
        prop_assert!(budget <= host.available_bytes);
        if let Ok(limit) = parse_limit(&margin) {
            prop_assert!(pinned_budget(&host, limit, budget) <= budget);
        }
    }

    #[test]
    fn a_larger_cap_never_gives_less(
        kind in 0..3u8, less in 1..1000u64, more in 1..1000u64, free in 0..1u64 << 44,
    ) {
        let (less, more) = (less.min(more), less.max(more));
        let mut device = device_of("cuda0", Bytes::gib(1 << 14), Bytes::ZERO);
        device.free_bytes = Bytes(free);
        let budget = |amount: u64| {
            let text = match kind {
                0 => format!("{amount}"),
                1 => format!("{}%", amount as f64 / 10.0),
                // What is kept free grows as the cap shrinks.
                _ => format!("-{}", 1001 - amount),
            };
            let caps = VramCaps::parse(&text).expect("an amount");
            budgets(std::slice::from_ref(&device), &caps, &Margins::default()).expect("known")[0]
        };
        prop_assert!(budget(less) <= budget(more));
    }
}
