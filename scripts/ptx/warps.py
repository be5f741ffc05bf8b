"""What a warp does together, barriers, and asynchronous copies."""

import numpy as np

from . import floats
from .arithmetic import put
from .errors import Fault, Unsupported
from .text import Both, Immediate, Vector, number


def whole_warps(machine, mask, instruction) -> np.ndarray:
    """Which warps execute this, each with all of its threads."""
    lanes = machine.by_warp(mask)
    some, every = lanes.any(axis=1), lanes.all(axis=1)
    if (some != every).any():
        raise Fault("divergence", f"some threads of a warp are not there, {instruction}")
    return np.flatnonzero(some)


def by_warps(array) -> np.ndarray:
    return array.reshape(-1, 32)


def check_members(frame, operand, instruction, machine, mask):
    """Each lane that executes this must be of the member mask."""
    members = np.broadcast_to(frame.source(operand, "u32"), machine.lanes)
    bit = members >> (machine.every_lane % 32).astype(np.uint32) & np.uint32(1)
    if ((bit == 0) & mask).any():
        raise Fault("divergence", f"a thread that is no member, {instruction}")


# --- Exchanges.


def build_shfl(frame, instruction):
    if instruction.parts[1] != "sync" or instruction.parts[-1] != "b32":
        raise Unsupported("an exchange")
    mode = instruction.parts[2]
    to, value, by, limit, members = instruction.operands
    registers = [to.first, to.second] if isinstance(to, Both) else [to]
    target = frame.target(registers[0], "b32")
    valid = frame.target(registers[1], "pred") if len(registers) == 2 else None
    source, by, limit = (frame.source(operand, "b32") for operand in (value, by, limit))
    machine = frame.machine
    lane = (machine.every_lane % 32).astype(np.int64)

    def step(mask):
        check_members(frame, members, instruction, machine, mask)
        distance, clamp = np.asarray(by, np.int64) & 31, np.asarray(limit, np.int64)
        segment, bound = clamp >> 8 & 31, clamp & 31
        most = (lane & segment) | (bound & ~segment)
        least = lane & segment
        if mode == "bfly":
            at = lane ^ distance
            inside = at <= most
        elif mode == "idx":
            at = least | (distance & ~segment)
            inside = at <= most
        elif mode == "down":
            at = lane + distance
            inside = at <= most
        elif mode == "up":
            at = lane - distance
            inside = at >= most
        else:
            raise Unsupported(mode)
        at = np.where(inside, at, lane)
        place = machine.every_lane - lane + at
        here = np.broadcast_to(mask, machine.lanes)
        if (mask & ~here[place]).any():
            raise Fault("divergence", f"a value of a thread that is not there, {instruction}")
        put(target, np.broadcast_to(source, machine.lanes)[place], mask)
        if valid is not None:
            put(valid, inside, mask)

    return step


