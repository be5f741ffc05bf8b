//! The file's text: what it keeps, what it refuses, what outlives a change of machine, driver or
//! version.

use proptest::prelude::*;

use super::super::content::{BERTH, CalibratedDevice};
use super::super::key::DeviceKey;
use super::super::limits::{CORRECTIONS_MAX, DEVICES_MAX, FILE_BYTES_MAX, NAME_BYTES_MAX};
use super::super::smooth::Correction;
use super::*;

/// A content with every kind of section and figure.
fn whole() -> Content {
    let mut content = recorded(&with_gpu());
    content.record(&machine(), &with_virtual(), &answer(&with_virtual()));
    let lessons: Vec<MeasuredRatio> = [None, DeviceKey::of(&with_gpu(), &gpu())]
        .into_iter()
        .map(|device| MeasuredRatio { device, component: "dit".to_owned(), ratio: 1.25 })
        .collect();
    content.learn("model", &lessons);
    content
}

#[test]
fn it_is_read_as_it_was_written() {
    let content = whole();
    let text = content.text().unwrap();
    assert!(text.starts_with("# What Berth measured on this machine"), "{text}");
    assert!(text.contains("may be deleted"), "{text}");
    assert_eq!(Content::parse(&text), Ok(Some(content)));
}

#[test]
fn another_version_is_as_good_as_none() {
    let text = whole().text().unwrap();
    let version = format!("berth = \"{BERTH}\"");
    for (now, other) in [("format = 1", "format = 2"), (&version, "berth = \"9.9.9\"")] {
        assert!(text.contains(now), "{text}");
        // Whatever else another version says is not looked at.
        let text = text.replace(now, other).replace("[host]", "[host]\nnew_figure = -1.0");
        assert_eq!(Content::parse(&text), Ok(None), "{other}");
    }
}

#[test]
fn nonsense_is_refused() {
    let text = whole().text().unwrap();
    let storage = "storage_bytes_per_s = 3000000000.0";
    for (now, other, says) in [
        (storage, "storage_bytes_per_s = nan", "a storage_bytes_per_s of NaN makes no sense"),
        (storage, "storage_bytes_per_s = inf", "makes no sense"),
        (storage, "storage_bytes_per_s = 0.0", "makes no sense"),
        (storage, "storage_bytes_per_s = -3e9", "makes no sense"),
        (storage, "storage_bytes_per_s = 1e30", "makes no sense"),
        (storage, "storage_bytes_per_s = \"fast\"", "invalid type"),
        (storage, "colour = \"green\"", "unknown field"),
        ("ratio = 1.25", "ratio = 0.0", "a ratio of 0 makes no sense"),
        ("ratio = 1.25", "ratio = 1e3", "makes no sense"),
        ("starts_per_s = 70000.0", "starts_per_s = 1e12", "makes no sense"),
        ("f32_flops_per_s = 110000000000.0", "f32_flops_per_s = 1.0", "makes no sense"),
        ("measured_bytes = 314572800", "measured_bytes = 1", "an overhead of 1 B makes no sense"),
        ("predicted_bytes = 314572800", "predicted_bytes = -1", "invalid value"),
        ("link_bytes_per_s = 15000000000.0", "link_bytes_per_s = 1e30", "makes no sense"),
        ("kind = \"cuda\"", "kind = \"abacus\"", "unknown variant"),
        ("format = 1", "", "missing field"),
    ] {
        assert!(text.contains(now), "{now} in {text}");
        let error = Content::parse(&text.replace(now, other)).unwrap_err();
        assert!(error.contains(says), "{other}: {error}");
        assert!(error.len() < 300, "{error}");
    }
    for text in ["", "[[[", "\u{0}\u{1}", "format = 1\nberth", &"[".repeat(100_000)] {
        assert!(Content::parse(text).is_err());
    }
    let mut devices = whole();
    devices.device = vec![devices.device[0].clone(); DEVICES_MAX + 1];
    assert!(devices.text().unwrap_err().contains("33 devices"));
    let mut corrections = whole();
    corrections.host.correction = vec![Correction::first("m", "dit", 1.0); CORRECTIONS_MAX + 1];
    assert!(corrections.text().unwrap_err().contains("33 corrections"));
}

