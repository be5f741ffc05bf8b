"""Who touched memory what since when: of each unit of some bytes the last writer and the readers since.

Two accesses of which one writes are a race unless something orders them: the same thread made both, or a barrier of its block
lies between, or one of its warp. Barriers are counted for each thread: `blocks_passed` those of its block, `warps_passed` those
and the ones of its warp.
"""

import numpy as np

from .errors import Fault

NOBODY = np.int32(-1)
SEVERAL = np.int32(-2)


class Clock:
    """How many barriers each thread of a batch has passed."""

    def __init__(self, threads: int, block_threads: int, first_thread: int):
        self.blocks_passed = np.zeros(threads, np.int32)
        self.warps_passed = np.zeros(threads, np.int32)
        self.thread = np.arange(first_thread, first_thread + threads, dtype=np.int32)
        self.warp = self.thread // np.int32(32)
        self.block = self.thread // np.int32(block_threads)


class Shadow:
    """Of `units` of memory."""

    def __init__(self, units: int, block_threads: int):
        self.block_threads = np.int32(block_threads)
        self.writer = np.full(units, NOBODY)
        self.written_at = np.zeros((units, 2), np.int32)
        self.reader = np.full(units, NOBODY)
        self.reader_warp = np.full(units, NOBODY)
        self.reader_block = np.full(units, NOBODY)
        self.read_at = np.zeros((units, 2), np.int32)

    def forget(self):
        """Nothing of what was is later than now."""
        self.writer[:] = NOBODY
        self.reader[:] = NOBODY
        self.reader_warp[:] = NOBODY
        self.reader_block[:] = NOBODY

    def read(self, units, lanes, clock: Clock, by_warp: bool, where):
        """Lanes read units; both arrays are as long. `by_warp`: what is read goes to other lanes of the warp too."""
        me, warp, block = clock.thread[lanes], clock.warp[lanes], clock.block[lanes]
        now_block, now_warp = clock.blocks_passed[lanes], clock.warps_passed[lanes]
        writer = self.writer[units]
        late = (writer >= 0) & ((writer != me) | by_warp)
        if late.any():
            self._check(late, writer // 32, writer // self.block_threads, self.written_at[units], lanes, clock, where, "read", writer)
        # Readers that something orders before this one are forgotten, as it takes their place.
        before, at = self.reader[units], self.read_at[units]
        before_warp, before_block = self.reader_warp[units], self.reader_block[units]
        past = (before == NOBODY) | ((before_block == block) & (at[:, 0] < now_block))
        past |= (before_warp == warp) & (at[:, 1] < now_warp)
        single = np.full_like(me, SEVERAL) if by_warp else me
        self._join(self.reader, units, past, before, single)
        self._join(self.reader_warp, units, past, before_warp, warp)
        self._join(self.reader_block, units, past, before_block, block)
        self.read_at[units, 0] = now_block
        self.read_at[units, 1] = now_warp

    @staticmethod
    def _join(table, units, past, before, mine):
        value = np.where(past | (before == mine), mine, SEVERAL)
        table[units] = value
        # Of several lanes that read a unit together the last one stands there now.
        other = table[units] != value
        if other.any():
            table[units[other]] = SEVERAL

    def write(self, units, lanes, clock: Clock, where):
        """Lanes write units, each of them one lane."""
        me = clock.thread[lanes]
        writer = self.writer[units]
        late = (writer >= 0) & (writer != me)
        if late.any():
            self._check(late, writer // 32, writer // self.block_threads, self.written_at[units], lanes, clock, where, "written", writer)
        reader = self.reader[units]
        late = (reader != NOBODY) & (reader != me)
        if late.any():
            warps, blocks = self.reader_warp[units], self.reader_block[units]
            self._check(late, warps, blocks, self.read_at[units], lanes, clock, where, "written", reader)
        self.writer[units] = me
        if (self.writer[units] != me).any():
            raise Fault("race", f"two threads write the same place together, {where}")
        self.written_at[units, 0] = clock.blocks_passed[lanes]
        self.written_at[units, 1] = clock.warps_passed[lanes]
        self.reader[units] = NOBODY
        self.reader_warp[units] = NOBODY
        self.reader_block[units] = NOBODY

    def _check(self, late, warps, blocks, at, lanes, clock, where, what, who):
        """Whether those accesses are ordered before now, of which the earlier ones were by these warps and blocks."""
        ordered = (warps == clock.warp[lanes]) & (at[:, 1] < clock.warps_passed[lanes])
        ordered |= (blocks == clock.block[lanes]) & (at[:, 0] < clock.blocks_passed[lanes])
        wrong = np.flatnonzero(late & ~ordered)
        if wrong.size:
            one = wrong[0]
            thread = clock.thread[lanes[one]] % self.block_threads
            other = "several threads" if who[one] < 0 else f"thread {who[one] % self.block_threads}"
            raise Fault("race", f"{what} by thread {thread} with nothing behind an access of {other}, {where}")
