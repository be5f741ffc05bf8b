"""Roundings that numpy lacks: fused products, directed roundings, bfloat16."""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# Bits of an f64's fraction that an f32 has no room for, and the one halfway.
BELOW_F32 = np.int64((1 << 29) - 1)
HALF_OF_F32 = np.int64(1 << 28)
F32_NORMAL = np.float64(2.0**-126)
# Veltkamp's constant for 53 bits.
SPLIT = np.float64(2**27 + 1)


def two_sum(a, b):
    """a + b as the nearest f64 and what it lacks (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def two_product(a, b):
    """a · b as the nearest f64 and what it lacks (Dekker)."""
    product = a * b
    high_a = SPLIT * a
    high_a = high_a - (high_a - a)
    high_b = SPLIT * b
    high_b = high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    return product, ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def to_odd(total, error):
    """total + error rounded to odd: what is rounded once more to fewer bits is then rounded as if once."""
    bits = np.ascontiguousarray(total).view(np.int64)
    # Towards zero where the error points inward, then the last bit is set.
    inward = (error != 0) & ((error > 0) != (total > 0)) & (total != 0)
    cut = bits - inward
    odd = np.where((error != 0) & np.isfinite(total), cut | 1, bits)
    return odd.view(np.float64)


def fma_f32(a, b, c) -> F32:
    """a · b + c of f32, rounded once to the nearest, of two the even one."""
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float64) * b
        addend = np.asarray(c, np.float64)
        total = product + addend
        bits = total.view(np.int64)
        # A second rounding errs only where the first one hit the middle, or among subnormal numbers.
        risky = ((bits & BELOW_F32) == HALF_OF_F32) | (np.abs(total) < F32_NORMAL)
        if risky.any():
            total = np.where(np.isfinite(total), to_odd(*two_sum(product, addend)), total)
        return total.astype(np.float32)


def fma_down_f32(a, b, c) -> F32:
    """The same, rounded down."""
    with np.errstate(all="ignore"):
        exact = to_odd(*two_sum(np.asarray(a, np.float64) * b, np.asarray(c, np.float64)))
        near = exact.astype(np.float32)
        above = near.astype(np.float64) > exact
        return np.where(above, np.nextafter(near, np.float32(-np.inf)), near)


def fma_f64(a, b, c) -> F64:
    """a · b + c of f64, rounded once (Boldo and Melquiond, Emulation of FMA and correctly rounded sums)."""
    with np.errstate(all="ignore"):
        a, b, c = np.broadcast_arrays(np.float64(a), np.float64(b), np.float64(c))
        high, low = two_product(a, b)
        upper, rest = two_sum(c, low)
        whole, error = two_sum(high, upper)
        result = whole + to_odd(*two_sum(rest, error))
        # Where a part is not finite, or too large to be split, the plain sum is as good.
        return np.where(np.isfinite(result), result, a * b + c)


def bf16_bits(value: F32) -> NDArray[np.uint16]:
    """To the nearest bfloat16, of two the even one; what is no number becomes 0x7fff."""
    word = np.ascontiguousarray(value).view(np.uint32)
    rounded = (word + (np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)


def f16_bits(value: F32) -> NDArray[np.uint16]:
    """To the nearest binary16, of two the even one; what is no number becomes 0x7fff."""
    with np.errstate(all="ignore"):
        bits = np.ascontiguousarray(value).astype(np.float16).view(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), bits)


def f32_of_bf16(bits: NDArray[np.uint16]) -> F32:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def flushed(value: F32) -> F32:
    """Subnormal numbers as zeros of their sign."""
    return np.where(np.abs(value) < np.float32(2.0**-126), np.copysign(np.float32(0), value), value)
