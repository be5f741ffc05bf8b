"""SIGKILL of the executor in each phase: its memory is freed, a new one completes the job, and nothing runs on."""

import contextlib
import json
import os
import signal

import png
import processes
from results import Failed, Figure
from stand import SMALL_SHAPE, last_line

# A phase may be over before the signal comes: so often it is tried.
TRIES = 4

# What else changes on a GPU that nobody uses, beside what was killed.
FREE_TOLERANCE_BYTES = 64 << 20

# Phase, the line that says that it goes on, and a job that stays there for a while; the last on a GPU, as a simulated one is slow.
PHASES = [
    ("load", "berth: load 0/1", ["--optimize", "throughput", "--no-prefetch"], []),
    ("condition", "berth: condition 0/1", ["--optimize", "memory"], []),
    ("denoise", "berth: denoise 1/{steps}", [], ["--steps", "40"]),
    ("decode", "berth: decode 1/{batch}", ["--batch", "4"], ["--width", "128", "--height", "128"]),
]


def kills(stand):
    gpu = stand.gpu()
    free_bytes = gpu.free_bytes()
    killed = []
    for phase, *job in PHASES:
        for _ in range(TRIES):
            pid, hit = kill_in(stand, *job)
            killed.append(pid)
            if hit == phase:
                break
            stand.log(f"killed in {hit}, not in {phase}")
        else:
            raise Failed(f"{phase}: it was over {TRIES} times before the executor was killed")
    left = sorted(set(killed) & set(gpu.processes()))
    if left:
        raise Failed(f"NVML still lists {left}")
    lost = free_bytes - gpu.free_bytes()
    if lost > FREE_TOLERANCE_BYTES:
        raise Failed(f"{lost >> 20} MiB less are free than before", f"{FREE_TOLERANCE_BYTES >> 20} MiB")
    return Figure(f"{len(killed)} kills in {len(PHASES)} phases", "freed, second attempt as the first")


def kill_in(stand, begun, arguments, longer):
    """Kills the executor when the line says that the phase goes on; its id, and the phase in which the program says it died."""
    arguments = arguments + ([] if stand.simulated else longer)
    begun = begun.format(steps=option(arguments, "--steps", "2"), batch=option(arguments, "--batch", "1"))
    home = stand.home().profile()
    # What a run learns could give the next one another plan.
    environment = {**home.environment(), "BERTH_STATE_DIR": ""}
    # A larger model stays longer in each phase; on a simulated GPU also the demo does.
    model = [] if stand.simulated else [stand.wide()]
    command = [stand.need("berth"), "generate", *model, "--prompt", "a red circle", "--seed", "7", "--json"]
    command += ["--verbose", "--host", "./host.toml", "--output", "picture.png", *shape(arguments), *arguments]
    expected = stand.command(command, home.folder, environment)
    expected = [png.pixels(home.path(name)) for name in json.loads(expected.stdout)["images"]]
    stand.log("$ " + " ".join(str(word) for word in command) + f"   (killed at {begun!r})")
    with processes.Watched(command, stand.seconds_left(), home.folder, environment) as berth:
        line = berth.line("berth: executor ")
        if line is None:
            raise Failed(f"no executor: {last_line(berth.end().stderr)}")
        pid = int(line.split()[2])
        if berth.line(begun) is None:
            raise Failed(f"no line {begun!r}: {last_line(berth.end().stderr)}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        ended = berth.end()
    stand.log(f"{ended.stderr}\nexit code {ended.code}")
    if ended.code != 0:
        raise Failed(f"killed at {begun!r}, exit code {ended.code}: {last_line(ended.stderr)}")
    document = json.loads(ended.stdout)
    if document["attempts"] == 1:
        return pid, "no phase: the job was done"
    if [png.pixels(home.path(name)) for name in document["images"]] != expected:
        raise Failed(f"killed at {begun!r}: another picture")
    failure = document["failures"][0]
    if "SIGKILL" not in failure["reason"]:
        raise Failed(f"killed at {begun!r}: {failure['reason'][:80]}")
    return pid, failure["phase"]


def shape(arguments):
    """The small shape, without what the arguments say: an option is given once."""
    pairs = zip(SMALL_SHAPE[::2], SMALL_SHAPE[1::2])
    return [word for pair in pairs if pair[0] not in arguments for word in pair]


def option(arguments, name, default):
    return arguments[arguments.index(name) + 1] if name in arguments else default
