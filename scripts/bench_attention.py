#!/usr/bin/env python3
"""Attention, convolution and what lies between products: times against torch f32, alternating, in one run.

    python scripts/bench_attention.py [--threads 1] [--rounds 7] [--name attention]

Builds the bench. Needs torch (pip install torch). Prints the medians of both and torch's over Berth's: above 1 Berth is faster.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

from bench_kernels import build


def attention(heads, tokens, dim, causal=False):
    q, k, v = (torch.randn(1, tokens, heads, dim).transpose(1, 2) for _ in range(3))
    flops = 4 * heads * tokens * tokens * dim / (2 if causal else 1)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), flops


def conv(inner, outer, side, kernel, enlarge=1):
    x = torch.randn(1, inner, side, side)
    w, b = torch.randn(outer, inner, kernel, kernel), torch.randn(outer)
    flops = 2 * (side * enlarge) ** 2 * inner * outer * kernel * kernel
    if enlarge == 1:
        return lambda: F.conv2d(x, w, b, padding=kernel // 2), flops
    return lambda: F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), w, b, padding=1), flops


def group_norm():
    x, w = torch.randn(1, 128, 256, 256), torch.randn(128)
    return lambda: F.silu(F.group_norm(x, 32, w, w, 1e-6)), 0


def ada_layer_norm():
    x, m = torch.randn(1, 1536, 3072), torch.randn(2, 3072)
    return lambda: F.layer_norm(x, (3072,), eps=1e-6) * (1 + m[0]) + m[1], 0


def rms_norm():
    x, w = torch.randn(1, 1536, 24, 128), torch.randn(128)
    return lambda: F.rms_norm(x, (128,), w, 1e-6), 0


def rope():
    x, cos, sin = torch.randn(1, 24, 1536, 128), torch.randn(1536, 128), torch.randn(1536, 128)

    def run():
        real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack([-imaginary, real], dim=-1).flatten(3)
        return x * cos + turned * sin

    return run, 0


def gelu():
    x = torch.randn(1536, 3072)
    return lambda: F.gelu(x, approximate="tanh"), 0


CASES = {
    "attention 1536 tokens, 24 heads of 128": lambda: attention(24, 1536, 128),
    "attention 4096 tokens, 24 heads of 128": lambda: attention(24, 4096, 128),
    "attention 4096 tokens, 1 head of 512": lambda: attention(1, 4096, 512),
    "attention 512 tokens, 64 heads of 64": lambda: attention(64, 512, 64),
    "attention 77 tokens, 12 heads of 64, causal": lambda: attention(12, 77, 64, True),
    "conv 3x3 128 channels 256x256": lambda: conv(128, 128, 256, 3),
    "conv 3x3 512 channels 64x64": lambda: conv(512, 512, 64, 3),
    "conv 3x3 256 channels 64x64, enlarged": lambda: conv(256, 256, 64, 3, 2),
    "conv 1x1 256 to 128 channels 256x256": lambda: conv(256, 128, 256, 1),
    "group norm and silu 128 channels 256x256": group_norm,
    "ada layer norm 1536 x 3072": ada_layer_norm,
    "rms norm 1536 x 24 heads of 128": rms_norm,
    "rope 1536 x 24 heads of 128": rope,
    "gelu 1536 x 3072": gelu,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", default="", help="only the cases whose name contains it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cases = {name: make() for name, make in CASES.items() if args.name in name}
    # No seconds: each case runs once to warm up and once more.
    command = [build(), "--threads", str(args.threads), "--seconds", "0", "--exact-names", *cases]
    ours = {name: [] for name in cases}
    theirs = {name: [] for name in cases}
    with torch.inference_mode():
        for _ in range(args.rounds + 1):
            told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            for line in map(json.loads, told.splitlines()):
                ours[line["case"]].append(line["ms"])
            for name, (run, _) in cases.items():
                start = time.perf_counter()
                run()
                theirs[name].append((time.perf_counter() - start) * 1e3)
    print(f"{'case':44} {'torch ms':>9} {'Berth ms':>9} {'ratio':>6} {'GFLOP/s':>8}")
    for name, (_, flops) in cases.items():
        # The first round warms up.
        torch_ms, berth_ms = statistics.median(theirs[name][1:]), statistics.median(ours[name][1:])
        rate = f"{flops / berth_ms / 1e6:8.1f}" if flops else ""
        print(f"{name:44} {torch_ms:9.2f} {berth_ms:9.2f} {torch_ms / berth_ms:6.2f} {rate}")


if __name__ == "__main__":
    main()
