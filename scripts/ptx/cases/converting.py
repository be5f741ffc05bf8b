"""Kernels that bring values and weights to the forms in which products read them."""

import numpy as np

from .. import floats
from ..storage import VECTORS
from .tools import THREADS, UNIT, Case, equal, f32_of, held_by, near, normal, result, short_bits, vector, whole_row_launch


# Of rows, one of which is of zeros: as far apart as f32 has them, and as far as products of them go.
EXTREME = (1e-30, 7e4, 3e37, 0.0, 1.0)
FAR = (1e-20, 3e4, 1e20, 0.0, 1.0)


def inputs_of(device, rng, rows: int, features: tuple[int, ...], element: str = "f32", sizes: tuple[float, ...] = ()):
    """Up to four matrices: their addresses, their features, and all of them beside each other."""
    matrices = [normal(rng, rows, of) for of in features]
    if sizes:
        of_rows = np.resize(sizes, rows).astype(np.float32)
        matrices = [matrix * of_rows[:, None] for matrix in matrices]
    stored = [short_bits(element, matrix) for matrix in matrices]
    places = [device.read(f"input {i}", matrix).address for i, matrix in enumerate(stored)]
    lack = 4 - len(features)
    joined = np.concatenate([f32_of(element, matrix) for matrix in stored], axis=1)
    return [*places, *[0] * lack], [*features, *[0] * lack], joined


def factor_of(largest: np.ndarray) -> np.ndarray:
    """`factor_of` of convert.cu: the power of two that takes a largest magnitude to at least 2^13, but below 2^14."""
    finite = np.isfinite(largest) & (largest != 0)
    _, exponent = np.frexp(np.where(finite, largest, 1).astype(np.float64))
    # What is subnormal in f32 counts as the least exponent that its bits have.
    exponent = np.maximum(exponent - 1, -127)
    return np.where(finite, 2.0 ** np.minimum(13 - exponent, 126), 1.0).astype(np.float32)


