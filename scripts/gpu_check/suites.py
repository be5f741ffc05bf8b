"""The suites of tests/ that need a GPU, as packed or built, on the GPU that is here."""

import os
import re

import machine
from results import Failed, Figure


def libtest(stand, program, arguments):
    """Runs tests by libtest's harness: at least one must have run, and none may fail."""
    # Much of a test is the host's; simulated GPUs take all of the machine.
    threads = 2 if stand.simulated else max(2, min(8, (os.cpu_count() or 2) // 2))
    command = [stand.need(program), *arguments, "--test-threads", str(threads)]
    ended = stand.command(command, env=stand.environment(), code=None)
    counts = re.findall(r"(\d+) passed; (\d+) failed", ended.stdout)
    passed, failed = (sum(int(count[i]) for count in counts) for i in (0, 1))
    names = re.findall(r"^test (\S+) \.\.\. FAILED$", ended.stdout, re.M)
    if failed or ended.code != 0:
        raise Failed(f"{failed} of {passed + failed} failed: {', '.join(names)[:80] or 'see the log'}", "none")
    if not passed:
        raise Failed("no test was run")
    return Figure(f"{passed} tests", "all pass", {"passed": passed})


def operations(stand):
    without = [] if machine.cublaslt() else ["--skip", "by_library::"]
    return libtest(stand, "gpu", ["ops::", "--ignored", *without])


def plans(stand):
    # As for placements: cuBLASLt may give parts other last bits than the whole.
    test = ["plans::on_the_gpus_that_are_here", "--ignored", "--exact"]
    stand.command([stand.need("gpu"), *test], env={**stand.environment(), "BERTH_CUDA_PATH": "", "BERTH_PLANS_MANY": "1"})
    return Figure("24 random plans, 5 kinds of edges", "one picture, planned bytes, no race")


def parity_exact(stand):
    return libtest(stand, "engine", ["--exact", "parity::gpu::f32_on_a_gpu_matches_as_on_the_host"])


def parity_half(stand):
    return libtest(stand, "engine", ["--exact", *(f"parity::gpu::{name}_on_a_gpu_are_near" for name in ("halves", "quantised_weights"))])


def demo(stand):
    return libtest(stand, "engine", ["--exact", "parity::gpu::the_trained_demo_on_a_gpu_makes_its_pictures"])
