//! What a calibration changes in an inventory, and what it leaves alone.

use super::super::key::DeviceKey;
use super::*;

#[test]
fn measured_figures_replace_assumed_ones() {
    let mut inventory = with_gpu();
    holding(recorded(&inventory)).apply(&mut inventory, None);
    let host = &inventory.host;
    assert_eq!(host.speeds.f32_flops_per_s, Rate::measured(1.1e11));
    // Of the half precisions the slower one.
    assert_eq!(host.speeds.half_flops_per_s, Rate::measured(0.9e11));
    assert_eq!(host.speeds.bf16_flops_per_s, Some(Rate::measured(1.0e11)));
    assert_eq!(host.speeds.attention_flops_per_s, Rate::measured(0.7e11));
    assert_eq!(host.speeds.convolution_flops_per_s, Rate::measured(0.6e11));
    assert_eq!(host.speeds.memory_bytes_per_s, Rate::measured(1.7e10));
    assert_eq!(host.speeds.starts_per_s, Rate::measured(7e4));
    assert_eq!(host.storage_bytes_per_s, Rate::measured(3e9));
    assert_eq!(host.page_cache_bytes_per_s, Rate::measured(6e9));
    let gpu = &inventory.devices[0];
    assert_eq!(gpu.speeds.half_flops_per_s, Rate::measured(1.8e11));
    assert_eq!(gpu.link_bytes_per_s, Rate::measured(1.5e10));
    assert_eq!(gpu.link_back_bytes_per_s, Rate::measured(1.4e10));
    assert_eq!((gpu.overhead_bytes, gpu.overhead_source), (Bytes::mib(300), Source::Measured));
}

#[test]
fn what_a_profile_declares_stays() {
    let declared = r#"
        name = "declared"
        [host]
        storage_bandwidth = "5GB/s"
        [[device]]
        kind = "virtual"
        total = "2GiB"
        link = "2GiB/s"
        flops = "50GFLOP/s"
    "#;
    let before = profiled(declared);
    let mut after = before.clone();
    holding(recorded(&before)).apply(&mut after, None);
    assert_eq!(after.host.storage_bytes_per_s, Rate::declared(5e9));
    assert_eq!(after.host.speeds.f32_flops_per_s, Rate::measured(1.1e11));
    let (before, after) = (&before.devices[0], &after.devices[0]);
    assert_eq!(after.speeds.f32_flops_per_s, Rate::declared(50e9));
    assert_eq!(
        (after.speeds.half_flops_per_s, after.speeds.bf16_flops_per_s),
        (Rate::declared(50e9), None)
    );
    assert_eq!(after.speeds.memory_bytes_per_s, Rate::measured(3.4e10));
    assert_eq!(after.link_bytes_per_s, before.link_bytes_per_s);
    assert_eq!((after.overhead_bytes, after.overhead_source), (Bytes::ZERO, Source::Declared));
}

#[test]
fn an_imagined_host_takes_nothing_from_this_one() {
    let learned = {
        let mut content = recorded(&with_gpu());
        let lesson = MeasuredRatio { device: None, component: "dit".to_owned(), ratio: 1.5 };
        content.learn("model", &[lesson]);
        holding(content)
    };
    for host in [
        "memory = \"64GiB\"",
        "cores = 16",
        "cpu = \"Another\"",
        "flops = \"1TFLOP/s\"",
        "memory_bandwidth = \"90GB/s\"",
    ] {
        let before = profiled(&format!("name = \"imagined\"\n[host]\n{host}"));
        let mut after = before.clone();
        learned.apply(&mut after, Some("model"));
        assert_eq!(after, before, "{host}");
    }
    // Less of this machine's memory is no other machine.
    let mut less = profiled("name = \"less\"\n[host]\navailable = \"1GiB\"");
    learned.apply(&mut less, Some("model"));
    assert_eq!(less.host.speeds.correction("dit"), 1.5);
    assert_eq!(less.host.storage_bytes_per_s, Rate::measured(3e9));
}

#[test]
fn this_host_with_fewer_threads_keeps_figures_of_its_own() {
    let one_thread = profiled("name = \"one\"\n[host]\ncores = 1");
    // Of the whole processor's figures it takes none; the disk is the same.
    let lesson = |inventory: &Inventory, ratio| MeasuredRatio {
        device: machine().part(&inventory.host),
        component: "dit".to_owned(),
        ratio,
    };
    let mut content = recorded(&with_gpu());
    content.learn("model", &[lesson(&with_gpu(), 1.5)]);
    let mut after = one_thread.clone();
    holding(content.clone()).apply(&mut after, Some("model"));
    assert_eq!(after.host.speeds, one_thread.host.speeds);
    assert_eq!(after.host.storage_bytes_per_s, Rate::measured(3e9));
    assert_eq!(after.host.page_cache_bytes_per_s, Rate::measured(6e9));

    // What is measured with one thread is its own, and stays through the file.
    let slower = Answer { host: speeds(0.1), ..answer(&one_thread) };
    content.record(&machine(), &one_thread, &slower);
    content.learn("model", &[lesson(&one_thread, 3.0)]);
    let text = content.text().expect("good figures");
    let content = Content::parse(&text).expect("a good file").expect("of this version");
    let applied = |mut inventory: Inventory| {
        holding(content.clone()).apply(&mut inventory, Some("model"));
        let speeds = inventory.host.speeds;
        (speeds.f32_flops_per_s, speeds.correction("dit"))
    };
    let one = applied(one_thread);
    assert_eq!(one, (Rate::measured((0.1f64 * 1.1e11).round()), 3.0));
    assert_eq!(applied(with_gpu()), (Rate::measured(1.1e11), 1.5));
    // With another number of threads it is another processor.
    let two = profiled("name = \"two\"\n[host]\ncores = 2");
    assert_eq!(applied(two.clone()), (two.host.speeds.f32_flops_per_s, 1.0));
}

