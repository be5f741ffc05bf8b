#!/usr/bin/env python3
"""Decoding a picture with the published size of FLUX.1's VAE: time and memory against torch f32.

    cargo build --release -p planner
    python scripts/bench_decode.py [--threads 1] [--side 512] [--rounds 2] [--berth target/release/berth]

Needs torch and safetensors. Weights are random. Each decode is a process of its own, in turns; torch's peak is what its
process takes above what it took before the decode, Berth's the planned arena. Prints Berth over torch: below 1 Berth is
better.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def resident(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {key} in /proc/self/status")


def torch_decode(threads, side):
    import torch
    import torch_reference

    torch.set_num_threads(threads)
    decoder = torch_reference.published_decoder().eval()
    with torch.inference_mode():
        decoder(torch.randn(1, 16, 8, 8))
        before = resident("VmRSS")
        start = time.perf_counter()
        decoder(torch.randn(1, 16, side // 8, side // 8))
        ms = (time.perf_counter() - start) * 1e3
    print(json.dumps({"ms": ms, "peak_bytes": resident("VmHWM") - before}))


def berth_decode(berth, home, threads, side):
    (home / "bench.toml").write_text(f'name = "bench"\n[host]\ncores = {threads}\n')
    command = [berth, "generate", "model", "--prompt", "a red circle", "--width", str(side), "--height", str(side)]
    command += ["--steps", "1", "--max-sequence-length", "32", "--host", "bench.toml", "--output", "picture.png"]
    done = subprocess.run([*command, "--json"], cwd=home, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--berth", type=pathlib.Path, default=ROOT / "target/release/berth")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        return torch_decode(args.threads, args.side)
    import torch_reference

    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        home = pathlib.Path(name)
        torch_reference.write_model(home / "model", decoder=torch_reference.published_decoder())
        for _ in range(args.rounds):
            result = berth_decode(args.berth.resolve(), home, args.threads, args.side)
            ours.append(result)
            command = [sys.executable, __file__, "--torch", "--threads", str(args.threads), "--side", str(args.side)]
            theirs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    vae = next(part for part in ours[0]["plan"]["components"] if part["name"] == "vae")
    arena_bytes = sum(part["compute_bytes"] for part in vae["parts"])
    berth_ms = statistics.median(result["usage"]["measured_ms"]["decode"] for result in ours)
    torch_ms = statistics.median(result["ms"] for result in theirs)
    torch_bytes = statistics.median(result["peak_bytes"] for result in theirs)
    print(f"decode {args.side}x{args.side}, {args.threads} threads     torch     Berth   ratio")
    print(f"time, ms        {torch_ms:20.0f} {berth_ms:9.0f} {berth_ms / torch_ms:7.2f}")
    print(f"peak, MiB       {torch_bytes / 2**20:20.0f} {arena_bytes / 2**20:9.0f} {arena_bytes / torch_bytes:7.2f}")


if __name__ == "__main__":
    main()
