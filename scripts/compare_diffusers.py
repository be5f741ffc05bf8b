#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.15.0", "diffusers==0.42.1", "transformers==5.23.0", "numpy", "pillow",
#                 "sentencepiece", "protobuf"]
# ///
"""Models of random sizes and weights, painted by Berth and by diffusers: are the pictures the same?

    cargo build --release
    python3 scripts/compare_diffusers.py [--families qwen_image sd35_medium] [--models 3] [--seed 1] [--keep DIRECTORY]

Each model has the configuration of a fixture of tests/fixtures with other numbers of layers, heads and features, its
tokenizers, and weights of its own in bf16 or f32. Prompts, sizes, steps, guidance, seeds and pictures to start from are
drawn too. diffusers computes in f32 on the CPU, Berth by --exact-matmul. A picture may be 1 level off, as rounding of
the last bits makes it; a model that saturates tells nothing, so that the spread of values is printed too.
Exits with 1 where a picture is further off.
"""

import argparse
import importlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import diffusers
import numpy
import torch
import transformers
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEVELS_MAX = 1
PROMPTS = [
    "a photo of a red cat",
    "An OIL painting of 3 foxes reading a book; it's 1/4 café, don't stop! (cinematic, 85mm)",
    "two boats",
    "",
    "自転車, ein Fahrrad und ein 🦊 vor dem Haus, tief im Wald " * 3,
]


def sd3(draw, is_35):
    heads, head = draw.choice([2, 3, 5]), draw.choice([16, 32])
    clip, big, t5 = draw.choice([24, 32]), draw.choice([40, 64]), draw.choice([80, 96, 112])
    layers = draw.choice([2, 3, 4])
    transformer = {
        "num_attention_heads": heads, "attention_head_dim": head, "caption_projection_dim": heads * head,
        "num_layers": layers, "joint_attention_dim": t5 if t5 >= clip + big else 112,
        "pooled_projection_dim": clip + big, "pos_embed_max_size": draw.choice([20, 33, 48]),
    }
    if is_35:
        transformer["dual_attention_layers"] = list(range(draw.randint(1, layers)))
    t5 = transformer["joint_attention_dim"]
    return {
        "transformer": transformer,
        "text_encoder": {"hidden_size": clip, "projection_dim": clip, "intermediate_size": 3 * clip, "num_hidden_layers": draw.choice([2, 4])},
        "text_encoder_2": {"hidden_size": big, "projection_dim": big, "intermediate_size": 2 * big, "num_attention_heads": 4, "num_hidden_layers": draw.choice([2, 5])},
        "text_encoder_3": {"d_model": t5, "d_ff": t5 + 32, "num_heads": draw.choice([3, 5]), "d_kv": draw.choice([8, 16]), "num_layers": draw.choice([1, 3])},
        "vae": {"block_out_channels": draw.choice([[8, 16, 32, 64], [16, 16, 48, 48]]), "layers_per_block": draw.choice([1, 2])},
    }


def qwen_image(draw):
    axes = draw.choice([[8, 12, 12], [8, 20, 20], [16, 24, 24]])
    hidden, kv = draw.choice([64, 96]), draw.choice([1, 2, 4])
    text = {
        "hidden_size": hidden, "intermediate_size": draw.choice([80, 144]), "num_hidden_layers": draw.choice([2, 4]),
        "num_attention_heads": 4, "num_key_value_heads": kv,
    }
    sections = {64: [2, 3, 3], 96: [4, 4, 4]}[hidden]
    rope = {"mrope_section": sections, "rope_type": "default", "type": "default"}
    inner = text | {"rope_scaling": rope, "max_window_layers": text["num_hidden_layers"]}
    return {
        "transformer": {
            "num_attention_heads": draw.choice([1, 3, 4]), "attention_head_dim": sum(axes), "axes_dims_rope": axes,
            "num_layers": draw.choice([1, 3]), "joint_attention_dim": hidden,
        },
        "text_encoder": inner | {"text_config": inner, "vision_config": {"out_hidden_size": hidden}},
        "vae": {"base_dim": draw.choice([8, 12]), "num_res_blocks": draw.choice([1, 2])},
    }


