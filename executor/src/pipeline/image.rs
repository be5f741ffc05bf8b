//! From the VAE's output to 8-bit pixels.

/// A finished picture.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    /// Its place in the batch, from 0.
    pub index: u32,
    /// The seed of its noise.
    pub seed: u64,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Rows from the top, 3 bytes RGB a pixel.
    pub pixels: &'a [u8],
}

/// Values of -1 to 1 as 0 to 255, halves to even, as diffusers' `VaeImageProcessor` with numpy does.
pub fn quantize(values: &[f32], pixels: &mut [u8]) {
    assert_eq!(values.len(), pixels.len(), "one byte for each value");
    for (pixel, value) in pixels.iter_mut().zip(values) {
        let unit = (value * 0.5 + 0.5).clamp(0.0, 1.0);
        *pixel = (unit * 255.0).round_ties_even() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::quantize;

    #[test]
    fn values_are_clamped_and_rounded() {
        let mut pixels = [7; 6];
        quantize(&[-3.0, -1.0, 0.0, 1.0, 9.0, f32::NAN], &mut pixels);
        assert_eq!(pixels, [0, 0, 128, 255, 255, 0]);
    }
}
