"""Where the threads of a warp may have parted, by a forward analysis of a kernel's instructions.

A register or predicate is the same in all lanes, counts up with the lane, or may be anything. A branch that asks for what differs
parts the warp; BSYNC joins what has parted since its BSSY, and WARPSYNC of all lanes joins all. What is written while a warp
is parted may differ afterwards. Uniform registers are the same in all lanes by construction.

The names are those of NVIDIA's "CUDA Binary Utilities", "Instruction Set Reference"; what they do to warps is nowhere written, and is
read from what the assembler makes of __syncwarp(), branches and loops.
"""

import dataclasses
import re

from .listing import Instruction, Listing

# What a register holds in the lanes of a warp: one value, a multiple of 32 and the lane, anything.
SAME, LANE, DIFFERENT = 0, 1, 2
# How the warp is: together, parted, some of its threads ended.
TOGETHER, PARTED, ENDED = 0, 1, 2

WARP = 32
# The state: registers, predicates, what BSYNC comes back to by barrier, the warp.
_PREDICATES, _BARRIERS = 256, 264
_WARP = _BARRIERS + 32
_STATE = _WARP + 1

_REGISTER = re.compile(r"(?<![\w.])(!?)(R|P)(\d+)(\.64)?(?!\w)")
_WITHOUT_RESULT = ("ST", "STG", "STS", "STL", "STSM", "RED", "BRA", "BRX", "JMP", "EXIT", "BAR", "BSSY", "BSYNC", "BREAK", "WARPSYNC",
                   "CALL", "RET", "NOP", "YIELD", "MEMBAR", "ERRBAR", "DEPBAR", "LDGDEPBAR", "LDGSTS", "CCTL", "NANOSLEEP", "BPT")
_ANYTHING = ("SHFL", "ATOM", "ATOMG", "ATOMS", "HMMA", "IMMA", "LDSM", "MOVM")
_COPIES = ("MOV", "IMAD.MOV", "IMAD.MOV.U32")


def _width(instruction: Instruction) -> int:
    """How many registers a result may take."""
    parts = instruction.name.split(".")
    if "128" in parts or instruction.kind in ("HMMA", "IMMA") or instruction.kind == "LDSM" and parts[-1] == "4":
        return 4
    if {"64", "WIDE", "F64"} & set(parts) or instruction.kind in ("LDSM", "DADD", "DMUL", "DFMA", "CS2R"):
        return 2
    return 1


def _registers(operand: str) -> list[int]:
    found = []
    for _, kind, number, pair in _REGISTER.findall(operand):
        first = int(number) + (_PREDICATES if kind == "P" else 0)
        found += [first, first + 1] if pair else [first]
    return found


def _immediate(operand: str) -> int | None:
    return int(operand, 0) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", operand) else None


@dataclasses.dataclass
class _Effect:
    """What an instruction reads and writes, as positions in the state."""

    reads: list[int]
    writes: list[int]
    guard: int | None


def _effect(instruction: Instruction) -> _Effect:
    operands = instruction.operands
    results = 0
    if instruction.kind not in _WITHOUT_RESULT and operands:
        results = 1
        # The second result of a shuffle or comparison, and up to two carries of a sum.
        while len(operands) > results and re.fullmatch(r"P[0-9T]", operands[results]) and results < (3 if instruction.kind == "IADD3" else 2):
            results += 1
        if instruction.kind == "SHFL":
            results = 2
    writes = []
    for operand in operands[:results]:
        for at in _registers(operand):
            is_register = at < _PREDICATES
            writes += range(at, at + _width(instruction)) if is_register else [at]
    if instruction.kind == "R2P":
        writes = list(range(_PREDICATES, _PREDICATES + 7))
    reads = [at for operand in operands[results:] for at in _registers(operand)]
    guard = re.fullmatch(r"!?P(\d)", instruction.guard)
    return _Effect(reads, [at for at in writes if at < _BARRIERS], _PREDICATES + int(guard[1]) if guard else None)


