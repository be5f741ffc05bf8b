"""Kernels that read stored tables and weights: what they decode is what the reference decodes, to the bit."""

import numpy as np

from .. import floats
from ..storage import COMMON, STORAGES, Storage
from .tools import THREADS, UNIT, Case, blocks_for, equal, f32_of, normal, result, row_launch

SCALE = np.float32(0.7)


def decode(device, rng, storage: Storage, elements: int, blocks: int | None = None, misplaced: int = 0):
    count = -(-elements // storage.elements) * storage.elements
    stored = storage.random(rng, count)
    if storage.name.startswith("f8"):
        # All bits, also those of what is no number or infinite.
        stored[:256] = np.arange(256)[: stored.size]
    out = device.write("out", 4 * elements)
    device.use("decode")
    device.launch("decode", f"decode_{storage.name}", [blocks] if blocks else blocks_for(-(-elements // 8)), [THREADS if not blocks else 32],
                  ("2QqfI", device.read("in", stored, misplaced).address, out.address, elements, SCALE, 0))
    with np.errstate(all="ignore"):
        want = storage.numbers(stored)[:elements] * SCALE
    equal("out", result(device, out, "f32", elements), want)


def decode_half(device, rng, storage: Storage, elements: int, blocks: int | None = None):
    stored = storage.random(rng, elements)
    out = device.write("out", 2 * elements)
    device.use("decode_half")
    name = storage.name if storage.name in COMMON else "any"
    device.launch("decode_half", f"decode_half_{name}", [blocks] if blocks else blocks_for(-(-elements // 8)), [THREADS if not blocks else 32],
                  ("2Qq2I", device.read("in", stored).address, out.address, elements, storage.kind, 0))
    equal("out", result(device, out, "bf16", elements), f32_of("bf16", floats.bf16_bits(storage.numbers(stored))))


def embedding(device, rng, storage: Storage, features: int, misplaced: int = 0):
    entries = 6
    stored = storage.random(rng, entries * features)
    ids = np.array([5, 0, 3, 3, 1], np.int32)
    out = device.write("out", 4 * ids.size * features)
    device.use("tables")
    device.launch("tables", f"embedding_{storage.name}", *row_launch(ids.size, features, 8),
                  ("3QfI", out.address, device.read("ids", ids).address, device.read("table", stored, misplaced).address, SCALE, 0),
                  ("2I", ids.size, features))
    want = storage.numbers(stored).reshape(entries, features)[ids] * SCALE
    equal("out", result(device, out, "f32", *want.shape), want)


def add_positions(device, rng, storage: Storage, features: int, in_place: bool):
    batch, tokens = 2, 3
    stored = storage.random(rng, (tokens + 1) * features)
    x = normal(rng, batch, tokens, features)
    x_at = device.update("x", x) if in_place else device.read("x", x)
    out = x_at if in_place else device.write("out", x.nbytes)
    device.use("tables")
    device.launch("tables", f"add_positions_{storage.name}", *row_launch(batch * tokens, features, 8),
                  ("3QfI", out.address, x_at.address, device.read("table", stored).address, SCALE, 0),
                  ("4I", batch * tokens, tokens, features, 0))
    rows = storage.numbers(stored).reshape(-1, features)[:tokens]
    # A compiler may make one rounding of the product and the sum, or two.
    want = x.astype(np.float64) + rows.astype(np.float64) * SCALE
    got = result(device, out, "f32", *x.shape)
    assert np.all(np.abs(got - want) <= UNIT * (np.abs(want) + np.abs(rows * SCALE))), "sums are off"
    equal("out", got, x + rows * SCALE)


def bucket(distance: int, buckets: int, range_: np.float32) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    ratio = np.float32(distance) / np.float32(exact)
    share = np.float32(np.log(np.float64(ratio))) / range_
    return min(exact + int(share * np.float32(buckets - exact)), buckets - 1)


def relative_position_bias(device, rng, storage: Storage, tokens: int, heads: int):
    buckets, distance = 32, 128
    stored = storage.random(rng, buckets * heads)
    range_ = np.float32(np.log(distance / (buckets // 4)))
    offsets = 2 * tokens - 1
    out = device.write("out", 4 * heads * offsets)
    device.use("tables")
    device.launch("tables", f"relative_position_bias_{storage.name}", [-(-offsets // THREADS), heads], [THREADS],
                  ("2QfI3If", out.address, device.read("table", stored).address, SCALE, 0, tokens, heads, buckets, range_))
    table = storage.numbers(stored).reshape(buckets, heads) * SCALE
    rows = []
    for offset in range(offsets):
        away = offset - (tokens - 1)
        rows.append(bucket(abs(away), buckets // 2, range_) + (buckets // 2 if away > 0 else 0))
    equal("out", result(device, out, "f32", heads, offsets), table[rows].T)


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    for storage in STORAGES.values():
        name, block = storage.name, storage.elements
        yield Case("decode", f"{name}", of(decode, storage, 3 * max(block, 256)))
        yield Case("decode", f"{name}, few blocks", of(decode, storage, 2 * 32 * 8 * 2 + 256, blocks=2))
        # The last numbers of a weight may be fewer than are decoded together.
        yield Case("decode", f"{name}, odd", of(decode, storage, max(block, 256) * 2 + 5))
        if storage.name not in ("f32", "f16", "bf16"):
            yield Case("decode_half", f"{name}", of(decode_half, storage, 3 * max(block, 256)), (80,))
            yield Case("decode_half", f"{name}, few blocks", of(decode_half, storage, 2 * 32 * 8 * 2 + 256, blocks=2), (80,))
        features = max(block, 64) if storage.is_blocks else 40
        yield Case("tables", f"embedding {name}", of(embedding, storage, features))
        yield Case("tables", f"add_positions {name}", of(add_positions, storage, features, name == "f16"))
        yield Case("tables", f"relative_position_bias {name}", of(relative_position_bias, storage, 150, 8))
        if not storage.is_blocks:
            yield Case("tables", f"embedding {name}, odd", of(embedding, storage, 13))
            yield Case("tables", f"add_positions {name}, odd", of(add_positions, storage, 13, True))
            yield Case("tables", f"embedding {name}, long", of(embedding, storage, 2056))
    for name, by in (("f32", 4), ("f16", 2), ("bf16", 2), ("f8_e4m3", 1), ("f8_e5m2", 1)):
        yield Case("decode", f"{name} at {by}", of(decode, STORAGES[name], 520, misplaced=by))
        yield Case("tables", f"embedding {name} at {by}", of(embedding, STORAGES[name], 40, misplaced=by))


