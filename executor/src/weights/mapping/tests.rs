//! Files mapped, refused, shrunk; and their pages, as the kernel tells of them.

use std::fs;

use super::*;
use crate::weights::support::{directory_on_disk, write_through};

const FILE_BYTES: usize = 6 * PIECE_BYTES_MAX + 1234;

/// A file under a policy, with all of its bytes read.
fn read_under(path: &Path, policy: MappingPolicy) -> MappedFile {
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 999) as u8).collect();
    write_through(path, &content);
    let mapped = MappedFile::open(path).unwrap();
    mapped.advise(policy).unwrap();
    assert!(mapped.bytes() == content);
    assert_eq!(cached(&mapped, 0..FILE_BYTES), FILE_BYTES.next_multiple_of(page_size()));
    mapped
}

fn cached(mapped: &MappedFile, range: Range<usize>) -> usize {
    mapped.cached_bytes(range).unwrap().as_usize()
}

/// What the kernel says about the mapping: how much of it this process has, and its flags.
#[cfg(target_os = "linux")]
fn mapped_bytes_and_flags(mapped: &MappedFile) -> (usize, Vec<String>) {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|l| !l.ends_with(mapped.path().to_str().unwrap()));
    let mut value = |key: &str| -> Vec<String> {
        let line = lines.find_map(|line| line.strip_prefix(key)).expect("each mapping has it");
        line.split_whitespace().map(str::to_owned).collect()
    };
    let kib: usize = value("Rss:")[0].parse().unwrap();
    (kib << 10, value("VmFlags:"))
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_copied_leaves_memory_under_drop_only() {
    let Some(dir) = directory_on_disk() else { return };
    for policy in MappingPolicy::ALL {
        let mapped = read_under(&dir.path().join(policy.name()), policy);
        let (before, flags) = mapped_bytes_and_flags(&mapped);
        assert!(before >= FILE_BYTES, "{policy}: all was read");
        // "sr": sequential reads (proc_pid_smaps(5)).
        let in_order = flags.iter().any(|flag| flag == "sr");
        assert_eq!(in_order, policy != MappingPolicy::Keep, "{policy}: {flags:?}");

        mapped.release(0..FILE_BYTES).unwrap();
        let (after, _) = mapped_bytes_and_flags(&mapped);
        let left = cached(&mapped, 0..FILE_BYTES);
        if policy == MappingPolicy::Drop {
            assert_eq!((after, left), (0, 0));
        } else {
            assert_eq!(after, before, "{policy}");
            assert!(left >= FILE_BYTES, "{policy}: {left}");
        }
        let expected = |at: usize| (at / 999) as u8;
        assert!(mapped.bytes().iter().enumerate().all(|(at, &byte)| byte == expected(at)));
    }
}

#[test]
fn pages_stay_until_all_that_share_them_are_released() {
    let Some(dir) = directory_on_disk() else { return };
    let mapped = read_under(&dir.path().join("weights"), MappingPolicy::Drop);
    let page = page_size();
    mapped.release(page + 1..3 * page - 1).unwrap();
    assert!(cached(&mapped, 0..FILE_BYTES) >= FILE_BYTES, "no page is whole in the range");

    let (start, end) = (PIECE_BYTES_MAX + 1, 4 * PIECE_BYTES_MAX + 1);
    mapped.release(start..end).unwrap();
    assert_eq!(cached(&mapped, 2 * PIECE_BYTES_MAX..4 * PIECE_BYTES_MAX), 0);
    assert_eq!(cached(&mapped, start - 1..start), page, "the page where the range begins");
    assert_eq!(cached(&mapped, end..end + 1), page, "the page where it ends");

    mapped.release(0..start).unwrap();
    assert_eq!(cached(&mapped, 0..4 * PIECE_BYTES_MAX), 0);
    mapped.release(end..FILE_BYTES).unwrap();
    assert_eq!(cached(&mapped, 0..FILE_BYTES), 0);
}

#[test]
fn runs_join_where_they_touch() {
    let mut runs = Vec::new();
    for (range, joined) in [
        (10..20, 10..20),
        (30..40, 30..40),
        (50..60, 50..60),
        (40..45, 30..45),
        (25..30, 25..45),
        (12..18, 10..20),
        (20..25, 10..45),
        (5..55, 5..60),
        (0..0, 0..0),
    ] {
        assert_eq!(join(&mut runs, &range), joined, "{range:?}");
    }
    assert_eq!(runs, [0..0, 5..60]);
}

