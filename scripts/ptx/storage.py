"""The reference of stored weights: the numbers of every storage type, from ggml's descriptions of its formats.

Each product and sum is f32, rounded once, in the order that the formats' own C code has: what kernels decode is the same to the bit.
The tables of the IQ types are data, taken from `executor/kernels/iq_tables.cuh`; the host's tests hold them against golden tensors.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np

from . import floats
from .shipped import ROOT

F32 = np.ndarray
# The steps of IQ4_NL and IQ4_XS: ggml's kvalues_iq4nl.
IQ4_STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


@functools.cache
def table(name: str) -> np.ndarray:
    """A table of 16-bit entries, as it is packed there."""
    source = (ROOT / "executor" / "kernels" / "iq_tables.cuh").read_text()
    found = re.search(rf"\b{name}\[\w*\]\s*=\s*\{{([^}}]*)\}}", source)
    return np.array([int(item, 0) for item in found.group(1).replace("\n", " ").split(",") if item.strip()], np.uint32)


@functools.cache
def grid(name: str) -> np.ndarray:
    """A table's entries as numbers: `[entries, 8]` of two bits each, or `[entries, 4]` of four."""
    entries = table(f"{name}_TABLE")[:, None]
    if name.startswith("IQ3"):
        index = entries >> 4 * np.arange(4, dtype=np.uint32) & 15
        return np.array([4, 12, 20, 28, 36, 44, 52, 62])[index].astype(np.float32) if name == "IQ3_XXS" else (index * 2 + 1).astype(np.float32)
    index = entries >> 2 * np.arange(8, dtype=np.uint32) & 3
    return (index.astype(np.float32) - 1) if name == "IQ1_S" else np.array([8, 25, 43, 0], np.float32)[index]


def f16(blocks, at: int) -> F32:
    """The binary16 at a byte of each block: `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def words(blocks, at: int, count: int, dtype) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    return np.ascontiguousarray(blocks[:, at : at + count * size]).view(dtype)


def nibbles(packed) -> np.ndarray:
    """The lower nibbles of all bytes, then the upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def bits_of(packed, count: int, width: int = 1) -> np.ndarray:
    """`[blocks, count, bytes]`: of each byte its bits from `width · i` on."""
    shifts = (width * np.arange(count)).astype(np.uint8)
    return packed[:, None, :] >> shifts[None, :, None] & ((1 << width) - 1)


def signs(seven) -> F32:
    """-1 and 1 for eight numbers of which an even number is negative, by the first seven."""
    seven = seven & 127
    parity = sum(seven >> i & 1 for i in range(7)) & 1
    return eight_signs(seven | parity << 7)


def eight_signs(byte) -> F32:
    return np.where(byte[..., None] >> np.arange(8, dtype=byte.dtype) & 1, np.float32(-1), np.float32(1))


def q8_0(b):
    return f16(b, 0) * words(b, 2, 32, np.int8).astype(np.float32)


def q4_0(b):
    return f16(b, 0) * (nibbles(b[:, 2:]).astype(np.float32) - 8)


def q4_1(b):
    return f16(b, 0) * nibbles(b[:, 4:]).astype(np.float32) + f16(b, 2)


def fifths(b, at: int) -> np.ndarray:
    return (words(b, at, 1, np.uint32) >> np.arange(32, dtype=np.uint32) & 1).astype(np.uint8) << 4


def q5_0(b):
    return f16(b, 0) * ((nibbles(b[:, 6:]) | fifths(b, 2)).astype(np.float32) - 16)


def q5_1(b):
    return f16(b, 0) * (nibbles(b[:, 8:]) | fifths(b, 4)).astype(np.float32) + f16(b, 2)


def by_halves(packed, count: int, width: int) -> np.ndarray:
    """256 numbers from two runs of 32 bytes, of which each has planes of `width` bits: `[blocks, 256]`."""
    runs = packed.reshape(len(packed), 2, 32)
    planes = runs[:, :, None, :] >> (width * np.arange(count, dtype=np.uint8))[None, None, :, None] & ((1 << width) - 1)
    return planes.reshape(len(packed), -1)


def q2_k(b):
    factors = b[:, :16].astype(np.uint8)
    scale = np.repeat(f16(b, 80) * (factors & 15).astype(np.float32), 16, axis=1)
    less = np.repeat(f16(b, 82) * (factors >> 4).astype(np.float32), 16, axis=1)
    return scale * by_halves(b[:, 16:80], 4, 2).astype(np.float32) - less


