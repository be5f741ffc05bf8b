//! Rotary positions of heads whose halves are rotated against each other.

use super::elementwise::rotate_heads;
use super::simd::per_isa;
use super::workers::Workers;

/// Rotates each feature of a head's first half with the one of its second half: `(x0 cos - x1 sin,
/// x1 cos + x0 sin)`. `x`: `[batch, tokens, heads, head_dim]`; `table`: `[tokens, head_dim / 2,
/// 2]`, cosine and sine.
pub fn rope_halves(
    workers: &Workers,
    x: &mut [f32],
    table: &[f32],
    tokens: usize,
    heads: usize,
    head_dim: usize,
) {
    let isa = workers.isa();
    let rotate = |head: &mut [f32], rotations: &[f32]| {
        let (low, high) = head.split_at_mut(head_dim / 2);
        rotate(isa, low, high, rotations);
    };
    rotate_heads(workers, x, table, [tokens, heads, head_dim], rotate);
}

per_isa! {
    fn rotate<L>(low: &mut [f32], high: &mut [f32], rotations: &[f32]) {
        let rotations = rotations.as_chunks::<2>().0;
        for ((low, high), &[cos, sin]) in low.iter_mut().zip(high).zip(rotations) {
            (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kernels::testing::{Random, assert_close, for_each_workers};

    #[test]
    fn halves_are_rotated_by_the_angles_of_the_token() {
        let (batch, tokens, heads) = (2, 5, 3);
        for head_dim in [2, 6, 16, 128] {
            let mut random = Random::new(head_dim as u64);
            let x = random.normals(batch * tokens * heads * head_dim);
            let angles: Vec<f32> = random.normals(tokens * head_dim / 2);
            let table: Vec<f32> = angles.iter().flat_map(|a| [a.cos(), a.sin()]).collect();
            let half = head_dim / 2;
            let expected: Vec<f64> = (0..x.len())
                .map(|at| {
                    let (token, feature) = (at / (heads * head_dim) % tokens, at % head_dim);
                    let angle = f64::from(angles[token * half + feature % half]);
                    let own = f64::from(x[at]);
                    if feature < half {
                        own * angle.cos() - f64::from(x[at + half]) * angle.sin()
                    } else {
                        own * angle.cos() + f64::from(x[at - half]) * angle.sin()
                    }
                })
                .collect();
            for_each_workers(|workers| {
                let mut out = x.clone();
                rope_halves(workers, &mut out, &table, tokens, heads, head_dim);
                assert_close(&out, &expected, 1e-6, "rope of halves");
                out
            });
        }
    }
}
