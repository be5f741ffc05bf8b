//! The cases on the host and on themselves; GPUs are simulated in `tests/gpu/self_test.rs`.

use std::collections::BTreeSet;

use super::cases::CASES;
use super::*;
use crate::ops::NAMES;

fn on_host(exact: bool) -> Vec<ComputedCase> {
    let files = Arc::new(weights::weights().unwrap());
    let memory = Memory::new(DeviceId::host(), HOST_BYTES_MAX, None);
    let host = HostBackend::new(memory, Arc::new(Workers::new(2).unwrap()));
    let cancel = CancelFlag::default();
    let cases: Vec<&Case> = CASES.iter().collect();
    let bench = SelfTestBench { cases: &cases, files: &files, threads: 2, cancel: &cancel };
    CASES.iter().map(|case| bench.computed(case, &host, exact).unwrap()).collect()
}

#[test]
fn every_operation_is_in_some_case() {
    let computed = on_host(true);
    let tested: BTreeSet<&str> =
        computed.iter().flat_map(|case| case.operations.iter().map(String::as_str)).collect();
    assert_eq!(tested, NAMES.into_iter().collect());
}

#[test]
fn results_are_numbers_of_many_values() {
    for ComputedCase { case, values, .. } in on_host(true) {
        let bits: BTreeSet<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert!(values.iter().all(|value| value.is_finite()), "{}: {values:?}", case.family);
        assert!(2 * bits.len() > values.len() / 2, "{}: {values:?}", case.family);
    }
}

#[test]
fn a_case_is_like_itself_and_unlike_what_is_changed() {
    let computed = on_host(true);
    let expected: Vec<Vec<f32>> = computed.iter().map(|case| case.values.clone()).collect();
    let cases: Vec<&Case> = CASES.iter().collect();
    let id = DeviceId("cuda0".to_owned());
    let same = compare::tested(id.clone(), &computed, &cases, &expected, 1.0);
    assert_eq!(same.differences, []);
    for index in 0..CASES.len() {
        let mut other = expected.clone();
        let last = other[index].last_mut().unwrap();
        *last += 1e6 + last.abs();
        let found = compare::tested(id.clone(), &computed, &cases, &other, 1.0).differences;
        assert_eq!(found.len(), 1, "{}", CASES[index].family);
        assert_eq!(found[0].operations, computed[index].operations);
        assert_eq!(found[0].element + 1, found[0].elements);
    }
}

#[test]
fn every_case_is_in_one_share_and_none_takes_much_longer_than_the_others() {
    for count in [1, 2, 3, 4, 8, SHARES_MAX] {
        let shares = (0..count).map(|index| cases::of(SelfTestShare { index, count }));
        let shares: Vec<Vec<&Case>> = shares.collect();
        for case in CASES {
            let has = |cases: &&Vec<&Case>| cases.iter().any(|of| std::ptr::eq(*of, case));
            assert_eq!(shares.iter().filter(has).count(), 1, "{} of {count}", case.family);
        }
        let ms = |cases: &[&Case]| cases.iter().map(|case| case.cold_ms).sum::<u32>();
        let all: u32 = shares.iter().map(|cases| ms(cases)).sum();
        let longest = shares.iter().map(|cases| ms(cases)).max().unwrap();
        // A family is never divided.
        assert!(longest <= all / count + 1000, "{longest} of {all} ms by {count}");
    }
}
