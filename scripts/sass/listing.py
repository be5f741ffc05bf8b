"""Listings of `nvdisasm -c` as functions, instructions and the ways between them."""

import dataclasses
import functools
import re

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
_LABEL = re.compile(r"^([.$\w]+):$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_TABLE = re.compile(r'BRANCH_TARGETS ([^"]+)"')

# Instructions after which the next one in the listing does not follow.
_LEAVES = ("EXIT", "RET", "BRA", "JMP", "BRX", "BRXU", "JMX")


@dataclasses.dataclass
class Instruction:
    # The predicate, as it stands after the `@`; empty where there is none.
    guard: str
    # With its modifiers, as `LDG.E.128`.
    name: str
    operands: list[str]
    # What branches name.
    targets: list[str]
    line: int

    @functools.cached_property
    def kind(self) -> str:
        """The name without modifiers. A call of a place within a function, which never returns, is a branch."""
        kind = self.name.split(".")[0]
        return "BRA" if kind == "CALL" and any(target.startswith(".L_") for target in self.targets) else kind

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.name} {', '.join(self.operands)}".strip()


@dataclasses.dataclass
class Listing:
    """A kernel, with the functions that lie in its section."""

    name: str
    instructions: list[Instruction]
    labels: dict[str, int]

    @functools.cached_property
    def successors(self) -> list[list[int]]:
        """Of each instruction, those that may follow. A call is followed by its return."""
        return [self._after(index, instruction) for index, instruction in enumerate(self.instructions)]

    def _after(self, index: int, instruction: Instruction) -> list[int]:
        jumps = instruction.kind in ("BRA", "JMP", "BRX", "BRXU", "JMX")
        after = [self.labels[target] for target in instruction.targets if target in self.labels] if jumps else []
        # A branch that asks something is not always taken, whether it asks by its guard or by an operand.
        asks = instruction.guard not in ("", "PT", "UPT") or any(is_predicate(operand) for operand in instruction.operands)
        if instruction.kind not in _LEAVES or asks or ".DIV" in instruction.name:
            after.append(index + 1)
        return [target for target in after if target < len(self.instructions)]

    @functools.cached_property
    def loops(self) -> list[set[int]]:
        """The largest sets of instructions that can each be reached from each other."""
        return [part for part in _components(self.successors) if len(part) > 1]


def is_predicate(operand: str) -> bool:
    return re.fullmatch(r"!?U?P[0-9]", operand) is not None


def _components(successors: list[list[int]]) -> list[set[int]]:
    """Strongly connected components, by Tarjan's algorithm without recursion."""
    number, low, on_stack = {}, {}, set()
    stack, found = [], []
    for root in range(len(successors)):
        if root in number:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                number[node] = low[node] = len(number)
                stack.append(node)
                on_stack.add(node)
            if at < len(successors[node]):
                work.append((node, at + 1))
                after = successors[node][at]
                if after not in number:
                    work.append((after, 0))
                elif after in on_stack:
                    low[node] = min(low[node], number[after])
                continue
            for after in successors[node]:
                if after in on_stack:
                    low[node] = min(low[node], low[after])
            if low[node] == number[node]:
                part = set()
                while node not in part:
                    part.add(stack.pop())
                on_stack -= part
                found.append(part)
    return found


def read(text: str) -> list[Listing]:
    """The kernels of a listing."""
    kernels, current = [], None
    for number, line in enumerate(text.splitlines(), 1):
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if section:
            current = Listing(section[1], [], {})
            kernels.append(current)
        elif re.match(r"\s*\.section\s", line):
            current = None
        if current is None:
            continue
        label, instruction = _LABEL.match(line), _INSTRUCTION.match(line)
        if label:
            current.labels[label[1]] = len(current.instructions)
        elif instruction:
            guard, name, operands = instruction.groups()
            table = _TABLE.search(line)
            targets = table[1].split(",") if table else _TARGET.findall(line)
            split = [operand.strip() for operand in re.split(r",(?![^\[(]*[\])])", operands) if operand.strip()]
            current.instructions.append(Instruction(guard or "", name, split, targets, number))
    return kernels
