"""What must not be in a kernel on tensor cores, how wide a kernel's loads are, and how long its loops with products."""

import collections

from . import lanes
from .listing import Listing

# Instructions of a whole warp that take no mask: all its threads come to them together.
WHOLE_WARP = ("HMMA", "IMMA", "QMMA", "OMMA", "LDSM", "STSM", "MOVM")
TENSOR = ("HMMA", "IMMA", "QMMA", "OMMA")
_LOADS = {"LDG": "global", "LDS": "shared", "LDGSTS": "copied"}


def findings(kernel: Listing) -> list[str]:
    """What is wrong, as sentences."""
    found = []
    for loop in kernel.loops:
        inside = [kernel.instructions[index] for index in sorted(loop)]
        local = [one for one in inside if one.kind in ("LDL", "STL")]
        if local and any(one.kind in TENSOR for one in inside):
            found.append(f"local memory in a loop with tensor cores, {len(local)} times: {local[0]}")
    if any(instruction.kind in WHOLE_WARP for instruction in kernel.instructions):
        analysis = lanes.Lanes(kernel)
        apart = [index for index in sorted(analysis.warp) if analysis.warp[index] and kernel.instructions[index].kind in WHOLE_WARP]
        if apart:
            first = kernel.instructions[apart[0]]
            found.append(f"{len(apart)} instructions of a whole warp behind a branch that may part it, the first in line {first.line}: {first}")
    return found


def product_loops(kernel: Listing) -> list[tuple[int, int]]:
    """Of each loop with products, the inner ones first: its instructions, and how many of them are products."""
    ends = [(target, index) for index, after in enumerate(kernel.successors) for target in after if target <= index]
    loops = [kernel.instructions[first : last + 1] for first, last in sorted(ends, key=lambda ends: ends[1] - ends[0])]
    counts = [(len(loop), sum(one.kind in TENSOR for one in loop)) for loop in loops]
    return [counted for counted in counts if counted[1] > 0]


def width(name: str) -> int:
    """Bytes that a load moves for each thread."""
    parts = name.split(".")
    for part, width_bytes in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)):
        if part in parts:
            return width_bytes
    return 4


def loads(kernel: Listing) -> dict[str, str]:
    """For each space how many loads there are of each width, as `16x4 4x1`; those that are copied asynchronously apart."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for instruction in kernel.instructions:
        if instruction.kind in _LOADS:
            counts[_LOADS[instruction.kind]][width(instruction.name)] += 1
    return {space: " ".join(f"{of}x{count[of]}" for of in sorted(count, reverse=True)) for space, count in counts.items()}
