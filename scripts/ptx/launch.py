"""Launches of a case: kernels by name, their arguments, grids and blocks; and the buffers that they share."""

import struct

import numpy as np

from . import shipped, text
from .errors import Fault
from .machine import Machine
from .memory import BOTH, IN, OUT, Buffer, GlobalMemory

# Threads that run together: more make each numpy call dearer, fewer make more of them.
LANES = 2048


class Device:
    """Runs the kernels of one architecture over memory of a case's own."""

    def __init__(self, architecture: int, modules: dict[str, text.Module] | None = None):
        self.architecture = architecture
        # Modules that stand for those that are shipped.
        self.modules = modules or {}
        self.memory = GlobalMemory()
        self.memory.symbols = {}
        self.laid_out = False
        self.launches: list[str] = []
        self.variables: list[tuple[text.Module, str, Buffer]] = []

    def module(self, source: str) -> text.Module:
        if source not in self.modules:
            self.modules[source] = shipped.module(source, self.architecture)
        return self.modules[source]

    def read(self, name: str, content: np.ndarray, misplaced: int = 0) -> Buffer:
        """A buffer that is only read."""
        return self.memory.add(name, IN, content, misplaced)

    def write(self, name: str, size: int, misplaced: int = 0) -> Buffer:
        """A buffer of so many bytes, each of which a launch writes at most once."""
        return self.memory.add(name, OUT, size, misplaced)

    def update(self, name: str, content: np.ndarray, misplaced: int = 0) -> Buffer:
        """A buffer that is read and written."""
        return self.memory.add(name, BOTH, content, misplaced)

    def use(self, *sources: str):
        """Brings the variables of modules to memory; before the first launch."""
        for source in sources:
            module = self.module(source)
            for variable in module.globals:
                data = variable.data.ljust(variable.size, b"\0")
                buffer = self.memory.add(variable.name, IN, np.frombuffer(data, np.uint8))
                self.variables.append((module, variable.name, buffer))

    def launch(self, source: str, kernel: str, grid, block, *arguments, shared_bytes: int = 0):
        """Runs a kernel. `arguments`: pairs of a struct's format and values, in the order of its argument struct. `shared_bytes`: of
        shared memory beside what the kernel declares."""
        module = self.module(source)
        params = b"".join(struct.pack("<" + form, *values) for form, *values in arguments)
        grid, block = ([*size, 1, 1][:3] for size in (grid, block))
        threads = int(np.prod(block))
        if not self.laid_out:
            self.memory.lay_out(threads)
            self.laid_out = True
        self.memory.next_launch(threads)
        self.memory.symbols = {name: buffer.address for of, name, buffer in self.variables if of is module}
        self.launches.append(kernel)
        if kernel not in module.functions:
            raise Fault("not written", f"no kernel {kernel} in {source}")
        total = int(np.prod(grid))
        together = max(1, LANES // threads)
        for first in range(0, total, together):
            blocks = min(together, total - first)
            machine = Machine(module, self.memory, grid, block, first, blocks, params, shared_bytes)
            machine.start(kernel, shared_unit(module))


def shared_unit(module: text.Module) -> int:
    """The narrowest access to shared memory in a module, at most four bytes."""
    if not hasattr(module, "shared_unit"):
        narrow = 4
        for function in module.functions.values():
            for name, size in (("8", 1), ("16", 2)):
                for verb in ("ld.shared.", "st.shared."):
                    if any(f"{verb}{kind}{name} " in function.text.replace("\t", " ") for kind in "usb"):
                        narrow = min(narrow, size)
        module.shared_unit = narrow
    return module.shared_unit