def flux2_klein(draw):
    axis = draw.choice([4, 8, 12])
    hidden = draw.choice([32, 48])
    return {
        "transformer": {
            "num_attention_heads": draw.choice([1, 3]), "attention_head_dim": 4 * axis, "axes_dims_rope": [axis] * 4,
            "num_layers": draw.choice([1, 3]), "num_single_layers": draw.choice([1, 4]), "joint_attention_dim": 3 * hidden,
            "mlp_ratio": draw.choice([2.0, 3.0]),
        },
        "text_encoder": {
            "hidden_size": hidden, "head_dim": draw.choice([8, 32]), "num_attention_heads": 4,
            "num_key_value_heads": draw.choice([1, 2, 4]), "intermediate_size": draw.choice([48, 112]),
        },
        "vae": {"block_out_channels": draw.choice([[8, 16, 32, 64], [16, 16, 48, 48]]), "layers_per_block": draw.choice([1, 2])},
    }


FAMILIES = {
    "sd3_medium": lambda draw: sd3(draw, False),
    "sd35_medium": lambda draw: sd3(draw, True),
    "qwen_image": qwen_image,
    "flux2_klein": flux2_klein,
}


def merged(config, changes):
    """A configuration with others' values, section by section."""
    for name, value in changes.items():
        config[name] = merged(config.get(name, {}), value) if isinstance(value, dict) else value
    return config


def randomise(module, generator):
    """Weights of which each layer changes its input by about as much as it is; buffers that count likewise."""
    for name, value in list(module.named_parameters()) + list(module.named_buffers()):
        if not value.is_floating_point() or "inv_freq" in name or "pos_embed" in name:
            continue
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            noise = 0.5 + noise.abs()
        elif value.dim() < 2 or "norm" in name.rsplit(".", 2)[-2] and name.endswith("weight") or name.endswith("gamma"):
            noise = 0.1 * noise + (0.0 if "bias" in name or name.endswith("running_mean") else 1.0)
        elif "embed_tokens" in name or "token_embedding" in name or "position_embedding" in name or name == "shared.weight":
            pass
        else:
            noise = noise * 1.2 / value[0].numel() ** 0.5
        value.data.copy_(noise)


def write_model(fixture, to, changes, kind, generator):
    index = json.loads((fixture / "model_index.json").read_text())
    shutil.copytree(fixture, to)
    for part, entry in index.items():
        if not isinstance(entry, list) or not (fixture / part / "config.json").exists():
            continue
        library, name = entry
        config = merged(json.loads((fixture / part / "config.json").read_text()), changes.get(part, {}))
        for old in (to / part).iterdir():
            old.unlink()
        (to / part / "config.json").write_text(json.dumps(config, indent=1))
        cls = getattr(importlib.import_module(library), name)
        if library == "diffusers":
            module = cls.from_config(config)
        else:
            module = cls(cls.config_class.from_pretrained(to / part))
        randomise(module, generator)
        module.to(kind).save_pretrained(to / part)
        # Berth reads what is published, where numbers stand as the fixture has them.
        (to / part / "config.json").write_text(json.dumps(config, indent=1))


def draw_job(draw, family):
    sides = [64, 80, 96, 112, 160] if family != "flux2_klein" else [64, 80, 96, 112]
    job = {
        "prompt": draw.choice(PROMPTS), "width": draw.choice(sides), "height": draw.choice(sides),
        "steps": draw.choice([1, 2, 3, 5]), "seed": draw.randrange(1 << 31),
    }
    if family.startswith("sd3"):
        job |= {"guidance_scale": draw.choice([1.0, 3.5, 7.0])}
    elif family == "qwen_image":
        job |= {"true_cfg_scale": draw.choice([1.0, 2.5, 4.0])}
        # Of one step diffusers makes no numbers with this family's `shift_terminal`.
        job["steps"] = max(2, job["steps"])
    if job.get("guidance_scale", job.get("true_cfg_scale", 1.0)) > 1.0:
        job["negative"] = draw.choice([" ", "blurry, low quality"])
    if family != "flux2_klein" and draw.random() < 0.4:
        job["strength"] = draw.choice([0.4, 0.75, 1.0])
    return job


