//! What a device computed beside what is expected.

use protocol::DeviceId;
use protocol::self_test::{Difference, TestedDevice};

use super::ComputedCase;
use super::cases::Case;

/// The largest difference may be so many times the root mean square that is allowed.
const LARGEST: f64 = 4.0;

/// What was found on a device, of what is `expected` of each of the `cases`.
pub fn tested(
    id: DeviceId,
    computed: &[ComputedCase],
    cases: &[&Case],
    expected: &[Vec<f32>],
    ms: f64,
) -> TestedDevice {
    let mut families: Vec<String> = Vec::new();
    let mut differences = Vec::new();
    for computed in computed {
        let family = computed.case.family;
        if !families.iter().any(|known| known == family) {
            families.push(family.to_owned());
        }
        let index = cases.iter().position(|case| std::ptr::eq(*case, computed.case));
        let expected = &expected[index.expect("a case of the list")];
        let Some(element) = furthest(&computed.values, expected, computed.case.allowed) else {
            continue;
        };
        differences.push(Difference {
            family: family.to_owned(),
            kernels: computed.kernels.clone(),
            operations: computed.operations.clone(),
            element: element as u64,
            elements: expected.len() as u64,
            expected: expected[element],
            got: computed.values[element],
        });
    }
    TestedDevice { id, families, ms, differences }
}

/// The element that is furthest off, where the root mean square of all differences is more than is
/// `allowed`, as a part of that of what is expected, or that element's is more than [`LARGEST`]
/// times as much: sums are random, and an edge is a few elements. What is no number is further off
/// than any number.
fn furthest(found: &[f32], expected: &[f32], allowed: f64) -> Option<usize> {
    let mean =
        |squares: &mut dyn Iterator<Item = f64>| squares.sum::<f64>() / expected.len() as f64;
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    let size = mean(&mut expected.iter().map(square)).sqrt();
    let pairs = || found.iter().zip(expected);
    let off = |(found, expected): (&f32, &f32)| {
        let off = (f64::from(*found) - f64::from(*expected)).abs();
        if off.is_nan() { f64::INFINITY } else { off }
    };
    let (element, largest) = pairs().map(off).enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let usual = mean(&mut pairs().map(off).map(|off| off * off)).sqrt();
    // So that nothing is within what is no number.
    let is_within = usual <= allowed * size && largest <= LARGEST * allowed * size;
    (!is_within).then_some(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_further_off_than_allowed_is_found() {
        let expected = [1.0, -1.0, 1.0, -1.0];
        let furthest = |found: &[f32]| furthest(found, &expected, 1e-2);
        assert_eq!(furthest(&[1.0, -1.005, 1.0, -1.0]), None);
        // All are a little off, or one is more so.
        assert_eq!(furthest(&[1.009, -1.009, 1.008, -1.007]), None);
        assert_eq!(furthest(&[1.011, -1.011, 1.012, -1.011]), Some(2));
        assert_eq!(furthest(&[1.0, -1.0, 1.0, -1.019]), None);
        assert_eq!(furthest(&[1.0, -1.0, 1.0, -1.05]), Some(3));
        assert_eq!(furthest(&[f32::NAN, -1.0, 9.0, -1.0]), Some(0));
        assert_eq!(furthest(&[1.0, -1.0, 1.0, f32::NEG_INFINITY]), Some(3));
        assert_eq!(super::furthest(&[1.0, 1.0], &[1.0, f32::NAN], 1e-2), Some(1));
        assert_eq!(super::furthest(&[0.0, 0.0], &[0.0, 0.0], 1e-2), None);
    }
}
