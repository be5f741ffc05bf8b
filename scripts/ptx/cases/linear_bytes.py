"""Linear layers as products of signed bytes: what becomes bytes is equal to the bit, and so are the whole numbers; sums err as f32 does."""

import numpy as np

from .. import floats
from ..storage import STORAGES, Storage
from .converting import inputs_of
from .linear_f32 import Output, variants
from .tools import ELEMENTS, THREADS, UNIT, Case, blocks_for, equal, f32_of, normal, result

# Numbers of a row that share a scale, and rows that are put into another order: linear_bytes.cu, row_places.cuh.
BLOCK, PLACED = 32, 64
# Types whose numbers stay as they are, and those that are rounded by the largest of a block over 127.
EXACT = ("q8_0", "q4_0", "q5_0")
ROUNDED = ("q4_1", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
# Infinity of either sign and two that are no number, in binary16.
WRONG_FACTORS = (0x7C00, 0xFC00, 0x7E01, 0x7E01)
# Bits of a rounded block's scale that are zeros: all but 11.
LOWER_BITS = (1 << 13) - 1


def places_of(rows: int) -> np.ndarray:
    """Where what stands for each row lies."""
    row = np.arange(rows)
    return row // PLACED * PLACED + row % 8 * 8 + row % PLACED // 8


def up(number: int, to: int) -> int:
    return -(-number // to) * to


def quantise(device, rng, rows: int, features: tuple[int, ...], element: str, sizes: tuple[float, ...] = ()):
    places, counts, x = inputs_of(device, rng, rows, features, element, sizes)
    depth, stride = sum(features), up(rows, PLACED)
    out = device.write("out", rows * depth)
    scales = device.write("scales", 4 * depth // BLOCK * stride)
    device.launch("quantise", "quantise", blocks_for(stride * depth // 8), [THREADS],
                  ("2Q", out.address, scales.address), ("4Q4I", *places, *counts),
                  ("4I", rows, depth, stride, ELEMENTS[element]))
    blocks = f32_of("bf16", floats.bf16_bits(x)).reshape(rows, -1, BLOCK)
    largest = np.abs(blocks).max(axis=2)
    small = largest < np.float32(1e-35)
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.where(small, np.float32(0), largest / np.float32(127))
        inverse = np.where(small, np.float32(0), np.float32(127) / largest)
    numbers = np.rint(blocks * inverse[:, :, None]).astype(np.int8)
    equal("out", device.memory.content(out, np.int8).reshape(blocks.shape), numbers)
    want = np.zeros((depth // BLOCK, stride), np.float32)
    want[:, places_of(rows)] = scale.T
    equal("scales", result(device, scales, "f32", *want.shape), want)


def launch_decode(device, storage: Storage, stored: np.ndarray, columns: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of each block of each column, and the blocks' scales."""
    stride = up(columns, 4)
    out = device.write("out", columns * depth)
    scales = device.write("scales", 4 * depth // BLOCK * stride)
    device.launch("decode_bytes", f"decode_bytes_{storage.name}", blocks_for(columns * depth // 8), [THREADS],
                  ("3Q", device.read("in", stored).address, out.address, scales.address), ("4I", columns, depth, stride, 0))
    table = result(device, scales, "f32", depth // BLOCK, stride)
    equal("beyond the columns", table[:, columns:], np.zeros_like(table[:, columns:]))
    return device.memory.content(out, np.int8).reshape(columns, -1, BLOCK), table[:, :columns].T


def keep_bytes(device, rng, storage: Storage, columns: int, depth: int):
    """Whole numbers with a factor for each 32 stay as they are."""
    stored = storage.random(rng, columns * depth)
    numbers, scales = launch_decode(device, storage, stored, columns, depth)
    equal("numbers", (scales[:, :, None] * numbers.astype(np.float32)).reshape(-1), storage.numbers(stored))


def round_blocks(device, rng, storage: Storage, columns: int, depth: int, wrong: tuple[int, ...] = ()):
    """Other numbers are rounded: a block's scale is its largest over 127, rounded up to 11 bits. `wrong` is what the factors of the first
    stored blocks become."""
    stored = storage.random(rng, columns * depth)
    for index, factor in enumerate(wrong):
        begin = index * storage.size + storage.factors[index % len(storage.factors)]
        stored.reshape(-1)[begin : begin + 2] = np.frombuffer(factor.to_bytes(2, "little"), np.uint8)
    values = storage.numbers(stored).reshape(columns, -1, BLOCK)
    largest = np.abs(values).max(axis=2)
    finite = np.isfinite(largest)
    bits = (largest / np.float32(127)).view(np.uint32)
    scale = np.where(finite, ((bits + LOWER_BITS) & ~np.uint32(LOWER_BITS)).view(np.float32), np.float32(np.nan))
    inverse = np.float32(1) / scale
    numbers, scales = launch_decode(device, storage, stored, columns, depth)
    equal("scales", scales, scale)
    equal("out", numbers[finite], np.rint(values * inverse[:, :, None])[finite].astype(np.int8))
    assert np.abs(numbers.astype(np.int32)).max() <= 127, "a byte is below -127"


def round_floats(device, rng, storage: Storage, columns: int, depth: int, wrong: int = 0):
    """8-bit floats as bytes: the blocks' factors are powers of two; `wrong` is what the first stored number becomes."""
    stored = storage.random(rng, columns * depth).reshape(columns, depth)
    # Blocks of all sizes, and one of zeros.
    stored[:, BLOCK:] &= rng.choice([0x8F, 0xBF, 0xFF], (columns, 1)).astype(np.uint8)
    stored[-1, :BLOCK] = 0
    stored[0, 0] = wrong or stored[0, 0]
    values = storage.numbers(stored.reshape(-1)).reshape(columns, -1, BLOCK).astype(np.float64)
    largest = np.abs(values).max(axis=2)
    exponents = np.frexp(np.where(largest > 0, largest, 2.0**-63))[1] - 1
    scale = np.where(np.isfinite(largest), 2.0 ** (exponents - 6), np.nan)
    numbers, scales = launch_decode(device, storage, stored.reshape(-1), columns, depth)
    equal("scales", scales, scale.astype(np.float32))
    finite = np.isfinite(scale)
    equal("out", numbers[finite], np.rint(values[finite] / scale[finite][:, None]).astype(np.int8))
    large = np.abs(values) >= largest[:, :, None] / 8
    equal("large numbers", (numbers * scale[:, :, None])[finite][large[finite]], values[finite][large[finite]])


def linear_bytes(device, rng, size: str, rows: int, columns: int, depth: int, **wanted):
    blocks = depth // BLOCK
    x = rng.integers(-127, 128, (rows, depth)).astype(np.int8)
    w = rng.integers(-128, 128, (columns, depth)).astype(np.int8)
    x_stride, w_stride = up(rows, PLACED), up(columns, 4)
    x_scales = normal(rng, blocks, rows)
    w_scales = f32_of("f16", floats.f16_bits(normal(rng, blocks, columns)))

    def table(stride: int, at: np.ndarray, of: np.ndarray) -> np.ndarray:
        placed = np.zeros((of.shape[0], stride), np.float32)
        placed[:, at] = of
        return placed

    of_x = table(x_stride, places_of(rows), x_scales)
    of_w = table(w_stride, np.arange(columns), w_scales)
    out = Output(device, rng, rows, columns, **wanted)
    height, width = {"small": (64, 64), "large": (128, 96)}[size]
    device.launch("linear_bytes", f"linear_bytes_{size}", [-(-rows // height) * -(-columns // width)], [128],
                  *out.arguments(0), ("4Q", device.read("x", x).address, device.read("x's scales", of_x).address,
                                      device.read("w", w).address, device.read("w's scales", of_w).address),
                  ("3iI", depth, x_stride, w_stride, 0))
    exact = np.einsum("rik,cik->irc", x.reshape(rows, -1, BLOCK).astype(np.float64), w.reshape(columns, -1, BLOCK).astype(np.float64))
    terms = exact * w_scales[:, None, :] * x_scales[:, :, None]
    out.check(terms.sum(axis=0), np.abs(terms).sum(axis=0) * UNIT * (3 * blocks + 4))


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for element in ("f32", "bf16"):
        for index, features in enumerate(((64,), (8, 40, 16), (8, 8, 8, 232), (160,))):
            yield Case("quantise", f"{element} of {features}", of(quantise, 3 + 62 * index, features, element))
        yield Case("quantise", f"{element}, rows of any size", of(quantise, 7, (96,), element, (1, 0, 1e30, 1e-20, 1e-37)))
    for names, function in ((EXACT, keep_bytes), (ROUNDED, round_blocks)):
        for name in names:
            storage = STORAGES[name]
            yield Case("decode_bytes", name, of(function, storage, 5, 2 * max(storage.elements, 64)))
            yield Case("decode_bytes", f"{name}, whole fours", of(function, storage, 8, storage.elements))
    for name in ROUNDED:
        storage = STORAGES[name]
        yield Case("decode_bytes", f"{name}, not finite", of(round_blocks, storage, 4, 2 * storage.elements, WRONG_FACTORS))
    for name, wrong in (("f8_e4m3", 0xFF), ("f8_e5m2", 0x7C)):
        yield Case("decode_bytes", name, of(round_floats, STORAGES[name], 5, 96))
        yield Case("decode_bytes", f"{name}, whole fours", of(round_floats, STORAGES[name], 8, 32))
        yield Case("decode_bytes", f"{name}, not finite", of(round_floats, STORAGES[name], 3, 64, wrong))
    for index, depth in enumerate((64, 32, 160)):
        yield Case("linear_bytes", f"small {depth}", of(linear_bytes, "small", 70, 47, depth, **variants(index + 1)))
    yield Case("linear_bytes", "large", of(linear_bytes, "large", 133, 101, 96, bias="f32", element="bf16", start=4, stride=108), (80,))
    yield Case("linear_bytes", "more tiles than a band", of(linear_bytes, "small", 64 * 17 + 1, 65, 32))
