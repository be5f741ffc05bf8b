//! Values that are infinite or no numbers, looked for where components hand their results to the
//! host. A picture made of them would be black, or noise, without a word.

use protocol::{Failure, FailureKind};

/// Whether all values are finite. One pass without a branch, which the compiler makes vectors of.
pub fn all_finite(values: &[f32]) -> bool {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    let magnitudes = values.iter().map(|value| value.to_bits() & !(1 << 31));
    magnitudes.fold(0, u32::max) < INFINITE
}

/// Checks a component's result. `step` is the denoising step, from 1, and the number of steps.
///
/// # Errors
/// [`FailureKind::NotFinite`]; `with_lora` says which hint helps.
pub fn check(
    values: &[f32],
    component: &str,
    step: Option<[u32; 2]>,
    with_lora: bool,
) -> Result<(), Failure> {
    if all_finite(values) {
        return Ok(());
    }
    let place = step.map(|[step, of]| format!(" in step {step} of {of}")).unwrap_or_default();
    let hint = match with_lora {
        true => {
            "give the LoRA a smaller weight, or leave it out; if that does not help, a file of \
             weights is damaged"
        }
        false => {
            "a file of weights is damaged, or of a type that cannot hold its values: copy it again, \
             or take one of another type"
        }
    };
    let message = format!(
        "the result of {component} is not finite{place}, so there is no picture; hint: {hint}"
    );
    let component = component.to_owned();
    let step = step.map(|[step, _]| step);
    Err(Failure { kind: FailureKind::NotFinite { component, step }, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_looked_at() {
        let largest = [f32::MAX, f32::MIN, -0.0, f32::MIN_POSITIVE, 1e-40];
        assert!(all_finite(&[]) && all_finite(&largest));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 15, 16, 99] {
                let mut values = vec![1.0; 100];
                values[at] = bad;
                assert!(!all_finite(&values), "{bad} at {at}");
            }
        }
    }

    #[test]
    fn the_component_and_the_step_are_told() {
        let failure = check(&[f32::NAN], "dit", Some([2, 4]), true).expect_err("it is no number");
        let kind = FailureKind::NotFinite { component: "dit".to_owned(), step: Some(2) };
        assert_eq!(failure.kind, kind);
        assert!(failure.message.contains("dit is not finite in step 2 of 4"), "{failure}");
        let failure = check(&[f32::NAN], "vae", None, false).expect_err("it is no number");
        assert!(!failure.message.contains("step") && !failure.message.contains("LoRA"));
    }
}
