#!/usr/bin/env python3
"""How long planning takes and what memory: `python3 scripts/bench_plans.py [--target-dir target] [--runs 7]`.

First the solver alone, with the profile of a model in hand (`cargo run --release --example solve_times`); then the whole of
`berth plan --dry-run` for FLUX.1-dev at 1024x1024, from the start of the program to its end: with all memory that is free, without and
with its reasons (`--json`), and with little memory of each device, on every shipped host profile and on made-up hosts of 4 and 16 unlike
GPUs. The model is sparse files of its true sizes. Prints the Markdown tables of docs/planning.md; a figure past its limit is bold, and
the exit code is 1 then.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["--width", "1024", "--height", "1024"]

# Limits: the solver and the whole program by the number of devices, and what it may hold.
SOLVE_MS_MAX = [(4, 50.0), (16, 100.0)]
PLAN_MS_MAX = [(4, 300.0), (16, 1000.0)]
RESIDENT_MB_MAX = 300.0

# Little memory, in GiB of each device: most placements may be the best then.
LITTLE_GIB = [3, 4, 6]

# Four unlike cards: GiB, TFLOP/s in 16 bits, GB/s of memory and of the link.
FOUR_UNLIKE = [(16, 90, 448, 13), (12, 51, 360, 13), (10, 119, 760, 26), (24, 165, 1008, 26)]


def limit_of(limits: list[tuple[int, float]], devices: int) -> float:
    return next((ms for most, ms in limits if devices <= most), limits[-1][1])


class Limits:
    """Marks figures past their limits, and remembers that there were some."""

    def __init__(self) -> None:
        self.broken = 0

    def shown(self, figure: float, limit: float, digits: int = 1) -> str:
        text = f"{figure:.{digits}f}"
        if figure <= limit:
            return text
        self.broken += 1
        return f"**{text}**"


def solver(cargo: list[str], model: str, limits: Limits) -> None:
    run = [*cargo, "--example", "solve_times", "--", model]
    done = subprocess.run(run, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    print("| devices | components | objective | budgets | places | to make them | to solve | most |")
    print("|---|---|---|---|---|---|---|---|")
    for line in done.stdout.splitlines():
        case = json.loads(line)
        devices = case["devices"]
        median = limits.shown(case["solve_ms"], limit_of(SOLVE_MS_MAX, devices), 1)
        print(
            f"| {devices} | {case['components']} | {case['objective']} | {case['max_vram']} | {case['places']} "
            f"| {case['places_ms']:.1f} ms | {median} ms | {case['solve_max_ms']:.1f} ms |"
        )
    print()


def peak_kib(pid: int) -> int | None:
    """The most that a process was resident with so far; `None` where it is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) for words in lines if words[0] == "VmHWM:"), None)


def children(pid: int) -> list[int]:
    try:
        # Of all threads, as any of them may have started it.
        tasks = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Plans:
    def __init__(self, berth: pathlib.Path, home: pathlib.Path):
        self.berth, self.home = berth, home
        # Nothing that was measured or set up on this machine has a say.
        others = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
        own = {"XDG_CONFIG_HOME": "config", "BERTH_STATE_DIR": "state", "BERTH_SYSTEM_DIR": "system"}
        self.environment = {**others, **{name: str(home / folder) for name, folder in own.items()}}

    def start(self, profile: str, output, *more: str) -> subprocess.Popen:
        arguments = [self.berth, "plan", "model", "--dry-run", "--host", profile, *SHAPE, *more]
        return subprocess.Popen(arguments, cwd=self.home, env=self.environment, stdout=output, stderr=subprocess.PIPE)

    def timed(self, profile: str, *more: str) -> tuple[float, str]:
        """Milliseconds from start to end, and the answer."""
        with open(self.home / "plan.txt", "w+") as output:
            begin = time.perf_counter()
            process = self.start(profile, output, *more)
            error = process.stderr.read()
            code = process.wait()
            ms = 1e3 * (time.perf_counter() - begin)
            if code not in (0, 1):
                raise SystemExit(f"{profile}: {error.decode()}")
            output.seek(0)
            return ms, output.read()

    def resident(self, profile: str) -> tuple[float, float]:
        """Most megabytes of the planner and of its executor; the larger one is exact, by wait4(2)."""
        peaks: dict[int, int] = {}
        process = self.start(profile, subprocess.DEVNULL, "--json")
        executor = None
        while True:
            pid, _, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            executor = next(iter(children(process.pid)), executor)
            for watched in (process.pid, executor):
                if watched and (kib := peak_kib(watched)):
                    peaks[watched] = kib
            time.sleep(0.001)
        process.returncode = 0
        process.stderr.close()
        seen = [peaks.get(process.pid, 0), peaks.get(executor, 0)]
        larger = seen.index(max(seen))
        seen[larger] = max(seen[larger], usage.ru_maxrss)
        return seen[0] * 1024 / 1e6, seen[1] * 1024 / 1e6