#[test]
fn a_file_is_mapped_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    let content: Vec<u8> = (0..10_000u32).map(|byte| byte as u8).collect();
    fs::write(&path, &content).unwrap();
    let mapped = MappedFile::open(&path).unwrap();
    assert_eq!(mapped.bytes(), content);
    assert_eq!(mapped.size(), Bytes(10_000));
    assert_eq!(mapped.path(), path);
}

#[test]
fn what_is_no_file_of_some_bytes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent");
    let found = MappedFile::open(&path);
    assert!(matches!(found, Err(WeightsError::Open { cause, .. })
        if cause.kind() == io::ErrorKind::NotFound));

    let found = MappedFile::open(dir.path());
    assert!(matches!(found, Err(WeightsError::NotRegularFile { path }) if path == dir.path()));

    let path = dir.path().join("empty");
    fs::write(&path, []).unwrap();
    let found = MappedFile::open(&path);
    assert!(matches!(found, Err(WeightsError::EmptyFile { path: named }) if named == path));
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_without_a_writer_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::from(0o600), 0).unwrap();
    let found = MappedFile::open(&path);
    assert!(matches!(found, Err(WeightsError::NotRegularFile { .. })));
}

#[test]
fn a_file_that_shrinks_is_an_error_and_one_that_grows_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let mapped = MappedFile::open(&path).unwrap();
    mapped.check_unchanged().unwrap();

    let writer = File::options().write(true).open(&path).unwrap();
    writer.set_len(200_000).unwrap();
    mapped.check_unchanged().unwrap();

    writer.set_len(99_999).unwrap();
    let found = mapped.check_unchanged();
    assert!(matches!(
        found,
        Err(WeightsError::FileShrank { path: at, mapped_bytes: 100_000, present_bytes: 99_999 })
            if at == path
    ));
}

#[test]
fn what_is_written_privately_is_seen_by_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let shared = MappedFile::open(&path).unwrap();
    let mut copy = shared.private_copy().unwrap();
    assert!(copy.bytes_mut().iter().all(|&byte| byte == 1));
    copy.bytes_mut()[5000..5010].fill(7);
    let copy = copy.finish().unwrap();

    let mut expected = vec![1; 20_000];
    assert_eq!(shared.bytes(), expected);
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
    expected[5000..5010].fill(7);
    assert_eq!(copy.bytes(), expected);
    assert!(copy.is_private() && !shared.is_private());

    // Pages that were not written are still the file's.
    File::options().write(true).open(&path).unwrap().set_len(19_999).unwrap();
    assert!(matches!(copy.check_unchanged(), Err(WeightsError::FileShrank { .. })));
}

#[test]
fn pages_under_several_ranges_count_once() {
    let page = rustix::param::page_size() as u64;
    let covered = |ranges: &[(u64, u64)]| {
        covered_page_bytes(ranges.iter().map(|&(start, end)| start..end)).0 / page
    };
    assert_eq!(covered(&[]), 0);
    assert_eq!(covered(&[(10, 10)]), 0);
    assert_eq!(covered(&[(0, 1)]), 1);
    assert_eq!(covered(&[(0, page)]), 1);
    assert_eq!(covered(&[(page - 1, page + 1)]), 2);
    assert_eq!(covered(&[(7, page + 1), (0, 3), (9 * page, 9 * page + 1), (8, 9)]), 3);
    assert_eq!(covered(&[(0, 5 * page), (page, 2 * page), (4 * page, 6 * page)]), 6);
}

#[test]
fn both_ways_to_ask_for_cached_pages_agree() {
    let Some(dir) = directory_on_disk() else { return };
    let mapped = read_under(&dir.path().join("weights"), MappingPolicy::Drop);
    let page = page_size();
    let whole = |mapped: &MappedFile, range| mapped.cached_page_bytes(range).unwrap().as_usize();
    assert_eq!(whole(&mapped, 0..FILE_BYTES), FILE_BYTES / page * page);
    assert_eq!(whole(&mapped, 1..3 * page), 2 * page, "pages that lie in the range whole");
    assert_eq!(whole(&mapped, 1..page), 0);

    mapped.release(PIECE_BYTES_MAX..3 * PIECE_BYTES_MAX).unwrap();
    for range in [0..6 * PIECE_BYTES_MAX, 0..PIECE_BYTES_MAX, PIECE_BYTES_MAX..4 * PIECE_BYTES_MAX]
    {
        assert_eq!(whole(&mapped, range.clone()), cached(&mapped, range.clone()), "{range:?}");
    }
    assert_eq!(whole(&mapped, PIECE_BYTES_MAX..3 * PIECE_BYTES_MAX), 0);
}
