#!/usr/bin/env python3
"""A denoising step at FLUX.1's width (1 double and 2 single blocks of 3072): time against torch f32, and memory.

    cargo build --release
    python scripts/bench_step.py [--types bf16,q8_0,q4_k] [--threads 2] [--sides 256 512] [--rounds 3]

Needs torch and safetensors. Weights are random, bf16 in safetensors or quantised in a GGUF; 512 text tokens. Each run is
a process of its own, in turns; Berth's time is its measured step. The best of all rounds counts, as whatever else the
machine does makes one slower only. Prints Berth over torch, and the largest resident set of Berth's processes over the
bytes of the files that are read and the planned arenas.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT_TOKENS = 512
STEPS = 3


def torch_step(threads, side):
    import torch
    import torch_reference

    torch.set_num_threads(threads)
    model = torch_reference.narrow_transformer().eval()
    tokens = (side // 16) ** 2
    angles = torch.randn(TEXT_TOKENS + tokens, 64)
    rope = angles.cos(), angles.sin()
    x, context = torch.randn(1, tokens, 64), torch.randn(1, TEXT_TOKENS, torch_reference.CONTEXT)
    pooled, timestep = torch.randn(1, torch_reference.POOLED), torch.tensor([500.0])
    times = []
    with torch.inference_mode():
        for _ in range(STEPS + 1):
            start = time.perf_counter()
            model(x, context, pooled, timestep, rope)
            times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps(statistics.mean(times[1:])))


def write_files(home, kind):
    """Writes what is missing of a model in `home`."""
    import gguf_transformer
    import torch_reference

    if not (home / "model").exists():
        torch_reference.write_model(home / "model", transformer=torch_reference.narrow_transformer())
    dit, file = torch_reference.DIT, home / f"{kind}.gguf"
    if kind != "bf16" and not file.exists():
        tensors = gguf_transformer.shapes(
            width=dit["attention_head_dim"] * dit["num_attention_heads"],
            head_dim=dit["attention_head_dim"],
            double_blocks=dit["num_layers"],
            single_blocks=dit["num_single_layers"],
            context=torch_reference.CONTEXT,
            pooled=torch_reference.POOLED,
        )
        gguf_transformer.write(file, kind, tensors)


def read_bytes(home, kind):
    """The bytes of the files that a job reads."""
    paths = list((home / "model").rglob("*.safetensors"))
    if kind != "bf16":
        paths = [path for path in paths if path.parent.name != "transformer"] + [home / f"{kind}.gguf"]
    return sum(path.stat().st_size for path in paths)


def berth_step(berth, home, kind, threads, side, text_tokens=TEXT_TOKENS, more=()):
    command = ["--width", str(side), "--height", str(side), "--steps", str(STEPS + 1), *more]
    command += ["--max-sequence-length", str(text_tokens)]
    if kind != "bf16":
        command += ["--diffusion-model", f"{kind}.gguf"]
    return generate(berth, home, threads, command)


def generate(berth, home, threads, arguments, prompt="a red circle"):
    """What Berth tells of a job with the model in `home`, and the bytes of its largest resident set."""
    (home / "bench.toml").write_text(f'name = "bench"\n[host]\ncores = {threads}\n')
    command = [berth, "generate", "model", "--prompt", prompt, *arguments, "--host", "bench.toml"]
    command += ["--output", "picture.png", "--json"]
    with open(home / "out", "w+") as out:
        child = subprocess.Popen(command, cwd=home, stdout=out)
        # What it used, and its executor, whose end it waited for; and, until it was itself, what this process has.
        _, status, used = os.wait4(child.pid, 0)
        if status != 0:
            raise SystemExit("berth failed")
        out.seek(0)
        return json.load(out), used.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=lambda names: names.split(","), default=["bf16"], help="of bf16, q8_0 and q4_k")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--berth", type=pathlib.Path, default=ROOT / "target/release/berth")
    parser.add_argument("--home", type=pathlib.Path, help="a directory in which the model stays for the next run")
    parser.add_argument("--torch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        return torch_step(args.threads, args.torch)
    if args.write:
        return write_files(args.home, args.write)
    print("| weights | side | torch ms | Berth ms | ratio | resident MiB | files + arenas MiB | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        home = args.home or pathlib.Path(name)
        for kind in args.types:
            subprocess.run([sys.executable, __file__, "--write", kind, "--home", str(home)], check=True)
        for side in args.sides:
            ours, theirs = {kind: [] for kind in args.types}, []
            for _ in range(args.rounds):
                for kind, results in ours.items():
                    results.append(berth_step(args.berth.resolve(), home, kind, args.threads, side))
                command = [sys.executable, __file__, "--torch", str(side), "--threads", str(args.threads)]
                theirs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            torch_ms = min(theirs)
            for kind, results in ours.items():
                berth_ms = min(result["usage"]["measured_ms"]["denoise_step"] for result, _ in results)
                peak_bytes = max(peak for _, peak in results)
                planned_bytes = read_bytes(home, kind) + results[0][0]["plan"]["host"]["peak_bytes"]
                times = f"{torch_ms:.0f} | {berth_ms:.0f} | {berth_ms / torch_ms:.2f}"
                memory = f"{peak_bytes >> 20} | {planned_bytes >> 20} | {peak_bytes / planned_bytes:.2f}"
                print(f"| {kind} | {side} | {times} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
