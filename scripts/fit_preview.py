#!/usr/bin/env python3
"""Fits the linear map by which previews tell colours from latents, for a model whose VAE is not FLUX.1's.

    python scripts/fit_preview.py --berth target/release/berth [MODEL]     prints the table [preview] for its berth.toml

Pictures are made of many prompts; each cell of their last latents is paired with the mean colour of the pixels that the
VAE makes of it, and least squares find the map. It is for latents in the sampler's range, as ComfyUI's published factors
are. Needs numpy.
"""

import argparse
import json
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np

# The demo model's words (scripts/train_demo.py), which any model knows.
COLOURS = ["red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "white", "black"]
SHAPES = ["circle", "square", "cross"]
PATCH = 2  # cells of a token along a side


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The f32 tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])
    return found


def pairs(dump: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Cells `[cells, channels]` of one picture with their colours `[cells, 3]` of -1 to 1."""
    steps = [name for name in dump if name.startswith("latents.step")]
    last = max(steps, key=lambda name: int(name.removeprefix("latents.step")))
    picture = dump["vae.out"][0]  # [3, height, width]
    _, channels, rows, columns = dump["vae.in"].shape
    tokens = dump[last][0].reshape(rows // PATCH, columns // PATCH, channels, PATCH, PATCH)
    cells = tokens.transpose(0, 3, 1, 4, 2).reshape(rows * columns, channels)
    scale = picture.shape[1] // rows
    blocks = picture.reshape(3, rows, scale, columns, scale).mean(axis=(2, 4))
    return cells, blocks.reshape(3, -1).T.clip(-1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--berth", default="berth")
    parser.add_argument("--seeds", type=int, default=4, help="pictures of each prompt")
    arguments = parser.parse_args()
    cells, colours = [], []
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.safetensors"
        for first, colour in enumerate(COLOURS):
            for second, shape in enumerate(SHAPES):
                other = COLOURS[(first + second + 1) % len(COLOURS)]
                prompt = f"a large {colour} {shape} on a {other} background"
                for seed in range(arguments.seeds):
                    command = [arguments.berth, "generate", *arguments.model, "--prompt", prompt, "--seed", str(seed)]
                    command += ["--output", f"{folder}/x.png", "--dump-tensors", str(dump)]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                    of_picture = pairs(tensors(dump))
                    cells.append(of_picture[0])
                    colours.append(of_picture[1])
    x, y = np.concatenate(cells), np.concatenate(colours)
    x = np.hstack([x, np.ones((len(x), 1), np.float32)])
    found, *_ = np.linalg.lstsq(x, y, rcond=None)
    explained = 1 - ((x @ found - y) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum()
    rows = ["    [" + ", ".join(f"{value:.4f}" for value in row) + "]," for row in found[:-1]]
    bias = ", ".join(f"{value:.4f}" for value in found[-1])
    print("# How previews tell colours from latents: by scripts/fit_preview.py", end=" ")
    print(f"from {len(x)} cells, of whose colours' variance it explains\n# {explained:.2f}.")
    print("[preview]\nfactors = [", *rows, "]", f"bias = [{bias}]", sep="\n")


if __name__ == "__main__":
    main()
