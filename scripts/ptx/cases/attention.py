"""Attention: in f32, and on tensor cores with operands as they lie or as attention_pack leaves them."""

import dataclasses

import numpy as np

from ..errors import Fault
from .tools import BYTES, ELEMENTS, UNIT, Case, f32_of, near, normal, result, short_bits

LOG2_E = np.float32(np.log2(np.e))
# Half the distance of neighbours in f16, of their size, and of its subnormal numbers.
F16_ROUNDING, F16_LEAST = 2.0**-11, 2.0**-25
TILE = 64
# Queries of a block of attention_tall, and its shared memory: its queries, and a tile of keys and one of values.
TALL, TALL_BYTES = 128, 2 * 128 * (128 + 2 * 64)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Tokens and heads; `size` multiplies queries and keys; of the keys the first `known` are seen, all where it is None."""

    queries: int
    keys: int
    head_dim: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    causal: bool = False
    biased: bool = False
    known: int | None = None
    size: float = 1.0
    element: str = "f32"


def packed(values: np.ndarray, row_len: int) -> np.ndarray:
    """`[batch, tokens, heads, head_dim]` as f16 `[batch, heads, rows, row_len]` of whole tiles."""
    batch, tokens, heads, head_dim = values.shape
    rows = np.zeros((batch, heads, -(-tokens // TILE) * TILE, row_len), np.float32)
    rows[:, :, :tokens, :head_dim] = np.moveaxis(values, 2, 1)
    return short_bits("f16", rows)


def attend(q, k, v, bias, scale: float, shape: Shape):
    """softmax(scale · q · kᵀ + bias) · v head by head in f64, over the keys that are seen; the same of the magnitudes of v; and
    the largest sum of magnitudes in a score."""
    share = q.shape[2] // k.shape[2]
    q, k, v = (np.moveaxis(of.astype(np.float64), 2, 1) for of in (q, k, v))
    k, v = (np.repeat(of, share, axis=1) for of in (k, v))
    scores = scale * q @ np.swapaxes(k, 2, 3)
    most = (scale * np.abs(q) @ np.abs(np.swapaxes(k, 2, 3))).max()
    queries, keys = scores.shape[2:]
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    if bias is not None:
        scores = scores + bias.astype(np.float64)[:, distance + queries - 1]
        most += np.abs(bias).max()
    if shape.causal:
        scores = np.where(distance > 0, -np.inf, scores)
    if shape.known is not None:
        scores[..., shape.known:] = -np.inf
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    weights /= weights.sum(axis=3, keepdims=True)
    return np.moveaxis(weights @ v, 1, 2), np.moveaxis(weights @ np.abs(v), 1, 2), most


def attention(device, rng, source: str, width: int, shape: Shape, direct: bool = False):
    """`width`: features that the kernel has room for. attention_tall gives the bits of attention_half_direct."""
    exact, tall = source == "attention_exact", source == "attention_tall"
    q = normal(rng, shape.batch, shape.queries, shape.heads, shape.head_dim, size=shape.size)
    k = normal(rng, shape.batch, shape.keys, shape.kv_heads, shape.head_dim, size=shape.size)
    v = normal(rng, shape.batch, shape.keys, shape.kv_heads, shape.head_dim)
    bias = normal(rng, shape.heads, shape.queries + shape.keys - 1) if shape.biased else None
    scale = np.float32(shape.head_dim**-0.5)
    if exact:
        stored = [q, k, v]
    elif direct or tall:
        stored = [short_bits("f16", of) for of in (q, k, v)]
    else:
        stored = [packed(q, width) if source == "attention_wide" else q, packed(k, width), packed(v, width)]
    places = [device.read(name, of).address for name, of in zip("qkv", stored)]
    bias_at = device.read("bias", bias).address if bias is not None else 0
    known_at = device.read("known", np.array([shape.known], np.int32)).address if shape.known is not None else 0
    out = device.write("out", q.size * BYTES[shape.element])
    rows = [-(-tokens // TILE) * TILE for tokens in (shape.queries, shape.keys)]
    threads = 128 if source in ("attention_half", "attention_tall") else 256
    kernel = f"{source}_direct_{width}" if direct else f"{source}_{width}"

    def launch(source: str, kernel: str, queries: int, out, **named):
        device.launch(source, kernel, [-(-shape.queries // queries), shape.heads, shape.batch], [threads],
                      ("6Q7If2I", *places, bias_at, out.address, known_at, shape.queries, shape.keys, *rows, shape.heads, shape.head_dim,
                       int(shape.causal), scale * LOG2_E, ELEMENTS[shape.element], shape.kv_heads), **named)

    if tall:
        other = device.write("other", q.size * BYTES[shape.element])
        launch(source, kernel, TALL, out, shared_bytes=TALL_BYTES)
        launch("attention_half", f"attention_half_direct_{width}", TILE, other)
        one, two = (result(device, of, shape.element, q.size) for of in (out, other))
        if not np.array_equal(one.view(np.uint32), two.view(np.uint32)):
            raise Fault("difference", f"{np.sum(one != two)} of {q.size} elements are not those of attention_half_direct_{width}")
    else:
        launch(source, kernel, TILE, out)
    if not exact:
        q, k, v = (f32_of("f16", short_bits("f16", of)) for of in (q, k, v))
    want, size, most = attend(q, k, v, bias, float(scale), shape)
    # A score is off by the roundings of its sum, its scale and its power; weights by twice that of their size, sums by a rounding
    # for each key. On tensor cores each weight is rounded to f16 too, relative to the largest one.
    units = 4 * (shape.head_dim + 8) * most + shape.keys + 64
    bound = units * UNIT * size
    if not exact:
        # A key's weight may be less than f16 has normal numbers for.
        bound = bound + F16_ROUNDING * size + shape.keys * F16_LEAST * np.abs(v).max()
    near("out", result(device, out, shape.element, *want.shape), want, bound, shape.element)


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    def shapes(head_dim: int, short: bool):
        yield "plain", Shape(70, 90, head_dim)
        yield "few", Shape(3, 5, head_dim, batch=2, heads=2, kv_heads=2, biased=True)
        yield "known", Shape(70, 200, head_dim, batch=2, known=65)
        yield "known, causal", Shape(70, 70, head_dim, causal=True, known=3)
        yield "causal", Shape(130, 130, head_dim, heads=2, kv_heads=1, causal=True, element="bf16" if short else "f32")
        if head_dim <= 64:
            yield "far scores", Shape(66, 200, head_dim, size=5.0)

    for width in (64, 128, 256, 512):
        for name, shape in shapes(width, False):
            if width <= 128 or name != "causal":
                yield Case("attention_exact", f"{width} {name}", of(attention, "attention_exact", width, shape))
        yield Case("attention_exact", f"{width}, {width - 3} features", of(
            attention, "attention_exact", width, Shape(5, 66, width - 3, heads=2, kv_heads=2, biased=True)))
    for width in (16, 32, 64, 128):
        for name, shape in shapes(width, True):
            yield Case("attention_half", f"{width} {name}", of(attention, "attention_half", width, shape))
            yield Case("attention_half", f"direct {width} {name}", of(attention, "attention_half", width, shape, direct=True))
        for lack, element in ((3, "f32"), (3, "bf16"), (6, "bf16")):
            shape = Shape(5, 66, width - lack, heads=2, kv_heads=2, causal=False, element=element)
            yield Case("attention_half", f"{width}, {width - lack} features, {element}", of(attention, "attention_half", width, shape))
    for name, shape in [*shapes(128, True), ("biased", Shape(200, 140, 128, biased=True)), ("far scores", Shape(66, 200, 128, size=5.0))]:
        yield Case("attention_tall", f"tall {name}", of(attention, "attention_tall", 128, shape), architectures=(80,))
    for width in (256, 512):
        for name, shape in shapes(width, True):
            yield Case("attention_wide", f"{width} {name}", of(attention, "attention_wide", width, shape))
        yield Case("attention_wide", f"{width}, {width - 3} features", of(
            attention, "attention_wide", width, Shape(5, 66, width - 3, biased=True)))