def dit(plan: dict) -> str:
    if not plan["feasible"]:
        return "does not fit"
    component = next(c for c in plan["components"] if c["name"] == "dit")
    segments = component["segments"]
    streamed = sum(s["residency"] == "streamed" for s in segments)
    how = f"{streamed} of {len(segments)} streamed" if streamed else component["residency"]
    return f"{' & '.join(component['devices'])}, {how}"


def made_up(folder: pathlib.Path, name: str, cards: list[tuple[float, float, float, float]]) -> str:
    """A profile of some cards, in the figures of `FOUR_UNLIKE`."""
    text = f'name = "{name}"\n[host]\nrates = "assumed"\nmemory = "128GiB"\navailable = "120GiB"\ncores = 16\n'
    text += 'flops = "800GFLOP/s"\nmemory_bandwidth = "80GB/s"\nstorage_bandwidth = "3GB/s"\n'
    for total, half, memory, link in cards:
        text += f'[[device]]\nkind = "cuda"\ntotal = "{total}GiB"\nlink = "{link}GB/s"\n'
        text += f'flops = "{half / 2}TFLOP/s"\nhalf_flops = "{half}TFLOP/s"\nmemory_bandwidth = "{memory}GB/s"\n'
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


def sixteen() -> list[tuple[float, float, float, float]]:
    """16 GPUs, each a little slower than the one before it: the host of the example `solve_times`."""
    return [([16, 10, 24, 8][at % 4], 2 * (60 - 1.5 * at), 700 - 10 * at, 12 + at % 3) for at in range(16)]


def programs(plans: Plans, runs: int, limits: Limits) -> None:
    print("| profile | median | most | with reasons | with little memory | planner | executor | DiT |")
    print("|---|---|---|---|---|---|---|---|")
    shipped = sorted(path.stem for path in (ROOT / "profiles").glob("*.toml"))
    unlike = [made_up(plans.home, "4-unlike", FOUR_UNLIKE), made_up(plans.home, "16-made-up", sixteen())]
    for profile in [*shipped, *unlike]:
        timed = [plans.timed(profile) for _ in range(runs)]
        with_reasons = [plans.timed(profile, "--json") for _ in range(runs)]
        # The free memory of this machine changes from run to run: these have its host.
        here = profile in ("this-machine", "two-on-one-gpu") or profile.startswith("virtual")
        for answers in (timed, with_reasons):
            if not here and len({answer for _, answer in answers}) != 1:
                raise SystemExit(f"{profile}: not the same plan each time")
        planner, executor = (limits.shown(mb, RESIDENT_MB_MAX, 0) for mb in plans.resident(profile))
        plan = json.loads(with_reasons[0][1])
        devices = sum(device["id"] != "host" for device in plan.get("devices", []))
        times = [ms for ms, _ in timed]
        limit = limit_of(PLAN_MS_MAX, devices)
        median = limits.shown(statistics.median(times), limit, 0)
        with_little = [
            (statistics.median(plans.timed(profile, "--max-vram", str(gib))[0] for _ in range(runs)), gib)
            for gib in LITTLE_GIB
        ]
        slowest, gib = max(with_little)
        reasons = statistics.median(ms for ms, _ in with_reasons)
        print(
            f"| {pathlib.Path(profile).stem} | {median} ms | {max(times):.0f} ms | {reasons:.0f} ms "
            f"| {limits.shown(slowest, limit, 0)} ms ({gib} GiB) | {planner} MB | {executor} MB | {dit(plan)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-dir", default=str(ROOT / "target"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only-programs", action="store_true", help="leave out the solver alone")
    parser.add_argument("--berth", help="a program that is built already")
    arguments = parser.parse_args()
    target = pathlib.Path(arguments.target_dir)
    build = ["--release", "--target-dir", str(target), "-p", "planner"]
    cargo = ["cargo", "run", "--quiet", *build]
    if not arguments.berth:
        subprocess.run(["cargo", "build", *build], cwd=ROOT, check=True)
    berth = pathlib.Path(arguments.berth or target / "release" / "berth").resolve()
    limits = Limits()
    with tempfile.TemporaryDirectory() as home:
        model = [*cargo, "--example", "sparse_flux_dev", "--", f"{home}/model"]
        if arguments.berth:
            # Beside the program, where its examples are.
            model = [berth.parent / "examples" / "sparse_flux_dev", f"{home}/model"]
        subprocess.run(model, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        if not arguments.only_programs:
            solver(cargo, f"{home}/model", limits)
        programs(Plans(berth, pathlib.Path(home)), arguments.runs, limits)
    sys.exit(limits.broken > 0)


if __name__ == "__main__":
    main()
