"""Moves, loads, stores and calls."""

import numpy as np

from .arithmetic import put
from .errors import Unsupported
from .memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WINDOW
from .text import Address, Register, Symbol, Vector


def dtype_of(kind: str) -> np.dtype:
    return np.dtype({"s": "i", "u": "u", "b": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8))


def build_mov(frame, instruction):
    if len(instruction.parts) != 2:
        raise Unsupported("a modifier")
    to, of = instruction.operands
    kind = instruction.parts[1]
    if isinstance(to, Vector) and len(to.items) == 2:
        return unpack(frame, to.items, of)
    if isinstance(of, Vector) and len(of.items) == 2:
        return pack(frame, to, of.items)
    # A register may be moved to one of another type as wide.
    kind = f"b{kind[1:]}" if kind != "pred" else kind
    target, source = frame.target(to, kind), frame.source(of, kind)
    return lambda mask: put(target, source, mask)


def unpack(frame, parts, of):
    source = frame.raw(of)
    half = source.dtype.itemsize // 2
    targets = [frame.registers[part.name].view(f"u{half}") for part in parts]
    halves = source.view(f"u{half}").reshape(-1, 2)

    def step(mask):
        low, high = halves[:, 0].copy(), halves[:, 1].copy()
        put(targets[0], low, mask)
        put(targets[1], high, mask)

    return step


def pack(frame, to, parts):
    target = frame.registers[to.name]
    half = target.dtype.itemsize // 2
    halves = target.view(f"u{half}").reshape(-1, 2)
    low, high = (frame.source(part, f"b{8 * half}") for part in parts)

    def step(mask):
        values = np.stack([np.broadcast_to(low, len(target)), np.broadcast_to(high, len(target))], axis=1)
        put(halves, values, mask if mask is True else mask[:, None])

    return step


def build_cvta(frame, instruction):
    """Between generic addresses and those of a state space."""
    parts = instruction.parts
    space = parts[-2]
    base = {"global": 0, "local": LOCAL_BASE, "shared": SHARED_BASE, "const": 0}[space]
    target, source = frame.target(instruction.operands[0], "u64"), frame.source(instruction.operands[1], "u64")
    to_space = parts[1] == "to"
    by = np.uint64(base)

    def step(mask):
        put(target, source - by if to_space else source + by, mask)

    return step


class Access:
    """A load or a store: where, how wide, and which registers."""

    def __init__(self, frame, instruction, address: Address, registers):
        self.instruction, self.frame = instruction, frame
        flags = [part for part in instruction.parts[1:] if part not in ("v2", "v4")]
        self.constant = "nc" in flags
        self.kind = flags.pop()
        spaces = [flag for flag in flags if flag in ("global", "shared", "local", "param", "const")]
        if set(flags) - set(spaces) - {"nc", "volatile", "relaxed", "weak"}:
            raise Unsupported("a modifier")
        self.space = spaces[0] if spaces else "generic"
        self.items = registers.items if isinstance(registers, Vector) else (registers,)
        self.count = len(self.items)
        self.dtype = dtype_of(self.kind)
        self.address = address
        if self.space != "param":
            self.addresses = frame.address(address)

    def targets(self):
        """The registers to load into, each as wide as it is, with the loaded type's sign."""
        wide = []
        for item in self.items:
            register = self.frame.registers[item.name]
            if register.dtype.itemsize < self.dtype.itemsize:
                raise Unsupported("a register that is too narrow")
            same = register.dtype.itemsize == self.dtype.itemsize
            wide.append(register.view(self.dtype if same else f"{self.dtype.kind}{register.dtype.itemsize}"))
        return wide

    def values(self):
        """What to store, as functions of lanes."""
        sources = []
        for item in self.items:
            if isinstance(item, Register):
                raw = self.frame.raw(item)
                bits = raw.view(f"u{raw.dtype.itemsize}")
                sources.append(lambda lanes, bits=bits: bits[lanes].astype(f"u{self.dtype.itemsize}"))
            else:
                value = self.frame.source(item, self.kind)
                bits = np.asarray(value).view(f"u{self.dtype.itemsize}")
                sources.append(lambda lanes, bits=bits: np.full(lanes.size, bits))
        return lambda lanes: np.stack([source(lanes) for source in sources], axis=1)


def spaces_of(addresses, space: str):
    """The state spaces of addresses: pairs of a name and who has one there."""
    if space in ("global", "const", "shared", "local"):
        return [(space, slice(None), np.uint64(0))]
    found = []
    for name, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
        here = (addresses >= np.uint64(base)) & (addresses < np.uint64(base + WINDOW))
        if here.any():
            found.append((name, here, np.uint64(base)))
    rest = np.ones(addresses.size, bool)
    for _, here, _ in found:
        rest &= ~here
    return [*found, ("global", rest, np.uint64(0))] if rest.any() else found


