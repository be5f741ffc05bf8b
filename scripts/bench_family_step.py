#!/usr/bin/env python3
"""A denoising step of other families than FLUX.1, one block of each kind as wide as published: time against torch f32.

    cargo build --release
    python scripts/bench_family_step.py [--families qwen_image,sd35_medium,flux2_klein] [--types bf16,q8_0] [--sides 512]

Needs torch and safetensors. Weights are random, bf16 in safetensors or quantised in a GGUF; text is as long as the
published pipelines take it. Each run is a process of its own, in turns; Berth's time is its measured step, and the best
of all rounds counts. Prints Berth over torch.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 3
# Text tokens, and pixels of a picture's token.
TOKENS = {"qwen_image": (512, 16), "sd35_medium": (77 + 256, 16), "flux2_klein": (512, 16)}
# What makes one pass of the DiT a step.
ONE_PASS = {"qwen_image": ["--true-cfg-scale", "1"], "sd35_medium": ["--guidance-scale", "1"], "flux2_klein": []}


def fixture_shapes(file):
    """Names and shapes of a safetensors file."""
    with open(file, "rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}


def shapes(family):
    """The wide model's configuration, and shapes of its tensors."""
    import torch_families

    folder = ROOT / "tests/fixtures" / family / "transformer"
    config = json.loads((folder / "config.json").read_text())
    fixture = fixture_shapes(folder / "diffusion_pytorch_model.safetensors")
    tensors = dict(torch_families.wide_shapes(family, fixture, config))
    return config | torch_families.CONFIGS[family], tensors


def random_weights(tensors, dtype):
    import torch

    torch.manual_seed(5)
    bound = {name: shape[-1] ** -0.5 if len(shape) > 1 else 0.1 for name, shape in tensors.items()}
    return {name: ((torch.rand(shape) * 2 - 1) * bound[name]).to(dtype) for name, shape in tensors.items()}


def torch_step(family, threads, side):
    import torch
    import torch_families

    torch.set_num_threads(threads)
    config, tensors = shapes(family)
    weights = random_weights(tensors, torch.float32)
    text, pixels = TOKENS[family]
    tokens = (side // pixels) ** 2
    head = config["attention_head_dim"]
    angles = torch.randn(text + tokens, head // 2)
    inputs = torch.randn(1, tokens, weights["proj_out.weight"].shape[0]), torch.randn(1, text, config["joint_attention_dim"])
    times = []
    with torch.inference_mode():
        for _ in range(STEPS + 1):
            start = time.perf_counter()
            rope, timestep = (angles.cos(), angles.sin()), torch.tensor([500.0])
            torch_families.STEPS[family](weights, *inputs, timestep, rope, config["num_attention_heads"])
            times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps(statistics.mean(times[1:])))


def write_files(family, kind, home):
    """Writes what is missing of a model in `home`."""
    import gguf_transformer
    import torch
    from safetensors.torch import save_file

    config, tensors = shapes(family)
    folder = home / "model" / "transformer"
    if not folder.exists():
        shutil.copytree(ROOT / "tests/fixtures" / family, home / "model")
        (folder / "config.json").write_text(json.dumps(config))
        save_file(random_weights(tensors, torch.bfloat16), folder / "diffusion_pytorch_model.safetensors")
    if kind != "bf16":
        gguf_transformer.write(home / f"{kind}.gguf", kind, tensors.items())


def berth_step(berth, family, home, kind, threads, side):
    (home / "bench.toml").write_text(f'name = "bench"\n[host]\ncores = {threads}\n')
    command = [berth, "generate", "model", "--prompt", "a red circle " * 300, "--width", str(side), "--height", str(side)]
    command += ["--steps", str(STEPS + 1), "--host", "bench.toml", "--output", "picture.png", "--json", *ONE_PASS[family]]
    if kind != "bf16":
        command += ["--diffusion-model", f"{kind}.gguf"]
    done = subprocess.run(command, cwd=home, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)["usage"]["measured_ms"]["denoise_step"]


def compare(args, family, home):
    for kind in args.types:
        subprocess.run([sys.executable, __file__, "--write", family, kind, "--home", str(home)], check=True)
    for side in args.sides:
        ours, theirs = {kind: [] for kind in args.types}, []
        for _ in range(args.rounds):
            for kind, times in ours.items():
                times.append(berth_step(args.berth.resolve(), family, home, kind, args.threads, side))
            command = [sys.executable, __file__, "--torch", family, str(side), "--threads", str(args.threads)]
            theirs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        for kind, times in ours.items():
            ratio = min(times) / min(theirs)
            print(f"| {family} | {kind} | {side} | {min(theirs):.0f} | {min(times):.0f} | {ratio:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=lambda names: names.split(","), default=list(TOKENS))
    parser.add_argument("--types", type=lambda names: names.split(","), default=["bf16", "q8_0"], help="of bf16, q8_0 and q4_k")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", type=int, nargs="+", default=[512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--berth", type=pathlib.Path, default=ROOT / "target/release/berth")
    parser.add_argument("--home", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--torch", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        return torch_step(args.torch[0], args.threads, int(args.torch[1]))
    if args.write:
        return write_files(*args.write, args.home)
    print("| family | weights | side | torch ms | Berth ms | ratio |\n|---|---|---|---|---|---|", flush=True)
    for family in args.families:
        with tempfile.TemporaryDirectory() as home:
            compare(args, family, pathlib.Path(home))


if __name__ == "__main__":
    main()
