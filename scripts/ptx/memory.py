"""Memory: buffers with exact bounds, the shared memory of blocks, and the memory of single threads."""

import dataclasses

import numpy as np

from .errors import Fault, Unsupported
from .shadow import NOBODY, Clock, Shadow

# Where each state space lies among generic addresses.
GLOBAL_BASE = 0x0200_0000_0000
SHARED_BASE = 0x7000_0000_0000
LOCAL_BASE = 0x7100_0000_0000
WINDOW = 1 << 32

# Bytes of nothing between buffers, more than any access is long.
GAP = 256

IN, OUT, BOTH = 1, 2, 3


@dataclasses.dataclass
class Buffer:
    """A range of global memory. `role`: IN is only read; OUT begins as nothing and is written once; BOTH is read and written."""

    name: str
    role: int
    first: int
    size: int

    @property
    def address(self) -> int:
        return GLOBAL_BASE + self.first


class GlobalMemory:
    """All buffers of a case, which its launches share."""

    # Bytes of a unit of who-wrote-what.
    UNIT = 2

    def __init__(self):
        self.buffers = [Buffer("", 0, 0, 0)]
        self.parts: list[np.ndarray] = []
        self.end = GAP
        self.data: np.ndarray | None = None

    def add(self, name: str, role: int, content: np.ndarray | int, misplaced: int = 0) -> Buffer:
        """A buffer of this content, or of so many bytes, at a multiple of 256 and `misplaced` bytes more."""
        assert self.data is None, "memory is laid out"
        given = isinstance(content, np.ndarray)
        raw = np.ascontiguousarray(content).reshape(-1).view(np.uint8) if given else np.zeros(content, np.uint8)
        first = -(-self.end // 256) * 256 + misplaced
        buffer = Buffer(name, role, first, raw.size)
        self.buffers.append(buffer)
        self.parts.append((buffer, raw, given))
        self.end = first + raw.size + GAP
        return buffer

    def lay_out(self, block_threads: int):
        """Before the first launch. What has no content is filled with what would show in any result."""
        size = -(-(self.end + GAP) // 256) * 256
        self.data = np.full(size, 0xFE, np.uint8)
        self.owner = np.zeros(size, np.int16)
        self.defined = np.zeros(size, np.uint8)
        for index, (buffer, raw, given) in enumerate(self.parts, 1):
            place = slice(buffer.first, buffer.first + buffer.size)
            self.owner[place] = index
            if given:
                self.data[place] = raw
                self.defined[place] = 1
        self.roles = np.array([buffer.role for buffer in self.buffers], np.int8)
        self.shadow = Shadow(size // self.UNIT, block_threads)
        self.constant = np.zeros(size // self.UNIT, np.uint8)
        self.once = np.zeros(size // self.UNIT, np.uint8)

    def next_launch(self, block_threads: int):
        """A launch sees all that the ones before wrote."""
        self.shadow.block_threads = np.int32(block_threads)
        self.shadow.forget()
        self.constant[:] = 0
        self.once[:] = 0

    def content(self, buffer: Buffer, dtype) -> np.ndarray:
        """What a buffer holds now; everything in it must have been written."""
        place = slice(buffer.first, buffer.first + buffer.size)
        missing = np.flatnonzero(self.defined[place] == 0)
        if missing.size:
            raise Fault("not written", f"{buffer.name} from byte {missing[0]} on, {missing.size} of {buffer.size} bytes")
        return self.data[place].view(dtype).copy()

    def locate(self, addresses: np.ndarray, size: int, where) -> np.ndarray:
        """Places of accesses of so many bytes, which lie in one buffer each."""
        wrong = addresses & np.uint64(size - 1)
        if wrong.any():
            raise Fault("alignment", f"{size} bytes at {int(addresses[np.flatnonzero(wrong)[0]]):#x}, {where}")
        at = (addresses - np.uint64(GLOBAL_BASE)).astype(np.int64)
        outside = (at < 0) | (at >= self.data.size - size)
        if outside.any():
            raise Fault("bounds", f"{size} bytes at {int(addresses[np.flatnonzero(outside)[0]]):#x}, {where}")
        owner = self.owner[at]
        wrong = (owner == 0) | (owner != self.owner[at + (size - 1)])
        if wrong.any():
            one = np.flatnonzero(wrong)[0]
            raise Fault("bounds", f"{size} bytes {self.near(int(at[one]))}, {where}")
        return at

    def near(self, at: int) -> str:
        """A place in words, by the nearest buffer."""
        buffer = min(self.buffers[1:], key=lambda b: max(b.first - at, at - b.first - b.size))
        return f"at byte {at - buffer.first} of {buffer.name}, which has {buffer.size}"

    def load(self, addresses, count: int, dtype: np.dtype, lanes, clock: Clock, constant: bool, where) -> np.ndarray:
        """`count` values from each address on: `[lanes, count]`."""
        width = dtype.itemsize
        at = self.locate(addresses, count * width, where)
        index = (at // width)[:, None] + np.arange(count)
        roles = self.roles[self.owner[at]]
        if not (self.defined.view(f"u{width}")[index] == int.from_bytes(b"\1" * width, "little")).all():
            raise Fault("uninitialised", f"read of memory that nobody wrote, {where}")
        if (roles != IN).any():
            units, of = self._units(at, count * width, lanes)
            if constant:
                if (self.shadow.writer[units] != NOBODY).any():
                    raise Fault("read-only", f"what this launch wrote is read as if it never changed, {where}")
                self.constant[units] = 1
            self.shadow.read(units, of, clock, False, where)
        return self.data.view(dtype)[index]

    def store(self, addresses, values: np.ndarray, lanes, clock: Clock, where):
        """`[lanes, count]` values from each address on."""
        count, width = values.shape[1], values.dtype.itemsize
        at = self.locate(addresses, count * width, where)
        roles = self.roles[self.owner[at]]
        if (roles == IN).any():
            raise Fault("read-only", f"an input is written {self.near(int(at[np.flatnonzero(roles == IN)[0]]))}, {where}")
        units, of = self._units(at, count * width, lanes)
        again = self.once[units] != 0
        if again.any():
            place = int(units[np.flatnonzero(again)[0]]) * self.UNIT
            raise Fault("written twice", f"{self.near(place)}, {where}")
        if (self.constant[units] != 0).any():
            raise Fault("read-only", f"what was read as if it never changed is written, {where}")
        self.shadow.write(units, of, clock, where)
        self.once[units] = np.repeat(roles == OUT, count * width // self.UNIT)
        index = (at // width)[:, None] + np.arange(count)
        self.data.view(values.dtype)[index] = values
        self.defined.view(f"u{width}")[index] = int.from_bytes(b"\1" * width, "little")

    def _units(self, at, size: int, lanes):
        if size < self.UNIT:
            raise Unsupported("single bytes that others write")
        each = size // self.UNIT
        units = ((at // self.UNIT)[:, None] + np.arange(each)).reshape(-1)
        return units, np.repeat(lanes, each)


class SharedMemory:
    """The shared memory of the blocks of a batch, one after the other."""

    def __init__(self, blocks: int, size: int, block_threads: int, unit: int):
        self.size = -(-size // 16) * 16
        self.unit = unit
        self.block_threads = block_threads
        units = blocks * self.size // unit
        self.data = np.full(blocks * self.size, 0xFE, np.uint8)
        self.defined = np.zeros(units, bool)
        # Whether an asynchronous copy into a unit is under way.
        self.pending = np.zeros(units, bool)
        self.shadow = Shadow(units, block_threads)

    def locate(self, offsets: np.ndarray, size: int, lanes, where) -> np.ndarray:
        """Places of accesses of so many bytes at addresses within a block's memory."""
        if (offsets & np.uint32(size - 1)).any():
            raise Fault("alignment", f"{size} bytes of shared memory at {int(offsets[(offsets % size).argmax()])}, {where}")
        at = offsets.astype(np.int64)
        outside = at + size > self.size
        if outside.any():
            one = int(at[np.flatnonzero(outside)[0]])
            raise Fault("bounds", f"{size} bytes at {one} of shared memory, of which a block has {self.size}, {where}")
        return at + lanes // self.block_threads * self.size

    def units(self, at, size: int, lanes):
        if size < self.unit:
            raise Unsupported("less of shared memory than its unit")
        each = size // self.unit
        units = ((at // self.unit)[:, None] + np.arange(each)).reshape(-1)
        return units, np.repeat(lanes, each)

    def load(self, offsets, count: int, dtype: np.dtype, lanes, clock: Clock, where, by_warp: bool = False) -> np.ndarray:
        width = dtype.itemsize
        at = self.locate(offsets, count * width, lanes, where)
        units, of = self.units(at, count * width, lanes)
        self.check_pending(units, where)
        if not self.defined[units].all():
            raise Fault("uninitialised", f"read of shared memory that nobody wrote, {where}")
        self.shadow.read(units, of, clock, by_warp, where)
        return self.data.view(dtype)[(at // width)[:, None] + np.arange(count)]

    def store(self, offsets, values: np.ndarray, lanes, clock: Clock, where):
        count, width = values.shape[1], values.dtype.itemsize
        at = self.locate(offsets, count * width, lanes, where)
        units, of = self.units(at, count * width, lanes)
        self.check_pending(units, where)
        self.shadow.write(units, of, clock, where)
        self.defined[units] = True
        self.data.view(values.dtype)[(at // width)[:, None] + np.arange(count)] = values

    def check_pending(self, units, where):
        if self.pending[units].any():
            raise Fault("pending", f"a copy into this shared memory is under way, {where}")


class LocalMemory:
    """Memory of each thread's own."""

    def __init__(self, threads: int, size: int):
        self.data = np.full((threads, max(16, -(-size // 16) * 16)), 0xFE, np.uint8)
        self.defined = np.zeros_like(self.data, bool)

    def _index(self, offsets, count, width, lanes, where):
        at = offsets.astype(np.int64)
        if (at % (count * width)).any():
            raise Fault("alignment", f"local memory, {where}")
        if (at + count * width > self.data.shape[1]).any():
            raise Fault("bounds", f"local memory, {where}")
        return at[:, None] + np.arange(count * width)

    def load(self, offsets, count: int, dtype: np.dtype, lanes, where) -> np.ndarray:
        index = self._index(offsets, count, dtype.itemsize, lanes, where)
        if not self.defined[lanes[:, None], index].all():
            raise Fault("uninitialised", f"read of local memory that nobody wrote, {where}")
        return self.data[lanes[:, None], index].view(dtype)

    def store(self, offsets, values: np.ndarray, lanes, where):
        index = self._index(offsets, values.shape[1], values.dtype.itemsize, lanes, where)
        self.data[lanes[:, None], index] = np.ascontiguousarray(values).view(np.uint8)
        self.defined[lanes[:, None], index] = True
