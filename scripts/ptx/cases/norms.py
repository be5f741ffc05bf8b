"""Normalisations of rows and of pictures."""

import numpy as np

from ..storage import VECTORS
from .rows import chunks_of
from .tools import BYTES, ELEMENTS, NO_VECTOR, THREADS, UNIT, Case, f32_of, held_by, near, normal, result, short_bits, vector, whole_row_launch

EPS = 1e-5


def bound_of(features: int, normal_size, factor, more=0.0):
    """Of a normalised value times a factor. A tree of sums errs by some 20 roundings at most however long a row is here; what is
    subtracted and the root err by a few; 4 more for the products."""
    depth = 12 + np.log2(max(features, 2)) + features / 256
    return UNIT * (depth * (np.abs(normal_size) + 1) * np.abs(factor) + 2 * np.abs(more))


def moments(x, eps):
    x = np.asarray(x, np.float64)
    mean = x.mean(axis=-1, keepdims=True)
    return mean, 1 / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)


def inverse_root(x, eps):
    return 1 / np.sqrt((np.asarray(x, np.float64) ** 2).mean(axis=-1, keepdims=True) + eps)


def places(device, x, element: str, in_place: bool):
    x_at = device.update("x", x) if in_place else device.read("x", x)
    return x_at, x_at if in_place else device.write("out", x.size * BYTES[element])


def layer_norm(device, rng, rows: int, features: int, kinds: tuple[str, str], element="f32", in_place=False, mean=0.0):
    x = normal(rng, rows, features) + np.float32(mean)
    weight, bias = normal(rng, features), normal(rng, features)
    x_at, out = places(device, x, element, in_place)
    device.launch("norm", "layer_norm", *whole_row_launch(rows, features), ("2Q", out.address, x_at.address),
                  vector(device, "weight", kinds[0], weight, 1.5), vector(device, "bias", kinds[1], bias, 0.5),
                  ("IIfI", rows, features, EPS, ELEMENTS[element]))
    middle, scale = moments(x, EPS)
    weight, bias = held_by(kinds[0], weight) * 1.5, held_by(kinds[1], bias) * 0.5
    plain = (x - middle) * scale
    # A mean of the row's size is known as well as it is.
    bound = bound_of(features, np.abs(plain) + np.abs(middle) * scale, weight, bias)
    near("out", result(device, out, element, rows, features), plain * weight + bias, bound, element)


def ada_layer_norm(device, rng, batch: int, tokens: int, features: int, element="f32"):
    x, chunks = normal(rng, batch, tokens, features), chunks_of(rng, batch, 4, features)
    x_at, out = places(device, x, element, False)
    at, rows = device.read("chunks", chunks).address, batch * tokens
    device.launch("norm", "ada_layer_norm", *whole_row_launch(rows, features),
                  ("4QqIIIfII", out.address, x_at.address, at + 4 * features, at + 12 * features, 4 * features,
                   rows, tokens, features, EPS, ELEMENTS[element], 0))
    middle, scale = moments(x, EPS)
    shift, factor = (chunks[:, None, i * features : (i + 1) * features].astype(np.float64) for i in (1, 3))
    plain = (x - middle) * scale
    bound = bound_of(features, plain, 1 + factor, shift)
    near("out", result(device, out, element, *x.shape), plain * (1 + factor) + shift, bound, element)


def rms_norm(device, rng, rows: int, features: int, kind: str, element="f32", in_place=False):
    x, weight = normal(rng, rows, features), normal(rng, features)
    x_at, out = places(device, x, element, in_place)
    device.launch("norm", "rms_norm", *whole_row_launch(rows, features), ("2Q", out.address, x_at.address),
                  vector(device, "weight", kind, weight, 0.75), ("IIfI", rows, features, EPS, ELEMENTS[element]))
    want = x * inverse_root(x, EPS)
    weight = held_by(kind, weight) * 0.75
    near("out", result(device, out, element, rows, features), want * weight, bound_of(features, want, weight), element)


