//! Tables of pins: readable and not, and what they mean for a model on a machine.

use protocol::profile::{ComponentProfile, SegmentProfile, StepItems, SummandProfile};
use protocol::{Bytes, Phase};

use super::*;
use crate::inventory::Inventory;
use crate::inventory::tests::{device_of, host_of};

/// A machine with these devices.
fn machine(ids: &[&str]) -> Inventory {
    Inventory {
        source: "test".to_owned(),
        host: host_of(Bytes::gib(4), Bytes::gib(4)),
        devices: ids.iter().map(|id| device_of(id, Bytes::gib(1), Bytes::gib(1))).collect(),
        why_no_devices: None,
    }
}

fn component(name: &str, phase: Phase, segments: usize, splits_rows: bool) -> ComponentProfile {
    let segment = |index| SegmentProfile {
        name: format!("segment.{index}"),
        block: true,
        weights_bytes: Bytes(256),
        storage: Vec::new(),
        arena_bytes: Bytes::ZERO,
        carried_bytes: Bytes::ZERO,
        workspace: Vec::new(),
        work: Vec::new(),
    };
    ComponentProfile {
        name: name.to_owned(),
        phase,
        calls: 1,
        tensor_bytes: Bytes(256 * segments as u64),
        cached_bytes: Bytes::ZERO,
        weights_bytes: Bytes(256 * segments as u64),
        compute: Vec::new(),
        boundary_bytes: Bytes::ZERO,
        splits_rows,
        heads_max: if splits_rows { 4 } else { 1 },
        summands: SummandProfile::default(),
        items: StepItems::ONE,
        segments: (0..segments).map(segment).collect(),
    }
}

/// Components in the order of [`MODEL`].
fn model() -> Vec<ComponentProfile> {
    vec![
        component("vae_encoder", Phase::Encode, 1, false),
        component("clip", Phase::Condition, 4, true),
        component("t5", Phase::Condition, 6, true),
        component("dit", Phase::Denoise, 8, true),
        component("vae", Phase::Decode, 2, false),
    ]
}

const MODEL: [&str; 5] = ["vae_encoder", "clip", "t5", "dit", "vae"];

const DEVICES: [&str; 4] = ["cuda0", "virtual0", "virtual1", "virtual10"];

fn parse(flags: [Option<&str>; 4]) -> Result<Pins, PinError> {
    let [backend, params, split, lookahead] = flags;
    Pins::parse(backend, params, split, lookahead)
}

fn resolve(flags: [Option<&str>; 4]) -> Result<Vec<Pin>, PinError> {
    let machine = machine(&DEVICES);
    parse(flags)?.resolve(&model(), &machine, &vec![None; DEVICES.len()])
}

/// The devices of each component under a `--backend`.
fn devices_of(backend: &str) -> Vec<Vec<Option<usize>>> {
    let pins = resolve([Some(backend), None, None, None]);
    pins.unwrap_or_else(|e| panic!("{e}")).into_iter().map(|pin| pin.devices).collect()
}

/// As [`devices_of`], for the components that have any.
fn pinned(backend: &str) -> Vec<(&'static str, Vec<Option<usize>>)> {
    let devices = MODEL.into_iter().zip(devices_of(backend));
    devices.filter(|(_, devices)| !devices.is_empty()).collect()
}

