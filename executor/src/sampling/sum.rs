//! Weighted sums of what a step has in hand: every rule is linear in it.
//!
//! A rule writes its formulas with sums in place of tensors; what comes out is a factor for each
//! term, in `f64`, and no rule needs a loop over elements.

use std::ops::{Add, Mul, Neg, Sub};

/// Most tensors that a rule keeps from one call of the model to another.
pub const HISTORY_MAX: usize = 6;

/// Factors of the latents, the model's output, fresh noise, a clamped sum, and the history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sum([f64; TERMS]);

const TERMS: usize = 4 + HISTORY_MAX;
const CLAMPED_AT: usize = 3;
const HISTORY_AT: usize = 4;

impl Sum {
    /// Nothing.
    pub const ZERO: Sum = Sum([0.0; TERMS]);
    /// The latents as they are before the step.
    pub const LATENTS: Sum = Sum::term(0);
    /// The model's output.
    pub const OUTPUT: Sum = Sum::term(1);
    /// Standard normal numbers that are drawn for the call.
    pub const NOISE: Sum = Sum::term(2);
    /// The sum that the call clamps to -1 to 1 first.
    pub const CLAMPED: Sum = Sum::term(CLAMPED_AT);

    /// A tensor of the history.
    pub const fn history(place: usize) -> Sum {
        assert!(place < HISTORY_MAX, "a rule keeps a few tensors");
        Sum::term(HISTORY_AT + place)
    }

    const fn term(place: usize) -> Sum {
        let mut factors = [0.0; TERMS];
        factors[place] = 1.0;
        Sum(factors)
    }

    /// The distance along the model's output, where the sum is the latents and that alone.
    pub fn along_output(&self) -> Option<f64> {
        let distance = self.0[1];
        (*self == Sum::LATENTS + Sum::OUTPUT * distance).then_some(distance)
    }

    /// Whether fresh noise is part of it.
    pub fn has_noise(&self) -> bool {
        self.0[2] != 0.0
    }

    /// Tensors of the history that it needs there to be.
    pub(super) fn history_len(&self) -> usize {
        let last = self.0[HISTORY_AT..].iter().rposition(|factor| *factor != 0.0);
        last.map_or(0, |last| last + 1)
    }

    /// Its value at one element. What is not there has the factor 0, and is not looked at.
    pub(super) fn at(&self, terms: &Terms<'_>, element: usize) -> f64 {
        let Terms { latents, output, noise, clamped, history } = *terms;
        let mut value = 0.0;
        for (factor, term) in self.0.iter().zip([latents, output, noise, clamped]) {
            if *factor != 0.0 {
                value += factor * term;
            }
        }
        for (factor, kept) in self.0[HISTORY_AT..].iter().zip(history) {
            if *factor != 0.0 {
                value += factor * f64::from(kept[element]);
            }
        }
        value
    }
}

/// The values of the terms at one element, the history's as a whole.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub latents: f64,
    pub output: f64,
    pub noise: f64,
    pub clamped: f64,
    pub history: &'a [Vec<f32>],
}

impl Add for Sum {
    type Output = Sum;

    fn add(self, other: Sum) -> Sum {
        Sum(std::array::from_fn(|term| self.0[term] + other.0[term]))
    }
}

impl Sub for Sum {
    type Output = Sum;

    fn sub(self, other: Sum) -> Sum {
        self + -other
    }
}

impl Neg for Sum {
    type Output = Sum;

    fn neg(self) -> Sum {
        self * -1.0
    }
}

impl Mul<f64> for Sum {
    type Output = Sum;

    fn mul(self, factor: f64) -> Sum {
        // A term that is not there stays so, whatever the factor is: a rule's last step divides
        // by a level of 0 what it does not use.
        let product = |term: f64| if term == 0.0 { 0.0 } else { term * factor };
        Sum(self.0.map(product))
    }
}