def _of_result(instruction: Instruction, levels: list[int]) -> int:
    """What is known of a result's lanes, by what is of what it is made of."""
    kind, operands = instruction.kind, instruction.operands
    if kind == "S2R":
        special = operands[-1]
        if special.startswith(("SR_CTAID", "SR_NCTAID", "SR_GRIDID")):
            return SAME
        return LANE if special in ("SR_TID.X", "SR_LANEID") else DIFFERENT
    if kind in _ANYTHING or kind == "CS2R" and operands[-1] != "SRZ":
        return DIFFERENT
    if kind in ("VOTE", "VOTEU", "R2UR", "REDUX"):
        return SAME
    read = max(levels, default=SAME)
    if read != LANE or instruction.name in _COPIES:
        return read
    immediate = [value for value in map(_immediate, operands) if value is not None]
    if kind == "SHF" and ".R" in instruction.name and immediate[:1] and immediate[0] >= 5:
        return SAME  # the warp's number
    if kind == "LOP3" and immediate[:1] and immediate[0] & 31 == 0 and operands[-2:-1] == ["0xc0"]:
        return SAME
    if kind in ("IADD3", "IADD", "VIADD", "LEA") and len(levels) == 1 and all(value % WARP == 0 for value in immediate):
        return LANE
    if kind == "LEA" and ".HI" in instruction.name and operands[-1] == "0x5":
        return LANE  # the first step of a signed division by 32
    if kind == "LEA" and ".HI" in instruction.name and operands[-1] == "0x1b":
        return SAME  # and both
    if kind == "ISETP" and len(immediate) == 1:
        first = immediate[0] + (".GT" in instruction.name or ".LE" in instruction.name)
        is_order = any(way in instruction.name for way in (".GT", ".GE", ".LT", ".LE"))
        return SAME if is_order and first % WARP == 0 else DIFFERENT
    return DIFFERENT


def _bit_operation(instruction: Instruction) -> tuple[str, str, int, int] | None:
    """Where predicates are kept as bits of a register, 1 << n: `set`, `clear` or `test`, its predicate, the register and the bit."""
    operands = instruction.operands
    if not instruction.name.startswith("LOP3.LUT"):
        return None
    if len(operands) == 6 and (operands[0], operands[3], operands[4]) == (operands[1], "RZ", "0xfc"):
        kind, register, mask = "set", operands[0], _immediate(operands[2])
    elif len(operands) == 6 and (operands[0], operands[3], operands[4]) == (operands[1], "RZ", "0xc0"):
        kind, register, mask = "clear", operands[0], ~(_immediate(operands[2]) or 0) & 0xffffffff
    elif len(operands) == 7 and (operands[1], operands[4], operands[5]) == ("RZ", "RZ", "0xc0"):
        kind, register, mask = "test", operands[2].removesuffix(".reuse"), _immediate(operands[3])
    else:
        return None
    if not mask or mask & (mask - 1) or not re.fullmatch(r"R\d+", register):
        return None
    return kind, operands[0], int(register[1:]), mask.bit_length() - 1


