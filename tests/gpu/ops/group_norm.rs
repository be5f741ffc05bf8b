//! Normalisation of groups of channels.

use executor::backend::cuda::ops::norm::group::{group_norm, group_norm_workspace_bytes};
use executor::backend::kernels::{self, GroupNormShape};
use protocol::StorageType;

use super::bench::{Bench, Random, Stored, assert_close};

#[test]
#[ignore = "needs a GPU or the simulator"]
fn group_norms() {
    let bench = Bench::new();
    let storages = [StorageType::F32, StorageType::BF16, StorageType::F16];
    // Groups of fours and of odd numbers, columns of several blocks, one pixel, several chunks of
    // which the last is short.
    for (index, (batch, pixels, channels, groups)) in [
        (1, 1, 2, 1),
        (2, 77, 24, 8),
        (1, 300, 320, 32),
        (1, 40, 1100, 2),
        (3, 65, 6, 6),
        (1, 3001, 128, 32),
        (1, 9000, 4, 1),
        (1, 9001, 3, 3),
        (2, 33, 512, 32),
        (1, 20, 2048, 32),
        (1, 33_000, 4, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let shape = GroupNormShape { batch, pixels, channels, groups, eps: 1e-5 };
        let mut random = Random::new(channels as u64);
        let mut x = random.far_from_zero(batch * pixels * channels);
        // Far out, and where a shift that is taken from the first number would be led astray.
        x[0] = -500.0;
        let storage = storages[index % 3];
        let weight = Stored::random(&mut random, storage, &[channels]);
        let bias = Stored::random(&mut random, storage, &[channels]);
        let (_weight, weight_at) = bench.stored(&weight);
        let (_bias, bias_at) = bench.stored(&bias);
        let workspace = bench.bytes(&vec![0xff; group_norm_workspace_bytes(&shape)]);
        for silu in [false, true] {
            let found = bench.run_both_ways(&x, |on, out, x| {
                let affine = [weight_at, bias_at];
                group_norm(on, out, x, &shape, affine, silu, workspace.address())
            });
            let mut expected = x.clone();
            let mut scratch = vec![f32::NAN; kernels::group_norm_scratch_len(&shape)];
            let (scale, shift) = (weight.view(), bias.view());
            let workers = &bench.workers;
            kernels::group_norm(workers, &mut expected, &shape, scale, shift, silu, &mut scratch);
            // The host multiplies and adds numbers that it rounded once; here the mean is
            // subtracted first.
            let name = format!("{shape:?} {silu}");
            assert!((found[0] - expected[0]).abs() <= 1e-6 * expected[0].abs() + 1e-9, "{name}");
            assert_close(&found[1..], &expected[1..], 1e-5, &name);
        }
    }
}