def scaled_norm(device, rng, kernel: str, batch: int, tokens: int, features: int, kind="f32", element="f32"):
    x, weight = normal(rng, batch, tokens, features), normal(rng, features)
    chunks, rows = chunks_of(rng, batch, 2, features), batch * tokens
    x_at, out = places(device, x, element, False)
    is_rms = kernel == "scaled_rms_norm"
    device.launch("modulated_norm", kernel, *whole_row_launch(rows, features), ("2Q", out.address, x_at.address),
                  vector(device, "weight", kind, weight) if is_rms else NO_VECTOR,
                  ("QqIIIfII", device.read("chunks", chunks).address + 4 * features, 2 * features, rows, tokens, features, EPS,
                   ELEMENTS[element], 0))
    middle, scale = moments(x, EPS)
    plain = x * inverse_root(x, EPS) if is_rms else (x - middle) * scale
    factor = 1 + chunks[:, None, features:].astype(np.float64)
    factor = factor * held_by(kind, weight) if is_rms else factor
    near("out", result(device, out, element, *x.shape), plain * factor, bound_of(features, plain, factor), element)


def gated_norm_add(device, rng, batch: int, tokens: int, features: int, kind: str, gated: bool, in_place: bool):
    x, y, weight = normal(rng, batch, tokens, features), normal(rng, batch, tokens, features), normal(rng, features)
    chunks, rows = chunks_of(rng, batch, 2, features) * 3, batch * tokens
    x_at, out = places(device, x, "f32", in_place)
    gate, stride = (device.read("chunks", chunks).address + 4 * features, 2 * features) if gated else (0, 0)
    device.launch("modulated_norm", "gated_norm_add", *whole_row_launch(rows, features),
                  ("3Q", out.address, x_at.address, device.read("y", y).address), vector(device, "weight", kind, weight),
                  ("QqIIIf", gate, stride, rows, tokens, features, EPS))
    plain = y * inverse_root(y, EPS)
    factor = np.broadcast_to(held_by(kind, weight).astype(np.float64), x.shape)
    if gated:
        factor = factor * np.tanh(chunks[:, None, features:].astype(np.float64))
    want = x + plain * factor
    near("out", result(device, out, "f32", *x.shape), want, bound_of(features, plain, factor, np.abs(x) + np.abs(want)))


# --- Group norm: executor/src/backend/cuda/ops/norm/group.rs.