class Lanes:
    """The analysis of a kernel: for each instruction how the warp may be when it comes there."""

    def __init__(self, kernel: Listing):
        self.kernel = kernel
        self.effects = [_effect(instruction) for instruction in kernel.instructions]
        self.warp: dict[int, int] = {}
        self._written: dict[str, set[int]] = {}
        self._bits = [_bit_operation(instruction) for instruction in kernel.instructions]
        tested = sorted({bit[2:] for bit in self._bits if bit and bit[0] == "test"})
        # Those bits have places of their own in the state.
        self._places = {bit: _STATE + at for at, bit in enumerate(tested)}
        self._run()

    def _run(self):
        starts = self._starts()
        at_start: dict[int, bytearray] = {0: bytearray(_STATE + len(self._places))}
        work = [0]
        while work:
            start = work.pop()
            state = bytearray(at_start[start])
            index = start
            # What was written under a guard that has not changed since, to be read under the same.
            under: dict[int, tuple[str, int]] = {}
            while True:
                self.warp[index] = max(self.warp.get(index, TOGETHER), state[_WARP])
                into = self._step(index, state, under)
                if len(into) != 1 or into[0][0] != index + 1 or index + 1 in starts:
                    break
                index, state = into[0]
            for target, after in into:
                known = at_start.get(target)
                joined = after if known is None else bytearray(map(max, known, after))
                if joined != known:
                    at_start[target] = bytearray(joined)
                    work.append(target)

    def _starts(self) -> set[int]:
        starts = {0}
        for index, after in enumerate(self.kernel.successors):
            if after != [index + 1]:
                starts.update(after)
                starts.add(index + 1)
        return starts

    def _step(self, index: int, state: bytearray, under: dict[int, tuple[str, int]]) -> list[tuple[int, bytearray]]:
        """The state after an instruction, for each that may follow."""
        instruction, effect = self.kernel.instructions[index], self.effects[index]
        successors = self.kernel.successors[index]
        asks = state[effect.guard] if effect.guard is not None else SAME
        kind = instruction.kind
        if kind in ("BRA", "BRX", "JMP"):
            return self._branch(index, state, max(asks, *(state[at] for at in effect.reads), SAME))
        if kind == "EXIT":
            if asks != SAME:
                state[_WARP] = ENDED
        elif kind in ("BSSY", "BSYNC", "BREAK"):
            barrier = re.match(r"B(\d+)$", instruction.operands[0])
            at = _BARRIERS + int(barrier[1]) if barrier else _BARRIERS
            if kind == "BSSY":
                state[at] = state[_WARP]
            elif kind == "BREAK":
                state[at] = max(state[at], PARTED if asks != SAME or state[_WARP] else TOGETHER)
            elif state[_WARP] != ENDED:
                state[_WARP] = state[at]
        elif kind == "WARPSYNC":
            if ".ALL" in instruction.name or instruction.operands[:1] == ["0xffffffff"]:
                state[_WARP] = TOGETHER if state[_WARP] != ENDED else ENDED
        elif kind == "CALL":
            for at in self._writes_of(instruction.targets[0] if instruction.targets else ""):
                state[at] = DIFFERENT
        elif effect.writes:
            same_guard = {at: level for at, (guard, level) in under.items() if guard == instruction.guard}
            levels = [same_guard.get(at, state[at]) for at in effect.reads]
            level = DIFFERENT if state[_WARP] else _of_result(instruction, levels)
            level = self._level_of_bits(index, state, asks, level)
            for at in effect.writes:
                # Where the guard says no, the former value stays.
                state[at] = level if effect.guard is None else max(level, asks and DIFFERENT, state[at])
                under.pop(at, None)
                for known in [known for known, (guard, _) in under.items() if guard.lstrip("!") == f"P{at - _PREDICATES}"]:
                    del under[known]
                if effect.guard is not None and asks == SAME:
                    under[at] = instruction.guard, level
        return [(target, state) for target in successors]

    def _branch(self, index: int, state: bytearray, asks: int) -> list[tuple[int, bytearray]]:
        instruction, successors = self.kernel.instructions[index], self.kernel.successors[index]
        if ".DIV" in instruction.name:
            # It is taken where the warp has parted: what follows in the listing is for one that has not.
            together = bytearray(state)
            together[_WARP] = ENDED if state[_WARP] == ENDED else TOGETHER
            return [(target, together if target == index + 1 else state) for target in successors]
        if asks != SAME and len(successors) > 1 and state[_WARP] == TOGETHER:
            state[_WARP] = PARTED
        return [(target, bytearray(state)) for target in successors]

    def _level_of_bits(self, index: int, state: bytearray, asks: int, level: int) -> int:
        """The level of a result, with what is known of single bits of registers brought up to date."""
        operation, effect = self._bits[index], self.effects[index]
        if operation and operation[0] == "test":
            return DIFFERENT if state[_WARP] else state[self._places[operation[2:]]]
        for (register, bit), at in self._places.items():
            # An operation on a single bit leaves the others as they are.
            if register in effect.writes and (not operation or operation[2:] == (register, bit)):
                new = DIFFERENT if asks or state[_WARP] else SAME if operation else level
                state[at] = new if effect.guard is None else max(new, state[at])
        return level

    def _writes_of(self, function: str) -> set[int]:
        """What a function may write, with those that it calls."""
        if function in self._written:
            return self._written[function]
        writes: set[int] = set()
        self._written[function] = writes
        work, seen = [self.kernel.labels.get(function, 0)], set()
        while work:
            index = work.pop()
            if index in seen:
                continue
            seen.add(index)
            instruction = self.kernel.instructions[index]
            writes.update(self.effects[index].writes)
            if instruction.kind == "CALL" and instruction.targets:
                writes |= self._writes_of(instruction.targets[0])
            work += self.kernel.successors[index]
        return writes
