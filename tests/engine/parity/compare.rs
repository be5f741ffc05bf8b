//! How results are compared with golden ones: the metric, the tolerances and the rule of pictures.
//!
//! Tolerances are of the golden files' makers: some three times what f32 differs from f64 in the
//! same code, and far below what any mistake in a model's computation makes.

/// Text encoders, given golden ids.
pub const TEXT: f64 = 2e-5;

/// The DiT, given golden inputs.
pub const DENOISER: f64 = 5e-5;

/// The DiT with quantised weights that are multiplied as integers, from golden inputs: the root
/// mean square of the difference over that of the golden values. Activations have 255 levels in
/// each block of 32, which makes a product of normal numbers some 0.7 % off; the reference's DiTs
/// were measured at 0.2 to 0.8 %.
pub const INTEGER_DENOISER: f64 = 0.015;

/// T5 so, measured at 1.1 and 2.3 %: nothing normalises what its layers add up.
pub const INTEGER_TEXT: f64 = 0.04;

/// Text encoders with weights in bf16 where activations are rounded to it, as on processors that
/// multiply tiles of it: the mean as above. An operand is rounded to 8 bits, once; a product of
/// many is some 2^-9 of its size off, and a stage adds those of its layers. Measured are 7e-4 to
/// 6.4e-3; GPUs, which round more, are allowed the same.
pub const BF16_TEXT: f64 = 0.012;

/// The DiT so, measured at 2.5e-3 to 2.7e-3.
pub const BF16_DENOISER: f64 = 0.012;

/// The DiT of the trained demo so. It tells small differences apart in its last steps: 1.6e-3 in
/// the first, 1.4e-2 in the last.
pub const BF16_DEMO: f64 = 0.03;

/// Latents after any step, from the prompt on; also the DiT's results on the way.
pub const LATENTS: f64 = 1e-4;

/// The VAE's decoder, given golden latents.
pub const DECODER: f64 = 2e-5;

/// The VAE's encoder, given a golden picture.
pub const ENCODER: f64 = 2e-5;

/// The decoded picture, from the prompt on.
pub const PICTURE: f64 = 2e-4;

/// Noise levels: a few last places of f32.
pub const LEVELS: f64 = 1e-6;

/// Noise: rounding of logarithm, sine and cosine, on numbers about 1.
pub const NOISE: f64 = 1e-6;

/// Levels by which a value of a picture may differ.
const LEVELS_APART_MAX: u8 = 1;

/// Part of a picture's values that may differ.
const DIFFERENT_PART_MAX: f64 = 0.002;

/// The largest difference over the golden values' root mean square; infinite where a value is none.
pub fn deviation(got: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(got.len(), golden.len(), "number of elements");
    let square = |&value: &f32| f64::from(value).powi(2);
    let rms = (golden.iter().map(square).sum::<f64>() / golden.len() as f64).sqrt();
    let largest = largest_difference(got, golden);
    assert!(rms > 0.0, "golden values that are all zero tell nothing");
    largest / rms
}

/// The largest difference; infinite where a value is no number.
pub fn largest_difference(got: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(got.len(), golden.len(), "number of elements");
    let apart = |(&a, &b): (&f32, &f32)| (f64::from(a) - f64::from(b)).abs();
    let number = |apart: f64| if apart.is_nan() { f64::INFINITY } else { apart };
    got.iter().zip(golden).map(apart).map(number).fold(0.0, f64::max)
}

/// Panics where results are further from golden ones than the tolerance.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], golden: &[f32], tolerance: f64) {
    let deviation = deviation(got, golden);
    assert!(deviation <= tolerance, "{what} is {deviation:.1e} off, {tolerance:.0e} is allowed");
}

/// The root mean square of the difference over that of the golden values.
pub fn mean_deviation(got: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(got.len(), golden.len(), "number of elements");
    let apart = |(&a, &b): (&f32, &f32)| (f64::from(a) - f64::from(b)).powi(2);
    let apart: f64 = got.iter().zip(golden).map(apart).sum();
    let all: f64 = golden.iter().map(|&value| f64::from(value).powi(2)).sum();
    assert!(all > 0.0, "golden values that are all zero tell nothing");
    (apart / all).sqrt()
}

/// Panics where a picture differs visibly or widely from a golden one.
#[track_caller]
pub fn assert_same_picture(what: &str, got: &[u8], golden: &[u8]) {
    assert_eq!(got.len(), golden.len(), "{what}: number of values");
    let apart = || got.iter().zip(golden).map(|(&a, &b)| a.abs_diff(b));
    let most = apart().max().expect("a picture has values");
    assert!(most <= LEVELS_APART_MAX, "{what}: a value is {most} levels off");
    let different = apart().filter(|&levels| levels > 0).count() as f64 / got.len() as f64;
    assert!(different < DIFFERENT_PART_MAX, "{what}: {:.2} % of values differ", 100.0 * different);
}

#[test]
fn the_comparisons_tell_what_they_should() {
    assert_eq!(deviation(&[3.0, -1.0], &[1.0, -1.0]), 2.0);
    assert_eq!(deviation(&[f32::NAN, -1.0], &[1.0, -1.0]), f64::INFINITY);
    assert_eq!(mean_deviation(&[3.0, -1.0, 1.0, 1.0], &[1.0, -1.0, 1.0, 1.0]), 1.0);
    let fails = |got: Vec<u8>| {
        std::panic::catch_unwind(|| assert_same_picture("picture", &got, &[7; 1000])).is_err()
    };
    let changed =
        |count: usize, level: u8| (0..1000).map(move |i| if i < count { level } else { 7 });
    assert!(!fails(changed(1, 8).collect()));
    assert!(fails(changed(1, 9).collect()));
    assert!(fails(changed(2, 6).collect()));
}
