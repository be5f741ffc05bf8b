"""Linear layers on tensor cores: operands are rounded as the kernels round them, so what is left are the sums in f32."""

import numpy as np

from .. import floats
from ..storage import COMMON, STORAGES, Storage
from .converting import FAR, factor_of, inputs_of
from .linear_f32 import Output, products, variants
from .tools import Case, f32_of, normal, short_bits

NEVER = 2**31 - 1


def launch(device, source: str, kernel: str, out: Output, x: list[tuple[int, int]], factors: int, w: tuple[int, int], depth: int):
    """`x`: addresses and features; `w`: address and bytes of a row."""
    lack = 4 - len(x)
    places, features = [of[0] for of in x] + [0] * lack, [of[1] for of in x] + [0] * lack
    begins = [sum(features[: i + 1]) if i + 1 < len(x) else NEVER for i in range(3)]
    side = 128 if kernel.endswith("_large") else 64
    threads = 128 if source == "linear_half" or side == 64 else 256
    tiles = -(-out.rows // side) * -(-out.columns // side)
    device.use(source)
    device.launch(source, kernel, [tiles], [threads], *out.arguments(out.storage), ("4Q", *places),
                  ("QQq", factors, *w), ("4i3ii", *features, *begins, depth))


def of_f16(device, rng, source: str, size: str, rows: int, columns: int, depth: int, **wanted):
    """Activations in f16 with a factor for each row, one matrix whose rows are whole eights."""
    stride = -(-depth // 8) * 8
    x = np.zeros((rows, stride), np.float32)
    x[:, :depth] = normal(rng, rows, depth, size=8000)
    bits = short_bits("f16", x)
    factors = np.exp2(rng.integers(-14, -8, rows)).astype(np.float32)
    stored = STORAGES["f16"].random(rng, columns * depth)
    out = Output(device, rng, rows, columns, **wanted)
    out.storage = STORAGES["f16"].kind
    launch(device, source, f"{source}_f16_{size}", out, [(device.read("x", bits).address, stride)],
           device.read("factors", factors).address, (device.read("w", stored).address, 2 * depth), depth)
    sums, bound = products(f32_of("f16", bits)[:, :depth], STORAGES["f16"].numbers(stored).reshape(columns, depth))
    out.check(sums * factors[:, None], bound * factors[:, None])


def of_bf16(device, rng, source: str, size: str, storage: Storage, rows: int, columns: int, features: tuple[int, ...],
            odd: int | None = None, **wanted):
    """Activations in bf16, in several matrices; or, with `odd`, one whose rows are filled up to whole eights."""
    depth = odd or sum(features)
    places, counts, x = inputs_of(device, rng, rows, features, "bf16", FAR if source == "linear_scaled" else ())
    if odd:
        assert (x[:, depth:] != 0).any(), "what is behind the depth does not count"
    x = x[:, :depth]
    stored = storage.random(rng, columns * depth)
    w = storage.numbers(stored).reshape(columns, depth)
    factors, by = 0, np.ones(rows)
    if source == "linear_scaled":
        by = 1 / factor_of(np.abs(x).max(axis=1))
        factors = device.read("factors", by).address
        x = f32_of("f16", floats.f16_bits(x * (1 / by)[:, None]))
        w = f32_of("f16", floats.f16_bits(w))
    else:
        w = f32_of("bf16", floats.bf16_bits(w))
    out = Output(device, rng, rows, columns, **wanted)
    out.storage = storage.kind
    name = storage.name if storage.name in COMMON else "any"
    row_bytes = depth // storage.elements * storage.size
    x_at = [(place, count) for place, count in zip(places, counts) if count]
    launch(device, source, f"{source}_{name}_{size}", out, x_at, factors, (device.read("w", stored).address, row_bytes), depth)
    sums, bound = products(x, w)
    out.check(sums * by[:, None], bound * by[:, None])


def cases():
    def of(function, *args, **named):
        return lambda device, rng: function(device, rng, *args, **named)

    new, old = (80,), (75,)
    for size, rows, columns in (("small", 70, 75), ("large", 133, 140)):
        for index, depth in enumerate((72, 32, 136)):
            wanted = variants(index) | ({"stride": 160} if "stride" in variants(index) else {})
            yield Case("linear_half", f"f16 {size} {depth}", of(of_f16, "linear_half", size, rows, columns, depth, **wanted), new)
            both = Case("linear_decoded", f"f16 {size} {depth}", of(of_f16, "linear_decoded", size, rows, columns, depth, **wanted))
            yield both
            yield Case("linear_half", f"bf16 {size} {depth}", of(
                of_bf16, "linear_half", size, STORAGES["bf16"], rows, columns, (depth,), bias="f32", element="bf16"), new)
        yield Case("linear_half", f"bf16 {size}, four inputs", of(
            of_bf16, "linear_half", size, STORAGES["bf16"], rows, columns, (8, 48, 16, 40), start=4, stride=152, element="f16"), new)
        for odd in (37, 66):
            yield Case("linear_decoded", f"f16 {size}, odd {odd}", of(of_f16, "linear_decoded", size, rows, columns, odd, bias="f32"))
        for source, which in (("linear_decoded", new), ("linear_scaled", old)):
            for index, storage in enumerate(STORAGES.values()):
                if storage.name in ("f32", "f16") or size == "large" and storage.name not in (*COMMON, "iq4_nl", "q3_k"):
                    continue
                depth = {1: 72, 32: 96, 256: 256}[storage.elements]
                features = (depth,) if index % 2 or storage.elements > 32 else (8, 24, depth - 32)
                wanted = variants(index)
                wanted = wanted | {"stride": columns + 8} if "start" in wanted else wanted
                yield Case(source, f"{storage.name} {size}", of(
                    of_bf16, source, size, storage, rows, columns, features, **wanted), which)
                if storage.elements == 1:
                    yield Case(source, f"{storage.name} {size}, odd", of(
                        of_bf16, source, size, storage, rows, columns, (48,), odd=45), which)
    # More bands of tiles than one.
    yield Case("linear_half", "more tiles than a band", of(
        of_bf16, "linear_half", "small", STORAGES["bf16"], 64 * 17 + 1, 65, (32,)), new)