def convert(device, rng, to: str, rows: int, features: tuple[int, ...], sizes: tuple[float, ...] = ()):
    depth = sum(features)
    stride = -(-depth // 8) * 8
    places, counts, joined = inputs_of(device, rng, rows, features, sizes=sizes)
    out = device.write("out", 2 * rows * stride)
    factors = device.write("factors", 4 * rows) if to == "f16" else None
    device.launch("convert", f"convert_{to}", *whole_row_launch(rows, stride),
                  ("6Q", out.address, factors.address if factors else 0, *places), ("4III", *counts, rows, stride))
    want = np.zeros((rows, stride), np.float32)
    want[:, :depth] = joined
    if factors:
        factor = factor_of(np.abs(joined).max(axis=1))
        equal("factors", device.memory.content(factors, np.float32), 1 / factor)
        want = want * factor[:, None]
    bits = floats.f16_bits(want) if to == "f16" else floats.bf16_bits(want)
    equal("out", device.memory.content(out, np.uint16).reshape(want.shape), bits)


def factors_bf16(device, rng, rows: int, features: tuple[int, ...]):
    places, counts, joined = inputs_of(device, rng, rows, features, "bf16", EXTREME)
    out = device.write("factors", 4 * rows)
    device.launch("convert", "factors_bf16", *whole_row_launch(rows, sum(features)), ("5Q", out.address, *places),
                  ("4III", *counts, rows, 0))
    equal("factors", device.memory.content(out, np.float32), 1 / factor_of(np.abs(joined).max(axis=1)))


def attention_pack(device, rng, batch: int, tokens: int, heads: int, head_dim: int, row_len: int):
    rows = -(-tokens // 64) * 64
    source = normal(rng, batch, tokens, heads, head_dim)
    source[0, 0, 0, :3] = [1e6, -7e4, np.nan][: min(3, head_dim)]
    pieces = batch * heads * rows * row_len // 8
    out = device.write("target", 16 * pieces)
    device.launch("attention_pack", "attention_pack", [-(-pieces // 256)], [256],
                  ("2QQ6I", device.read("source", source).address, out.address, pieces, tokens, rows, heads, head_dim, row_len, 0))
    want = np.zeros((batch, heads, rows, row_len), np.float32)
    want[:, :, :tokens, :head_dim] = np.moveaxis(source, 2, 1)
    got = device.memory.content(out, np.uint16).view(np.float16).reshape(want.shape)
    equal("target", got, short_bits("f16", want).view(np.float16))


def packed_weights(weights: np.ndarray, out_rows: int, channels: int, exact: bool) -> np.ndarray:
    """Weights `[out, in, taps]` as conv_pack.cu orders them: for each chunk of channels and tap a tile, f16 `[out, channels]`
    or f32 `[channels, out]`."""
    out, inner, taps = weights.shape
    chunks = -(-inner // channels)
    whole = np.zeros((out_rows, chunks * channels, taps), np.float32)
    whole[:out, :inner] = weights
    tiles = whole.reshape(out_rows, chunks, channels, taps)
    if exact:
        return np.ascontiguousarray(tiles.transpose(1, 3, 2, 0))
    return short_bits("f16", np.ascontiguousarray(tiles.transpose(1, 3, 0, 2)))


def conv_pack(device, rng, exact: bool, kind: str, shape: tuple[int, int, int], out_rows: int, channels: int):
    """`shape`: output channels, input channels, taps."""
    out_channels, in_channels, taps = shape
    weights = normal(rng, out_channels * in_channels * taps)
    if kind == "f32":
        weights[:2] = [9e4, -1e5]
    chunks = -(-in_channels // channels)
    threads = out_rows * chunks * channels
    target = device.write("target", threads * taps * (4 if exact else 2))
    device.launch("conv_pack", "conv_pack_exact" if exact else "conv_pack_half", [-(-threads // THREADS)], [THREADS],
                  vector(device, "weights", kind, weights, 1.25),
                  ("Q6I", target.address, out_channels, in_channels, taps, out_rows, channels, chunks))
    want = packed_weights((held_by(kind, weights) * np.float32(1.25)).reshape(shape), out_rows, channels, exact)
    got = device.memory.content(target, np.float32 if exact else np.uint16).reshape(want.shape)
    equal("target", got, want)


def conv_norm(device, rng, batch: int, channels: int, groups: int, kinds: tuple[str, str]):
    moments = np.stack([normal(rng, batch, groups), np.abs(normal(rng, batch, groups)) + np.float32(0.1)], axis=2)
    scale, shift = normal(rng, channels), normal(rng, channels)
    target = device.write("target", 8 * batch * channels)
    device.launch("conv_pack", "conv_norm", [-(-batch * channels // THREADS)], [THREADS],
                  ("2Q", device.read("moments", moments).address, target.address), vector(device, "scale", kinds[0], scale),
                  vector(device, "shift", kinds[1], shift), ("4I", batch, channels, groups, 0))
    mean, inverse = (np.repeat(moments[:, :, i], channels // groups, axis=1).astype(np.float64) for i in range(2))
    factor = held_by(kinds[0], scale) * inverse
    summand = held_by(kinds[1], shift) - mean * factor
    got = result(device, target, "f32", batch, channels, 2)
    near("factor", got[:, :, 0], factor, 2 * UNIT * np.abs(factor))
    near("summand", got[:, :, 1], summand, 3 * UNIT * (np.abs(summand) + np.abs(mean * factor)))


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for to in ("f16", "bf16"):
        for features in ((24,), (7,), (12, 5, 9), (8, 16, 24, 4), (1030,)):
            yield Case("convert", f"convert_{to} {features}", of(convert, to, 10, features))
        yield Case("convert", f"convert_{to} of sizes", of(convert, to, 10, (40,), EXTREME))
    for features in ((24,), (8, 16, 24, 32), (1096,)):
        yield Case("convert", f"factors_bf16 {features}", of(factors_bf16, 10, features), (75,))
    for shape in ((2, 5, 2, 20, 32), (1, 70, 3, 16, 16), (1, 3, 1, 7, 16), (1, 66, 1, 130, 256)):
        yield Case("attention_pack", f"attention_pack {shape}", of(attention_pack, *shape))
    for kind in VECTORS:
        for exact in (False, True):
            name = "conv_pack_exact" if exact else "conv_pack_half"
            yield Case("conv_pack", f"{name} {kind}", of(conv_pack, exact, kind, (5, 18, 9), 8, 16))
            yield Case("conv_pack", f"{name} {kind}, a tap", of(conv_pack, exact, kind, (33, 40, 1), 64, 32))
        yield Case("conv_pack", f"conv_norm {kind}", of(conv_norm, 2, 12, 3, (kind, kind)))
