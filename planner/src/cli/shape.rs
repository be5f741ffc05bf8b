//! The arguments of a job's shape, and of what it depends on beside.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use protocol::{JobShape, ModelDescription};

use super::number;
use crate::output::Outputs;
use crate::picture::Source;
use crate::planning::ShapeRequest;

/// How far a picture is changed where nothing else is said, as by `FluxImg2ImgPipeline`.
const STRENGTH: f64 = 0.6;

/// What is asked of a job's shape.
#[derive(Debug, Args)]
pub struct ShapeArguments {
    /// Width of the picture in pixels [default: the given picture's, or the model's]
    #[arg(short = 'W', long, value_name = "PIXELS", allow_negative_numbers = true,
        value_parser = number::count())]
    pub width: Option<u32>,
    /// Height of the picture in pixels [default: the given picture's, or the model's]
    #[arg(short = 'H', long, value_name = "PIXELS", allow_negative_numbers = true,
        value_parser = number::count())]
    pub height: Option<u32>,
    /// Denoising steps [default: the model's]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true,
        value_parser = number::count())]
    pub steps: Option<u32>,
    /// Pictures made together, with seeds that count up [default: 1]
    #[arg(short, long, value_name = "COUNT", allow_negative_numbers = true,
        value_parser = number::count())]
    pub batch: Option<u32>,
    /// Text tokens of the long text encoder [default: the model's]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true,
        value_parser = number::count())]
    pub max_sequence_length: Option<u32>,
    /// Embedded guidance of guidance-distilled models [default: the model's]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true,
        value_parser = number::scale())]
    pub guidance_scale: Option<f32>,
    /// Classifier-free guidance: above 1 the DiT runs a second time on the negative prompt [default: the model's]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true,
        value_parser = number::scale())]
    pub true_cfg_scale: Option<f32>,
    /// The guidance that the model has: --guidance-scale where that is embedded (FLUX.1-dev), else
    /// --true-cfg-scale
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true,
        value_parser = number::scale(), conflicts_with_all = ["guidance_scale", "true_cfg_scale"])]
    pub cfg_scale: Option<f32>,
    /// A picture to start from, PNG or JPEG. It is stretched to the width and height; without these, its own size
    /// is taken, to what the model can do. Where it is transparent it is white
    #[arg(long, value_name = "FILE")]
    pub init_image: Option<PathBuf>,
    /// How far the given picture is changed: near 0 hardly, 1 as if there were none [default: 0.6]
    #[arg(long, value_name = "PART", allow_negative_numbers = true,
        value_parser = number::part())]
    pub strength: Option<f64>,
    /// The denoising rule
    #[arg(long, value_enum, default_value = "euler")]
    pub sampler: Sampler,
}

/// How strongly a job follows its prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// What a model with embedded guidance is told.
    pub embedded: f32,
    /// Classifier-free guidance with a second run; 1 is none.
    pub true_cfg: f32,
}

/// The denoising rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sampler {
    /// Flow matching by Euler's method.
    Euler,
}

impl ShapeArguments {
    /// The guidance of a job on a model.
    pub fn guidance(&self, description: &ModelDescription) -> Guidance {
        let ModelDescription { defaults, guidance_embeds, .. } = description;
        let (embedded, with_negative) = match (self.cfg_scale, *guidance_embeds) {
            (Some(scale), true) => (Some(scale), self.true_cfg_scale),
            (Some(scale), false) => (self.guidance_scale, Some(scale)),
            (None, _) => (self.guidance_scale, self.true_cfg_scale),
        };
        Guidance {
            embedded: embedded.unwrap_or(defaults.guidance_scale),
            true_cfg: with_negative.unwrap_or(defaults.true_cfg_scale),
        }
    }

    /// The picture to start from, if there is one, known by its header.
    pub fn source(&self) -> Result<Option<Source>> {
        if self.strength.is_some() && self.init_image.is_none() {
            bail!("--strength says how far a picture is changed; hint: add --init-image FILE");
        }
        Ok(self.init_image.as_deref().map(Source::open).transpose()?)
    }

