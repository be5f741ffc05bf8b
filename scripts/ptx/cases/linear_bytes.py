"""Linear layers as products of signed bytes: what becomes bytes is equal to the bit, and so are the whole numbers; sums err as f32 does."""

import numpy as np

from .. import floats
from ..storage import STORAGES, Storage
from .converting import inputs_of
from .linear_f32 import Output, variants
from .tools import ELEMENTS, THREADS, UNIT, Case, blocks_for, equal, f32_of, normal, result

# Numbers of an activation that share a scale, and rows that are put into another order: linear_bytes.cu, row_places.cuh.
BLOCK, PLACED = 32, 64
# Numbers that share a scale, and whether a summand stands beside it.
FORMS = {
    "q8_0": (32, False), "q4_0": (32, False), "q5_0": (32, False), "q4_1": (32, True), "q5_1": (32, True), "q4_k": (32, True),
    "q5_k": (32, True), "q6_k": (16, False),
}  # fmt: skip
KERNELS = {(32, False): "32", (32, True): "32_plus", (16, False): "16"}


def places_of(rows: int) -> np.ndarray:
    """Where what stands for each row lies."""
    row = np.arange(rows)
    return row // PLACED * PLACED + row % 8 * 8 + row % PLACED // 8


def up(number: int, to: int) -> int:
    return -(-number // to) * to


def quantise(device, rng, rows: int, features: tuple[int, ...], element: str, with_sums: bool, sizes: tuple[float, ...] = ()):
    places, counts, x = inputs_of(device, rng, rows, features, element, sizes)
    depth, stride = sum(features), up(rows, PLACED)
    out = device.write("out", rows * depth)
    scales = device.write("scales", 4 * depth // BLOCK * stride)
    sums = device.write("sums", 4 * depth // BLOCK * stride) if with_sums else None
    device.launch("quantise", "quantise", blocks_for(stride * depth // 8), [THREADS],
                  ("3Q", out.address, scales.address, sums.address if sums else 0), ("4Q4I", *places, *counts),
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
    if sums:
        want[:, places_of(rows)] = (scale * numbers.sum(axis=2, dtype=np.int32).astype(np.float32)).T
        equal("sums", result(device, sums, "f32", *want.shape), want)


def decode_bytes(device, rng, storage: Storage, columns: int, depth: int):
    run, summands = FORMS[storage.name]
    stored = storage.random(rng, columns * depth)
    stride = up(columns, 4)
    out = device.write("out", columns * depth)
    tables = [device.write(name, 4 * depth // run * stride) for name in ("scales", "summands")[: 1 + summands]]
    device.launch("decode_bytes", f"decode_bytes_{storage.name}", blocks_for(columns * depth // 8), [THREADS],
                  ("4Q", device.read("in", stored).address, out.address, *([of.address for of in tables] + [0])[:2]),
                  ("4I", columns, depth, stride, 0))
    of_runs = [result(device, of, "f32", depth // run, stride) for of in tables]
    for of in of_runs:
        equal("beyond the columns", of[:, columns:], np.zeros_like(of[:, columns:]))
    numbers = device.memory.content(out, np.int8).reshape(columns, depth // run, run).astype(np.float32)
    got = of_runs[0][:, :columns].T[:, :, None] * numbers
    if summands:
        got = got + of_runs[1][:, :columns].T[:, :, None]
    equal("numbers", got.reshape(-1), storage.numbers(stored))


def round_to_bytes(device, rng, storage: Storage, columns: int, depth: int, wrong: int = 0):
    """8-bit floats as bytes: the blocks' factors are powers of two; `wrong` is what the first stored number becomes."""
    stored = storage.random(rng, columns * depth).reshape(columns, depth)
    # Blocks of all sizes, and one of zeros.
    stored[:, BLOCK:] &= rng.choice([0x8F, 0xBF, 0xFF], (columns, 1)).astype(np.uint8)
    stored[-1, :BLOCK] = 0
    stored[0, 0] = wrong or stored[0, 0]
    stride = up(columns, 4)
    out = device.write("out", columns * depth)
    scales = device.write("scales", 4 * depth // BLOCK * stride)
    device.launch("decode_bytes", f"decode_bytes_{storage.name}", blocks_for(columns * depth // 8), [THREADS],
                  ("4Q", device.read("in", stored.reshape(-1)).address, out.address, scales.address, 0), ("4I", columns, depth, stride, 0))
    values = storage.numbers(stored.reshape(-1)).reshape(columns, -1, BLOCK).astype(np.float64)
    largest = np.abs(values).max(axis=2)
    exponents = np.frexp(np.where(largest > 0, largest, 2.0**-63))[1] - 1
    scale = np.where(np.isfinite(largest), 2.0 ** (exponents - 6), np.nan)
    want = np.zeros((depth // BLOCK, stride), np.float32)
    want[:, :columns] = scale.T
    equal("scales", result(device, scales, "f32", *want.shape), want)
    numbers = device.memory.content(out, np.int8).reshape(values.shape)
    finite = np.isfinite(scale)
    equal("out", numbers[finite], np.rint(values[finite] / scale[finite][:, None]).astype(np.int8))
    large = np.abs(values) >= largest[:, :, None] / 8
    equal("large numbers", (numbers * scale[:, :, None])[finite][large[finite]], values[finite][large[finite]])


def linear_bytes(device, rng, form: tuple[int, bool], size: str, rows: int, columns: int, depth: int, **wanted):
    run, summands = form
    blocks, runs = depth // BLOCK, depth // run
    x = rng.integers(-127, 128, (rows, depth)).astype(np.int8)
    w = rng.integers(-128, 128, (columns, depth)).astype(np.int8)
    x_stride, w_stride = up(rows, PLACED), up(columns, 4)
    x_scales, x_sums = (normal(rng, blocks, rows) for _ in range(2))
    # Factors of f16 times some bits, as weights have.
    w_scales = f32_of("f16", floats.f16_bits(normal(rng, runs, columns))) * rng.integers(1, 128, (runs, columns)).astype(np.float32)
    w_summands = normal(rng, runs, columns, size=100)

    def table(stride: int, at: np.ndarray, *of: np.ndarray) -> np.ndarray:
        tables = np.zeros((len(of), of[0].shape[0], stride), np.float32)
        for index, one in enumerate(of):
            tables[index][:, at] = one
        return tables

    of_x = table(x_stride, places_of(rows), *[x_scales, x_sums][: 1 + summands])
    of_w = table(w_stride, np.arange(columns), *[w_scales, w_summands][: 1 + summands])
    out = Output(device, rng, rows, columns, **wanted)
    height, width = {"small": (64, 64), "large": (128, 64 if run == 16 else 96)}[size]
    device.launch("linear_bytes", f"linear_bytes_{KERNELS[form]}_{size}", [-(-rows // height) * -(-columns // width)], [128],
                  *out.arguments(0), ("4Q", device.read("x", x).address, device.read("x's rows", of_x).address,
                                      device.read("w", w).address, device.read("w's rows", of_w).address),
                  ("5iI", depth, x_stride, w_stride, of_x[0].size, of_w[0].size, 0))
    exact = np.einsum("rik,cik->irc", x.reshape(rows, runs, run).astype(np.float64), w.reshape(columns, runs, run).astype(np.float64))
    terms = exact * w_scales[:, None, :] * np.repeat(x_scales, BLOCK // run, axis=0)[:, :, None]
    sums, bound = terms.sum(axis=0), np.abs(terms).sum(axis=0)
    if summands:
        more = x_sums[:, :, None].astype(np.float64) * w_summands[:, None, :]
        sums, bound = sums + more.sum(axis=0), bound + np.abs(more).sum(axis=0)
    out.check(sums, bound * UNIT * (3 * blocks + 4))


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for element in ("f32", "bf16"):
        for index, features in enumerate(((64,), (8, 40, 16), (8, 8, 8, 232), (160,))):
            yield Case("quantise", f"{element} of {features}", of(quantise, 3 + 62 * index, features, element, index % 2 == 0))
        yield Case("quantise", f"{element}, rows of any size", of(quantise, 7, (96,), element, True, (1, 0, 1e30, 1e-20, 1e-37)))
    for name in FORMS:
        storage = STORAGES[name]
        yield Case("decode_bytes", name, of(decode_bytes, storage, 5, 2 * max(storage.elements, 64)))
        yield Case("decode_bytes", f"{name}, whole fours", of(decode_bytes, storage, 8, storage.elements))
    for name, wrong in (("f8_e4m3", 0xFF), ("f8_e5m2", 0x7C)):
        yield Case("decode_bytes", name, of(round_to_bytes, STORAGES[name], 5, 96))
        yield Case("decode_bytes", f"{name}, whole fours", of(round_to_bytes, STORAGES[name], 8, 32))
        yield Case("decode_bytes", f"{name}, not finite", of(round_to_bytes, STORAGES[name], 3, 64, wrong))
    for form in KERNELS:
        for index, depth in enumerate((64, 32, 160)):
            wanted = variants(index + 1)
            yield Case("linear_bytes", f"{KERNELS[form]} small {depth}", of(linear_bytes, form, "small", 70, 47, depth, **wanted))
        yield Case("linear_bytes", f"{KERNELS[form]} large", of(
            linear_bytes, form, "large", 133, 101, 96, bias="f32", element="bf16", start=4, stride=108), (80,))
    yield Case("linear_bytes", "more tiles than a band", of(linear_bytes, (32, True), "small", 64 * 17 + 1, 65, 32))