#[test]
fn names_and_aliases_mean_their_components() {
    let host = || vec![None];
    let text = || vec![("clip", host()), ("t5", host())];
    for (subject, expected) in [
        ("t5", vec![("t5", host())]),
        ("clip", vec![("clip", host())]),
        ("CLIP", vec![("clip", host())]),
        ("cond", text()),
        ("te", text()),
        ("llm", text()),
        ("dit", vec![("dit", host())]),
        ("diffusion", vec![("dit", host())]),
        ("unet", vec![("dit", host())]),
        ("model", vec![("dit", host())]),
        ("vae", vec![("vae_encoder", host()), ("vae", host())]),
        ("vae_encoder", vec![("vae_encoder", host())]),
    ] {
        assert_eq!(pinned(&format!("{subject}=cpu")), expected, "{subject}");
    }
    assert_eq!(pinned("all=cpu").len(), MODEL.len());
    assert_eq!(pinned("cpu").len(), MODEL.len());
    // Where no component has the name, it means all of its kind.
    let llm =
        [component("qwen", Phase::Condition, 2, true), component("unet", Phase::Denoise, 2, true)];
    let pins = Pins::parse(Some("clip=cpu,dit=host"), None, None, None).expect("readable");
    let pins = pins.resolve(&llm, &machine(&[]), &[]).expect("good pins");
    assert!(pins.iter().all(Pin::on_host), "{pins:?}");
}

#[test]
fn what_is_said_of_components_that_are_not_there_can_be_left_out() {
    let all = [Some("vae=cpu,t5=cpu,te=cpu"), Some("clip=disk"), None, Some("dit=3,cond=2")];
    let pins = Pins::parse(all[0], all[1], all[2], all[3]).expect("readable");
    let left: Vec<_> = model().into_iter().filter(|c| c.phase != Phase::Condition).collect();
    assert!(pins.resolve(&left, &machine(&[]), &[]).is_err());
    let expected = Pins::parse(Some("vae=cpu"), None, None, Some("dit=3")).expect("readable");
    assert_eq!(pins.of_components(&left), expected);
    assert_eq!(pins.of_components(&model()), pins);
}

#[test]
fn the_narrower_entry_wins_wherever_it_stands() {
    let expected = vec![("clip", vec![Some(1)]), ("t5", vec![Some(2)])];
    for backend in ["cond=virtual0,t5=virtual1", "t5=virtual1,cond=virtual0"] {
        assert_eq!(pinned(backend), expected, "{backend}");
    }
    let all = devices_of("dit=cuda0,all=cpu");
    assert_eq!(all[3], [Some(0)]);
    assert!(all.iter().enumerate().all(|(index, devices)| index == 3 || *devices == [None]));
    // Two that say the same do not contradict each other.
    assert_eq!(pinned("te=cpu,cond=host").len(), 2);
}

#[test]
fn a_device_is_known_by_the_start_of_its_name() {
    for (name, index) in [
        ("cuda0", Some(0)),
        ("cu", Some(0)),
        ("CUDA", Some(0)),
        ("virtual0", Some(1)),
        // Itself before those that it begins.
        ("virtual1", Some(2)),
        ("virtual10", Some(3)),
        ("cp", None),
        ("cpu", None),
        ("h", None),
        ("Host", None),
    ] {
        assert_eq!(pinned(&format!("dit={name}")), [("dit", vec![index])], "{name}");
    }
}

#[test]
fn lists_have_shares_ways_to_split_and_slots() {
    let flags = [
        Some("dit=virtual0:3&virtual1:1,t5=virtual1 & cuda0,clip=virtual0"),
        Some("dit=cpu,clip=disk,vae=device"),
        Some("layer,dit=row"),
        Some("3,dit=5"),
    ];
    let pins = resolve(flags).expect("good pins");
    let [encoder, clip, t5, dit, vae] = pins.as_slice() else { panic!("five components") };
    assert_eq!(dit.devices, [Some(1), Some(2)]);
    assert_eq!((dit.shares.as_slice(), dit.split), ([3, 1].as_slice(), Split::Row));
    assert_eq!((dit.params, dit.lookahead), (Some(Params::Cpu), Some(5)));
    assert_eq!((t5.devices.as_slice(), t5.split), ([Some(2), Some(0)].as_slice(), Split::Layer));
    assert_eq!((t5.shares.len(), t5.params, t5.lookahead), (0, None, Some(3)));
    assert_eq!((clip.params, clip.may_stream()), (Some(Params::Disk), false));
    for vae in [encoder, vae] {
        assert_eq!((vae.devices.len(), vae.params), (0, Some(Params::Device)));
        assert!(!vae.is_free() && !vae.may_stream());
    }
    let free = resolve([Some("dit=cpu"), None, None, None]).expect("good pins");
    assert!(free.iter().enumerate().all(|(index, pin)| (index == 3) != (*pin == Pin::FREE)));
    // Weights in RAM say nothing of a component that computes there.
    let pins = resolve([Some("dit=cpu"), Some("all=cpu"), None, None]).expect("good pins");
    assert_eq!((pins[3].params, pins[2].params), (None, Some(Params::Cpu)));
}

