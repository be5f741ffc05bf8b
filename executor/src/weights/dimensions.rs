//! The shape of a tensor in a file: a few numbers held inline, so that handles to tensors are
//! `Copy`.
//!
//! Invariant: dimensions beyond the rank are zero, so that equality of shapes is equality of
//! values.

use std::fmt;

/// The most dimensions that a tensor may have. Convolution over time needs 5; the rest is headroom.
pub const DIMENSIONS_MAX: usize = 8;

/// The dimensions of a tensor, outermost first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    sizes: [usize; DIMENSIONS_MAX],
    rank: usize,
}

impl Dimensions {
    /// These sizes; `None` for more than [`DIMENSIONS_MAX`] of them.
    pub fn new(sizes: &[usize]) -> Option<Dimensions> {
        let mut inline = [0; DIMENSIONS_MAX];
        inline.get_mut(..sizes.len())?.copy_from_slice(sizes);
        Some(Dimensions { sizes: inline, rank: sizes.len() })
    }

    /// The sizes, outermost first; empty for a scalar.
    pub fn as_slice(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }
}

impl fmt::Debug for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_the_limit_shapes_are_kept() {
        for sizes in [&[][..], &[7], &[1, 2, 3, 4, 5, 6, 7, 8]] {
            assert_eq!(Dimensions::new(sizes).expect("within the limit").as_slice(), sizes);
        }
        assert_eq!(Dimensions::new(&[1; 9]), None);
        assert_ne!(Dimensions::new(&[3]), Dimensions::new(&[3, 0]));
    }
}
