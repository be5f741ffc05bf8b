//! `--rng cpu`: the normal numbers of torch's CPU generator, so that a seed means the same picture.
//!
//! [`CpuGenerator`] is the 32-bit Mersenne Twister followed by the Box-Muller transform as torch
//! applies it to `float32` tensors. Uniforms are equal to torch's to the bit; normals differ by the
//! rounding of `ln`, `sin` and `cos` only (torch has vectorised ones), by less than 1e-6. It is no
//! source of secrets.

use std::f32::consts::TAU;

/// Fewest numbers that torch draws by the blocked rule; shorter draws go pair by pair.
const BLOCKED_LENGTH_MIN: usize = 16;

/// Words of the Mersenne Twister's state (Matsumoto and Nishimura 1998, MT19937).
const STATE_WORDS: usize = 624;

/// The generator that `torch.Generator("cpu").manual_seed(seed)` is.
pub struct CpuGenerator {
    twister: MersenneTwister,
    /// The second normal of the last pair; a later short draw, of any length below 16, begins with
    /// it.
    spare: Option<f64>,
}

impl CpuGenerator {
    /// A generator in the state that `seed` stands for. torch uses the low 32 bits only.
    pub fn new(seed: u64) -> CpuGenerator {
        CpuGenerator { twister: MersenneTwister::new(seed as u32), spare: None }
    }

    /// Fills `out` with what `torch.randn(out.len(), generator=self)` returns: standard normal
    /// numbers. The generator's state moves on as torch's does, so draws may follow one another.
    pub fn standard_normal(&mut self, out: &mut [f32]) {
        if out.len() < BLOCKED_LENGTH_MIN {
            out.fill_with(|| self.single_normal() as f32);
            return;
        }
        out.fill_with(|| self.twister.uniform_f32());
        let (blocks, rest) = out.as_chunks_mut::<BLOCKED_LENGTH_MIN>();
        for block in blocks {
            box_muller(block);
        }
        if !rest.is_empty() {
            let tail = out.last_chunk_mut().expect("a blocked draw has a whole block");
            // torch draws the last block anew, over normals that are already there.
            tail.fill_with(|| self.twister.uniform_f32());
            box_muller(tail);
        }
    }

    /// One normal of a short draw: computed in pairs, in `f64`.
    fn single_normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let angle = std::f64::consts::TAU * self.twister.uniform_f64();
        let radius = (-2.0 * (-self.twister.uniform_f64()).ln_1p()).sqrt();
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

/// Turns 16 uniforms into 16 normals: the radius of pair `i` comes from `i`, its angle from `i +
/// 8`.
fn box_muller(block: &mut [f32; BLOCKED_LENGTH_MIN]) {
    let (radii, angles) = block.split_at_mut(BLOCKED_LENGTH_MIN / 2);
    for (first, second) in radii.iter_mut().zip(angles) {
        let radius = (-2.0 * (1.0 - *first).ln()).sqrt();
        let (sine, cosine) = (TAU * *second).sin_cos();
        *first = radius * cosine;
        *second = radius * sine;
    }
}

/// MT19937 by M. Matsumoto and T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed
/// uniform pseudo-random number generator", ACM TOMACS 8(1), 1998, with the seeding of 2002.
struct MersenneTwister {
    state: [u32; STATE_WORDS],
    /// Words of `state` that were given out.
    used: usize,
}

impl MersenneTwister {
    /// Distance between the words that are combined.
    const MIDDLE: usize = 397;

    fn new(seed: u32) -> MersenneTwister {
        let mut state = [seed; STATE_WORDS];
        for i in 1..STATE_WORDS {
            let previous = state[i - 1] ^ (state[i - 1] >> 30);
            state[i] = previous.wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        MersenneTwister { state, used: STATE_WORDS }
    }

    fn next_u32(&mut self) -> u32 {
        if self.used == STATE_WORDS {
            self.twist();
        }
        let mut word = self.state[self.used];
        self.used += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for i in 0..STATE_WORDS {
            let next = self.state[(i + 1) % STATE_WORDS];
            let joined = (self.state[i] & 0x8000_0000) | (next & 0x7fff_ffff);
            let mask = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            let middle = self.state[(i + Self::MIDDLE) % STATE_WORDS];
            self.state[i] = middle ^ (joined >> 1) ^ mask;
        }
        self.used = 0;
    }

    /// In [0, 1), from the low 24 bits of one word.
    fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() & 0x00ff_ffff) as f32 / (1_u32 << 24) as f32
    }

    /// In [0, 1), from the low 53 bits of two words, the first one above.
    fn uniform_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32());
        let low = u64::from(self.next_u32());
        (((high << 32) | low) & ((1 << 53) - 1)) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    /// Above the last-place differences of `ln`, `sin` and `cos`, below any mistake in the rules.
    const TOLERANCE: f32 = 1e-6;

    fn golden() -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden/rng.safetensors");
        std::fs::read(path).unwrap()
    }

    fn values(file: &SafeTensors, name: &str) -> Vec<f32> {
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), safetensors::Dtype::F32);
        view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[track_caller]
    fn assert_draws(generator: &mut CpuGenerator, expected: &[f32], name: &str) {
        let mut got = vec![f32::NAN; expected.len()];
        generator.standard_normal(&mut got);
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            assert!((got - expected).abs() <= TOLERANCE, "{name}[{i}]: {got} for {expected}");
        }
    }

    #[test]
    fn draws_of_every_length_equal_torch() {
        let bytes = golden();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for seed in [0, 42, 1_234_567_890_123] {
            for length in [1, 5, 15, 16, 17, 40, 64, 1000, 1024] {
                let name = format!("f32/seed{seed}/n{length}");
                let expected = values(&file, &name);
                assert_eq!(expected.len(), length);
                assert_draws(&mut CpuGenerator::new(seed), &expected, &name);
            }
        }
    }

    #[test]
    fn a_second_draw_continues_the_first() {
        let bytes = golden();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut generator = CpuGenerator::new(7);
        for name in ["seq/seed7/a32", "seq/seed7/b20"] {
            assert_draws(&mut generator, &values(&file, name), name);
        }
    }

    #[test]
    fn draws_of_a_stochastic_sampler_equal_the_references() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden/samplers.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let expected = values(&file, "noise/seed11");
        // A draw of 120 numbers ends with half a block, which is drawn anew.
        let (rows, rest) = expected.as_chunks::<120>();
        assert_eq!((rows.len(), rest.len()), (8, 0));
        let mut generator = CpuGenerator::new(11);
        for (draw, row) in rows.iter().enumerate() {
            assert_draws(&mut generator, row, &format!("draw {draw}"));
        }
    }

    #[test]
    fn short_draws_share_their_pairs() {
        let bytes = golden();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let expected = values(&file, "f32/seed42/n15");
        let mut generator = CpuGenerator::new(42);
        for part in [&expected[..3], &expected[3..4], &expected[4..]] {
            assert_draws(&mut generator, part, "f32/seed42/n15 in parts");
        }
    }

    /// The value that the C++ standard demands of `std::mt19937` ([rand.predef]).
    #[test]
    fn the_twister_meets_its_published_check_value() {
        let mut twister = MersenneTwister::new(5489);
        let last = (0..10_000).map(|_| twister.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