/// Flags, and what their refusal says.
type Refusal = ([Option<&'static str>; 4], &'static [&'static str]);

/// The pins of a model whose DiT has such items in each step.
fn resolve_items(items: StepItems, backend: &str, split: &str) -> Result<Vec<Pin>, PinError> {
    let mut components = model();
    components[3].items = items;
    let pins = parse([Some(backend), None, Some(split), None])?;
    pins.resolve(&components, &machine(&DEVICES), &[const { None }; 4])
}

#[test]
fn items_are_shared_where_a_step_has_enough() {
    let items = |passes, batch, run_min| StepItems { passes, batch, run_min };
    let pins = resolve_items(items(1, 3, 1), "dit=cuda0:2&virtual0:1", "items").expect("a pin");
    assert_eq!((pins[3].shares.as_slice(), pins[3].split), ([2, 1].as_slice(), Split::Items));
    resolve_items(items(2, 1, 1), "dit=virtual0&virtual1", "dit=items").expect("two passes");
    for (items, backend, says) in [
        (items(1, 1, 1), "dit=virtual0&virtual1", &["1 item in each step", "--batch", "dit="][..]),
        (items(1, 2, 1), "dit=virtual0&virtual1&cuda0", &["2 items in each step, too few for 3"]),
        (items(1, 2, 1), "t5=virtual0&virtual1", &["t5 has 1 item in each step", "t5=virtual0"]),
        (items(1, 2, 1), "dit=virtual0&cpu", &["the host takes no items of dit", "dit=layer"]),
        (items(1, 10, 9), "dit=virtual0&virtual1", &["fewer than 9 pictures of 10", "last bits"]),
        (items(1, 18, 9), "dit=virtual0:2&virtual1:1", &["leave out their shares"]),
    ] {
        let error = resolve_items(items, backend, "items").expect_err(backend).to_string();
        for part in says {
            assert!(error.contains(part), "no {part} in: {error}");
        }
        assert!(error.contains("hint:"), "{error}");
    }
    resolve_items(items(1, 18, 9), "dit=virtual0&virtual1", "items").expect("nine each");
}

#[test]
fn groups_follow_one_another_where_a_step_has_several_items() {
    let items = |passes, batch, run_min| StepItems { passes, batch, run_min };
    let pins = resolve_items(items(1, 2, 1), "dit=cuda0:3&virtual0:1", "pipeline").expect("a pin");
    assert_eq!((pins[3].shares.as_slice(), pins[3].split), ([3, 1].as_slice(), Split::Pipeline));
    assert!(pins[3].is_pipeline() && !pins[3].may_stream() && !pins[3].forbids_changes());
    resolve_items(items(2, 1, 1), "dit=virtual0&virtual1", "dit=pipeline").expect("two passes");
    for (items, backend, says) in [
        (items(1, 1, 1), "dit=virtual0&virtual1", &["needs 2", "--batch", "dit=layer"][..]),
        (items(1, 2, 1), "t5=virtual0&virtual1", &["t5 has 1 item in each step", "t5=layer"]),
        (items(1, 2, 1), "dit=virtual0&cpu", &["the host takes no part", "dit=layer"]),
        (items(1, 10, 9), "dit=virtual0&virtual1", &["fewer than 9 pictures of 10", "last bits"]),
    ] {
        let error = resolve_items(items, backend, "pipeline").expect_err(backend).to_string();
        for part in says {
            assert!(error.contains(part), "no {part} in: {error}");
        }
        assert!(error.contains("hint:"), "{error}");
    }
    let mut components = model();
    components[3].items = items(1, 2, 1);
    for (params, lookahead, says) in [
        (Some("dit=cpu"), None, "would be streamed once for every group"),
        (Some("dit=locked"), None, "would be streamed once for every group"),
        (None, Some("dit=4"), "is a pipeline, where nothing is streamed"),
    ] {
        let flags = [Some("dit=virtual0&virtual1"), params, Some("dit=pipeline"), lookahead];
        let pins = parse(flags).expect("readable");
        let error = pins.resolve(&components, &machine(&DEVICES), &[const { None }; 4]);
        let error = error.expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("hint:"), "{error}");
    }
}

#[test]
fn text_that_is_no_pin_is_refused_with_a_hint() {
    const LONG: &str = "dit=cuda0&cuda1&cuda2&cuda3&cuda4&cuda5&cuda6&cuda7&cuda8&cuda9&cuda10&cuda11&cuda12&cuda13:x";
    let cases: [Refusal; 20] = [
        ([Some(""), None, None, None], &["--backend", "has no name", "hint: write devices"]),
        ([Some("dit="), None, None, None], &["`dit=`", "has no name"]),
        ([Some("=cpu"), None, None, None], &["names no component"]),
        ([Some("dit=cpu,"), None, None, None], &["has no name"]),
        ([Some("dit=a&"), None, None, None], &["has no name"]),
        ([Some("dit=a:1&b"), None, None, None], &["some have none"]),
        ([Some("dit=a:1"), None, None, None], &["a share for the only device"]),
        ([Some("dit=a:0&b:1"), None, None, None], &["`0` is not a share"]),
        ([Some("dit=a:1.5&b:1"), None, None, None], &["`1.5` is not a share"]),
        (
            [Some("dit=a:1048577&b:1"), None, None, None],
            &["is not a share, a whole number from 1 to 1048576"],
        ),
        ([Some("dit=a,DIT=b"), None, None, None], &["`dit` stands twice"]),
        ([Some("a,b"), None, None, None], &["`all` stands twice"]),
        ([Some(LONG), None, None, None], &["`dit=cuda0&", "is not a share"]),
        ([None, Some("dit=ram"), None, None], &["--params-backend", "`ram`", "cpu (streamed)"]),
        ([None, Some("dit=cuda0"), None, None], &["`cuda0` is not a place for weights"]),
        (
            [None, None, Some("column"), None],
            &["--split-mode", "`column`", "hint: write layer, row, tensor, items or pipeline"],
        ),
        ([None, None, None, Some("0")], &["--lookahead", "`0` is not within 1 to 64"]),
        ([None, None, None, Some("dit=65")], &["`65` is not within"]),
        ([None, None, None, Some("-1")], &["`-1` is not within"]),
        ([None, None, None, Some("two")], &["`two` is not within"]),
    ];
    for (flags, says) in cases {
        let error = parse(flags).expect_err(&format!("{flags:?}")).to_string();
        for part in says {
            assert!(error.contains(part), "no {part} in: {error}");
        }
        assert!(error.contains("hint:") && error.len() < 300, "{error}");
    }
}

#[test]
fn nonsense_for_the_model_or_the_machine_is_refused_with_a_hint() {
    let cases: [Refusal; 24] = [
        (
            [Some("foo=cpu"), None, None, None],
            &["no component `foo`", "clip, t5, dit, vae, all, cond"],
        ),
        ([None, Some("foo=cpu"), None, None], &["no component `foo`"]),
        ([None, None, Some("foo=row"), None], &["no component `foo`"]),
        ([None, None, None, Some("foo=2")], &["no component `foo`"]),
        ([Some("dit=cuda1"), None, None, None], &["no device `cuda1`", "there is cuda0, virtual0"]),
        (
            [Some("dit=virt"), None, None, None],
            &["`virt` may be any of virtual0, virtual1, virtual10"],
        ),
        ([Some("dit=c"), None, None, None], &["any of cuda0, cpu"]),
        ([Some("dit=virtual0&virtual0"), None, None, None], &["`virtual0` stands twice"]),
        ([Some("dit=cpu&host"), None, None, None], &["`cpu` stands twice"]),
        ([Some("te=cpu,cond=cuda0"), None, None, None], &["`te=cpu` says otherwise of clip"]),
        ([Some("dit=cuda0"), None, Some("dit=row"), None], &["dit has no list of devices"]),
        ([None, None, Some("row"), None], &["has no list of devices"]),
        (
            [Some("vae=cuda0&virtual0"), None, None, None],
            &["vae_encoder has 1 segments, too few for 2 devices", "vae_encoder=cuda0"],
        ),
        ([Some("cuda0&virtual0"), None, None, None], &["too few", "narrower entry wins"]),
        ([Some("vae=virtual0,vae_encoder=cpu,vae=cpu"), None, None, None], &["`vae` stands twice"]),
        (
            [Some("vae=virtual0&virtual1,vae_encoder=cpu"), None, Some("vae=row"), None],
            &["vae has no weights whose rows"],
        ),
        (
            [Some("vae=virtual0&virtual1,vae_encoder=cpu"), None, Some("vae=tensor"), None],
            &["vae has no heads", "--split-mode vae=layer"],
        ),
        (
            [Some("dit=virtual0&cpu"), None, Some("tensor"), None],
            &["the host takes no heads of dit"],
        ),
        (
            [Some("dit=virtual0&cuda0"), None, Some("tensor"), None],
            &["by heads over devices of different kinds"],
        ),
        ([Some("dit=virtual0&cpu"), None, Some("row"), None], &["the host takes no rows of dit"]),
        ([Some("dit=virtual0&cuda0"), None, Some("row"), None], &["devices of different kinds"]),
        ([Some("dit=cpu"), Some("dit=cpu"), None, None], &["dit computes on the host, where"]),
        ([Some("dit=cpu"), Some("dit=device"), None, None], &["dit computes on the host, not"]),
        ([None, Some("dit=disk"), None, Some("dit=4")], &["dit is not streamed"]),
    ];
    for (flags, says) in cases {
        let error = resolve(flags).expect_err(&format!("{flags:?}")).to_string();
        for part in says {
            assert!(error.contains(part), "no {part} in: {error}");
        }
        assert!(error.contains("hint:"), "{error}");
    }
    // Slots that no ring takes.
    let error = resolve([Some("all=cpu"), None, None, Some("4")]).expect_err("no ring").to_string();
    assert!(error.contains("is not streamed"), "{error}");
}

#[test]
fn a_broken_device_is_refused_where_it_is_named() {
    let broken = [None, Some("virtual0: it is a stone".to_owned()), None, None];
    let resolve = |backend| {
        let pins = Pins::parse(Some(backend), None, None, None).expect("readable");
        pins.resolve(&model(), &machine(&DEVICES), &broken)
    };
    let error = resolve("dit=cuda0&virtual0").expect_err("a stone").to_string();
    assert!(error.contains("it is a stone; hint: name another device"), "{error}");
    assert!(resolve("dit=cuda0&virtual1").is_ok());
}

#[test]
fn what_is_named_is_known_before_the_model_is() {
    let named = |backend| {
        let pins = Pins::parse(Some(backend), None, None, None).expect("readable");
        pins.named(&machine(&DEVICES))
    };
    assert_eq!(named("dit=virtual1&cuda0,vae=cuda0,cond=cpu"), Ok(vec![0, 2]));
    assert_eq!(Pins::default().named(&machine(&DEVICES)), Ok(Vec::new()));
    assert!(named("dit=cuda7").is_err());
}

/// The forbidden places of each component.
fn limited(allow: Option<&str>, forbid: Option<&str>) -> Result<Vec<Vec<Option<usize>>>, PinError> {
    let pins = Pins::default().within(allow, forbid)?;
    let pins = pins.resolve(&model(), &machine(&DEVICES), &vec![None; DEVICES.len()])?;
    Ok(pins.into_iter().map(|pin| pin.forbidden).collect())
}

#[test]
fn a_profile_says_where_components_may_not_be() {
    let [a, b, c, d] = [Some(0), Some(1), Some(2), Some(3)];
    let only = |component: &str, places: &[Option<usize>]| -> Vec<Vec<Option<usize>>> {
        MODEL.map(|name| if name == component { places.to_vec() } else { Vec::new() }).to_vec()
    };
    assert_eq!(limited(None, Some("dit=host&virtual1")), Ok(only("dit", &[c, None])));
    assert_eq!(limited(Some("dit=virtual0&cu"), None), Ok(only("dit", &[c, d, None])));
    // What is forbidden adds up; of what is allowed the narrowest counts.
    let all = limited(None, Some("all=host,dit=cuda0")).expect("limits");
    assert_eq!((all[3].as_slice(), all[4].as_slice()), ([a, None].as_slice(), [None].as_slice()));
    let all = limited(Some("all=cuda0,dit=virtual0&host"), Some("dit=host")).expect("limits");
    assert_eq!(
        (all[3].as_slice(), all[0].as_slice()),
        ([a, c, d, None].as_slice(), [b, c, d, None].as_slice())
    );
}

#[test]
fn limits_that_cannot_be_are_refused_with_a_hint() {
    for (allow, forbid, says) in [
        (None, Some("dit=host,foo=cpu"), "profile's forbid `foo=cpu`: the model has no component"),
        (Some("dit=cuda7"), None, "profile's allow `dit=cuda7`: no device `cuda7`; hint: there is"),
        (None, Some("dit=virt"), "may be any of virtual0, virtual1, virtual10"),
        (None, Some("dit="), "a device has no name"),
        (Some("te=cuda0,cond=host"), None, "says otherwise of clip"),
        (Some("dit=cuda0"), Some("dit=cuda0"), "dit may be on no device at all; hint: leave it"),
        (
            None,
            Some("cuda0&virtual0&virtual1&virtual10&host"),
            "vae_encoder may be on no device at all",
        ),
    ] {
        let error = limited(allow, forbid).expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("hint:"), "{error}");
    }
    // Where the host only feeds devices, it is no place that is left.
    let mut machine = machine(&DEVICES[..1]);
    machine.host.compute = false;
    let pins = Pins::default().within(None, Some("dit=cuda0")).expect("readable");
    let error = pins.resolve(&model(), &machine, &[None]).expect_err("nowhere").to_string();
    assert!(error.contains("dit may be on no device at all"), "{error}");
    // Before the model is known, the devices are.
    let pins = Pins::default().within(Some("x=cuda9"), None).expect("readable");
    assert!(pins.named(&machine).is_err());
}

#[test]
fn a_component_is_not_pinned_against_the_profile() {
    let resolve = |backend, allow, forbid| {
        let pins = parse([Some(backend), None, None, None])?.within(allow, forbid)?;
        pins.resolve(&model(), &machine(&DEVICES), &vec![None; DEVICES.len()])
    };
    for (backend, allow, forbid, says) in [
        (
            "dit=virtual0&virtual1",
            None,
            Some("vae=cuda0,model=virtual1"),
            "keeps dit from virtual1 by forbid = \"model=virtual1\"; hint: name another device",
        ),
        ("all=cpu", None, Some("dit=host"), "keeps dit from the host by forbid = \"dit=host\""),
        (
            "t5=cuda0",
            Some("cond=virtual0&host"),
            None,
            "keeps t5 from cuda0 by allow = \"cond=virtual0&host\"",
        ),
    ] {
        let error = resolve(backend, allow, forbid).expect_err(says).to_string();
        assert!(error.starts_with("--backend") && error.contains(says), "{error}");
    }
    assert!(resolve("t5=virtual0", Some("cond=virtual0&host"), Some("dit=host")).is_ok());
}
