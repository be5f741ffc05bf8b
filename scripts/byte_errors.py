#!/usr/bin/env python3
"""What rounding weights to bytes adds to what their own type has cost: the table of docs/decisions/0023-products-of-bytes.md.

    scripts/byte_errors.py

2^20 normal weights are rounded to each type that GPUs multiply as bytes but not as it is stored, by the largest and the least of a
block, without the search that quantisers add. What comes is rounded as `executor/kernels/decode_bytes.cu` does. Errors are root mean
squares over that of the weights. Needs numpy.
"""

import numpy as np

COUNT = 1 << 20
# Numbers that share a byte's scale, and those of a super-block.
BLOCK, SUPER_BLOCK = 32, 256
# Of an f32's mantissa, all but the 11 bits of a scale.
LOWER_BITS = np.uint32((1 << 13) - 1)


def with_summand(x: np.ndarray, bits: int, run: int = BLOCK, of_bits: int = 0) -> np.ndarray:
    """A factor and a summand for each run, of `of_bits` bits in a super-block, or whole."""
    runs = x.reshape(-1, run)
    least = np.minimum(runs.min(axis=1, keepdims=True), 0)
    factor = (runs.max(axis=1, keepdims=True) - least) / (2**bits - 1)
    if of_bits:
        factor, least = (in_super_blocks(of, run, 2**of_bits - 1) for of in (factor, least))
    number = np.clip(np.rint((runs - least) / np.where(factor == 0, 1, factor)), 0, 2**bits - 1)
    return (number * factor + least).astype(np.float32)


def without_summand(x: np.ndarray, bits: int, levels: int) -> np.ndarray:
    """A factor for each 16, of the number that is furthest from zero; it has so many levels of either sign in a super-block."""
    runs = x.reshape(-1, 16)
    furthest = np.take_along_axis(runs, np.abs(runs).argmax(axis=1)[:, None], axis=1)
    half = 2 ** (bits - 1)
    factor = in_super_blocks(furthest / -half, 16, levels)
    return (np.clip(np.rint(runs / np.where(factor == 0, 1, factor)), -half, half - 1) * factor).astype(np.float32)


def in_super_blocks(of: np.ndarray, run: int, levels: int) -> np.ndarray:
    """What stands for each run, rounded to so many levels up to the largest of its super-block."""
    of = of.reshape(-1, SUPER_BLOCK // run)
    unit = np.abs(of).max(axis=1, keepdims=True) / levels
    return (np.rint(of / unit) * unit).reshape(-1, 1)


def as_bytes(x: np.ndarray) -> np.ndarray:
    blocks = x.reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scale = ((largest / np.float32(127)).view(np.uint32) + LOWER_BITS & ~LOWER_BITS).view(np.float32)
    return np.rint(blocks / scale) * scale


TYPES = {
    "Q2_K": lambda x: with_summand(x, 2, 16, 4),
    "Q3_K": lambda x: without_summand(x, 3, 31),
    "Q4_1": lambda x: with_summand(x, 4),
    "Q4_K": lambda x: with_summand(x, 4, BLOCK, 6),
    "Q5_1": lambda x: with_summand(x, 5),
    "Q5_K": lambda x: with_summand(x, 5, BLOCK, 6),
    "Q6_K": lambda x: without_summand(x, 6, 127),
}


def main():
    x = np.random.default_rng(0).normal(0, 0.02, COUNT).astype(np.float32)

    def error(of: np.ndarray, to: np.ndarray) -> float:
        return 100 * float(np.sqrt(np.mean((of.reshape(-1) - to.reshape(-1)) ** 2) / np.mean(x**2)))

    print("| weights | the type's own error | rounding to bytes | both |\n|---|---|---|---|")
    for name, quantise in TYPES.items():
        stored = quantise(x)
        byte = as_bytes(stored)
        print(f"| {name} | {error(stored, x):.2f} % | {error(byte, stored):.2f} % | {error(byte, x):.2f} % |")
    print(f"| bytes alone, as Q8_0 | {error(as_bytes(x), x):.2f} % | | |")


if __name__ == "__main__":
    main()
