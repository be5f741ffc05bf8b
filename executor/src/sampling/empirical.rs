//! A shift of noise levels that was fitted to pictures of many sizes, made in many steps
//! (`compute_empirical_mu` of diffusers' pipelines): lines over the picture's tokens for 10 and for
//! 200 steps, and a line over the steps between the two.

/// Slope and intercept of a line.
type Line = (f64, f64);

const TEN_STEPS: Line = (8.738_095_24e-5, 1.898_333_33);
const TWO_HUNDRED_STEPS: Line = (0.000_169_27, 0.456_666_66);

/// Above so many tokens the steps do not count: the shift is that of 200.
const TOKENS_MAX: usize = 4300;

/// The logarithmic shift for a picture of so many packed tokens.
pub fn mu(image_tokens: usize, steps: usize) -> f64 {
    let [ten, two_hundred] = [TEN_STEPS, TWO_HUNDRED_STEPS]
        .map(|(slope, intercept)| slope * image_tokens as f64 + intercept);
    if image_tokens > TOKENS_MAX {
        return two_hundred;
    }
    let slope = (two_hundred - ten) / 190.0;
    slope * steps as f64 + (two_hundred - 200.0 * slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_met_where_they_were_fitted() {
        let is = |tokens, steps, expected: f64| {
            let mu = mu(tokens, steps);
            assert!((mu - expected).abs() < 1e-9, "{tokens} tokens, {steps} steps: {mu}");
        };
        is(1000, 10, 8.738_095_24e-2 + 1.898_333_33);
        is(1000, 200, 0.169_27 + 0.456_666_66);
        is(4300, 10, 8.738_095_24e-5 * 4300.0 + 1.898_333_33);
        // One token more, and no number of steps changes it.
        let beyond = 0.000_169_27 * 4301.0 + 0.456_666_66;
        is(4301, 10, beyond);
        is(4301, 1, beyond);
        // A picture of 1024 pixels a side in four steps.
        is(4096, 4, 2.291179894115571);
    }
}
