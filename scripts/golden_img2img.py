#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.15.0", "diffusers==0.42.1", "transformers==5.23.0", "numpy", "pillow",
#                 "sentencepiece", "protobuf"]
# ///
"""Makes tests/fixtures/golden/img2img.{safetensors,json}: what diffusers gives for jobs that start from
a picture, with and without VAE tiling, in f32 on the CPU.

Each case has `init_u8` [height, width, 3], the picture; `vae_encoder.moments` [2 * channels, height / 8, width / 8],
what the VAE's encoder makes of it; `noise_nchw`, drawn after the posterior's; `latents_init`, packed and at
the first step's noise level; `latents.step{i}` of the steps that run; `vae.out`; `image_u8`. `tile` is the side
of a tile in pixels, with a quarter of overlap.

    python3 scripts/golden_img2img.py
"""

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxImg2ImgPipeline
from PIL import Image
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures"
MODELS = {
    "demo": ROOT / "planner/demo/model",
    "flux_schnell": FIXTURES / "flux_schnell",
    "flux_dev": FIXTURES / "flux_dev",
}


def case(name, model, prompt, width, height, steps, strength, seed, tokens, tile=None, **more):
    return {
        "name": name, "model": model, "prompt": prompt, "width": width, "height": height,
        "steps": steps, "strength": strength, "seed": seed, "max_sequence_length": tokens,
        "guidance_scale": 0.0, "tile": tile, **more,
    }


CASES = [
    case("schnell_plain", "flux_schnell", "a photo of a red cat", 64, 96, 4, 0.6, 31, 48),
    case("schnell_tiled", "flux_schnell", "a photo of a red cat", 160, 112, 3, 0.5, 32, 48, 64),
    case("dev_plain", "flux_dev", "a photo of a red cat", 96, 64, 5, 0.35, 33, 48,
         guidance_scale=3.5),
    case("dev_tiled_cfg", "flux_dev", "a photo of a red cat", 112, 144, 2, 1.0, 34, 48, 96,
         guidance_scale=2.0, true_cfg_scale=3.0, negative_prompt="blurry"),
    case("demo_tiled", "demo", "a large yellow star on a blue background", 80, 64, 6, 0.8, 35, 32, 32),
]


def picture(width, height, seed):
    """Gradients, an edge and some noise, in 8 bits."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [255 * x / width, 255 * y / height, 127 + 120 * np.sin(x / 7 + y / 11)]
    image = np.stack(planes, axis=-1)
    image[height // 4 : height // 2, width // 3 : width // 2] = (230, 40, 60)
    image += np.random.default_rng(seed).normal(0, 6, image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def run(pipe, case, tensors):
    def keep(name, value):
        tensors[f"{case['name']}/{name}"] = value.detach().clone().contiguous()

    vae = pipe.vae
    vae.disable_tiling()
    if case["tile"]:
        vae.enable_tiling()
        vae.tile_sample_min_size = case["tile"]
        vae.tile_latent_min_size = case["tile"] // 8
    source = picture(case["width"], case["height"], case["seed"])
    keep("init_u8", torch.from_numpy(source))

    encode, decode, scale_noise = vae.encode, vae.decode, pipe.scheduler.scale_noise

    def kept_encode(*args, **kwargs):
        result = encode(*args, **kwargs)
        keep("vae_encoder.moments", result.latent_dist.parameters[0])
        return result

    def kept_decode(*args, **kwargs):
        result = decode(*args, **kwargs)
        keep("vae.out", result[0][0])
        return result

    def kept_noise(sample, timestep, noise):
        keep("noise_nchw", noise)
        result = scale_noise(sample, timestep, noise)
        keep("latents_init", pipe._pack_latents(result, *result.shape))
        return result

    def kept_step(pipe, step, timestep, kwargs):
        keep(f"latents.step{step}", kwargs["latents"])
        return kwargs

    vae.encode, vae.decode, pipe.scheduler.scale_noise = kept_encode, kept_decode, kept_noise
    options = {
        key: case[key]
        for key in ("guidance_scale", "true_cfg_scale", "negative_prompt", "max_sequence_length")
        if key in case
    }
    images = pipe(
        prompt=case["prompt"], image=Image.fromarray(source), strength=case["strength"],
        width=case["width"], height=case["height"], num_inference_steps=case["steps"],
        generator=torch.Generator("cpu").manual_seed(case["seed"]),
        callback_on_step_end=kept_step, output_type="pil", **options,
    ).images
    del vae.encode, vae.decode, pipe.scheduler.scale_noise
    keep("image_u8", torch.from_numpy(np.array(images[0])))
    return pipe.num_timesteps


def main():
    torch.set_grad_enabled(False)
    tensors = {}
    for case in CASES:
        pipe = FluxImg2ImgPipeline.from_pretrained(MODELS[case["model"]], torch_dtype=torch.float32)
        pipe.set_progress_bar_config(disable=True)
        case["steps_run"] = run(pipe, case, tensors)
    save_file(tensors, FIXTURES / "golden/img2img.safetensors")
    (FIXTURES / "golden/img2img.json").write_text(json.dumps({"cases": CASES}, indent=1) + "\n")


if __name__ == "__main__":
    main()
