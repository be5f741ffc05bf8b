"""The threads of some blocks, one element of every register each: who runs next, who waits where.

Of all threads those run on that stand at the earliest instruction, all together. So threads that part meet again where their ways
do, but nothing is made of that: what must be ordered is found by who touched what (shadow), and an instruction of a whole warp
waits for all of it, as the ISA says, wherever they come from.
"""

from collections.abc import Callable

import numpy as np

from . import arithmetic, conversions, movement, warps
from .errors import Fault, Unsupported
from .memory import GlobalMemory, LocalMemory, SharedMemory
from .shadow import Clock
from .text import Address, Function, Immediate, Instruction, Module, Register, Symbol, number

# What an instruction does for the lanes of a mask, or for all of them if it is True.
Step = Callable[[np.ndarray | bool], None]

DTYPES = {"pred": np.dtype(bool), "f16": np.dtype(np.uint16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
for _bits in (8, 16, 32, 64):
    DTYPES |= {f"b{_bits}": np.dtype(f"u{_bits // 8}"), f"u{_bits}": np.dtype(f"u{_bits // 8}"), f"s{_bits}": np.dtype(f"i{_bits // 8}")}

# How the runner treats an instruction.
PLAIN, BRANCH, END, WARP, BLOCK = range(5)
# Where threads stand that have ended.
ENDED = np.int32(2**31 - 1)
STEPS_MAX = 3_000_000

BUILDERS = arithmetic.BUILDERS | conversions.BUILDERS | movement.BUILDERS | warps.BUILDERS


def kind_of(instruction: Instruction) -> int:
    parts = instruction.parts
    if parts[0] == "bra":
        return BRANCH
    if parts[0] in ("ret", "exit"):
        return END
    if parts[0] in ("bar", "barrier"):
        return WARP if parts[1] == "warp" else BLOCK
    if parts[0] in ("shfl", "vote", "mma", "ldmatrix"):
        return WARP
    return PLAIN


class Machine:
    """The state that all functions of a launch share, for some neighbouring blocks of its grid."""

    def __init__(self, module: Module, memory: GlobalMemory, grid, block, first_block: int, blocks: int, params: bytes, shared_bytes: int):
        self.module, self.memory, self.grid, self.block_size = module, memory, grid, block
        self.blocks = blocks
        self.threads = int(np.prod(block))
        if self.threads % 32 or self.threads > 1024:
            raise Unsupported(f"{self.threads} threads of a block")
        self.lanes = blocks * self.threads
        self.params = params
        # Of what a launch adds to the shared memory that the module declares.
        self.dynamic_size = shared_bytes
        self.clock = Clock(self.lanes, self.threads, first_block * self.threads)
        self.every_lane = np.arange(self.lanes)
        self.frames: dict[str, Frame] = {}
        self.symbols: dict[str, int] = dict(memory.symbols)
        self.copies = warps.Copies(self)
        self.steps = 0
        self._special(first_block)
        self.selected: tuple[object, np.ndarray] = (None, self.every_lane)
        self.local_size = 0
        self.shared_size = 0
        for variable in module.shared:
            self.place_shared(variable)

    def _special(self, first_block: int):
        thread = np.arange(self.lanes, dtype=np.uint32) % np.uint32(self.threads)
        block = np.arange(self.lanes, dtype=np.uint32) // np.uint32(self.threads) + np.uint32(first_block)
        self.special = {"%laneid": thread % np.uint32(32)}
        for axis, (name, size, count) in enumerate(zip("xyz", self.block_size, self.grid)):
            below_thread, below_block = (np.uint32(np.prod(of[:axis])) for of in (self.block_size, self.grid))
            self.special[f"%tid.{name}"] = thread // below_thread % np.uint32(size)
            self.special[f"%ctaid.{name}"] = block // below_block % np.uint32(count)
            self.special[f"%ntid.{name}"] = np.uint32(size)
            self.special[f"%nctaid.{name}"] = np.uint32(count)

    def place_shared(self, variable):
        start = -(-self.shared_size // variable.align) * variable.align
        self.symbols[variable.name] = start
        self.shared_size = start + (self.dynamic_size if variable.is_external else variable.size)

    def place_local(self, variable):
        start = -(-self.local_size // 16) * 16
        self.symbols[variable.name] = start
        self.local_size = start + variable.size

    def frame(self, name: str) -> "Frame":
        if name not in self.frames:
            self.frames[name] = Frame(self, self.module.functions[name])
        return self.frames[name]

    def start(self, name: str, unit: int):
        """Runs an entry to its end. `unit`: of shared memory, the narrowest access."""
        entry = self.frame(name)
        self.shared = SharedMemory(self.blocks, self.shared_size, self.threads, unit)
        self.local = LocalMemory(self.lanes, self.local_size)
        with np.errstate(all="ignore"):
            entry.run(True)

    def lanes_of(self, mask) -> np.ndarray:
        """The lanes of a mask as numbers."""
        if mask is True:
            return self.every_lane
        if self.selected[0] is not mask:
            self.selected = (mask, np.flatnonzero(mask))
        return self.selected[1]

    def by_warp(self, mask) -> np.ndarray:
        """A mask as `[warps, 32]`."""
        return np.broadcast_to(mask, self.lanes).reshape(-1, 32)


class Frame:
    """A function with its registers; it does not call itself."""

    def __init__(self, machine: Machine, function: Function):
        self.machine, self.function = machine, function
        body = function.body
        self.registers = {name: np.full(machine.lanes, 0xFE, np.uint8).repeat(DTYPES[kind].itemsize).view(DTYPES[kind])
                          if kind != "pred" else np.zeros(machine.lanes, bool) for name, kind in body.registers.items()}
        self.carry = np.zeros(machine.lanes, np.uint32)
        for variable in body.shared:
            machine.place_shared(variable)
        for variable in body.local:
            machine.place_local(variable)
        # Parameters of callees and of this function, if it is no entry: bytes of each lane.
        self.params: dict[str, np.ndarray] = {}
        for variable in [*body.params, *([] if function.is_entry else [*function.params, *function.returns])]:
            known = self.params.get(variable.name)
            if known is None or known.shape[1] < variable.size:
                self.params[variable.name] = np.full((machine.lanes, variable.size), 0xFE, np.uint8)
        # Those of an entry lie one after the other.
        self.param_offsets: dict[str, int] = {}
        end = 0
        for variable in function.params if function.is_entry else []:
            start = -(-end // variable.align) * variable.align
            self.param_offsets[variable.name] = start
            end = start + variable.size
        if function.is_entry and end != len(machine.params):
            raise Fault("bounds", f"{function.name} takes {end} bytes of arguments, the launch gives {len(machine.params)}")
        code = body.code
        self.kinds = [kind_of(instruction) for instruction in code]
        self.steps = [self._build(instruction, kind) for instruction, kind in zip(code, self.kinds)]
        # Which instructions some thread executed, for all machines that run this function.
        self.reached = function.reached

    # --- Operands.

    def source(self, operand, kind: str):
        """A register's elements, or a constant, as a type."""
        dtype = DTYPES[kind]
        if isinstance(operand, Register):
            array = self.machine.special.get(operand.name)
            if array is None:
                array = self.registers[operand.name]
            if array.dtype.itemsize != dtype.itemsize:
                raise Unsupported(f"{operand.name} as {kind}")
            return array.view(dtype)
        if isinstance(operand, Immediate):
            value = number(operand.text)
            if kind == "pred":
                return np.bool_(value != 0)
            bits = dtype.itemsize * 8
            return np.array(value & (1 << bits) - 1, f"u{dtype.itemsize}").view(dtype)[()]
        if isinstance(operand, Symbol):
            return DTYPES[kind].type(self.symbol(operand.name))
        raise Unsupported(f"operand {operand}")

    def symbol(self, name: str) -> int:
        if name in self.machine.symbols:
            return self.machine.symbols[name]
        if name in self.param_offsets:
            return self.param_offsets[name]
        raise Unsupported(f"the address of {name}")

    def raw(self, operand) -> np.ndarray:
        """A register's elements as they are."""
        if not isinstance(operand, Register):
            raise Unsupported(f"{operand} where a register is meant")
        special = self.machine.special.get(operand.name)
        return self.registers[operand.name] if special is None else np.broadcast_to(special, self.machine.lanes)

    def target(self, operand, kind: str) -> np.ndarray:
        """A register to be written, as a type."""
        array = self.registers[operand.name]
        dtype = DTYPES[kind]
        if array.dtype.itemsize != dtype.itemsize:
            raise Unsupported(f"{operand.name} as {kind}")
        return array.view(dtype)

    def address(self, operand: Address):
        """What gives the addresses of some lanes: a function of their numbers."""
        if isinstance(operand.base, Symbol):
            fixed = np.uint64(self.symbol(operand.base.name) + operand.offset)
            return lambda lanes: np.full(lanes.size, fixed)
        base = self.raw(operand.base)
        if base.dtype.itemsize == 4:
            by = np.uint32(operand.offset & 0xFFFFFFFF)
            return lambda lanes: (base[lanes].view(np.uint32) + by).astype(np.uint64)
        by = np.uint64(operand.offset & (1 << 64) - 1)
        return lambda lanes: base[lanes].view(np.uint64) + by

    # --- Code.

    def _build(self, instruction: Instruction, kind: int) -> Step:
        if kind == BRANCH:
            return self._branch(instruction)
        if kind == END:
            return None
        try:
            step = BUILDERS[instruction.parts[0]](self, instruction)
        except KeyError as error:
            raise Unsupported(f"{instruction}: {error}") from error
        except Unsupported as error:
            raise Unsupported(f"{instruction}: {error}") from error
        if instruction.guard is None:
            return step
        if kind != PLAIN:
            raise Unsupported(f"a guard before what a whole warp does: {instruction}")
        guard = self.registers[instruction.guard.name]
        negated = instruction.negated

        def guarded(mask):
            some = (~guard if negated else guard) & mask
            if some.any():
                step(some)

        return guarded

    def _branch(self, instruction: Instruction):
        """Where it goes, and who goes there: a register of truths, which are the other way round if negated; None for all."""
        target = self.function.body.labels[instruction.operands[0].name]
        guard = None if instruction.guard is None else self.registers[instruction.guard.name]
        return target, guard, instruction.negated

    # --- Who runs.

    def run(self, active):
        """Runs the lanes of a mask from the first instruction until all have ended."""
        machine = self.machine
        at = np.where(np.broadcast_to(active, machine.lanes), np.int32(0), ENDED)
        while True:
            chosen = self._choose(at)
            if chosen is None:
                return
            position, mask, limit = chosen
            self._advance(at, position, mask, limit)

    def _choose(self, at):
        """The earliest instruction that some lanes can execute, those lanes, and where they may meet others."""
        places = np.unique(at)
        if places[-1] == ENDED:
            places = places[:-1]
        if not places.size:
            return None
        if places.size == 1 and self.kinds[places[0]] not in (WARP, BLOCK):
            mask = at == places[0]
            return int(places[0]), True if mask.all() else mask, -1
        live = at != ENDED
        for index, place in enumerate(places):
            mask = at == place
            kind = self.kinds[place]
            if kind in (WARP, BLOCK):
                group = 32 if kind == WARP else self.machine.threads
                whole = ~(live & ~mask).reshape(-1, group).any(axis=1)
                mask &= np.repeat(whole, group)
            if mask.any():
                limit = int(places[index + 1]) if index + 1 < places.size else -1
                return int(place), True if mask.all() else mask, limit
        if self._release(at, live):
            return self._choose(at)
        waiting = "; ".join(str(self.function.body.code[place]) for place in places[:4])
        raise Fault("deadlock", f"threads wait at {waiting}")

    def _release(self, at, live) -> bool:
        """Lets blocks go on whose threads wait at different barriers, each warp of them at one."""
        waits = np.isin(at, [place for place, kind in enumerate(self.kinds) if kind == BLOCK])
        blocks = ~(live & ~waits).reshape(-1, self.machine.threads).any(axis=1)
        mask = live & np.repeat(blocks, self.machine.threads)
        if not mask.any():
            return False
        low = np.where(live, at, ENDED).reshape(-1, 32).min(axis=1)
        if (mask & (at != np.repeat(low, 32))).any():
            raise Fault("divergence", "threads of a warp wait at different barriers")
        place = int(at[np.flatnonzero(mask)[0]])
        self.steps[place](mask)
        at[mask] += 1
        return True

    def _advance(self, at, position: int, mask, limit: int):
        """Runs lanes from an instruction on until they part, wait, end, or come to others at `limit`."""
        kinds, steps, machine = self.kinds, self.steps, self.machine
        first, count, begin = True, 0, position
        whole: dict[int, bool] = {}
        while True:
            if position == limit and not first:
                break
            kind = kinds[position]
            if kind == PLAIN:
                steps[position](mask)
                position += 1
            elif kind == WARP or kind == BLOCK:
                if mask is not True and not first and not self._is_whole(at, mask, kind, whole):
                    break
                steps[position](mask)
                position += 1
            elif kind == END:
                at[...] = ENDED if mask is True else np.where(mask, ENDED, at)
                machine.steps += count
                self.reached[begin : position + 1] = True
                return
            else:
                target, guard, negated = steps[position]
                self.reached[begin : position + 1] = True
                if guard is None:
                    taken = None
                elif mask is True:
                    taken = ~guard if negated else guard
                else:
                    taken = (~guard if negated else guard) & mask
                every = taken is None or (taken.all() if mask is True else (taken == mask).all())
                if every:
                    before, position = position, target
                    if limit >= 0 and before < limit < position:
                        break
                elif not taken.any():
                    position += 1
                else:
                    at[...] = np.where(taken, target, position + 1) if mask is True else np.where(
                        mask, np.where(taken, target, position + 1), at)
                    machine.steps += count
                    if machine.steps > STEPS_MAX:
                        raise Fault("endless", f"{machine.steps} instructions of {self.function.name}")
                    return
                count, begin = count + 1, position
                if machine.steps + count > STEPS_MAX:
                    raise Fault("endless", f"more than {STEPS_MAX} branches of {self.function.name}")
            first = False
        self.reached[begin:position] = True
        machine.steps += count
        if mask is True:
            at[...] = position
        else:
            at[mask] = position

    def _is_whole(self, at, mask, kind: int, known: dict[int, bool]) -> bool:
        """Whether nobody is missing whom a warp or block of these lanes would wait for."""
        if kind not in known:
            group = 32 if kind == WARP else self.machine.threads
            missing = ((at != ENDED) & ~mask).reshape(-1, group).any(axis=1)
            known[kind] = not (missing & mask.reshape(-1, group).any(axis=1)).any()
        return known[kind]
