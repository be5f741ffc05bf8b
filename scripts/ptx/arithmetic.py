"""Integer and float arithmetic, logic, comparisons."""

import numpy as np

from . import floats
from .errors import Fault, Unsupported

FLOATS = ("f32", "f64")


def put(target: np.ndarray, value, mask):
    np.copyto(target, value, where=mask, casting="unsafe")


def by_ufunc(frame, instruction, ufunc, kind: str):
    target = frame.target(instruction.operands[0], kind)
    sources = [frame.source(operand, kind) for operand in instruction.operands[1:]]
    if len(sources) == 1:
        one = sources[0]
        return lambda mask: ufunc(one, out=target, where=mask)
    left, right = sources
    return lambda mask: ufunc(left, right, out=target, where=mask)


def checked(instruction, known: set[str]):
    """The type, which stands last; all other parts must be known."""
    kind = instruction.parts[-1]
    if not set(instruction.parts[1:-1]) <= known:
        raise Unsupported("a modifier")
    return kind


# Carries are kept apart from all registers.


def add_sub(frame, instruction, ufunc, subtracts: bool):
    parts = instruction.parts
    kind = parts[-1]
    with_carry = parts[0].endswith("c")
    if "cc" in parts or with_carry:
        return carried(frame, instruction, subtracts, with_carry, "cc" in parts)
    if not set(parts[1:-1]) <= {"rn"}:
        raise Unsupported("a modifier")
    return by_ufunc(frame, instruction, ufunc, kind)


def carried(frame, instruction, subtracts: bool, takes: bool, gives: bool):
    if instruction.parts[-1] not in ("u32", "s32"):
        raise Unsupported("carries of other widths")
    target, carry = frame.target(instruction.operands[0], "u32"), frame.carry
    left, right = (frame.source(operand, "u32") for operand in instruction.operands[1:])

    def step(mask):
        one, other = np.asarray(left, np.uint64), np.asarray(right, np.uint64)
        taken = carry.astype(np.uint64) if takes else np.uint64(0)
        # A borrow is what lacks, the carry's opposite: 1 where less was there than taken.
        whole = one - other - taken if subtracts else one + other + taken
        put(target, (whole & np.uint64(0xFFFFFFFF)).astype(np.uint32), mask)
        if gives:
            put(carry, (whole >> np.uint64(32) & np.uint64(1)).astype(np.uint32), mask)

    return step


def build_add(frame, instruction):
    return add_sub(frame, instruction, np.add, False)


def build_sub(frame, instruction):
    return add_sub(frame, instruction, np.subtract, True)


def build_mul(frame, instruction):
    parts, kind = instruction.parts, instruction.parts[-1]
    if kind in FLOATS:
        checked(instruction, {"rn"})
        return by_ufunc(frame, instruction, np.multiply, kind)
    if parts[1] == "lo":
        return by_ufunc(frame, instruction, np.multiply, f"u{kind[1:]}")
    wide = f"{kind[0]}{2 * int(kind[1:])}"
    left, right = (frame.source(operand, kind) for operand in instruction.operands[1:])
    if parts[1] == "wide":
        target = frame.target(instruction.operands[0], wide)
        return lambda mask: np.multiply(left, right, out=target, where=mask, dtype=target.dtype)
    if parts[1] == "hi" and kind in ("u32", "s32"):
        target = frame.target(instruction.operands[0], kind)
        dtype = np.dtype(f"{kind[0]}8".replace("s", "i"))
        return lambda mask: put(target, np.multiply(left, right, dtype=dtype) >> dtype.type(32), mask)
    raise Unsupported("a product")


def build_mad(frame, instruction):
    parts, kind = instruction.parts, instruction.parts[-1]
    width = int(kind[1:])
    takes, gives = parts[0] == "madc", "cc" in parts
    left, right = (frame.source(operand, kind) for operand in instruction.operands[1:3])
    if parts[1] == "wide":
        wide = f"{kind[0]}{2 * width}"
        target, addend = frame.target(instruction.operands[0], wide), frame.source(instruction.operands[3], wide)
        return lambda mask: np.add(np.multiply(left, right, dtype=target.dtype), addend, out=target, where=mask)
    target, addend = frame.target(instruction.operands[0], kind), frame.source(instruction.operands[3], kind)
    if parts[1] == "lo" and not takes and not gives:
        return lambda mask: np.add(np.multiply(left, right), addend, out=target, where=mask)
    if kind != "u32" or parts[1] not in ("lo", "hi"):
        raise Unsupported("a product with a sum")
    carry, shift = frame.carry, np.uint64(32 if parts[1] == "hi" else 0)

    def step(mask):
        product = np.multiply(left, right, dtype=np.uint64) >> shift & np.uint64(0xFFFFFFFF)
        whole = product + addend + (carry if takes else np.uint64(0))
        put(target, (whole & np.uint64(0xFFFFFFFF)).astype(np.uint32), mask)
        if gives:
            put(carry, (whole >> np.uint64(32)).astype(np.uint32), mask)

    return step


