"""Linear layers in f32, and what is left of others after cuBLASLt."""

import numpy as np

from ..launch import Device
from ..storage import STORAGES, Storage
from .converting import inputs_of
from .tools import (
    ACTIVATION_KINDS, ELEMENTS, NO_VECTOR, THREADS, UNIT, Case, after, f32_of, held_by, near, normal, short_bits,
    vector,
)  # fmt: skip

SCALE = np.float32(0.6)


class Output:
    """Where a layer's results go: some columns of a wider value, and what is done with sums on the way."""

    def __init__(self, device: Device, rng, rows: int, columns: int, **wanted):
        self.device, self.rows, self.columns = device, rows, columns
        self.element = wanted.get("element", "f32")
        self.activation = wanted.get("activation", "none")
        self.start, self.stride = wanted.get("start", 0), wanted.get("stride", columns)
        self.bias = np.zeros(columns)
        self.vector = NO_VECTOR
        kind = wanted.get("bias")
        if kind:
            bias = normal(rng, columns)
            self.bias = held_by(kind, bias) * 0.5
            self.vector = vector(device, "bias", kind, bias, 0.5)
        # What the launch leaves alone holds what was there.
        self.before = short_bits(self.element, normal(rng, rows, self.stride))
        self.buffer = device.update("out", self.before)

    def arguments(self, storage: int):
        """A LinearOut."""
        return (("Qq", self.buffer.address, self.stride), self.vector,
                ("3if4I", self.rows, self.columns, self.start, SCALE, ACTIVATION_KINDS[self.activation], storage,
                 ELEMENTS[self.element], 0))

    def check(self, sums: np.ndarray, bound: np.ndarray):
        """`sums` are what the products sum to, without the scale, within a bound."""
        want = sums * np.float64(SCALE) + self.bias
        bound = bound * np.float64(SCALE) + 2 * UNIT * (np.abs(sums * np.float64(SCALE)) + np.abs(want))
        want, bound = after(self.activation, want, bound)
        got = self.device.memory.content(self.buffer, np.float32 if self.element == "f32" else np.uint16)
        got = got.reshape(self.rows, self.stride)
        mine = slice(self.start, self.start + self.columns)
        near("out", f32_of(self.element, np.ascontiguousarray(got[:, mine])), want, bound, self.element)
        rest = np.delete(got, np.arange(self.stride)[mine], axis=1)
        assert (rest == np.delete(self.before, np.arange(self.stride)[mine], axis=1)).all(), "other columns were written"


def products(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x · wᵀ of f32, and what f32 sums in whatever order may be off by: a unit of all magnitudes for each addition."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    return x @ w.T, (x.shape[1] + 2) * UNIT * (np.abs(x) @ np.abs(w).T)


def linear(device, rng, source: str, kernel: str, storage: Storage, rows: int, columns: int, features: tuple[int, ...], **wanted):
    depth = sum(features)
    places, counts, x = inputs_of(device, rng, rows, features)
    count = columns * depth
    stored = storage.random(rng, -(-count // storage.elements) * storage.elements)
    w = storage.numbers(stored)[:count].reshape(columns, depth)
    out = Output(device, rng, rows, columns, **wanted)
    weights = device.read("w", stored, wanted.get("misplaced", 0))
    device.use(source)
    if source == "linear_few":
        grid, block = [-(-columns // 8)], [128]
    else:
        side = 128 if kernel.endswith("_large") else 64
        grid, block = [-(-rows // side) * -(-columns // side)], [side * side // 64]
    device.launch(source, kernel, grid, block, *out.arguments(storage.kind), ("5Q", *places, weights.address), ("4iii", *counts, depth, 0))
    out.check(*products(x, w))


def finish(device, rng, rows: int, columns: int, factors: bool, down: int, **wanted):
    out = Output(device, rng, rows, columns, **wanted)
    sums = out.before[:, out.start : out.start + columns].astype(np.float64)
    by = np.exp2(rng.integers(-3, 4, rows)).astype(np.float32)
    address = device.read("factors", by).address if factors else 0
    device.launch("linear_finish", "linear_finish", [-(-columns // THREADS), down], [THREADS], *out.arguments(0), ("Q", address))
    out.check(sums * by[:, None] if factors else sums, np.zeros_like(sums))


# Types with kernels of their own in linear_few.cu; all others share one.
COMMON = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k")


def variants(depth: int):
    """Ways in which a layer's results are wanted, by turns."""
    return [
        {"bias": "f32", "activation": "gelu_tanh"}, {"bias": "bf16", "activation": "silu", "element": "bf16"},
        {"bias": "f16", "activation": "gelu_erf", "element": "f16"}, {"start": 3, "stride": 50}, {"activation": "quick_gelu"},
        {"bias": "f8_e4m3", "start": 4, "stride": 52, "element": "bf16"}, {"bias": "f8_e5m2"},
    ][depth % 7]  # fmt: skip


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for index, storage in enumerate(STORAGES.values()):
        name = storage.name if storage.name in COMMON else "any"
        depth = max(storage.elements, 32) * 2 if storage.elements < 256 else 512
        for rows, size in ((1, "one"), (5, "eight")):
            wanted = variants(index + rows)
            yield Case("linear_few", f"{storage.name} {size}", of(
                linear, "linear_few", f"linear_few_{name}_{size}", storage, rows, 19, (depth,), **wanted))
        plain = storage.name if storage.name in ("f32", "f16", "bf16") else "any"
        yield Case("linear_exact", f"{storage.name} small", of(
            linear, "linear_exact", f"linear_exact_{plain}_small", storage, 17, 21, (depth,), **variants(index)))
    for name in ("f32", "f16", "bf16", "f8_e4m3"):
        storage = STORAGES[name]
        kernel = name if name != "f8_e4m3" else "any"
        for features in ((13,), (8, 3, 20, 5), (1100,), (4, 12)):
            yield Case("linear_few", f"{name} of {features}", of(
                linear, "linear_few", f"linear_few_{name}_eight", storage, 8, 9, features, bias="f32"))
            if features[0] < 1000:
                yield Case("linear_exact", f"{name} of {features}", of(
                    linear, "linear_exact", f"linear_exact_{kernel}_small", storage, 70, 9, features, bias="f32"))
        yield Case("linear_exact", f"{name} large", of(
            linear, "linear_exact", f"linear_exact_{kernel}_large", storage, 150, 131, (40,), bias="f32"))
    # Blocks that run over the ends of rows.
    for name in ("q4_0", "q6_k", "iq3_s"):
        for source, kernel, rows in (("linear_few", "linear_few_{}_one", 1), ("linear_few", "linear_few_{}_eight", 3),
                                     ("linear_exact", "linear_exact_any_small", 11)):
            kernel = kernel.format(name if name in COMMON else "any")
            yield Case(source, f"{name}, {rows} odd rows", of(linear, source, kernel, STORAGES[name], rows, 9, (44,)))
    yield Case("linear_exact", "more tiles than a band", of(
        linear, "linear_exact", "linear_exact_f32_small", STORAGES["f32"], 64 * 17 + 1, 65, (16,)))
    yield Case("linear_finish", "linear_finish", of(finish, 21, 300, False, 3, bias="f32", start=5, stride=310))
    yield Case("linear_finish", "linear_finish by factors", of(finish, 21, 40, True, 2, activation="gelu_tanh"))
    for index, activation in enumerate(ACTIVATION_KINDS):
        kind = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")[index]
        yield Case("linear_finish", f"linear_finish {activation}", of(finish, 9, 33, True, 2, activation=activation, bias=kind))