def build_vote(frame, instruction):
    if instruction.parts[1] != "sync" or instruction.parts[-1] not in ("pred", "b32"):
        raise Unsupported("a vote")
    mode, kind = instruction.parts[2], instruction.parts[-1]
    to, what, members = instruction.operands
    target, source, machine = frame.target(to, kind), frame.source(what, "pred"), frame.machine

    def step(mask):
        check_members(frame, members, instruction, machine, mask)
        lanes = machine.by_warp(mask)
        truths = by_warps(np.broadcast_to(source, machine.lanes))
        if mode == "any":
            result = (truths & lanes).any(axis=1)
        elif mode == "all":
            result = (truths | ~lanes).all(axis=1)
        elif mode == "ballot":
            result = ((truths & lanes).astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
        else:
            raise Unsupported(mode)
        put(target, np.repeat(result, 32), mask)

    return step


# --- Matrices. The places of elements are those of the PTX ISA's section "Matrix Fragments for mma.m16n8k16 with floating point
# type" and of that for m16n8k8.

LANE = np.arange(32)
GROUP, PAIR = LANE // 4, LANE % 4 * 2


def places(count: int, rows_first: bool):
    """Rows and columns of the pairs in `count` registers: of A by rows, of B by columns."""
    rows = np.empty((32, count, 2), np.int64)
    columns = np.empty_like(rows)
    for register in range(count):
        for half in range(2):
            if rows_first:
                rows[:, register, half] = GROUP + 8 * (register % 2)
                columns[:, register, half] = PAIR + half + 8 * (register // 2)
            else:
                rows[:, register, half] = PAIR + half + 8 * register
                columns[:, register, half] = GROUP
    return rows, columns


SUM_ROWS = np.stack([GROUP, GROUP, GROUP + 8, GROUP + 8], axis=1)
SUM_COLUMNS = np.stack([PAIR, PAIR + 1, PAIR, PAIR + 1], axis=1)


def numbers(words: np.ndarray, kind: str) -> np.ndarray:
    """Words as pairs of short floats: one more axis of two."""
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 2)
    return halves.view(np.float16).astype(np.float64) if kind == "f16" else floats.f32_of_bf16(halves).astype(np.float64)


# Of signed bytes ("Matrix Fragments for mma.m8n8k16", "... mma.m16n8k16 with integer type" and "... mma.m16n8k32"): rows and columns of
# A, and depths, of the four bytes of each register. B is as A with one register for each 16 of the depth.


def byte_places(rows: int, depth: int):
    """`[lanes, registers, 4]`: rows, and places in the depth, of A's bytes."""
    uppers = rows // 8
    registers = np.arange(uppers * depth // 16)
    byte = np.arange(4)
    at = GROUP[:, None, None] + 8 * (registers % uppers)[None, :, None] + 0 * byte
    places = (LANE % 4 * 4)[:, None, None] + 16 * (registers // uppers)[None, :, None] + byte
    return at, places


def build_byte_mma(frame, instruction):
    parts = instruction.parts
    shape = {"m8n8k16": (8, 16), "m16n8k16": (16, 16), "m16n8k32": (16, 32)}.get(parts[3])
    if shape is None or parts[7:9] != ("s8", "s8") or parts[9] != "s32":
        raise Unsupported("a product")
    height, depth = shape
    to, left, right, addend = instruction.operands
    operands = [operand.items if isinstance(operand, Vector) else (operand,) for operand in (to, left, right, addend)]
    a_places, b_places = byte_places(height, depth), byte_places(8, depth)
    count = (height // 4, height * depth // 128, depth // 16, height // 4)
    if tuple(map(len, operands)) != count:
        raise Fault("arithmetic", f"fragments of other sizes, {instruction}")
    targets = [by_warps(frame.target(item, "b32")) for item in operands[0]]
    lefts, rights = ([by_warps(frame.target(item, "b32")) for item in items] for items in operands[1:3])
    addends = [frame.source(item, "b32") for item in operands[3]]
    addends = [by_warps(np.broadcast_to(item, frame.machine.lanes)) for item in addends]
    machine = frame.machine

    def step(mask):
        warps = whole_warps(machine, mask, instruction)
        a = np.empty((warps.size, height, depth), np.int64)
        b = np.empty((warps.size, 8, depth), np.int64)
        for to, of_places, registers in ((a, a_places, lefts), (b, b_places, rights)):
            words = np.stack([register[warps] for register in registers], axis=2).astype(np.uint32)
            to[:, of_places[0], of_places[1]] = np.ascontiguousarray(words).view(np.int8).reshape(*words.shape, 4)
        sums = np.matmul(a, b.transpose(0, 2, 1))
        results = [sums[:, SUM_ROWS[:, i], SUM_COLUMNS[:, i]] + addends[i][warps].astype(np.uint32).view(np.int32) for i in range(len(targets))]
        for target, result in zip(targets, results):
            target[warps] = result.astype(np.int32).view(np.uint32)

    return step


def build_mma(frame, instruction):
    parts = instruction.parts
    if parts[6] == "s32" and parts[1:3] == ("sync", "aligned") and parts[4:6] == ("row", "col"):
        return build_byte_mma(frame, instruction)
    if parts[1:3] != ("sync", "aligned") or parts[4:6] != ("row", "col") or parts[6] != "f32" or parts[9] != "f32":
        raise Unsupported("a product")
    depth = {"m16n8k16": 16, "m16n8k8": 8}[parts[3]]
    kind = parts[7]
    if kind != parts[8] or kind not in ("f16", "bf16"):
        raise Unsupported("operands")
    to, left, right, addend = instruction.operands
    count = (4, depth // 4, depth // 8, 4)
    if tuple(len(operand.items) for operand in (to, left, right, addend)) != count:
        raise Fault("arithmetic", f"fragments of other sizes, {instruction}")
    targets = [by_warps(frame.target(item, "f32")) for item in to.items]
    lefts, rights = ([by_warps(frame.target(item, "b32")) for item in operand.items] for operand in (left, right))
    addends = [frame.source(item, "f32") for item in addend.items]
    addends = [by_warps(np.broadcast_to(item, frame.machine.lanes)) if np.ndim(item) == 0 else by_warps(item) for item in addends]
    a_places, b_places = places(depth // 4, True), places(depth // 8, False)
    machine = frame.machine

    def step(mask):
        warps = whole_warps(machine, mask, instruction)
        a = np.empty((warps.size, 16, depth))
        a[:, a_places[0], a_places[1]] = numbers(np.stack([register[warps] for register in lefts], axis=2), kind)
        b = np.empty((warps.size, depth, 8))
        b[:, b_places[0], b_places[1]] = numbers(np.stack([register[warps] for register in rights], axis=2), kind)
        sums = np.matmul(a, b)[:, SUM_ROWS, SUM_COLUMNS]
        results = [(sums[:, :, i] + addends[i][warps]).astype(np.float32) for i in range(4)]
        for target, result in zip(targets, results):
            target[warps] = result

    return step


def build_ldmatrix(frame, instruction):
    parts = instruction.parts
    if parts[1:4] != ("sync", "aligned", "m8n8") or parts[-2:] != ("shared", "b16"):
        raise Unsupported("a load of matrices")
    count = {"x1": 1, "x2": 2, "x4": 4}[parts[4]]
    turned = "trans" in parts
    to = instruction.operands[0]
    targets = [by_warps(frame.target(item, "b32")) for item in (to.items if isinstance(to, Vector) else (to,))]
    addresses, machine = frame.address(instruction.operands[1]), frame.machine

    def step(mask):
        warps = whole_warps(machine, mask, instruction)
        lanes = (warps[:, None] * 32 + np.arange(8 * count)).reshape(-1)
        offsets = addresses(lanes).astype(np.uint32)
        rows = machine.shared.load(offsets, 8, np.dtype(np.uint16), lanes, machine.clock, instruction, by_warp=True)
        matrices = rows.reshape(warps.size, count, 8, 8)
        for index, target in enumerate(targets):
            matrix = matrices[:, index]
            low, high = (matrix[:, PAIR + half, GROUP] if turned else matrix[:, GROUP, PAIR + half] for half in range(2))
            target[warps] = low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)

    return step


# --- Barriers.


def build_bar(frame, instruction):
    parts, machine = instruction.parts, frame.machine
    clock = machine.clock
    if parts[1] == "warp":
        members = instruction.operands[0]
        if not isinstance(members, Immediate) or number(members.text) & 0xFFFFFFFF != 0xFFFFFFFF:
            raise Unsupported("a barrier of some threads of a warp")

        def step(mask):
            clock.warps_passed[mask if mask is not True else slice(None)] += 1

        return step
    if parts[1:] != ("sync",) or len(instruction.operands) != 1 or instruction.operands[0] != Immediate("0"):
        raise Unsupported("a barrier")

    def step(mask):
        here = mask if mask is not True else slice(None)
        clock.blocks_passed[here] += 1
        clock.warps_passed[here] += 1

    return step


# --- Copies from global to shared memory that go on by themselves.


class Copies:
    """Those under way. A thread's are in groups, which it counts; what is not waited for is not there."""

    def __init__(self, machine):
        self.machine = machine
        self.committed = np.zeros(machine.lanes, np.int64)
        # Lanes, their groups, units of shared memory, places in it, and what goes there.
        self.open: list[tuple] = []

    def start(self, offsets, data, lanes, instruction):
        """Each lane copies a row of `data` to its offset."""
        machine = self.machine
        shared = machine.shared
        size = data.shape[1]
        at = shared.locate(offsets, size, lanes, instruction)
        units, of = shared.units(at, size, lanes)
        shared.check_pending(units, instruction)
        shared.shadow.write(units, of, machine.clock, instruction)
        shared.pending[units] = True
        self.open.append((lanes, self.committed[lanes].copy(), at, data))

    def commit(self, mask):
        self.committed[mask if mask is not True else slice(None)] += 1

    def wait(self, mask, left: int | None, instruction):
        """Until at most the last `left` groups of each thread are under way, or none at all of what was started."""
        machine = self.machine
        shared, here = machine.shared, np.broadcast_to(mask, machine.lanes)
        still = []
        for lanes, groups, at, data in self.open:
            done = here[lanes]
            if left is not None:
                done = done & (groups < self.committed[lanes] - left)
            if done.any():
                size = data.shape[1]
                units, of = shared.units(at[done], size, lanes[done])
                # It is as if the thread wrote it now.
                shared.shadow.write(units, of, machine.clock, instruction)
                shared.pending[units] = False
                shared.defined[units] = True
                shared.data[at[done][:, None] + np.arange(size)] = data[done]
            if not done.all():
                rest = ~done
                still.append((lanes[rest], groups[rest], at[rest], data[rest]))
        self.open = still


def build_cp(frame, instruction):
    parts, machine = instruction.parts, frame.machine
    if parts[1] != "async":
        raise Unsupported("a copy")
    copies = machine.copies
    if parts[2] == "commit_group":
        return copies.commit
    if parts[2] == "wait_group":
        left = number(instruction.operands[0].text)
        return lambda mask: copies.wait(mask, left, instruction)
    if parts[2] == "wait_all":
        return lambda mask: copies.wait(mask, None, instruction)
    if parts[2] not in ("ca", "cg") or parts[3:5] != ("shared", "global"):
        raise Unsupported("a copy")
    to, of, size, *taken = instruction.operands
    size = number(size.text)
    if size != 16 and (parts[2] == "cg" or size not in (4, 8)):
        raise Unsupported("so many bytes")
    to, of = frame.address(to), frame.address(of)
    taken = frame.source(taken[0], "u32") if taken else np.uint32(size)

    def step(mask):
        lanes = machine.lanes_of(mask)
        offsets, addresses = to(lanes).astype(np.uint32), of(lanes)
        wanted = np.broadcast_to(taken, machine.lanes)[lanes]
        if (wanted > size).any():
            raise Fault("arithmetic", f"more bytes than are copied, {instruction}")
        if (addresses & np.uint64(size - 1)).any():
            raise Fault("alignment", f"a source of {size} bytes, {instruction}")
        # What is not taken from the source becomes zero, and is not read.
        data = np.zeros((lanes.size, size), np.uint8)
        for bytes_ in np.unique(wanted):
            if bytes_ == 0:
                continue
            if bytes_ % 4 or bytes_ & (bytes_ - 1):
                raise Unsupported("so many bytes of a source")
            some = wanted == bytes_
            words = machine.memory.load(
                addresses[some], int(bytes_) // 4, np.dtype(np.uint32), lanes[some], machine.clock, False, instruction)
            data[some, :bytes_] = np.ascontiguousarray(words).view(np.uint8)
        copies.start(offsets, data, lanes, instruction)

    return step


BUILDERS = {
    "shfl": build_shfl, "vote": build_vote, "mma": build_mma, "ldmatrix": build_ldmatrix, "bar": build_bar, "cp": build_cp,
}  # fmt: skip
