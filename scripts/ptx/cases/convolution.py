"""Convolutions: in f32, and on tensor cores."""

import dataclasses

import numpy as np

from .converting import packed_weights
from .tools import ELEMENTS, UNIT, Case, f32_of, held_by, near, normal, result, short_bits, vector

F16_ROUNDING = 2.0**-11
PIXELS = 128


@dataclasses.dataclass(frozen=True)
class Shape:
    """A picture, and what happens to it. `kernel` and `tile` name the entry: 1 or 3, and output channels of a block."""

    height: int
    width: int
    inner: int
    outer: int
    kernel: int
    tile: int
    batch: int = 1
    stride: int = 1
    pad: int = 0
    # Zeros below and to the right.
    pad_after: int = 0
    upsample: bool = False
    norm: bool = False
    silu: bool = False
    added: str = ""
    input: str = "f32"
    output: str = "f32"
    bias: str = "f32"
    # Single pixels as one long row, as executor/src/backend/cuda/ops/conv/tiling.rs has them.
    flat: bool = False


def out_size(shape: Shape) -> tuple[int, int]:
    grown = 2 if shape.upsample else 1
    return tuple((size * grown + shape.pad + shape.pad_after - shape.kernel) // shape.stride + 1 for size in (shape.height, shape.width))


def prepared(x: np.ndarray, norms, shape: Shape, half: bool) -> tuple[np.ndarray, float]:
    """The input as it is multiplied, and what each number may be off by, of its size."""
    slack = 0.0
    if norms is not None:
        wide = x.astype(np.float64) * norms[:, None, None, :, 0] + norms[:, None, None, :, 1]
        if shape.silu:
            # An exponential and a quotient, of a number that is rounded once.
            wide, slack = wide / (1 + np.exp(-wide)), 16 * UNIT
        x = wide.astype(np.float32)
    if half and shape.silu:
        # Which way a number is rounded is not known.
        return x, F16_ROUNDING * 1.01
    return (f32_of("f16", short_bits("f16", x)) if half else x), slack


def convolved(x: np.ndarray, weights: np.ndarray, shape: Shape) -> np.ndarray:
    """`x`: [batch, height, width, in]; `weights`: [out, in, kernel, kernel]."""
    if shape.upsample:
        x = np.repeat(np.repeat(x, 2, axis=1), 2, axis=2)
    x = np.pad(x.astype(np.float64), ((0, 0), (shape.pad, shape.pad_after), (shape.pad, shape.pad_after), (0, 0)))
    height, width = out_size(shape)
    out = np.zeros((shape.batch, height, width, shape.outer))
    for row in range(shape.kernel):
        for column in range(shape.kernel):
            under = x[:, row : row + (height - 1) * shape.stride + 1 : shape.stride,
                      column : column + (width - 1) * shape.stride + 1 : shape.stride]
            out += under @ weights[:, :, row, column].astype(np.float64).T
    return out


def convolve(device, rng, half: bool, shape: Shape):
    source = "conv_half" if half else "conv_exact"
    strided = shape.kernel == 3 and shape.stride == 2
    kernel = f"{source}_k{shape.kernel}{'_s2' if strided else ''}_{shape.tile}"
    x = short_bits(shape.input, normal(rng, shape.batch, shape.height, shape.width, shape.inner))
    weights = normal(rng, shape.outer, shape.inner, shape.kernel, shape.kernel, size=0.3)
    bias = normal(rng, shape.outer)
    norms = normal(rng, shape.batch, shape.inner, 2) if shape.norm else None
    channels = (16 if strided else 32) // (1 if half else 2)
    tiles = -(-shape.outer // shape.tile)
    packed = packed_weights(weights.reshape(shape.outer, shape.inner, -1), tiles * shape.tile, channels, not half)
    height, width = out_size(shape)
    before = normal(rng, shape.batch, height, width, shape.outer)
    into = shape.added == "in place"
    out = device.update("out", before) if into else device.write("out", before.size * (4 if shape.output == "f32" else 2))
    added = out.address if into else device.read("added", before).address if shape.added else 0
    size, out_place, batch = (shape.height, shape.width), (height, width), shape.batch
    if shape.flat:
        images = shape.batch if shape.norm else 1
        size = out_place = (1, shape.batch * shape.height * shape.width // images)
        batch = images
    tile = (8, PIXELS // 8) if shape.kernel == 3 else (1, PIXELS)
    across = [-(-of // by) for of, by in zip(out_place, tile)]
    norm_at = device.read("norm", norms).address if shape.norm else 0
    device.launch(source, kernel, [batch * across[0] * across[1] * tiles], [256],
                  ("5Q", device.read("input", x).address, device.read("weights", packed).address, norm_at, added, out.address),
                  vector(device, "bias", shape.bias, bias, 0.5),
                  ("16I", *size, shape.inner, shape.outer, *out_place, *across, tiles, shape.stride, shape.pad, int(shape.upsample),
                   int(shape.silu), ELEMENTS[shape.input], ELEMENTS[shape.output], 0))
    x, slack = prepared(f32_of(shape.input, x), norms, shape, half)
    weights = f32_of("f16", short_bits("f16", weights)) if half else weights
    want = convolved(x, weights, shape) + held_by(shape.bias, bias) * 0.5
    size_of_sums = convolved(np.abs(x), np.abs(weights), shape) + np.abs(bias)
    bound = ((shape.inner * shape.kernel**2 + 4) * UNIT + slack) * size_of_sums
    if shape.added:
        want = want + before
        bound = bound + 2 * UNIT * (np.abs(want) + np.abs(before))
    near("out", result(device, out, shape.output, *want.shape), want, bound, shape.output)


def cases():
    def both(name: str, shape: Shape):
        for half in (False, True):
            if half or shape.input == shape.output == "f32":
                yield Case("conv_half" if half else "conv_exact", name, lambda device, rng, half=half: convolve(device, rng, half, shape))

    for tile, outer in ((32, 40), (128, 131)):
        yield from both(f"1x1 to {tile}", Shape(7, 23, 40, outer, 1, tile, batch=2, flat=True, bias="bf16"))
        yield from both(f"1x1 to {tile}, norm", Shape(5, 30, 36, outer, 1, tile, batch=2, flat=True, norm=True, silu=True, added="apart"))
        yield from both(f"1x1 to {tile}, stride", Shape(6, 9, 7, outer, 1, tile, stride=2))
    for tile, outer in ((8, 3), (8, 8), (32, 34), (128, 130)):
        yield from both(f"3x3 {outer} to {tile}", Shape(10, 19, 36, outer, 3, tile, pad=1, pad_after=1, added="in place"))
        yield from both(f"3x3 {outer} to {tile}, norm", Shape(
            9, 17, 37, outer, 3, tile, batch=2, pad=1, pad_after=1, norm=True, silu=outer != 8, bias="f16"))
        yield from both(f"3x3 {outer} to {tile}, upsample", Shape(5, 9, 16, outer, 3, tile, pad=1, pad_after=1, upsample=True, bias="f8_e4m3"))
    for tile, outer in ((32, 33), (128, 130)):
        yield from both(f"3x3 s2 to {tile}", Shape(21, 37, 20, outer, 3, tile, stride=2, pad_after=1, bias="f8_e5m2"))
        yield from both(f"3x3 s2 to {tile}, norm", Shape(18, 11, 17, outer, 3, tile, stride=2, pad=1, pad_after=1, norm=True))
    for input, output in (("bf16", "bf16"), ("f16", "f32"), ("bf16", "f16"), ("f32", "bf16")):
        for outer, inner in ((34, 36), (33, 35)):
            name = f"3x3 {inner} of {input} to {outer} of {output}"
            yield from both(name, Shape(9, 17, inner, outer, 3, 32, pad=1, pad_after=1, input=input, output=output, added="apart"))
        yield from both(f"1x1 of {input} to {output}", Shape(9, 17, 36, 40, 1, 32, input=input, output=output, flat=True, norm=True))
