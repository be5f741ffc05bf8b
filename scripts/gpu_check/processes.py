"""Processes with a time limit, whose descendants end with them.

Each is the leader of a process group of its own; the group is killed when the limit is over, and when this program ends
first. A job of two processes, as `berth` and its executor, so leaves nothing behind.
"""

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import threading
import time


@dataclasses.dataclass
class Ended:
    code: int
    stdout: str
    stderr: str
    seconds: float


class TooLong(Exception):
    """A process was killed at its limit."""


def kill_group(child):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def run(command, seconds, cwd=None, env=None):
    """Runs a command to its end, or to its limit: then `TooLong`."""
    start = time.monotonic()
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(
        [str(word) for word in command], cwd=cwd, env=env, text=True, errors="replace", start_new_session=True, **options
    )
    try:
        stdout, stderr = child.communicate(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        kill_group(child)
        stdout, stderr = child.communicate()
        raise TooLong(f"killed after {seconds:.0f} s: {os.path.basename(command[0])}\n{stdout[-2000:]}{stderr[-4000:]}") from None
    finally:
        kill_group(child)
        child.wait()
    return Ended(child.returncode, stdout, stderr, time.monotonic() - start)


class Watched:
    """A process whose lines on standard error are read as they come."""

    def __init__(self, command, seconds, cwd=None, env=None):
        self.ends_at = time.monotonic() + seconds
        self.child = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.lines, self.seen, self.stdout = queue.Queue(), [], ""
        self.readers = [threading.Thread(target=reader, daemon=True) for reader in (self._stderr, self._stdout)]
        for reader in self.readers:
            reader.start()

    def _stderr(self):
        for line in self.child.stderr:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def _stdout(self):
        self.stdout = self.child.stdout.read()

    def line(self, start):
        """The next line that starts so, or None where the process ends without one."""
        while True:
            try:
                line = self.lines.get(timeout=max(self.ends_at - time.monotonic(), 0.01))
            except queue.Empty:
                raise TooLong(f"no line {start!r} in:\n" + "\n".join(self.seen)) from None
            if line is None:
                self.lines.put(None)
                return None
            self.seen.append(line)
            if line.startswith(start):
                return line

    def end(self):
        start = time.monotonic()
        try:
            self.child.wait(timeout=max(self.ends_at - start, 0.01))
        except subprocess.TimeoutExpired:
            raise TooLong("it still runs:\n" + "\n".join(self.seen)) from None
        self.line("\0")
        for reader in self.readers:
            reader.join()
        return Ended(self.child.returncode, self.stdout, "\n".join(self.seen), time.monotonic() - start)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        kill_group(self.child)
        self.child.wait()
