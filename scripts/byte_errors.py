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


def with_summand(x: np.ndarray, bits: int, is_super: bool) -> np.ndarray:
    """Q4_1 and Q5_1; Q4_K and Q5_K, whose factors and summands have six bits in a super-block."""
    blocks = x.reshape(-1, BLOCK)
    least = np.minimum(blocks.min(axis=1, keepdims=True), 0)
    factor = (blocks.max(axis=1, keepdims=True) - least) / (2**bits - 1)
    if is_super:
        factor, least = (of_six_bits(of) for of in (factor, least))
    number = np.clip(np.rint((blocks - least) / factor), 0, 2**bits - 1)
    return (number * factor + least).astype(np.float32)


def of_six_bits(of: np.ndarray) -> np.ndarray:
    """Each rounded to a 63rd of the largest of its super-block."""
    of = of.reshape(-1, SUPER_BLOCK // BLOCK)
    unit = np.abs(of).max(axis=1, keepdims=True) / 63
    return (np.rint(of / unit) * unit).reshape(-1, 1)


def q6_k(x: np.ndarray) -> np.ndarray:
    """A factor of eight bits for each 16, of the number that is furthest from zero."""
    runs = x.reshape(-1, 16)
    furthest = np.take_along_axis(runs, np.abs(runs).argmax(axis=1)[:, None], axis=1)
    factor = (furthest / -32).reshape(-1, SUPER_BLOCK // 16)
    unit = np.abs(factor).max(axis=1, keepdims=True) / 127
    factor = (np.rint(factor / unit) * unit).reshape(-1, 1)
    return (np.clip(np.rint(runs / factor), -32, 31) * factor).astype(np.float32)


def as_bytes(x: np.ndarray) -> np.ndarray:
    blocks = x.reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scale = ((largest / np.float32(127)).view(np.uint32) + LOWER_BITS & ~LOWER_BITS).view(np.float32)
    return np.rint(blocks / scale) * scale


TYPES = {
    "Q4_1": lambda x: with_summand(x, 4, False),
    "Q4_K": lambda x: with_summand(x, 4, True),
    "Q5_1": lambda x: with_summand(x, 5, False),
    "Q5_K": lambda x: with_summand(x, 5, True),
    "Q6_K": q6_k,
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