class Cut:
    """`GroupNormGrid`."""

    def __init__(self, pixels: int, channels: int, groups: int):
        self.width = 4 if channels // groups % 4 == 0 else 1
        self.columns = channels // self.width
        across = min(1 << (self.columns - 1).bit_length(), THREADS)
        self.block = [across, THREADS // across]
        self.chunk_pixels = max(-(-pixels // 512), 8 * self.block[1])
        self.chunks = -(-pixels // self.chunk_pixels)

    def grid(self, batch: int):
        return [self.chunks, -(-self.columns // self.block[0]), batch]


def group_norm(device, rng, batch: int, pixels: int, channels: int, groups: int, element="f32", silu=False, mean=0.0, in_place=False):
    x = normal(rng, batch, pixels, channels) + np.float32(mean)
    cut = Cut(pixels, channels, groups)
    stored = short_bits(element, x)
    x = f32_of(element, stored)
    x_at = device.update("x", stored) if in_place else device.read("x", stored)
    partials = device.write("partials", 8 * batch * cut.chunks * cut.columns)
    found = device.write("moments", 8 * batch * groups)
    weight, bias = normal(rng, channels), normal(rng, channels)
    vectors = (vector(device, "weight", "bf16", weight), vector(device, "bias", "f16", bias, 2.0))
    out = x_at if in_place else device.write("out", 4 * x.size)
    device.launch("group_norm", "group_norm_spread", cut.grid(batch), cut.block,
                  ("2Q6I", x_at.address, partials.address, pixels, channels, cut.chunk_pixels, cut.columns, ELEMENTS[element], 0))
    device.launch("group_norm", "group_norm_moments", [groups, batch], [128],
                  ("2Q6IfI", found.address, partials.address, pixels, cut.chunk_pixels, cut.chunks, cut.columns,
                   cut.columns // groups, cut.width, EPS, 0))
    grouped = x.reshape(batch, pixels, groups, channels // groups).astype(np.float64)
    middle = grouped.mean(axis=(1, 3))
    scale = 1 / np.sqrt(((grouped - middle[:, None, :, None]) ** 2).mean(axis=(1, 3)) + EPS)
    got = device.memory.content(found, np.float32).reshape(batch, groups, 2)
    size = np.abs(middle) + 1 / scale
    near("mean", got[:, :, 0], middle, 16 * UNIT * size)
    near("scale", got[:, :, 1], scale, 32 * UNIT * scale * (1 + UNIT * (middle * scale) ** 2 / UNIT**0.5))
    if element != "f32":
        return
    device.launch("group_norm", "group_norm_apply", cut.grid(batch), cut.block, ("3Q", out.address, x_at.address, found.address),
                  *vectors, ("6I", pixels, channels, cut.chunk_pixels, cut.columns, groups, int(silu)))
    plain = ((grouped - middle[:, None, :, None]) * scale[:, None, :, None]).reshape(x.shape)
    want = plain * held_by("bf16", weight) + 2 * held_by("f16", bias).astype(np.float64)
    tails = np.repeat(np.abs(middle) * scale, channels // groups, axis=1)[:, None, :]
    bound = 40 * UNIT * ((np.abs(plain) + tails + 1) * np.abs(weight) + np.abs(want))
    if silu:
        want, bound = want / (1 + np.exp(-want)), 1.2 * bound + 24 * UNIT * np.abs(want)
    near("out", result(device, out, "f32", *x.shape), want, bound)


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for kind in VECTORS:
        yield Case("norm", f"layer_norm {kind}", of(layer_norm, 3, 24, (kind, kind)))
        yield Case("norm", f"rms_norm {kind}", of(rms_norm, 3, 24, kind))
        yield Case("modulated_norm", f"scaled_rms_norm {kind}", of(scaled_norm, "scaled_rms_norm", 2, 2, 20, kind))
        yield Case("modulated_norm", f"gated_norm_add {kind}", of(gated_norm_add, 2, 2, 20, kind, True, False))
    for element in ELEMENTS:
        for features in (7, 40, 1000, 2308):
            yield Case("norm", f"layer_norm {features} {element}", of(layer_norm, 9, features, ("f32", "bf16"), element))
            yield Case("norm", f"rms_norm {features} {element}", of(rms_norm, 9, features, "bf16", element))
            yield Case("norm", f"ada_layer_norm {features} {element}", of(ada_layer_norm, 2, 3, features, element))
            for kernel in ("scaled_rms_norm", "scaled_layer_norm"):
                name = f"{kernel} {features} {element}"
                yield Case("modulated_norm", name, of(scaled_norm, kernel, 2, 3, features, element=element))
    yield Case("norm", "layer_norm far from zero", of(layer_norm, 2, 600, ("f32", "f32"), mean=1000.0))
    yield Case("norm", "layer_norm in place", of(layer_norm, 2, 600, ("f32", "f32"), in_place=True))
    yield Case("norm", "rms_norm in place", of(rms_norm, 17, 64, "f32", in_place=True))
    # More than a block of 1024 threads keeps of a row.
    yield Case("norm", "layer_norm of 16404", of(layer_norm, 1, 16404, ("f16", "f16")))
    for gated in (False, True):
        for features in (7, 600):
            name = f"gated_norm_add {features} {gated}"
            yield Case("modulated_norm", name, of(gated_norm_add, 1, 3, features, "f32", gated, features == 600))
    for element in ELEMENTS:
        yield Case("group_norm", f"group_norm {element}", of(group_norm, 2, 150, 32, 4, element))
        yield Case("group_norm", f"group_norm {element}, odd groups", of(group_norm, 1, 77, 30, 6, element))
    yield Case("group_norm", "group_norm silu", of(group_norm, 1, 40, 16, 4, silu=True, in_place=True))
    yield Case("group_norm", "group_norm silu, odd", of(group_norm, 1, 40, 6, 2, silu=True))
    yield Case("group_norm", "group_norm far from zero", of(group_norm, 1, 300, 8, 2, mean=100.0))
    yield Case("group_norm", "group_norm of many channels", of(group_norm, 1, 20, 1088, 17))


