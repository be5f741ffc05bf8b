"""`cvt`: between integers, floats, and pairs of short floats."""

import numpy as np

from . import floats
from .arithmetic import put
from .errors import Unsupported

WHOLE = {"s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"}


def dtype_of(kind: str) -> np.dtype:
    return np.dtype({"s": "i", "u": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8))


def taken(frame, operand, kind: str):
    """What gives a source as its type: of a wider register the lowest bits."""
    dtype = dtype_of(kind)
    try:
        raw = frame.raw(operand)
    except Unsupported:
        value = frame.source(operand, kind)
        return lambda: value
    if raw.dtype.itemsize == dtype.itemsize:
        view = raw.view(dtype)
        return lambda: view
    if raw.dtype.itemsize < dtype.itemsize or dtype.kind == "f":
        raise Unsupported("a register that is too narrow")
    unsigned = raw.view(f"u{raw.dtype.itemsize}")
    return lambda: unsigned.astype(f"u{dtype.itemsize}").view(dtype)


def build_cvt(frame, instruction):
    *flags, to, of = instruction.parts[1:]
    if to in ("f16x2", "bf16x2"):
        return pair(frame, instruction, to, flags, of)
    sources = taken(frame, instruction.operands[1], of)
    register = frame.registers[instruction.operands[0].name]
    if to == "bf16":
        if of != "f32" or flags != ["rn"]:
            raise Unsupported("a conversion")
        target = frame.target(instruction.operands[0], "b16")
        return lambda mask: put(target, floats.bf16_bits(np.broadcast_to(sources(), target.shape)), mask)
    if to in WHOLE:
        if of in WHOLE:
            if flags:
                raise Unsupported("a conversion that saturates")
            return narrowed(register, to, sources)
        return rounded(register, to, of, flags, sources)
    target = register.view(f"f{int(to[1:]) // 8}")
    if to == "f16":
        if of != "f32" or flags != ["rn"]:
            raise Unsupported("a conversion")
        bits = register.view(np.uint16)
        return lambda mask: put(bits, floats.f16_bits(np.broadcast_to(sources(), bits.shape)), mask)
    if flags == ["sat"] and (to, of) == ("f32", "f32"):
        # What is no number becomes zero.
        return lambda mask: put(target, np.where(sources() > 0, np.minimum(sources(), np.float32(1)), np.float32(0)), mask)
    if flags not in ([], ["rn"]):
        raise Unsupported("a rounding")
    return lambda mask: put(target, sources(), mask)


def narrowed(register, to: str, sources):
    """Between integers: bits above the target's are lost, and a wider register has the sign."""
    dtype = dtype_of(to)
    wide = register.view(f"{dtype.kind}{register.dtype.itemsize}")
    return lambda mask: put(wide, np.asarray(sources()).astype(dtype), mask)


def rounded(register, to: str, of: str, flags: list[str], sources):
    """A float as an integer; beyond the target's range the nearest, of what is no number zero."""
    function = {("rzi",): np.trunc, ("rni",): np.rint, ("rmi",): np.floor, ("rpi",): np.ceil}.get(tuple(flags))
    dtype = dtype_of(to)
    if function is None or dtype.itemsize > 4:
        raise Unsupported("a rounding")
    limits = np.iinfo(dtype)
    target = register.view(dtype)

    def step(mask):
        value = function(np.asarray(sources(), np.float64))
        put(target, np.where(np.isnan(value), 0, np.clip(value, limits.min, limits.max)).astype(np.int64).astype(dtype), mask)

    return step


def pair(frame, instruction, to: str, flags: list[str], of: str):
    """Two f32 in a word, the first one in its upper half."""
    if flags != ["rn"] or of != "f32":
        raise Unsupported("a conversion of pairs")
    target = frame.target(instruction.operands[0], "b32")
    high, low = (frame.source(operand, "f32") for operand in instruction.operands[1:])
    bits = floats.f16_bits if to == "f16x2" else floats.bf16_bits

    def step(mask):
        upper, lower = (bits(np.broadcast_to(value, target.shape)).astype(np.uint32) for value in (high, low))
        put(target, lower | upper << np.uint32(16), mask)

    return step


BUILDERS = {"cvt": build_cvt}
