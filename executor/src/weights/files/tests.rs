//! Components on disk: found, refused, and read back against the `safetensors` library.

mod formats;
mod parts;

use std::collections::HashMap;
use std::fs;
use std::io::Write;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::*;
use crate::weights::header::HeaderError;
use crate::weights::index::IndexError;
use crate::weights::support::{directory_on_disk, file_bytes, header_text, write_through};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];

/// A directory with these files.
fn directory(files: &[(&str, Vec<u8>)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// A file of f32 vectors with these names and lengths.
fn vectors(tensors: &[(&str, usize)]) -> Vec<u8> {
    let shapes: Vec<_> = tensors.iter().map(|&(name, length)| (name, [length])).collect();
    let rows: Vec<_> =
        shapes.iter().map(|(name, shape)| (*name, "F32", &shape[..], shape[0] * 4)).collect();
    file_bytes(&header_text(&rows), tensors.iter().map(|(_, length)| length * 4).sum())
}

fn index(pairs: &[(&str, &str)]) -> Vec<u8> {
    let map: Vec<_> = pairs.iter().map(|(name, shard)| format!("{name:?}:{shard:?}")).collect();
    format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, map.join(",")).into_bytes()
}

#[track_caller]
fn refused(dir: &TempDir) -> WeightsError {
    let fault = WeightFiles::open(dir.path(), &STEMS).expect_err("the files are bad");
    let dir = dir.path().to_str().unwrap();
    assert!(fault.to_string().contains(dir), "no path in: {fault}");
    fault
}

#[test]
fn stems_are_tried_in_order_and_single_files_first() {
    let dir = directory(&[("model.safetensors", vectors(&[("second", 1)]))]);
    let names = |dir: &TempDir| -> Vec<String> {
        WeightFiles::open(dir.path(), &STEMS).unwrap().names().map(str::to_owned).collect()
    };
    assert_eq!(names(&dir), ["second"]);
    let indexed = "diffusion_pytorch_model.safetensors.index.json";
    fs::write(dir.path().join(indexed), index(&[("sharded", "shard")])).unwrap();
    fs::write(dir.path().join("shard"), vectors(&[("sharded", 1), ("beside", 2)])).unwrap();
    assert_eq!(names(&dir), ["beside", "sharded"]);
    fs::write(dir.path().join("diffusion_pytorch_model.safetensors"), vectors(&[("first", 1)]))
        .unwrap();
    assert_eq!(names(&dir), ["first"]);
}

#[test]
fn a_directory_without_weights_says_what_was_looked_for() {
    let dir = directory(&[("config.json", b"{}".to_vec())]);
    let fault = refused(&dir);
    for name in [
        "diffusion_pytorch_model.safetensors,",
        "diffusion_pytorch_model.safetensors.index.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "model.gguf",
    ] {
        assert!(fault.to_string().contains(name), "{fault}");
    }
    assert!(matches!(fault, WeightsError::NoWeights { looked_for, .. } if looked_for.len() == 6));
}

#[test]
fn bad_single_files_are_refused_with_their_path() {
    let dir = directory(&[("model.safetensors", Vec::new())]);
    assert!(matches!(refused(&dir), WeightsError::EmptyFile { .. }));

    let mut truncated = vectors(&[("t", 8)]);
    truncated.truncate(truncated.len() - 1);
    for (content, fragment) in [
        (8u64.to_le_bytes().to_vec(), "its header ends at byte 16, but the file has only 8 bytes"),
        (vec![0; 7], "it has 7 bytes"),
        (truncated, "download it again"),
    ] {
        let dir = directory(&[("model.safetensors", content)]);
        let fault = refused(&dir);
        assert!(fault.to_string().contains(fragment), "{fault}");
        assert!(matches!(fault, WeightsError::Header { .. }));
    }

    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    assert!(matches!(refused(&dir), WeightsError::NotRegularFile { .. }));
}

#[test]
fn bad_shards_are_refused() {
    let with_index = |pairs: &[(&str, &str)]| {
        directory(&[
            ("model.safetensors.index.json", index(pairs)),
            ("one", vectors(&[("a", 1), ("b", 2)])),
            ("two", vectors(&[("c", 3)])),
            ("again", vectors(&[("b", 2)])),
            ("broken", file_bytes("{}", 3)),
        ])
    };
    let open = |pairs| WeightFiles::open(with_index(pairs).path(), &STEMS);
    assert!(open(&[("a", "one"), ("b", "one"), ("c", "two")]).is_ok());

    let fault = refused(&with_index(&[("a", "one"), ("c", "three")]));
    assert!(matches!(fault, WeightsError::MissingShard { shard, .. } if shard == "three"));

    let fault = refused(&with_index(&[("a", "one"), ("x", "two")]));
    assert!(matches!(fault, WeightsError::TensorNotInShard { path, tensor, .. }
        if tensor == "x" && path.ends_with("two")));
    let fault = refused(&with_index(&[("a", "two"), ("c", "two"), ("b", "one")]));
    assert!(matches!(fault, WeightsError::TensorNotInShard { tensor, .. } if tensor == "a"));

    let fault = refused(&with_index(&[("a", "one"), ("b", "again")]));
    assert!(matches!(fault, WeightsError::TensorInTwoShards { path, other, tensor }
        if tensor == "b" && path.ends_with("again") && other.ends_with("one")));

    let fault = refused(&with_index(&[("a", "broken")]));
    assert!(
        matches!(fault, WeightsError::Header { path, fault: HeaderError::TrailingBytes { .. } }
        if path.ends_with("broken"))
    );
    let fault = refused(&with_index(&[("a", "../one")]));
    assert!(matches!(fault, WeightsError::Index { fault: IndexError::ShardName { .. }, .. }));

    let dir = directory(&[("model.safetensors.index.json", b"no JSON".to_vec())]);
    assert!(matches!(refused(&dir), WeightsError::Index { fault: IndexError::Malformed(_), .. }));
}

#[test]
fn a_model_gets_what_it_requires_or_a_reason() {
    let rows: [(&str, &str, &[usize], usize); 3] = [
        ("text_model.encoder.layers.0.q_proj.weight", "F16", &[2, 3], 12),
        ("text_model.encoder.layers.1.q_proj.weight", "F8_E8M0", &[4], 4),
        ("zz", "BF16", &[], 2),
    ];
    let dir = directory(&[("model.safetensors", file_bytes(&header_text(&rows), 18))]);
    let files = WeightFiles::open(dir.path(), &STEMS).unwrap();
    let path = dir.path().join("model.safetensors");

    let tensor = files.require(rows[0].0, &[2, 3]).unwrap();
    assert_eq!(
        (tensor.storage(), tensor.shape(), tensor.size()),
        (StorageType::F16, &[2, 3][..], Bytes(12))
    );
    let view = tensor.view(&files);
    assert_eq!((view.storage, view.shape), (StorageType::F16, &[2, 3][..]));
    assert_eq!(view.bytes, (0..12).collect::<Vec<u8>>());
    assert_eq!(files.require("zz", &[]).unwrap().view(&files).bytes, [16, 17]);

    let fault = files.require(rows[0].0, &[3, 2]).unwrap_err();
    assert!(matches!(&fault, WeightsError::WrongShape { path: at, expected, got, .. }
        if *at == path && *expected == [3, 2] && *got == [2, 3]));

    let fault = files.require(rows[1].0, &[4]).unwrap_err();
    assert!(
        fault.to_string().contains("has type F8_E8M0, supported are F32, F16, BF16"),
        "{fault}"
    );
    assert!(matches!(fault, WeightsError::WrongType { got: Dtype::F8E8M0, .. }));

    for (asked, expected) in [
        ("encoder.layers.0.q_proj.weight", Some(rows[0].0)),
        ("text_model.encoder.layers.1.q_proj.bias", Some(rows[1].0)),
        ("text_model.bias", None),
        ("vae.conv_in", None),
        ("", None),
    ] {
        let fault = files.require(asked, &[]).unwrap_err();
        assert!(
            matches!(&fault, WeightsError::MissingTensor { path: at, tensor, nearest }
                if *at == path && tensor == asked && nearest.as_deref() == expected),
            "{fault}"
        );
    }
}

#[test]
fn a_file_that_shrinks_under_its_mapping_is_an_error() {
    let dir = directory(&[
        ("model.safetensors.index.json", index(&[("a", "one"), ("b", "two")])),
        ("one", vectors(&[("a", 1)])),
        ("two", vectors(&[("b", 4000)])),
    ]);
    let files = WeightFiles::open(dir.path(), &STEMS).unwrap();
    files.check_unchanged().unwrap();
    let path = dir.path().join("two");
    fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let found = files.check_unchanged();
    assert!(matches!(
        found,
        Err(WeightsError::FileShrank { path: at, present_bytes: 5000, .. }) if at == path
    ));
}

/// Resident memory of the mapping of `path` in this process, in kB.
#[cfg(target_os = "linux")]
fn resident_kb(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = maps.split_once(path.to_str().unwrap()).expect("the file is mapped").1;
    let line = of_file.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn opening_a_huge_file_reads_its_header_only() {
    const ELEMENTS: usize = 5 << 30;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let header =
        header_text(&[("huge", "F32", &[ELEMENTS], 4 * ELEMENTS), ("last", "F32", &[1], 4)]);
    let start = file_bytes(&header, 0);
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&start).unwrap();
    file.set_len((start.len() + 4 * ELEMENTS + 4) as u64).unwrap();

    let files = WeightFiles::open(dir.path(), &STEMS).unwrap();
    assert_eq!(files.total_tensor_bytes(), Bytes(20 << 30) + Bytes(4));
    assert_eq!(resident_kb(&path), 0);
    let last = files.require("last", &[1]).unwrap();
    assert_eq!(last.view(&files).bytes, [0; 4]);
    assert!((4..1024).contains(&resident_kb(&path)), "the probe sees what is touched");
}

/// Every tensor of `files`, against the library's reading of the same files.
fn check_against_library(files: &WeightFiles) {
    let mut count = 0;
    for (file_index, path) in files.paths().enumerate() {
        let content = fs::read(path).unwrap();
        let theirs = SafeTensors::deserialize(&content).unwrap();
        for (name, tensor) in theirs.tensors() {
            let info = files.tensor(&name).unwrap();
            assert_eq!(
                (info.name, info.shape, info.file_index),
                (&name[..], tensor.shape(), file_index)
            );
            assert_eq!(info.dtype.name(), tensor.dtype().to_string());
            assert_eq!(files.bytes(&info), tensor.data());
            assert_eq!(
                files.bytes(&info),
                &content[info.offset.as_usize()..][..info.size.as_usize()]
            );
            count += 1;
        }
    }
    assert_eq!(count, files.names().count());
    assert_eq!(files.total_tensor_bytes(), files.tensors().map(|info| info.size).sum());
    assert!(files.names().is_sorted());
}

#[test]
fn files_of_the_library_are_read_alike() {
    use safetensors::Dtype as Theirs;
    let data: Vec<u8> = (0..=255).collect();
    let types = [
        Theirs::BOOL,
        Theirs::F4,
        Theirs::F6_E2M3,
        Theirs::F6_E3M2,
        Theirs::U8,
        Theirs::I8,
        Theirs::F8_E5M2,
        Theirs::F8_E4M3,
        Theirs::F8_E8M0,
        Theirs::F8_E4M3FNUZ,
        Theirs::F8_E5M2FNUZ,
        Theirs::I16,
        Theirs::U16,
        Theirs::F16,
        Theirs::BF16,
        Theirs::I32,
        Theirs::U32,
        Theirs::F32,
        Theirs::C64,
        Theirs::F64,
        Theirs::I64,
        Theirs::U64,
    ];
    let tensors = types.map(|dtype| {
        let bytes = 8 * dtype.bitsize() / 8;
        (format!("\"{dtype}\"\n"), TensorView::new(dtype, vec![2, 4], &data[..bytes]).unwrap())
    });
    let notes = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(tensors, Some(notes), &path).unwrap();

    let files = WeightFiles::open_file(&path).unwrap();
    assert_eq!(files.names().count(), 22);
    check_against_library(&files);
}

#[test]
fn the_reference_fixtures_are_read() {
    let component =
        |path: &str| WeightFiles::open(&Path::new(FIXTURES).join(path), &STEMS).unwrap();
    for (path, files_count) in [
        ("flux_dev/transformer", 3),
        ("flux_dev/text_encoder_2", 2),
        ("flux_dev/text_encoder", 1),
        ("flux_dev/vae", 1),
        ("flux_schnell/transformer", 1),
    ] {
        let files = component(path);
        assert_eq!(files.paths().count(), files_count, "{path}");
        check_against_library(&files);
        files.check_unchanged().unwrap();
    }

    let dit = component("flux_dev/transformer");
    // The index states this sum itself.
    assert_eq!(dit.total_tensor_bytes(), Bytes(979_968));
    let bias = dit.require("context_embedder.bias", &[64]).unwrap();
    assert_eq!((bias.storage(), bias.view(&dit).bytes.len()), (StorageType::BF16, 128));
}

#[test]
fn released_weights_leave_the_page_cache() {
    /// Larger than what the system caches in one piece.
    const LENGTH: usize = 1 << 20;
    let Some(dir) = directory_on_disk() else { return };
    let path = dir.path().join("model.safetensors");
    write_through(&path, &vectors(&[("a", LENGTH), ("b", LENGTH), ("c", LENGTH), ("d", LENGTH)]));
    let files = WeightFiles::open(dir.path(), &STEMS).unwrap();
    files.advise(MappingPolicy::Drop).unwrap();
    let tensors = ["a", "b", "c", "d"].map(|name| files.require(name, &[LENGTH]).unwrap());
    assert!(files.cached_bytes().unwrap() >= files.total_tensor_bytes());

    files.release([&tensors[3], &tensors[0], &tensors[1]]);
    let cached = |from: usize, to: usize| {
        let file = &files.files[0];
        file.cached_bytes(from..to).unwrap().as_usize()
    };
    let (b, c) = (tensors[1].offset_bytes, tensors[2].offset_bytes);
    let page = rustix::param::page_size();
    assert_eq!(cached(b - page, b + page), 0, "neighbours that go together");
    assert_eq!(cached(c, c + LENGTH), (LENGTH + c % page).next_multiple_of(page), "not released");

    files.release_all();
    assert_eq!(files.cached_bytes().unwrap(), Bytes::ZERO);
    assert_eq!(tensors[2].view(&files).bytes[..4], [0, 1, 2, 3]);
}

#[test]
fn cached_weights_are_counted_once_and_in_whole_pages() {
    let Some(dir) = directory_on_disk() else { return };
    let path = dir.path().join("model.safetensors");
    const BYTES: usize = 5 << 20;
    let text = header_text(&[
        ("a", "U8", &[BYTES], BYTES),
        ("b", "F16", &[BYTES / 2], BYTES),
        ("c", "F32", &[1], 4),
    ]);
    write_through(&path, &file_bytes(&text, 2 * BYTES + 4));
    let files = WeightFiles::open_file(&path).unwrap();
    let page = rustix::param::page_size() as u64;
    let [b, c] = [("b", BYTES / 2), ("c", 1)].map(|(n, size)| files.require(n, &[size]).unwrap());
    // All was just written, and no page is wholly of the small one.
    let all = files.cached_weight_bytes([&b, &c, &b]);
    assert!((BYTES as u64 - 2 * page..=BYTES as u64 + 4).contains(&all.0), "{all:?}");
    assert_eq!(files.cached_weight_bytes([&c]), Bytes::ZERO);

    files.advise(MappingPolicy::Drop).unwrap();
    files.release_all();
    assert_eq!(files.cached_weight_bytes([&b, &c]), Bytes::ZERO);

    let mut changed = WeightFiles::open_file(&path).unwrap();
    std::io::copy(&mut fs::File::open(&path).unwrap(), &mut std::io::sink()).unwrap();
    assert!(changed.cached_weight_bytes([&b]) > Bytes::ZERO);
    changed.set_private_bytes(Bytes(page));
    assert_eq!(changed.cached_weight_bytes([&b]), Bytes::ZERO, "its own pages are read for LoRA");
}

#[test]
fn a_matrix_of_whole_blocks_is_sized_as_if_in_blocks_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let shapes: [(&str, &[usize]); 4] =
        [("matrix", &[6, 64]), ("uneven", &[6, 48]), ("kernel", &[4, 32, 3, 3]), ("bias", &[64])];
    let sizes = shapes.map(|(_, shape)| 2 * shape.iter().product::<usize>());
    let entries: Vec<_> = shapes
        .iter()
        .zip(sizes)
        .map(|(&(name, shape), size)| (name, "BF16", shape, size))
        .collect();
    fs::write(&path, file_bytes(&header_text(&entries), sizes.iter().sum())).unwrap();
    let files = WeightFiles::open_file(&path).unwrap();
    for ((name, shape), expected) in shapes.into_iter().zip([6 * 68, 6 * 96, 4 * 9 * 34, 128]) {
        let stored = files.require(name, shape).unwrap();
        let blocks = stored.stored_as(StorageType::Q8_0);
        assert_eq!((blocks.size(), blocks.shape()), (Bytes(expected), shape), "{name}");
        assert_eq!(Bytes(blocks.row_bytes().0 * shape[0] as u64), blocks.size(), "{name}: rows");
        assert_eq!(stored.stored_as(StorageType::BF16), stored);
        let single = if shape.len() > 1 { Bytes(2 * stored.size().0) } else { stored.size() };
        assert_eq!(stored.stored_as(StorageType::F32).size(), single, "{name}");
    }
}
