//! Resizing by Lanczos' filter, as Pillow does it with its `LANCZOS`, which diffusers'
//! `VaeImageProcessor` uses: columns first, then rows, each pass rounded to 8 bits, and wider than
//! three pixels where the picture gets smaller. Pillow's weights are of fixed point, so a value may
//! be one level off.

use std::f64::consts::PI;

use super::Rgb;

/// Lobes of the filter on each side.
const LOBES: f64 = 3.0;

/// What one place of a resized side is made from.
struct Taps {
    first: usize,
    weights: Vec<f64>,
}

/// The picture at another size.
pub fn resize(picture: Rgb, width: usize, height: usize) -> Rgb {
    let narrowed = if picture.width == width { picture } else { columns(&picture, width) };
    if narrowed.height == height { narrowed } else { rows(&narrowed, height) }
}

fn columns(picture: &Rgb, width: usize) -> Rgb {
    let taps = taps(picture.width, width);
    let mut pixels = Vec::with_capacity(3 * width * picture.height);
    for row in picture.pixels.chunks_exact(3 * picture.width) {
        for Taps { first, weights } in &taps {
            let mut sums = [0.0; 3];
            for (pixel, weight) in row.as_chunks::<3>().0[*first..].iter().zip(weights) {
                for (sum, &level) in sums.iter_mut().zip(pixel) {
                    *sum += weight * f64::from(level);
                }
            }
            pixels.extend(sums.map(level));
        }
    }
    Rgb { width, height: picture.height, pixels }
}

fn rows(picture: &Rgb, height: usize) -> Rgb {
    let row_len = 3 * picture.width;
    let mut pixels = Vec::with_capacity(row_len * height);
    let mut sums = vec![0.0; row_len];
    for Taps { first, weights } in taps(picture.height, height) {
        sums.fill(0.0);
        let rows = picture.pixels.chunks_exact(row_len).skip(first);
        for (row, weight) in rows.zip(weights) {
            for (sum, &level) in sums.iter_mut().zip(row) {
                *sum += weight * f64::from(level);
            }
        }
        pixels.extend(sums.iter().map(|&sum| level(sum)));
    }
    Rgb { width: picture.width, height, pixels }
}

fn level(sum: f64) -> u8 {
    (sum + 0.5).floor().clamp(0.0, 255.0) as u8
}

fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    // A smaller picture needs all the pixels that fall together.
    let stretch = scale.max(1.0);
    let support = LOBES * stretch;
    let place = |at: usize| {
        let centre = (at as f64 + 0.5) * scale;
        let first = (centre - support + 0.5).max(0.0) as usize;
        let last = ((centre + support + 0.5) as usize).min(from);
        let weight = |at: usize| lanczos((at as f64 - centre + 0.5) / stretch);
        let weights: Vec<f64> = (first..last).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        Taps { first, weights: weights.iter().map(|weight| weight / sum).collect() }
    };
    (0..to).map(place).collect()
}

fn lanczos(x: f64) -> f64 {
    if x.abs() < LOBES { sinc(x) * sinc(x / LOBES) } else { 0.0 }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}