#[test]
fn an_imagined_gpu_takes_nothing_and_teaches_nothing() {
    let mut inventory = with_gpu();
    inventory.devices[0].uuid = None;
    assert_eq!(DeviceKey::of(&inventory, &inventory.devices[0]), None);
    let content = recorded(&inventory);
    assert!(content.device.is_empty());
    let before = inventory.devices.clone();
    holding(recorded(&with_gpu())).apply(&mut inventory, None);
    assert_eq!(inventory.devices, before);
}

#[test]
fn no_virtual_device_takes_what_was_measured_of_another() {
    let mut measured = with_virtual();
    let content = recorded(&measured);
    holding(content.clone()).apply(&mut measured, None);
    assert_eq!(measured.devices[0].speeds.f32_flops_per_s, Rate::measured(2.2e11));

    let others: [fn(&mut Inventory); 5] = [
        |other| other.source = "another profile".to_owned(),
        |other| other.devices[0].link_bytes_per_s = Rate::declared(3e9),
        |other| other.devices[0].speed = 0.5,
        |other| other.devices[0].unsupported = vec!["Conv2d".to_owned()],
        |other| other.host.cores = 1,
    ];
    for change in others {
        let mut other = with_virtual();
        change(&mut other);
        holding(content.clone()).apply(&mut other, None);
        assert_eq!(other.devices[0].speeds.f32_flops_per_s.source, Source::Assumed);
    }
}

#[test]
fn an_unmeasured_virtual_device_has_its_part_of_the_measured_host() {
    let mut inventory = with_virtual();
    inventory.devices[1].speed = 0.5;
    holding(recorded(&with_gpu())).apply(&mut inventory, None);
    assert_eq!(inventory.devices[0].speeds.f32_flops_per_s, Rate::assumed(1.1e11));
    assert_eq!(inventory.devices[1].speeds.attention_flops_per_s, Rate::assumed(0.35e11));
}

#[test]
fn twins_share_what_was_learned_of_one() {
    let inventory = with_virtual();
    let mut content = recorded(&inventory);
    let key = DeviceKey::of(&inventory, &inventory.devices[0]);
    content
        .learn("model", &[MeasuredRatio { device: key, component: "dit".to_owned(), ratio: 1.5 }]);
    let corrections = |inventory: &Inventory| -> Vec<f64> {
        let devices = inventory.devices.iter().map(|device| &device.speeds);
        [&inventory.host.speeds].into_iter().chain(devices).map(|s| s.correction("dit")).collect()
    };
    let close = |got: Vec<f64>, expected: [f64; 3]| {
        let near = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-12);
        assert!(near && got.len() == 3, "{got:?}, not {expected:?}");
    };
    let mut of_model = inventory.clone();
    holding(content.clone()).apply(&mut of_model, Some("model"));
    close(corrections(&of_model), [1.5; 3]);
    // Of another model nothing is known.
    let mut of_another = inventory.clone();
    holding(content.clone()).apply(&mut of_another, Some("another"));
    close(corrections(&of_another), [1.0; 3]);
    // Corrections of measured rates say nothing of assumed ones.
    content.host.speeds = None;
    let mut half = inventory.clone();
    holding(content).apply(&mut half, Some("model"));
    close(corrections(&half), [1.0, 1.5, 1.5]);
}

#[test]
fn it_can_be_applied_twice() {
    let mut once = with_gpu();
    let calibration = holding(recorded(&once));
    calibration.apply(&mut once, None);
    let mut twice = once.clone();
    calibration.apply(&mut twice, None);
    assert_eq!(once, twice);
}

#[test]
fn the_context_of_a_divided_gpu_counts_once() {
    let mut inventory = with_gpu();
    let measured = holding(recorded(&inventory));
    let part = |index| {
        let (room_bytes, gpu) = (Bytes::gib(4), "GPU-1".to_owned());
        let (gpu_total_bytes, gpu_free_bytes) = (Bytes::gib(8), Bytes::gib(7));
        Some(Part { gpu, index, room_bytes, gpu_total_bytes, gpu_free_bytes })
    };
    inventory.devices = [0, 1].map(|index| Device { part: part(index), ..gpu() }).to_vec();
    measured.apply(&mut inventory, None);
    let overheads = inventory.devices.iter().map(|device| device.overhead_bytes);
    assert_eq!(overheads.collect::<Vec<_>>(), [Bytes::mib(300), Bytes::ZERO]);
    assert!(inventory.devices.iter().all(|d| d.overhead_source == Source::Measured));
}
