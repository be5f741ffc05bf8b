//! Blocks of 256 numbers whose groups of 16 or 32 have factors of few bits, multiplied by one or
//! two f16: the k-quants. Short numbers lie in planes: a run of 32 bytes holds the lowest bits of
//! 32 numbers, above them those of the 32 numbers after, and so on.

use super::f16_at;

/// `factors[16], twos[64], factor, minimum`: a factor's low nibble multiplies, the high one is
/// subtracted.
#[inline(always)]
pub(super) fn q2(block: &[u8; 84], values: &mut [f32; 256]) {
    let (factor, minimum) = (f16_at(block, 80), f16_at(block, 82));
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = factor * f32::from(block[group] & 15);
        let less = minimum * f32::from(block[group] >> 4);
        let (from, shift) = plane_of_two(group);
        for (value, &twos) in values.iter_mut().zip(&block[16 + from..]) {
            *value = scale * f32::from(twos >> shift & 3) - less;
        }
    }
}

/// `third bits[32], twos[64], factors[12], factor`: a third bit that is not set takes 4 away;
/// factors have six bits, less 32.
#[inline(always)]
pub(super) fn q3(block: &[u8; 110], values: &mut [f32; 256]) {
    let factor = f16_at(block, 108);
    let factors = &block[96..108];
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = factors[group % 8] >> (group / 8 * 4) & 15;
        let high = factors[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = factor * (f32::from(low | high << 4) - 32.0);
        let (from, shift) = plane_of_two(group);
        let thirds = &block[group % 2 * 16..][..16];
        for ((value, &twos), &third) in values.iter_mut().zip(&block[32 + from..]).zip(thirds) {
            let number = (twos >> shift & 3) | (third >> (group / 2) & 1) << 2;
            *value = scale * (f32::from(number) - 4.0);
        }
    }
}

/// Of a group of 16 numbers: where its bytes begin among the 64 with two bits of each, and which
/// bits are its own.
#[inline(always)]
fn plane_of_two(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}

/// `factor, minimum, factors[12], nibbles[128]`
#[inline(always)]
pub(super) fn q4(block: &[u8; 144], values: &mut [f32; 256]) {
    let groups = Groups::of(block);
    for (pair, values) in values.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let (low, high) = values.split_at_mut(32);
        let [(low_scale, low_less), (high_scale, high_less)] = groups.pair(pair);
        let nibbles = &block[16 + 32 * pair..][..32];
        for (value, &nibbles) in low.iter_mut().zip(nibbles) {
            *value = low_scale * f32::from(nibbles & 15) - low_less;
        }
        for (value, &nibbles) in high.iter_mut().zip(nibbles) {
            *value = high_scale * f32::from(nibbles >> 4) - high_less;
        }
    }
}

/// `factor, minimum, factors[12], fifth bits[32], nibbles[128]`
#[inline(always)]
pub(super) fn q5(block: &[u8; 176], values: &mut [f32; 256]) {
    let groups = Groups::of(block);
    for (pair, values) in values.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let (low, high) = values.split_at_mut(32);
        let [(low_scale, low_less), (high_scale, high_less)] = groups.pair(pair);
        let (nibbles, fifths) = (&block[48 + 32 * pair..][..32], &block[16..48]);
        for ((value, &nibbles), &fifths) in low.iter_mut().zip(nibbles).zip(fifths) {
            let fifth = fifths >> (2 * pair) & 1;
            *value = low_scale * f32::from(nibbles & 15 | fifth << 4) - low_less;
        }
        for ((value, &nibbles), &fifths) in high.iter_mut().zip(nibbles).zip(fifths) {
            let fifth = fifths >> (2 * pair + 1) & 1;
            *value = high_scale * f32::from(nibbles >> 4 | fifth << 4) - high_less;
        }
    }
}

/// `nibbles[128], twos[64], factors[16], factor`: numbers have six bits, less 32; factors are
/// signed.
#[inline(always)]
pub(super) fn q6(block: &[u8; 210], values: &mut [f32; 256]) {
    let factor = f16_at(block, 208);
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = factor * f32::from(block[192 + group] as i8);
        let nibbles = &block[group / 8 * 64 + group % 4 * 16..][..16];
        let nibble_shift = group % 8 / 4 * 4;
        let (from, shift) = plane_of_two(group);
        for ((value, &nibble), &twos) in values.iter_mut().zip(nibbles).zip(&block[128 + from..]) {
            let number = (nibble >> nibble_shift & 15) | (twos >> shift & 3) << 4;
            *value = scale * (f32::from(number) - 32.0);
        }
    }
}

/// The factors and minima of eight groups of 32 numbers, six bits each in twelve bytes: the upper
/// bits of the last four groups' stand above those of the first four.
struct Groups<'a> {
    factor: f32,
    minimum: f32,
    packed: &'a [u8],
}

impl Groups<'_> {
    #[inline(always)]
    fn of(block: &[u8]) -> Groups<'_> {
        Groups { factor: f16_at(block, 0), minimum: f16_at(block, 2), packed: &block[4..16] }
    }

    /// What the numbers of two neighbouring groups are multiplied by, and what is then subtracted.
    #[inline(always)]
    fn pair(&self, pair: usize) -> [(f32, f32); 2] {
        [2 * pair, 2 * pair + 1].map(|group| {
            let (scale, less) = if group < 4 {
                (self.packed[group] & 63, self.packed[group + 4] & 63)
            } else {
                let low = self.packed[group + 4];
                let (scale, less) = (self.packed[group - 4] >> 6, self.packed[group] >> 6);
                (low & 15 | scale << 4, low >> 4 | less << 4)
            };
            (self.factor * f32::from(scale), self.minimum * f32::from(less))
        })
    }
}