    /// Adds the picture to start from to what no output may destroy.
    pub fn add_reads(&self, outputs: &mut Outputs) {
        if let Some(path) = &self.init_image {
            outputs.reads.add("the picture to start from", path);
        }
    }

    /// The job's shape on a model.
    pub fn job(&self, description: &ModelDescription, source: Option<&Source>) -> Result<JobShape> {
        let Sampler::Euler = self.sampler;
        let request = ShapeRequest {
            width: self.width,
            height: self.height,
            steps: self.steps,
            batch: self.batch,
            max_sequence_length: self.max_sequence_length,
            true_cfg_scale: Some(self.guidance(description).true_cfg),
        };
        let mut job = request.resolve(&description.defaults);
        if let Some(source) = source {
            let multiple = description.side_multiple_pixels;
            [job.width, job.height] = size([self.width, self.height], source.size(), multiple);
            job.init_image = true;
            job.first_step = first_step(job.steps, self.strength())?;
        }
        Ok(job)
    }

    /// How far a given picture is changed.
    pub fn strength(&self) -> f64 {
        self.strength.unwrap_or(STRENGTH)
    }
}

/// The size asked for; what is not asked for follows the picture's, to the nearest multiple.
fn size(asked: [Option<u32>; 2], picture: [usize; 2], multiple: u32) -> [u32; 2] {
    let [width, height] = picture.map(|side| side as f64);
    let nearest = |side: f64| {
        let multiples = (side / f64::from(multiple)).round().max(1.0);
        (multiples * f64::from(multiple)) as u32
    };
    match asked {
        [None, None] => [nearest(width), nearest(height)],
        [Some(asked), None] => [asked, nearest(f64::from(asked) * height / width)],
        [None, Some(asked)] => [nearest(f64::from(asked) * width / height), asked],
        [Some(width), Some(height)] => [width, height],
    }
}

/// The first of the sampler's steps that runs, as `FluxImg2ImgPipeline.get_timesteps` counts in f64.
fn first_step(steps: u32, strength: f64) -> Result<u32> {
    let all = f64::from(steps);
    let first = (all - (all * strength).min(all)).max(0.0) as u32;
    if first >= steps {
        bail!(
            "--strength {strength} leaves no step of {steps} to run; hint: strength × steps must be at least 1, as with --strength {}",
            least_strength(steps)
        );
    }
    Ok(first)
}

/// The least strength by which one of the steps runs, rounded up to as few digits as people write.
fn least_strength(steps: u32) -> f64 {
    let rounded = |scale: f64| (scale / f64::from(steps)).ceil() / scale;
    if steps < 100 { rounded(100.0) } else { rounded(10_000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_of_the_size_follows_the_picture() {
        let sizes = |asked| size(asked, [1000, 700], 16);
        assert_eq!(sizes([None, None]), [1008, 704]);
        assert_eq!(sizes([Some(500), None]), [500, 352]);
        assert_eq!(sizes([None, Some(64)]), [96, 64]);
        assert_eq!(sizes([Some(30), Some(40)]), [30, 40]);
        assert_eq!(size([None, None], [3, 9000], 16), [16, 9008]);
        assert_eq!(size([Some(u32::MAX), None], [1, 9000], 16), [u32::MAX, u32::MAX]);
    }

    #[test]
    fn steps_are_counted_as_the_reference_counts_them() {
        // The results of the same expression in Python.
        for (steps, strength, first) in [
            (28, 0.6, 11),
            (4, 0.6, 1),
            (10, 0.3, 7),
            (50, 0.56, 21),
            (5, 0.35, 3),
            (4, 0.01, 3),
            (12, 1.0, 0),
        ] {
            assert_eq!(first_step(steps, strength).unwrap(), first, "{steps} at {strength}");
        }
        let error = first_step(8, 0.0).unwrap_err().to_string();
        assert!(error.contains("--strength 0 ") && error.contains("--strength 0.13"), "{error}");
        for steps in 1..=1000 {
            let least = least_strength(steps);
            assert!(least <= 1.0 && first_step(steps, least).is_ok(), "{steps} steps: {least}");
        }
    }
}
