"""PTX as modules, functions and instructions. Bodies are read when a function is first asked for."""

import dataclasses
import functools
import re

import numpy as np

from .errors import Unsupported


@dataclasses.dataclass(frozen=True)
class Register:
    """A register, or a special one such as `%tid.x`."""

    name: str


@dataclasses.dataclass(frozen=True)
class Immediate:
    """A constant as it is written: `-4`, `0x1f`, `0f3F800000`, `0d3FF0000000000000`."""

    text: str


@dataclasses.dataclass(frozen=True)
class Symbol:
    """The name of a variable, a label or a function."""

    name: str


@dataclasses.dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`"""

    items: tuple


@dataclasses.dataclass(frozen=True)
class Address:
    """`[base + offset]`; the base is a register or a symbol."""

    base: Register | Symbol
    offset: int


@dataclasses.dataclass(frozen=True)
class Both:
    """`first|second`, two destinations."""

    first: Register
    second: Register


@dataclasses.dataclass
class Instruction:
    """One instruction. `parts` is the opcode at its dots; the guard is the register of `@p`, with whether it is `@!p`."""

    line: int
    parts: tuple[str, ...]
    operands: list
    guard: Register | None
    negated: bool
    text: str

    def __str__(self):
        return f"line {self.line}: {self.text}"


@dataclasses.dataclass
class Variable:
    """A variable of some state space, with its first bytes. The size of an external one is that of a launch's shared memory."""

    name: str
    align: int
    size: int
    data: bytes = b""
    is_external: bool = False


@dataclasses.dataclass
class Body:
    """What is within a function's braces."""

    registers: dict[str, str]
    shared: list[Variable]
    local: list[Variable]
    params: list[Variable]
    code: list[Instruction]
    labels: dict[str, int]


@dataclasses.dataclass
class Function:
    """An entry point, or a function that entries call."""

    name: str
    is_entry: bool
    params: list[Variable]
    returns: list[Variable]
    text: str
    first_line: int

    @functools.cached_property
    def body(self) -> Body:
        return read_body(self.text, self.first_line)

    @functools.cached_property
    def reached(self) -> np.ndarray:
        """Which instructions were executed since it was read."""
        return np.zeros(len(self.body.code), bool)


@dataclasses.dataclass
class Module:
    """A PTX file."""

    version: str
    target: str
    functions: dict[str, Function]
    globals: list[Variable]
    shared: list[Variable]


SIZES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4}
SIZES |= {"b64": 8, "u64": 8, "s64": 8, "f64": 8}
VARIABLE = re.compile(
    r"\.(?:global|const|shared|local|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)\s*(?:\[(\d*)\])?\s*(?:=\s*(.*))?$", re.DOTALL
)
ENTRY = re.compile(r"\.(entry|func)\s+(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?", re.DOTALL)
INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*)$", re.DOTALL)
OPERAND = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s]+)\s*(?:,|$)")


def without_comment(line: str) -> str:
    return line.partition("//")[0].strip()


def variable(text: str) -> Variable:
    """A declaration without its `;`."""
    found = VARIABLE.search(text.strip())
    if not found:
        raise Unsupported(f"declaration: {text[:80]}")
    align, kind, name, length, first = found.groups()
    size = SIZES[kind]
    data = b""
    if first:
        numbers = [number(item.strip()) for item in first.strip().strip("{}").split(",")]
        data = b"".join((value & (1 << 8 * size) - 1).to_bytes(size, "little") for value in numbers)
    return Variable(name, int(align or size), size * int(length or 1), data, length == "" and not data)


def number(text: str) -> int:
    """The bits of a constant; those of a float as they are written."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    text = text.rstrip("U")
    return int(text, 0)


def read(text: str) -> Module:
    """A whole file."""
    module = Module("", "", {}, [], [])
    header: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = without_comment(lines[at])
        at += 1
        if line == "{":
            end = at
            # A body ends at the first closing brace without indentation.
            while lines[end] != "}":
                end += 1
            declare(module, "\n".join(header), "\n".join(lines[at:end]), at + 1)
            header, at = [], end + 1
        elif line.startswith((".version", ".target")):
            setattr(module, line.split()[0][1:], line.split()[1])
        elif line and not line.startswith(".address_size"):
            header.append(line)
            if line.endswith(";"):
                statement = "\n".join(header)[:-1]
                header = []
                if ".entry" in statement or ".func" in statement:
                    continue
                (module.shared if ".shared" in statement else module.globals).append(variable(statement))
    return module


def declare(module: Module, header: str, text: str, first_line: int):
    kind, returns, name, params = ENTRY.search(header).groups()

    def listed(text):
        return [variable(part) for part in (text or "").split(",") if part.strip()]

    module.functions[name] = Function(name, kind == "entry", listed(params), listed(returns), text, first_line)


def read_body(text: str, first_line: int) -> Body:
    body = Body({}, [], [], [], [], {})
    statement, begin = "", 0
    # What registers of inner scopes, those of calls and of inline PTX, are called here.
    scopes: list[dict[str, str]] = []
    count = 0
    for index, line in enumerate(text.splitlines()):
        rest = without_comment(line)
        while rest:
            if not statement:
                begin = first_line + index
                if rest[0] in "{}":
                    count += 1
                    scopes.append({}) if rest[0] == "{" else scopes.pop()
                    rest = rest[1:].strip()
                    continue
                label = re.match(r"([\w$]+):\s*", rest)
                if label:
                    body.labels[label.group(1)] = len(body.code)
                    rest = rest[label.end() :]
                    continue
            piece, end, rest = rest.partition(";")
            statement = f"{statement} {piece.strip()}".strip()
            rest = rest.strip()
            if end:
                if statement:
                    take_statement(body, renamed(statement, scopes, count), begin)
                statement = ""
    return body


def renamed(statement: str, scopes: list[dict[str, str]], count: int) -> str:
    """A statement with the registers of its scopes by names of their own."""
    if scopes and statement.startswith(".reg"):
        for name in re.findall(r"%?\w+", statement.split(None, 2)[2]):
            scopes[-1][name] = f"{name}_{count}"
    for scope in scopes:
        if scope:
            statement = re.sub(r"%?\b\w+", lambda found, scope=scope: scope.get(found.group(), found.group()), statement)
    return statement


def take_statement(body: Body, statement: str, line: int):
    if statement.startswith(".reg"):
        kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", statement, re.DOTALL).groups()
        for name in names.split(","):
            ranged = re.match(r"(%?\w+)<(\d+)>", name.strip())
            each = [f"{ranged.group(1)}{i}" for i in range(int(ranged.group(2)))] if ranged else [name.strip()]
            for one in each:
                if body.registers.setdefault(one, kind) != kind:
                    raise Unsupported(f"{one} is of two types")
    elif statement.startswith(".shared"):
        body.shared.append(variable(statement))
    elif statement.startswith(".local"):
        body.local.append(variable(statement))
    elif statement.startswith(".param"):
        body.params.append(variable(statement))
    elif statement.startswith(".pragma"):
        pass
    else:
        body.code.append(instruction(statement, line))


def instruction(statement: str, line: int) -> Instruction:
    negated, guard, opcode, rest = INSTRUCTION.match(statement).groups()
    operands = [operand(text) for text in split_operands(rest)]
    return Instruction(line, tuple(opcode.split(".")), operands, Register(guard) if guard else None, bool(negated), statement)


def split_operands(text: str) -> list[str]:
    return [found.group(1) for found in OPERAND.finditer(text)] if text else []


@functools.lru_cache(maxsize=65536)
def operand(text: str):
    if text[0] in "{(":
        return Vector(tuple(operand(item.strip()) for item in text[1:-1].split(",") if item.strip()))
    if text[0] == "[":
        base, sign, offset = re.match(r"\[\s*([\w%$.]+)\s*(?:([+-])\s*(-?\w+))?\s*\]", text).groups()
        by = int(offset, 0) * (-1 if sign == "-" else 1) if offset else 0
        return Address(operand(base), by)
    if "|" in text:
        first, second = text.split("|")
        return Both(Register(first), Register(second))
    if text[0] == "%":
        return Register(text)
    if text[0].isdigit() or text[0] == "-":
        return Immediate(text)
    return Symbol(text)
