//! Sequences that are filled up with one token.

use super::widen::widen;
use super::workers::Workers;
use crate::weights::view::WeightView;

/// The first `known` tokens of each sequence of `x`, `[batch, tokens, features]`, then the token
/// `weight`, of as many elements as there are features. `out`: `[batch, tokens of out, features]`.
pub fn pad_tokens(
    workers: &Workers,
    x: &[f32],
    batch: usize,
    known: usize,
    weight: WeightView<'_>,
    out: &mut [f32],
) {
    let features = weight.shape.iter().product::<usize>();
    let [from, to] = [x.len(), out.len()].map(|len| len / (batch * features));
    assert_eq!([x.len(), out.len()], [from, to].map(|tokens| batch * tokens * features));
    let known = known.min(from).min(to);
    workers.for_each_chunk(out, features, 1, |first, out| {
        for (row, index) in out.chunks_exact_mut(features).zip(first..) {
            let (item, token) = (index / to, index % to);
            if token < known {
                row.copy_from_slice(&x[(item * from + token) * features..][..features]);
            } else {
                widen(workers.isa(), weight, 0, row);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{Random, Stored, for_each_workers};

    #[test]
    fn what_is_not_known_is_the_padding_token() {
        let (batch, from, to, features) = (2, 5, 8, 20);
        let mut random = Random::new(1);
        let x = random.normals(batch * from * features);
        let pad = Stored::random(&mut random, StorageType::BF16, &[1, features]);
        for known in [0, 3, 5] {
            for_each_workers(|workers| {
                let mut out = vec![f32::NAN; batch * to * features];
                pad_tokens(workers, &x, batch, known, pad.view(), &mut out);
                for (index, row) in out.chunks(features).enumerate() {
                    let (item, token) = (index / to, index % to);
                    let own = &x[(item * from + token.min(from - 1)) * features..][..features];
                    let padding = &pad.values;
                    assert_eq!(row, if token < known { own } else { &padding[..] }, "{index}");
                }
                out
            });
        }
    }
}