def build_fma(frame, instruction):
    rounding, kind = instruction.parts[1], instruction.parts[-1]
    function = {("rn", "f32"): floats.fma_f32, ("rm", "f32"): floats.fma_down_f32, ("rn", "f64"): floats.fma_f64}.get((rounding, kind))
    if function is None or len(instruction.parts) != 3:
        raise Unsupported("a rounding")
    target = frame.target(instruction.operands[0], kind)
    sources = [frame.source(operand, kind) for operand in instruction.operands[1:]]
    return lambda mask: put(target, function(*sources), mask)


def build_div(frame, instruction):
    kind = instruction.parts[-1]
    if kind in FLOATS:
        checked(instruction, {"rn"})
        return by_ufunc(frame, instruction, np.divide, kind)
    return divided(frame, instruction, kind, False)


def build_rem(frame, instruction):
    return divided(frame, instruction, instruction.parts[-1], True)


def divided(frame, instruction, kind: str, remains: bool):
    """Whole numbers, towards zero."""
    target = frame.target(instruction.operands[0], kind)
    left, right = (frame.source(operand, kind) for operand in instruction.operands[1:])
    lanes = frame.machine.lanes

    def step(mask):
        if ((np.broadcast_to(right, lanes) == 0) & mask).any():
            raise Fault("arithmetic", f"division by zero, {instruction}")
        divisor = np.where(np.asarray(right) == 0, right.dtype.type(1), right)
        remainder = np.fmod(left, divisor)
        put(target, remainder if remains else (left - remainder) // divisor, mask)

    return step


def build_min_max(frame, instruction):
    parts, kind = instruction.parts, instruction.parts[-1]
    least = parts[0] == "min"
    if kind == "f16x2":
        if "NaN" not in parts:
            raise Unsupported("a minimum of pairs")
        target = frame.target(instruction.operands[0], "b32").view(np.float16).reshape(-1, 2)
        left, right = (pairs(frame.source(operand, "b32")) for operand in instruction.operands[1:])
        function = np.minimum if least else np.maximum
        return lambda mask: put(target, function(left, right), mask if mask is True else mask[:, None])
    if kind in FLOATS:
        checked(instruction, {"NaN"})
        # Of a number and none the number, unless .NaN.
        named = (np.minimum, np.maximum) if "NaN" in parts else (np.fmin, np.fmax)
    else:
        checked(instruction, set())
        named = (np.minimum, np.maximum)
    return by_ufunc(frame, instruction, named[0] if least else named[1], kind)


def pairs(words):
    """Words as pairs of binary16."""
    return np.asarray(words).reshape(-1, 1).view(np.float16)


def build_bits(ufunc):
    def build(frame, instruction):
        return by_ufunc(frame, instruction, ufunc, checked(instruction, set()))

    return build


def build_shift(frame, instruction):
    kind = checked(instruction, set())
    target, value = frame.target(instruction.operands[0], kind), frame.source(instruction.operands[1], kind)
    by, bits = frame.source(instruction.operands[2], "u32"), np.uint32(int(kind[1:]))
    left = instruction.parts[0] == "shl"
    signed = kind[0] == "s"

    def step(mask):
        # Shifts by more than the width are as by the width.
        amount = np.minimum(by, bits)
        if left or not signed:
            inside = np.where(amount < bits, amount, np.uint32(0)).astype(value.dtype)
            moved = value << inside if left else value >> inside
            put(target, np.where(amount < bits, moved, value.dtype.type(0)), mask)
        else:
            put(target, value >> np.minimum(amount, bits - np.uint32(1)).astype(value.dtype), mask)

    return step


def build_unary(frame, instruction):
    name, kind = instruction.parts[0], instruction.parts[-1]
    checked(instruction, {"rn"} if name == "sqrt" else set())
    if name == "sqrt" and "rn" not in instruction.parts:
        raise Unsupported("an approximate root")
    function = {"neg": np.negative, "not": np.logical_not if kind == "pred" else np.bitwise_not, "abs": np.abs, "sqrt": np.sqrt}[name]
    return by_ufunc(frame, instruction, function, kind)


def build_rcp(frame, instruction):
    form = ".".join(instruction.parts[1:])
    kind = instruction.parts[-1]
    target, value = frame.target(instruction.operands[0], kind), frame.source(instruction.operands[1], kind)
    one = target.dtype.type(1)
    if form in ("rn.f32", "rn.f64"):
        return lambda mask: put(target, one / value, mask)
    if form == "approx.ftz.f32":
        return lambda mask: put(target, floats.flushed(one / floats.flushed(value)), mask)
    if form == "approx.ftz.f64":
        # The lower half of the result's bits is zero, and what is less in the operand does not count.
        upper = np.uint64(0xFFFFFFFF00000000)

        def step(mask):
            cut = (np.ascontiguousarray(value).view(np.uint64) & upper).view(np.float64)
            put(target, ((one / cut).view(np.uint64) & upper).view(np.float64), mask)

        return step
    raise Unsupported("a reciprocal")


def build_ex2(frame, instruction):
    form = ".".join(instruction.parts[1:])
    target, value = frame.target(instruction.operands[0], "f32"), frame.source(instruction.operands[1], "f32")
    if form == "approx.f32":
        return lambda mask: put(target, np.exp2(np.asarray(value, np.float64)).astype(np.float32), mask)
    if form == "approx.ftz.f32":
        power = lambda: np.exp2(floats.flushed(value).astype(np.float64)).astype(np.float32)  # noqa: E731
        return lambda mask: put(target, floats.flushed(power()), mask)
    raise Unsupported("a power")


def build_bfi(frame, instruction):
    target = frame.target(instruction.operands[0], "b32")
    piece, into, place, length = (frame.source(operand, "u32") for operand in instruction.operands[1:])

    def step(mask):
        first, bits = np.uint64(place & np.uint32(255)), np.uint64(length & np.uint32(255))
        if np.ndim(first) or np.ndim(bits):
            raise Unsupported("a place of bits that is no constant")
        ones = (np.uint64(1) << min(bits, np.uint64(32))) - np.uint64(1)
        where = np.uint32(int(ones << first) & 0xFFFFFFFF) if first < 32 else np.uint32(0)
        moved = (np.asarray(piece, np.uint64) << first & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        put(target, (into & ~where) | (moved & where), mask)

    return step


def build_prmt(frame, instruction):
    if instruction.parts != ("prmt", "b32"):
        raise Unsupported("a mode")
    target = frame.target(instruction.operands[0], "b32")
    low, high, selector = (frame.source(operand, "b32") for operand in instruction.operands[1:])

    def step(mask):
        both = np.asarray(low, np.uint64) | np.asarray(high, np.uint64) << np.uint64(32)
        result = np.zeros(target.shape, np.uint32)
        for byte in range(4):
            pick = np.asarray(selector >> np.uint32(4 * byte), np.uint64)
            value = both >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            # The highest bit of the selection spreads the byte's sign.
            sign = np.where(value & np.uint64(128), np.uint64(255), np.uint64(0))
            value = np.where(pick & np.uint64(8), sign, value)
            result |= (value << np.uint64(8 * byte)).astype(np.uint32)
        put(target, result, mask)

    return step


def build_clz(frame, instruction):
    bits = int(instruction.parts[-1][1:])
    target, value = frame.target(instruction.operands[0], "u32"), frame.source(instruction.operands[1], instruction.parts[-1])

    def step(mask):
        count, rest = np.full(target.shape, bits, np.uint32), np.asarray(value, np.uint64).copy()
        for shift in (32, 16, 8, 4, 2, 1):
            more = (rest >> np.uint64(shift)) != 0
            count -= np.where(more, np.uint32(shift), np.uint32(0))
            rest = np.where(more, rest >> np.uint64(shift), rest)
        put(target, count - np.where(rest != 0, np.uint32(1), np.uint32(0)), mask)

    return step


COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARISONS |= {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def build_setp(frame, instruction):
    name, kind = instruction.parts[1], instruction.parts[-1]
    target = frame.target(instruction.operands[0], "pred")
    left, right = (frame.source(operand, kind) for operand in instruction.operands[1:3])
    # A comparison with what is no number is false, and true if it ends in u.
    unordered = kind in FLOATS and name[-1] == "u"
    compare = COMPARISONS[name[:2]]
    if len(name) > 2 and not unordered or len(instruction.parts) > 4:
        raise Unsupported("a comparison")
    if kind not in FLOATS and len(instruction.parts) == 3:
        return lambda mask: compare(left, right, out=target, where=mask)
    with_ = frame.source(instruction.operands[3], "pred") if len(instruction.parts) == 4 else None
    join = COMBINED[instruction.parts[2]] if with_ is not None else None

    def step(mask):
        value = compare(left, right)
        if kind in FLOATS:
            none = np.isnan(left) | np.isnan(right)
            value = value | none if unordered else value & ~none
        put(target, value if join is None else join(value, with_), mask)

    return step


def build_selp(frame, instruction):
    kind = checked(instruction, set())
    target = frame.target(instruction.operands[0], kind)
    yes, no = (frame.source(operand, kind) for operand in instruction.operands[1:3])
    which = frame.source(instruction.operands[3], "pred")
    return lambda mask: put(target, np.where(which, yes, no), mask)


BUILDERS = {
    "add": build_add, "addc": build_add, "sub": build_sub, "subc": build_sub,
    "mul": build_mul, "mad": build_mad, "madc": build_mad, "fma": build_fma, "div": build_div, "rem": build_rem,
    "min": build_min_max, "max": build_min_max, "shl": build_shift, "shr": build_shift,
    "and": build_bits(np.bitwise_and), "or": build_bits(np.bitwise_or), "xor": build_bits(np.bitwise_xor),
    "neg": build_unary, "not": build_unary, "abs": build_unary, "sqrt": build_unary,
    "rcp": build_rcp, "ex2": build_ex2, "bfi": build_bfi, "prmt": build_prmt, "clz": build_clz,
    "setp": build_setp, "selp": build_selp,
}  # fmt: skip