#[test]
fn with_another_cpu_only_gpus_are_known() {
    let other = Machine { cpu: "Another CPU".to_owned(), ..machine() };
    let more_cores = Machine { cores: 16, ..machine() };
    for machine in [other, more_cores] {
        let content = whole().on(&machine);
        assert_eq!(content.host, Default::default());
        let kept: Vec<&DeviceKey> = content.device.iter().map(|section| &section.of).collect();
        assert!(matches!(kept[..], [DeviceKey::Cuda { .. }]), "{kept:?}");
        // From now on it is that machine's.
        assert_eq!(content.clone().on(&machine), content);
    }
    assert_eq!(whole().on(&machine()), whole());
}

#[test]
fn another_driver_replaces_what_was_measured_with_the_last() {
    let mut content = whole();
    let before = content.device.len();
    let mut inventory = with_gpu();
    inventory.devices[0].driver = Some("590.1".to_owned());
    let key = DeviceKey::of(&inventory, &inventory.devices[0]).unwrap();
    assert_eq!(content.of(&key), None);
    let section = content.section(key.clone());
    assert!(section.speeds.is_none() && section.correction.is_empty());
    assert_eq!(content.device.len(), before);
    assert!(content.of(&key).is_some());
    assert_eq!(content.of(&DeviceKey::of(&with_gpu(), &gpu()).unwrap()), None);
}

#[test]
fn the_oldest_goes_where_there_is_no_more_room() {
    let mut content = Content::new(&machine());
    let key = |index: usize| DeviceKey::Cuda { uuid: format!("GPU-{index}"), driver: None };
    for index in 0..DEVICES_MAX {
        content.section(key(index));
    }
    content.section(key(0));
    content.section(key(DEVICES_MAX));
    assert_eq!(content.device.len(), DEVICES_MAX);
    assert!(content.of(&key(0)).is_some() && content.of(&key(1)).is_none());

    let lesson = MeasuredRatio { device: None, component: "dit".to_owned(), ratio: 2.0 };
    for index in 0..=CORRECTIONS_MAX {
        content.learn(&format!("model {index}"), std::slice::from_ref(&lesson));
    }
    let kept: Vec<&str> = content.host.correction.iter().map(|c| c.model.as_str()).collect();
    assert_eq!((kept.len(), kept[0]), (CORRECTIONS_MAX, "model 1"));
    content.learn(&"m".repeat(NAME_BYTES_MAX), &[lesson]);
    assert_eq!(content.host.correction.last().unwrap().model, "model 32");
}

#[test]
fn all_that_may_be_kept_can_be_read_again() {
    let name = "n".repeat(NAME_BYTES_MAX - 3);
    let corrections = vec![Correction::first(&name, "dit", 1.0); CORRECTIONS_MAX];
    let mut content = whole();
    content.host.correction = corrections.clone();
    let devices = content.device.clone().into_iter().cycle().take(DEVICES_MAX);
    let full = |section| CalibratedDevice { correction: corrections.clone(), ..section };
    content.device = devices.map(full).collect();
    let text = content.text().unwrap();
    assert!((text.len() as u64) < FILE_BYTES_MAX.0, "{}", text.len());
    assert_eq!(Content::parse(&text), Ok(Some(content)));
}

proptest! {
    /// A file cut short, or with bytes changed, is refused or makes sense; it is never a panic.
    #[test]
    fn damage_is_no_panic(at in 0_usize..10_000, byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = whole().text().unwrap().into_bytes();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(Some(content)) = Content::parse(&text) {
            prop_assert!(content.text().is_ok());
            holding(content.on(&machine())).apply(&mut with_gpu(), Some("model"));
        }
    }
}
