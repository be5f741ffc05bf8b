//! Names of A1111's routes: samplers and schedules that its clients offer, and fields that only
//! another program's bookkeeping has a use for. (AUTOMATIC1111's web UI 1.10, `modules/api` and
//! `modules/sd_samplers*.py`, `sd_schedulers.py`.)

/// Denoising rules that clients name. Older clients add a schedule's label at the end.
pub const SAMPLERS: [&str; 21] = [
    "DPM++ 2M",
    "DPM++ SDE",
    "DPM++ 2M SDE",
    "DPM++ 2M SDE Heun",
    "DPM++ 2S a",
    "DPM++ 3M SDE",
    "Euler a",
    "Euler",
    "LMS",
    "Heun",
    "DPM2",
    "DPM2 a",
    "DPM fast",
    "DPM adaptive",
    "Restart",
    "DDIM",
    "DDIM CFG++",
    "PLMS",
    "UniPC",
    "LCM",
    "DDPM",
];

/// Tables of noise levels: their names and labels.
pub const SCHEDULERS: [(&str, &str); 15] = [
    (AUTOMATIC.0, AUTOMATIC.1),
    ("uniform", "Uniform"),
    ("karras", "Karras"),
    ("exponential", "Exponential"),
    ("polyexponential", "Polyexponential"),
    ("sgm_uniform", "SGM Uniform"),
    ("kl_optimal", "KL Optimal"),
    ("align_your_steps", "Align Your Steps"),
    ("align_your_steps_GITS", "Align Your Steps GITS"),
    ("simple", "Simple"),
    ("normal", "Normal"),
    ("ddim", "DDIM"),
    ("beta", "Beta"),
    ("turbo", "Turbo"),
    ("linear_quadratic", "Linear Quadratic"),
];

/// The schedule that a model takes by itself.
pub const AUTOMATIC: (&str, &str) = ("automatic", "Automatic");

/// Fields that change no picture here, or only with others that are refused.
pub const BOOKKEEPING: [&str; 42] = [
    "save_images",
    "do_not_save_samples",
    "do_not_save_grid",
    "eta",
    "s_churn",
    "s_tmax",
    "s_tmin",
    "s_noise",
    "s_min_uncond",
    "url",
    "auth",
    "script_args",
    "subseed",
    "override_settings_restore_afterwards",
    "disable_extra_networks",
    "comments",
    "refiner_switch_at",
    "firstphase_width",
    "firstphase_height",
    "hr_scale",
    "hr_upscaler",
    "hr_second_pass_steps",
    "hr_resize_x",
    "hr_resize_y",
    "hr_checkpoint_name",
    "hr_sampler_name",
    "hr_scheduler",
    "hr_prompt",
    "hr_negative_prompt",
    "hr_additional_modules",
    "hr_cfg",
    "hr_distilled_cfg",
    "image_cfg_scale",
    "mask_blur",
    "mask_blur_x",
    "mask_blur_y",
    "mask_round",
    "inpainting_fill",
    "inpaint_full_res",
    "inpaint_full_res_padding",
    "inpainting_mask_invert",
    SKIPPED_LAYERS,
];

/// How many of a text encoder's last layers are left out: none here, which is 1.
pub const SKIPPED_LAYERS: &str = "clip_skip";

/// The same among the options.
pub const SKIPPED_LAYERS_OPTION: &str = "CLIP_stop_at_last_layers";

/// Whether clients offer a rule of this name, with or without a schedule's label.
pub fn is_sampler(name: &str) -> bool {
    let is = |name: &str| SAMPLERS.iter().any(|known| known.eq_ignore_ascii_case(name));
    let with_label = |label: &str| {
        let rest = name.strip_suffix(label).and_then(|rest| rest.strip_suffix(' '));
        rest.is_some_and(is)
    };
    is(name) || SCHEDULERS.iter().any(|(_, label)| with_label(label))
}

/// Whether clients offer a schedule of this name or label.
pub fn is_scheduler(name: &str) -> bool {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    SCHEDULERS.iter().any(|(known, label)| is(known) || is(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_are_known_with_a_schedule_too() {
        for name in ["Euler a", "euler A", "DPM++ 2M Karras", "DPM++ 2M SDE Exponential", "UniPC"] {
            assert!(is_sampler(name), "{name}");
        }
        for name in ["", "Karras", "DPM++ 2M  Karras", "DPM++ 4M", "Euler aKarras"] {
            assert!(!is_sampler(name), "{name}");
        }
    }

    #[test]
    fn schedules_are_known_by_name_and_label() {
        for name in ["karras", "Karras", "SGM Uniform", "sgm_uniform", "automatic"] {
            assert!(is_scheduler(name), "{name}");
        }
        assert!(!is_scheduler("") && !is_scheduler("other"));
    }
}