def picture(width, height, seed):
    noise = numpy.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=numpy.uint8)
    return Image.fromarray(noise).resize((width, height), Image.BICUBIC)


def by_diffusers(model, job, source):
    index = json.loads((model / "model_index.json").read_text())
    cls = getattr(diffusers, index["_class_name"])
    if source is not None:
        cls = {"StableDiffusion3Pipeline": diffusers.StableDiffusion3Img2ImgPipeline, "QwenImagePipeline": diffusers.QwenImageImg2ImgPipeline}[index["_class_name"]]
    pipe = cls.from_pretrained(model, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    call = {"prompt": job["prompt"], "num_inference_steps": job["steps"], "output_type": "np", "width": job["width"], "height": job["height"]}
    for name in ["guidance_scale", "true_cfg_scale", "strength"]:
        if name in job:
            call[name] = job[name]
    if "negative" in job:
        call["negative_prompt"] = job["negative"]
    if source is not None:
        call["image"] = source
    if index["_class_name"] == "Flux2KleinPipeline":
        call["guidance_scale"] = 1.0
    call["generator"] = torch.Generator("cpu").manual_seed(job["seed"])
    with torch.no_grad():
        image = pipe(**call).images[0]
    return numpy.rint(image * 255).clip(0, 255).astype(numpy.int16)


def by_berth(berth, model, job, source, home):
    out = home / "berth.png"
    command = [berth, "generate", model, "-p", job["prompt"], "-W", job["width"], "-H", job["height"]]
    command += ["--steps", job["steps"], "-s", job["seed"], "-o", out, "--exact-matmul", "--yes"]
    for name in ["guidance_scale", "true_cfg_scale", "strength"]:
        if name in job:
            command += ["--" + name.replace("_", "-"), job[name]]
    if "negative" in job:
        command += ["-n", job["negative"]]
    if source is not None:
        source.save(home / "start.png")
        command += ["--init-image", home / "start.png"]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ended.returncode != 0:
        return None, ended.stderr
    return numpy.asarray(Image.open(out).convert("RGB")).astype(numpy.int16), ""


def main():
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--berth", default=ROOT / "target/release/berth", type=pathlib.Path)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--models", default=3, type=int, help="of each family (default: 3)")
    parser.add_argument("--jobs", default=3, type=int, help="of each model (default: 3)")
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--keep", type=pathlib.Path, help="where models that differ are left")
    arguments = parser.parse_args()
    wrong = 0
    for family in arguments.families:
        for number in range(arguments.models):
            draw = random.Random(f"{arguments.seed} {family} {number}")
            generator = torch.Generator().manual_seed(draw.randrange(1 << 31))
            with tempfile.TemporaryDirectory() as home:
                home = pathlib.Path(home)
                model, kind = home / "model", draw.choice([torch.bfloat16, torch.float32])
                changes = FAMILIES[family](draw)
                write_model(ROOT / "tests/fixtures" / family, model, changes, kind, generator)
                for _ in range(arguments.jobs):
                    job = draw_job(draw, family)
                    source = picture(job["width"], job["height"], job["seed"]) if "strength" in job else None
                    expected = by_diffusers(model, job, source)
                    got, message = by_berth(arguments.berth, model, job, source, home)
                    if got is None or got.shape != expected.shape:
                        most, count = 255, expected.size
                        print(message or f"{got.shape} in place of {expected.shape}")
                    else:
                        apart = abs(got - expected)
                        most, count = apart.max(), (apart > 0).sum()
                    print(f"{family} {number} {str(kind)[6:]}: {most} levels off, {count} of {expected.size} values, spread {expected.std():.0f}: {job}", flush=True)
                    if most > LEVELS_MAX:
                        wrong += 1
                        print(f"  changes: {json.dumps(changes)}")
                        if arguments.keep:
                            shutil.copytree(home, arguments.keep / f"{family}-{number}", dirs_exist_ok=True)
    print(f"{wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
