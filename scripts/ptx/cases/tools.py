"""What cases share: stored vectors, short floats, and comparisons within a bound."""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from .. import floats
from ..errors import Fault
from ..launch import Device
from ..memory import Buffer
from ..storage import STORAGES

# Half the distance of f32 numbers between 1 and 2: what one rounding errs by, of the size of its result.
UNIT = 2.0**-24

# ElementKind of element.cuh, by name.
ELEMENTS = {"f32": 0, "f16": 1, "bf16": 2}
# Half the distance of neighbours, of their size; and the least such.
ROUNDING = {"f32": (0.0, 0.0), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 0.0)}
BYTES = {"f32": 4, "f16": 2, "bf16": 2}
THREADS = 256


@dataclasses.dataclass(frozen=True)
class Case:
    """A small case of a kernel. `run` launches it and compares; `architectures` are those that have it."""

    source: str
    name: str
    run: Callable[[Device, np.random.Generator], None]
    architectures: tuple[int, ...] = (75, 80)


def normal(rng: np.random.Generator, *shape: int, size: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * size).astype(np.float32)


def short_bits(element: str, values: np.ndarray) -> np.ndarray:
    """f32 as a value of this element lies in memory; what f16 does not hold becomes its largest number."""
    values = np.asarray(values, np.float32)
    if element == "f16":
        return floats.f16_bits(np.clip(values, -65504, 65504))
    return floats.bf16_bits(values) if element == "bf16" else values


def f32_of(element: str, stored: np.ndarray) -> np.ndarray:
    if element == "f16":
        return stored.view(np.float16).astype(np.float32)
    return floats.f32_of_bf16(stored) if element == "bf16" else stored


def rounded(element: str, values: np.ndarray) -> np.ndarray:
    """f32 rounded to an element and back."""
    return f32_of(element, short_bits(element, values))


def vector(device: Device, name: str, kind: str, values: np.ndarray, scale: float = 1.0, misplaced: int = 0):
    """A StoredVector of values that its type holds as they are: its argument."""
    buffer = device.read(name, stored_as(kind, values), misplaced)
    return ("QfI", buffer.address, scale, STORAGES[kind].kind)


def stored_as(kind: str, values: np.ndarray) -> np.ndarray:
    """Values as stored; of 8 bits the ones nearest to them."""
    if kind in ELEMENTS:
        return np.ascontiguousarray(short_bits(kind, values))
    every = STORAGES[kind].numbers(np.arange(256, dtype=np.uint8))
    every = np.where(np.isfinite(every), every, np.float32(1e30))
    return np.abs(every[None, :] - np.asarray(values)[:, None]).argmin(axis=1).astype(np.uint8)


def held_by(kind: str, values: np.ndarray) -> np.ndarray:
    """Those of a type's numbers that are nearest to values."""
    return STORAGES[kind].numbers(stored_as(kind, values).view(np.uint8))


NO_VECTOR = ("QfI", 0, 1.0, 0)


def equal(name: str, got: np.ndarray, want: np.ndarray):
    """To the bit, but for what is no number."""
    same = (got == want) | (np.isnan(got) & np.isnan(want)) if got.dtype.kind == "f" else got == want
    if not same.all():
        one = np.unravel_index(int(np.argmin(same)), got.shape)
        place = tuple(int(i) for i in one)
        raise Fault("difference", f"{name}{list(place)} is {got[place]!r}, not {want[place]!r}; {int((~same).sum())} of {got.size} differ")


def near(name: str, got: np.ndarray, want: np.ndarray, bound, element: str = "f32"):
    """Within a bound, and what rounding to the element adds to it."""
    want = np.asarray(want, np.float64)
    if element == "f16":
        # What it does not hold becomes its largest number.
        want = np.clip(want, -65504, 65504)
    relative, least = ROUNDING[element]
    limit = np.broadcast_to(np.asarray(bound, np.float64), want.shape)
    limit = limit + (np.abs(want) + limit) * relative + least + 1e-38
    wrong = ~(np.abs(np.asarray(got, np.float64) - want) <= limit)
    if wrong.any():
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), got.shape))
        told = f"{name}{list(place)} is {got[place]!r}, not {want[place]!r} within {limit[place]:.3g}"
        raise Fault("difference", f"{told}; {int(wrong.sum())} of {got.size} differ")


def result(device: Device, buffer: Buffer, element: str, *shape: int) -> np.ndarray:
    """What a launch wrote, as f32."""
    stored = device.memory.content(buffer, np.float32 if element == "f32" else np.uint16)
    return f32_of(element, stored).reshape(shape)


# --- Activations, by graph::Activation. None of them is steeper than 1.13.

STEEPEST = 1.13
erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "none": lambda x: x,
    "silu": lambda x: x * sigmoid(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
}
ACTIVATION_KINDS = {name: kind for kind, name in enumerate(ACTIVATIONS)}
# Of an activation's own arithmetic: some roundings, an exponential of 2 units, and an argument that is off by as much.
ACTIVATION_UNITS = 24


def after(activation: str, sums: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An activation of sums that are known within a bound."""
    with np.errstate(over="ignore"):
        want = ACTIVATIONS[activation](np.asarray(sums, np.float64))
    if activation == "none":
        return want, bound
    return want, STEEPEST * bound + ACTIVATION_UNITS * UNIT * (np.abs(want) + 0.1 * np.minimum(np.abs(sums), 1))


# --- Launches as executor/src/backend/cuda/ops has them.


def row_launch(rows: int, features: int, each: int):
    """`row_launch` of elementwise.rs: grid and block."""
    of_row = min(1 << (-(-features // each) - 1).bit_length(), THREADS)
    of_block = THREADS // of_row
    return [-(-rows // of_block)], [of_row, of_block]


def whole_row_launch(rows: int, features: int):
    """`whole_row_launch` of norm.rs."""
    threads = min(max(-(-(-(-features // 16)) // 32) * 32, 32), 1024)
    of_block = THREADS // 32 if threads == 32 else 1
    return [-(-rows // of_block)], [threads, of_block]


def blocks_for(items: int) -> list[int]:
    """`blocks_for` of ops.rs."""
    return [min(max(-(-items // THREADS), 1), 4096)]


def each(source: str, *cases: tuple[str, Callable]) -> Iterator[Case]:
    for name, run in cases:
        yield Case(source, name, run)