def q3_k(b):
    packed = b[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = np.concatenate([packed[:, 8:12] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scale = f16(b, 108) * ((low | high << 4).astype(np.float32) - 32)
    third = bits_of(b[:, :32], 8).reshape(len(b), 256)
    numbers = by_halves(b[:, 32:96], 4, 2).astype(np.float32) - np.where(third, np.float32(0), np.float32(4))
    return np.repeat(scale, 16, axis=1) * numbers


def scales_and_minima(b) -> tuple[np.ndarray, np.ndarray]:
    """ggml's get_scale_min_k4 for all eight groups."""
    packed = b[:, 4:16]
    scale = np.concatenate([packed[:, :4] & 63, packed[:, 8:12] & 15 | packed[:, :4] >> 6 << 4], axis=1)
    less = np.concatenate([packed[:, 4:8] & 63, packed[:, 8:12] >> 4 | packed[:, 4:8] >> 6 << 4], axis=1)
    return f16(b, 0) * scale.astype(np.float32), f16(b, 2) * less.astype(np.float32)


def runs_of_nibbles(packed) -> np.ndarray:
    """256 numbers: of each 32 bytes the lower nibbles, then the upper ones."""
    runs = packed.reshape(len(packed), 4, 32)
    return np.stack([runs & 15, runs >> 4], axis=2).reshape(len(packed), 256)


def q4_k(b):
    scale, less = (np.repeat(of, 32, axis=1) for of in scales_and_minima(b))
    return scale * runs_of_nibbles(b[:, 16:]).astype(np.float32) - less


def q5_k(b):
    scale, less = (np.repeat(of, 32, axis=1) for of in scales_and_minima(b))
    fifth = bits_of(b[:, 16:48], 8).reshape(len(b), 256).astype(np.uint8)
    return scale * (runs_of_nibbles(b[:, 48:]) | fifth << 4).astype(np.float32) - less


def q6_k(b):
    low = b[:, :128].reshape(-1, 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(len(b), 256)
    numbers = (low | by_halves(b[:, 128:192], 4, 2) << 4).astype(np.float32) - 32
    return np.repeat(f16(b, 208) * words(b, 192, 16, np.int8).astype(np.float32), 16, axis=1) * numbers


def iq1_s(b):
    head = words(b, 34, 8, np.uint16).astype(np.uint32)
    scale = f16(b, 0) * (2 * (head >> 12 & 7) + 1).astype(np.float32)
    shift = np.where(head & 0x8000, np.float32(-0.125), np.float32(0.125))
    high = head[:, :, None] >> 3 * np.arange(4, dtype=np.uint32) & 7
    index = b[:, 2:34].reshape(-1, 8, 4).astype(np.uint32) | high << 8
    return (scale[:, :, None, None] * (grid("IQ1_S")[index] + shift[:, :, None, None])).reshape(len(b), 256)


def scaled_grid(scale, sizes, sign) -> F32:
    """`scale` times numbers with signs, `[blocks, runs of eight, 8]`."""
    return (scale * (sizes * sign)).reshape(len(sizes), 256)


def iq_scale(factor, nibble, power: float) -> F32:
    return (factor * (np.float32(0.5) + nibble.astype(np.float32))) * np.float32(power)


def iq2_xxs(b):
    parts = words(b, 2, 16, np.uint32).reshape(-1, 8, 2)
    index = parts[:, :, :1] >> 8 * np.arange(4, dtype=np.uint32) & 255
    word = parts[:, :, 1]
    scale = np.repeat(iq_scale(f16(b, 0), word >> 28, 0.25), 4, axis=1)[:, :, None]
    sign = signs(word[:, :, None] >> 7 * np.arange(4, dtype=np.uint32)).reshape(len(b), 32, 8)
    return scaled_grid(scale, grid("IQ2_XXS")[index.reshape(len(b), 32)], sign)


def nibbles_in_order(packed) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def iq2_xs(b):
    entries = words(b, 2, 32, np.uint16).astype(np.uint32)
    scale = np.repeat(iq_scale(f16(b, 0), nibbles_in_order(b[:, 66:74]), 0.25), 2, axis=1)[:, :, None]
    return scaled_grid(scale, grid("IQ2_XS")[entries & 511], signs(entries >> 9))


def iq2_s(b):
    high = (b[:, 66:74, None] >> 2 * np.arange(4, dtype=np.uint8) & 3).reshape(len(b), 32).astype(np.uint32)
    scale = np.repeat(iq_scale(f16(b, 0), nibbles_in_order(b[:, 74:82]), 0.25), 2, axis=1)[:, :, None]
    return scaled_grid(scale, grid("IQ2_S")[b[:, 2:34].astype(np.uint32) | high << 8], eight_signs(b[:, 34:66]))


def iq3_xxs(b):
    word = words(b, 66, 8, np.uint32)
    scale = np.repeat(iq_scale(f16(b, 0), word >> 28, 0.5), 4, axis=1)[:, :, None]
    sizes = grid("IQ3_XXS")[b[:, 2:66]].reshape(len(b), 32, 8)
    sign = signs(word[:, :, None] >> 7 * np.arange(4, dtype=np.uint32)).reshape(len(b), 32, 8)
    return scaled_grid(scale, sizes, sign)


def iq3_s(b):
    ninth = (b[:, 66:74, None] >> np.arange(8, dtype=np.uint8) & 1).reshape(len(b), 64).astype(np.uint32)
    sizes = grid("IQ3_S")[b[:, 2:66].astype(np.uint32) | ninth << 8].reshape(len(b), 32, 8)
    factor = 1 + 2 * nibbles_in_order(b[:, 106:110]).astype(np.float32)
    return scaled_grid(np.repeat(f16(b, 0) * factor, 4, axis=1)[:, :, None], sizes, eight_signs(b[:, 74:106]))


def iq4_nl(b):
    return f16(b, 0) * IQ4_STEPS[nibbles(b[:, 2:])]


def iq4_xs(b):
    high = words(b, 2, 1, np.uint16).astype(np.uint32) >> 2 * np.arange(8, dtype=np.uint32) & 3
    scale = f16(b, 0) * ((nibbles_in_order(b[:, 4:8]) + 16 * high).astype(np.float32) - 32)
    runs = b[:, 8:].reshape(-1, 8, 16)
    index = np.concatenate([runs & 15, runs >> 4], axis=2)
    return (scale[:, :, None] * IQ4_STEPS[index]).reshape(len(b), 256)


def f8_e4m3(b):
    size, sign = (b & 127).astype(np.int64), np.where(b & 128, np.float32(-1), np.float32(1))
    exponent, fraction = size >> 3, size & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(size == 127, np.float32(np.nan), sign * value.astype(np.float32))


def f8_e5m2(b):
    return (b.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Storage:
    """A storage type. `kind` is its place in protocol::StorageType; `factors` are the bytes of blocks where a binary16 begins."""

    name: str
    kind: int
    elements: int
    size: int
    factors: tuple[int, ...]
    decode: Callable[[np.ndarray], F32]

    @property
    def is_blocks(self) -> bool:
        return self.elements > 1

    def numbers(self, stored: np.ndarray) -> F32:
        """What stored bytes mean, in order."""
        with np.errstate(all="ignore"):
            return self.decode(stored.reshape(-1, self.size)).reshape(-1).astype(np.float32)

    def random(self, rng: np.random.Generator, elements: int) -> np.ndarray:
        """Stored numbers of about the size of weights, all bits of blocks in use."""
        assert elements % self.elements == 0, f"{elements} numbers of {self.name}"
        if self.name in ("f32", "f16", "bf16"):
            values = rng.standard_normal(elements).astype(np.float32) * np.float32(0.5)
            return stored_plain(self.name, values)
        stored = rng.integers(0, 256, (elements // self.elements, self.size), np.uint8)
        if self.name == "f8_e4m3":
            return np.where(stored & 127 >= 104, stored & 0x9F, stored).astype(np.uint8).reshape(-1)
        if self.name == "f8_e5m2":
            return np.where(stored & 127 >= 76, stored & 0xBF, stored).astype(np.uint8).reshape(-1)
        for at in self.factors:
            values = rng.uniform(0.004, 0.05, len(stored)) * rng.choice([-1, 1], len(stored))
            stored[:, at : at + 2] = values.astype(np.float16).reshape(-1, 1).view(np.uint8)
        return stored.reshape(-1)


def stored_plain(name: str, values: F32) -> np.ndarray:
    """Numbers as bytes of a type without blocks of 16 or 32 bits."""
    if name == "f32":
        return values.astype(np.float32).view(np.uint8)
    bits = floats.f16_bits(values) if name == "f16" else floats.bf16_bits(values)
    return bits.view(np.uint8)


def plain(of: Callable[[np.ndarray], F32]):
    return lambda b: of(np.ascontiguousarray(b))


LISTED = [
    ("f32", 1, 4, (), plain(lambda b: b.view(np.float32))),
    ("f16", 1, 2, (), plain(lambda b: b.view(np.float16).astype(np.float32))),
    ("bf16", 1, 2, (), plain(lambda b: floats.f32_of_bf16(b.view(np.uint16)))),
    ("f8_e4m3", 1, 1, (), f8_e4m3), ("f8_e5m2", 1, 1, (), f8_e5m2),
    ("q8_0", 32, 34, (0,), q8_0), ("q4_0", 32, 18, (0,), q4_0), ("q4_1", 32, 20, (0, 2), q4_1),
    ("q5_0", 32, 22, (0,), q5_0), ("q5_1", 32, 24, (0, 2), q5_1),
    ("q2_k", 256, 84, (80, 82), q2_k), ("q3_k", 256, 110, (108,), q3_k), ("q4_k", 256, 144, (0, 2), q4_k),
    ("q5_k", 256, 176, (0, 2), q5_k), ("q6_k", 256, 210, (208,), q6_k),
    ("iq1_s", 256, 50, (0,), iq1_s), ("iq2_xxs", 256, 66, (0,), iq2_xxs), ("iq2_xs", 256, 74, (0,), iq2_xs),
    ("iq2_s", 256, 82, (0,), iq2_s), ("iq3_xxs", 256, 98, (0,), iq3_xxs), ("iq3_s", 256, 110, (0,), iq3_s),
    ("iq4_nl", 32, 18, (0,), iq4_nl), ("iq4_xs", 256, 136, (0,), iq4_xs),
]  # fmt: skip
STORAGES = {name: Storage(name, kind, *rest) for kind, (name, *rest) in enumerate(LISTED)}
# Types with kernels of their own where weights become 16-bit numbers; one kernel is for all others.
COMMON = ("bf16", "f8_e4m3", "f8_e5m2", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k")
VECTORS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