def build_ld(frame, instruction):
    access = Access(frame, instruction, instruction.operands[1], instruction.operands[0])
    if access.space == "param":
        return load_param(frame, access)
    machine, targets, dtype = frame.machine, access.targets(), access.dtype

    def step(mask):
        lanes = machine.lanes_of(mask)
        addresses = access.addresses(lanes)
        for space, here, base in spaces_of(addresses, access.space):
            some, at = lanes[here], addresses[here] - base
            if space == "shared":
                values = machine.shared.load(at.astype(np.uint32), access.count, dtype, some, machine.clock, instruction)
            elif space == "local":
                values = machine.local.load(at, access.count, dtype, some, instruction)
            else:
                values = machine.memory.load(at, access.count, dtype, some, machine.clock, access.constant, instruction)
            for index, target in enumerate(targets):
                target[some] = values[:, index]

    return step


def build_st(frame, instruction):
    access = Access(frame, instruction, instruction.operands[0], instruction.operands[1])
    if access.space == "param":
        return store_param(frame, access)
    machine, values_of = frame.machine, access.values()

    def step(mask):
        lanes = machine.lanes_of(mask)
        addresses, values = access.addresses(lanes), values_of(lanes)
        for space, here, base in spaces_of(addresses, access.space):
            some, at, what = lanes[here], addresses[here] - base, values[here]
            if space == "shared":
                machine.shared.store(at.astype(np.uint32), what, some, machine.clock, instruction)
            elif space == "local":
                machine.local.store(at, what, some, instruction)
            else:
                machine.memory.store(at, what, some, machine.clock, instruction)

    return step


def load_param(frame, access: Access):
    """From the launch's arguments, from what a caller gave, or from what a callee gave back."""
    targets, dtype, base = access.targets(), access.dtype, access.address.base
    size = access.count * dtype.itemsize
    if isinstance(base, Symbol) and base.name in frame.params:
        place = frame.params[base.name][:, access.address.offset : access.address.offset + size]
        if place.shape[1] != size:
            raise Unsupported("a parameter that is too short")

        def step(mask):
            values = np.ascontiguousarray(place).view(dtype)
            for index, target in enumerate(targets):
                put(target, values[:, index], mask)

        return step
    data = np.frombuffer(frame.machine.params, np.uint8)
    if isinstance(base, Symbol):
        first = frame.symbol(base.name) + access.address.offset
        if first % size or first + size > data.size:
            raise Unsupported("arguments that end before")
        values = data[first : first + size].view(dtype)

        def step(mask):
            for index, target in enumerate(targets):
                put(target, values[index], mask)

        return step
    addresses, machine = frame.address(access.address), frame.machine

    def step(mask):
        lanes = machine.lanes_of(mask)
        at = addresses(lanes).astype(np.int64)
        if (at % size).any() or (at + size > data.size).any():
            raise Unsupported("an address outside the arguments")
        values = data[at[:, None] + np.arange(size)].view(dtype)
        for index, target in enumerate(targets):
            target[lanes] = values[:, index]

    return step


def store_param(frame, access: Access):
    place = frame.params[access.address.base.name]
    values_of, machine = access.values(), frame.machine
    first = access.address.offset
    size = access.count * access.dtype.itemsize
    if first + size > place.shape[1]:
        raise Unsupported("a parameter that is too short")

    def step(mask):
        lanes = machine.lanes_of(mask)
        place[lanes, first : first + size] = np.ascontiguousarray(values_of(lanes)).view(np.uint8)

    return step


def build_call(frame, instruction):
    """`call.uni (returned), name, (given)`. The callee runs to its end for the lanes that are here."""
    operands = instruction.operands
    returned = operands[0].items if isinstance(operands[0], Vector) else ()
    name = operands[1 if returned else 0].name
    given = operands[-1].items if isinstance(operands[-1], Vector) else ()
    callee = frame.machine.frame(name)
    into = [(frame.params[one.name], callee.params[to.name]) for one, to in zip(given, callee.function.params, strict=True)]
    back = [(callee.params[of.name], frame.params[one.name]) for one, of in zip(returned, callee.function.returns, strict=True)]
    machine = frame.machine

    def copied(pairs, lanes):
        for source, target in pairs:
            size = min(source.shape[1], target.shape[1])
            target[lanes, :size] = source[lanes, :size]

    def step(mask):
        lanes = machine.lanes_of(mask)
        copied(into, lanes)
        callee.run(mask)
        copied(back, lanes)

    return step


assert GLOBAL_BASE < SHARED_BASE

BUILDERS = {"mov": build_mov, "cvta": build_cvta, "ld": build_ld, "ldu": build_ld, "st": build_st, "call": build_call}
