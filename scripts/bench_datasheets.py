#!/usr/bin/env python3
"""Steps and decodes that are predicted from datasheets beside published ones:
`python3 scripts/bench_datasheets.py --berth target/release/berth --model DIR`.

DIR is FLUX.1-dev, as weights or as the sparse files that `cargo run --release --example sparse_flux_dev DIR` writes. Each card is a
host profile with enough memory for all weights, whose rates are those of its datasheet. Prints the table of docs/planning.md.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile


@dataclasses.dataclass
class Card:
    """TFLOP/s in f32 and in dense 16-bit products accumulated in f32, and GB/s of memory."""

    name: str
    flops: float
    half_flops: float
    memory: float


# NVIDIA's architecture whitepapers (RTX 3090, RTX 4090) and product pages (L20, RTX 6000 Ada, A40, H100 SXM, H200, RTX 4060).
RTX_4090 = Card("GeForce RTX 4090", 82.6, 165.2, 1008)
RTX_3090 = Card("GeForce RTX 3090", 35.6, 71, 936)
RTX_4060 = Card("GeForce RTX 4060", 15.1, 30.2, 272)
RTX_6000_ADA = Card("RTX 6000 Ada", 91.1, 364.2, 960)
L20 = Card("L20", 59.8, 119.5, 864)
A40 = Card("A40", 37.4, 149.7, 696)
H100 = Card("H100 SXM", 67, 989, 3350)
H200 = Card("H200", 67, 989, 4800)

# Milliseconds, the first and the last of several.
STEP, DECODE = "denoise_step", "decode"
PUBLISHED = [
    (RTX_4090, STEP, "bf16", (650, 750), "ComfyUI and others"),
    (RTX_4090, STEP, "f8_e4m3", (588, 588), "Black Forest Labs' code, FP8 weights (README of aredden/flux-fp8-api)"),
    (RTX_4090, DECODE, "bf16", (250, 300), "ComfyUI and diffusers"),
    (RTX_6000_ADA, STEP, "bf16", (575, 575), "Black Forest Labs' code (README of aredden/flux-fp8-api)"),
    (L20, STEP, "bf16", (715, 820), "diffusers, compiled and not, 28 steps in 20.3 and 23.6 s (sgl-project/sglang, pull request 19673)"),
    (A40, STEP, "bf16", (900, 900), "ComfyUI, 30 steps in 27 s (model card of ChrisGoringe/MixedQuantFlux)"),
    (A40, STEP, "q8_0", (1500, 1500), "the same with mixed GGUF types, 45 s"),
    (H100, STEP, "bf16", (128, 154), "SGLang (sgl-project/sglang, pull requests 22365 and 16055; the card is taken to be an H100)"),
    (H200, STEP, "bf16", (125, 190), "SGLang with FlashAttention-3, and diffusers (sgl-project/sglang, pull request 19673)"),
    (H200, DECODE, "bf16", (98, 98), "the decoder of FLUX.2 (sgl-project/sglang, pull request 33451)"),
    (RTX_3090, STEP, "bf16", None, "none found with its conditions"),
    (RTX_4060, STEP, "q8_0", None, "none found with its conditions"),
]


def predicted(berth: pathlib.Path, model: pathlib.Path, card: Card, storage: str) -> dict:
    profile = f"""name = "datasheet"
[host]
compute = false
memory = "128GiB"
cores = 16
cpu = "CPU"
flops = "800GFLOP/s"
memory_bandwidth = "60GB/s"
storage_bandwidth = "3GB/s"
[[device]]
kind = "cuda"
rates = "datasheet"
total = "80GiB"
link = "26GB/s"
flops = "{card.flops}TFLOP/s"
half_flops = "{card.half_flops}TFLOP/s"
memory_bandwidth = "{card.memory}GB/s"
"""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "card.toml"
        path.write_text(profile)
        stored = [] if storage == "bf16" else ["--weights-as", storage]
        command = [berth, "plan", model, "--dry-run", "--json", "--host", path, *stored]
        environment = {**os.environ, "BERTH_STATE_DIR": folder, "XDG_CONFIG_HOME": folder}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout)["predicted_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--berth", type=pathlib.Path, default=pathlib.Path("target/release/berth"))
    parser.add_argument("--model", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    print("| card | what | weights | predicted | published | published over predicted | by |")
    print("|---|---|---|---|---|---|---|")
    for card, what, storage, published, by in PUBLISHED:
        ms = predicted(arguments.berth, arguments.model, card, storage)[what]
        name = "step" if what == STEP else "decode"
        shown = ratio = "-"
        if published:
            shown = " to ".join(f"{value}" for value in sorted(set(published))) + " ms"
            ratio = " to ".join(f"{value / ms:.2f}" for value in sorted(set(published)))
        print(f"| {card.name} | {name} | {storage} | {ms:.0f} ms | {shown} | {ratio} | {by} |")


if __name__ == "__main__":
    main()
