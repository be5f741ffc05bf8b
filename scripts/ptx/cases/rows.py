"""Kernels that go over values element by element, or over the rows of tokens."""

import numpy as np

from ..memory import Buffer
from .tools import (
    ACTIVATIONS, BYTES, ELEMENTS, THREADS, UNIT, Case, after, blocks_for, equal, held_by, near, normal, result, row_launch,
    vector,
)  # fmt: skip


def elementwise(device, rng, kernel: str, elements: int, in_place: bool):
    x, y = normal(rng, elements, size=3), normal(rng, elements)
    x[: min(elements, 4)] = [0.0, -0.0, 30.0, -30.0][:elements]
    x_at = device.update("x", x) if in_place else device.read("x", x)
    out = x_at if in_place else device.write("out", 4 * elements)
    y_at = device.read("y", y) if kernel in ("add", "mul") else None
    addresses = (out.address, x_at.address, y_at.address if y_at else 0)
    device.launch("elementwise", kernel, blocks_for(elements // 4), [THREADS], ("3Qq", *addresses, elements))
    got = result(device, out, "f32", elements)
    if kernel in ("add", "mul"):
        equal("out", got, x + y if kernel == "add" else x * y)
    else:
        near("out", got, *after(kernel.removeprefix("activate_"), x, np.zeros(elements)))


def many_blocks(device, rng):
    """A grid too small for all, so that each thread takes several fours."""
    elements = 4 * 32 * 5 + 2
    x, y = normal(rng, elements), normal(rng, elements)
    out = device.write("out", 4 * elements)
    addresses = (out.address, device.read("x", x).address, device.read("y", y).address)
    device.launch("elementwise", "add", [2], [32], ("3Qq", *addresses, elements))
    equal("out", result(device, out, "f32", elements), x + y)


def chunks_of(rng, batch: int, chunks: int, features: int):
    """Modulations `[batch, chunks × features]`."""
    return normal(rng, batch, chunks * features, size=0.7)


def gated_add(device, rng, batch: int, tokens: int, features: int, in_place: bool):
    x, y = normal(rng, batch, tokens, features), normal(rng, batch, tokens, features)
    chunks = chunks_of(rng, batch, 3, features)
    x_at = device.update("x", x) if in_place else device.read("x", x)
    out: Buffer = x_at if in_place else device.write("out", x.nbytes)
    gates = device.read("gates", chunks)
    rows = batch * tokens
    addresses = (out.address, x_at.address, device.read("y", y).address, gates.address + 4 * features)
    device.launch("token_rows", "gated_add", *row_launch(rows, features, 4),
                  ("4QqIIII", *addresses, 3 * features, rows, tokens, features, 0))
    want = x.astype(np.float64) + chunks[:, None, features : 2 * features].astype(np.float64) * y
    near("out", result(device, out, "f32", *x.shape), want, UNIT * np.abs(want))


def scaled_add(device, rng, rows: int, features: int, first: int, y_features: int):
    x, y = normal(rng, rows, features), normal(rng, rows, y_features)
    out = device.write("out", x.nbytes)
    addresses = (out.address, device.read("x", x).address, device.read("y", y).address)
    device.launch("token_rows", "scaled_add", *row_launch(rows, features, 4),
                  ("3QIIIIfI", *addresses, rows, features, first, y_features, 0.3, 0))
    want = x.astype(np.float64)
    want[:, first : first + y_features] += np.float64(np.float32(0.3)) * y
    near("out", result(device, out, "f32", *x.shape), want, UNIT * np.abs(want))


def rope(device, rng, source: str, shape: tuple[int, int, int, int], element: str, in_place: bool = False):
    """`shape`: batch, tokens, heads, features of a head."""
    batch, tokens, heads, head_dim = shape
    features, half = heads * head_dim, head_dim // 2
    x = normal(rng, *shape)
    angles = rng.uniform(0, 6.3, (tokens, half))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
    x_at = device.update("x", x) if in_place else device.read("x", x)
    out = x_at if in_place else device.write("out", x.size * BYTES[element])
    rows = batch * tokens
    launch = row_launch(rows, features, 4) if source == "token_rows" else row_launch(rows, features // 2, 1)
    kernel = "rope" if source == "token_rows" else source
    device.launch(source, kernel, *launch, ("3QIIIIII", out.address, x_at.address, device.read("table", table).address,
                                            rows, tokens, features, head_dim, ELEMENTS[element], 0))
    wide = x.astype(np.float64)
    apart = wide.reshape(batch, tokens, heads, half, 2) if source == "token_rows" else np.moveaxis(
        wide.reshape(batch, tokens, heads, 2, half), 3, 4)
    cos, sin = (table[None, :, None, :, i].astype(np.float64) for i in range(2))
    turned = np.stack([apart[..., 0] * cos - apart[..., 1] * sin, apart[..., 1] * cos + apart[..., 0] * sin], axis=-1)
    size = np.abs(apart[..., 0]) + np.abs(apart[..., 1])
    bound = 2 * UNIT * np.stack([size, size], axis=-1)
    if source != "token_rows":
        turned, bound = (np.moveaxis(of, 4, 3) for of in (turned, bound))
    near("out", result(device, out, element, *shape), turned.reshape(shape), bound.reshape(shape), element)


def pad_tokens(device, rng, batch: int, tokens: int, out_tokens: int, features: int, known: int | None, kind: str):
    x, padding = normal(rng, batch, tokens, features), normal(rng, features)
    out = device.write("out", 4 * batch * out_tokens * features)
    known_at = device.read("known", np.array([known], np.int32)).address if known is not None else 0
    rows = batch * out_tokens
    device.launch("pad_tokens", "pad_tokens", *row_launch(rows, features, 4), ("3Q", out.address, device.read("x", x).address, known_at),
                  vector(device, "padding", kind, padding, 0.5), ("4I", rows, out_tokens, tokens, features))
    count = tokens if known is None else min(known, tokens)
    want = np.broadcast_to(held_by(kind, padding) * np.float32(0.5), (batch, out_tokens, features)).copy()
    want[:, :count] = x[:, :count]
    equal("out", result(device, out, "f32", *want.shape), want)


def copy_spans(device, rng, spans: int, span: int, in_stride: int, out_stride: int, misplaced: int = 0):
    """Bytes of spans; what lies between them in the result is not touched."""
    source = rng.integers(0, 256, spans * in_stride, np.uint8)
    before = rng.integers(0, 256, spans * out_stride, np.uint8)
    at, out = device.read("in", source, misplaced), device.update("out", before, misplaced)
    device.launch("tokens", "copy_spans", [blocks_for(span // 16)[0], spans], [THREADS],
                  ("2Q3q", out.address, at.address, span, out_stride, in_stride))
    want = before.reshape(spans, out_stride).copy()
    want[:, :span] = source.reshape(spans, in_stride)[:, :span]
    equal("out", device.memory.content(out, np.uint8).reshape(want.shape), want)


def sinusoid(device, rng, batch: int, features: int, largest: float, scale: float = 1.0):
    times = np.concatenate([[0.0, largest], rng.uniform(0, largest, batch)])[:batch].astype(np.float32)
    out = device.write("out", 4 * batch * features)
    exponent = np.float32(-np.log(10_000.0))
    device.use("tokens")
    device.launch("tokens", "sinusoid", [-(-batch * features // 2 // THREADS)], [THREADS],
                  ("2QIIff", out.address, device.read("times", times).address, batch, features, exponent, scale))
    half = features // 2
    # As the kernel rounds: exponents, frequencies and angles are f32.
    exponents = exponent * np.arange(half, dtype=np.float32) / np.float32(half)
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angles = (np.float32(scale) * (times[:, None] * frequencies)).astype(np.float64)
    want = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    # A frequency may be rounded to the other side: the angle is then off by one unit in the last place.
    slack = np.concatenate([np.abs(angles)] * 2, axis=1) * 2 * UNIT
    near("out", result(device, out, "f32", batch, features), want, UNIT + slack)


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for kernel in ["add", "mul", *(f"activate_{name}" for name in ACTIVATIONS if name != "none")]:
        yield Case("elementwise", f"{kernel} 1003", of(elementwise, kernel, 1003, False))
        yield Case("elementwise", f"{kernel} 64 in place", of(elementwise, kernel, 64, True))
    yield Case("elementwise", "add 3", of(elementwise, "add", 3, False))
    yield Case("elementwise", "add, few blocks", many_blocks)
    for in_place in (False, True):
        yield Case("token_rows", f"gated_add 2x3x20 {in_place}", of(gated_add, 2, 3, 20, in_place))
    yield Case("token_rows", "gated_add 1x5x7", of(gated_add, 1, 5, 7, False))
    yield Case("token_rows", "gated_add 1x2x1100", of(gated_add, 1, 2, 1100, False))
    for shape in ((3, 24, 8, 12), (5, 10, 3, 5), (2, 24, 0, 24), (2, 24, 22, 2)):
        yield Case("token_rows", f"scaled_add {shape}", of(scaled_add, *shape))
    for element in ELEMENTS:
        yield Case("token_rows", f"rope {element}", of(rope, "token_rows", (2, 3, 2, 12), element))
        yield Case("token_rows", f"rope {element}, odd pairs", of(rope, "token_rows", (1, 3, 3, 6), element))
        yield Case("rope_halves", f"rope_halves {element}", of(rope, "rope_halves", (2, 3, 2, 12), element))
        yield Case("rope_halves", f"rope_halves {element}, wide", of(rope, "rope_halves", (1, 2, 5, 128), element))
    yield Case("token_rows", "rope in place", of(rope, "token_rows", (1, 4, 2, 16), "f32", in_place=True))
    yield Case("rope_halves", "rope_halves in place", of(rope, "rope_halves", (1, 4, 2, 10), "f32", in_place=True))
    for kind in ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"):
        yield Case("pad_tokens", f"pad_tokens {kind}", of(pad_tokens, 2, 3, 5, 12, 2, kind))
    for known in (None, 0, 9):
        yield Case("pad_tokens", f"pad_tokens, {known} known", of(pad_tokens, 2, 4, 6, 7, known, "f32"))
    yield Case("tokens", "copy_spans of 16", of(copy_spans, 3, 5 * 16, 112, 96))
    yield Case("tokens", "copy_spans of 4", of(copy_spans, 2, 52, 60, 52))
    yield Case("tokens", "copy_spans of 2", of(copy_spans, 2, 34, 38, 40))
    yield Case("tokens", "copy_spans at 2", of(copy_spans, 2, 64, 64, 80, 2))
    yield Case("tokens", "copy_spans long", of(copy_spans, 1, 16 * 700, 16 * 700, 16 * 700))
    yield Case("tokens", "sinusoid", of(sinusoid, 3, 20, 1000.0))
    yield Case("tokens", "sinusoid, scaled", of(sinusoid, 3, 20, 1.0, 1000.0))
    yield Case("tokens", "sinusoid, large angles", of(sinusoid, 4, 8, 3e9))
