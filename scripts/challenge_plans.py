#!/usr/bin/env python3
"""Whether any placement by hand beats the one that Berth chooses: `python3 scripts/challenge_plans.py [--pins 5000] [--minutes 60]`.

Draws pins at random, for every shipped host profile and budgets from 3 to 24 GiB: lists of devices with and without shares, all ways
to split, residencies, stream slots from 1 to 16, tiles. Each is planned by `berth plan --dry-run`, for FLUX.1-dev at 1024x1024 as sparse
files of its true sizes, or as if stored in another type (`--weights-as q8_0`), and compared with the plan that is made without it. A pin that fits nowhere is drawn anew. With `--made-up 4`
hosts of two to five cards are drawn too, in place of the shipped ones. Prints how many pins are accepted, those that are predicted
faster, and by how much; the exit code is 1 where one is faster by more than 0.2 percent.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["--width", "1024", "--height", "1024", "--steps", "28"]

# How much less a pin may be predicted to take: plans are compared by their times to 0.2 percent.
FASTER_MAX = 0.002

# What is drawn for each host: the budget of each device in GiB, `None` for what is free.
BUDGETS_GIB = [None, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24]

# Cards of hosts that are made up: GiB, TFLOP/s in 16 bits, GB/s of memory and of the link, about those of cards of 2018 to 2025.
CARDS = [
    (8, 40, 256, 6.5),
    (8, 60, 448, 12),
    (10, 119, 760, 26),
    (12, 51, 360, 13),
    (16, 90, 448, 13),
    (24, 142, 936, 26),
    (24, 165, 1008, 26),
    (48, 300, 960, 26),
    (80, 989, 3350, 55),
]


class Planner:
    """Asks for plans of one model on one host profile at a time."""

    def __init__(self, berth: pathlib.Path, model: str, home: pathlib.Path, batch: int, weights_as: str | None):
        self.berth, self.model = berth, model
        self.shape = [*SHAPE, "--batch", str(batch), *(["--weights-as", weights_as] if weights_as else [])]
        self.env = {**os.environ, "XDG_CACHE_HOME": str(home), "XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
        self.chosen = functools.lru_cache(maxsize=None)(self.plan)

    def plan(self, *arguments: str) -> dict | None:
        """The plan with these arguments; `None` where there is none."""
        command = [str(self.berth), "plan", self.model, "--dry-run", "--json", *self.shape, *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        if done.returncode not in (0, 1, 2, 3):
            raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stderr}")
        if "this is a fault of Berth" in done.stderr:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return json.loads(done.stdout) if done.returncode == 0 else None


def made_up(random_: random.Random, folder: pathlib.Path, number: int) -> str:
    """The file of a host with two to five cards, some of them alike."""
    ram = random_.choice([16, 32, 64, 128, 256])
    text = f'name = "made-up-{number}"\n[host]\nrates = "assumed"\nmemory = "{ram}GiB"\navailable = "{ram * 0.8:.0f}GiB"\n'
    text += f'cores = 16\nflops = "800GFLOP/s"\nmemory_bandwidth = "{random_.choice([30, 60, 120, 250])}GB/s"\n'
    text += f'storage_bandwidth = "{random_.choice([0.5, 3, 7])}GB/s"\n'
    kinds = random_.sample(CARDS, random_.choice([1, 2, 2, 3, 4]))
    for total, half, memory, link in random_.choices(kinds, k=random_.choice([2, 2, 3, 3, 4, 5])):
        text += f'[[device]]\nkind = "cuda"\nrates = "datasheet"\ntotal = "{total}GiB"\nlink = "{link}GB/s"\n'
        text += f'flops = "{half / 2}TFLOP/s"\nhalf_flops = "{half}TFLOP/s"\nmemory_bandwidth = "{memory}GB/s"\n'
    path = folder / f"made-up-{number}.toml"
    path.write_text(text)
    return str(path)


def devices(planner: Planner, host: str) -> list[str]:
    """The devices that a pin may name: `cpu` only where the profile lets the host compute."""
    plan = planner.chosen("--host", host)
    if plan is None:
        plan = planner.chosen("--host", host, "--max-vram", "100%")
    if plan is None:
        return []
    feeds_only = any(lost["placement"] == "anything on host" for lost in plan["rejected"])
    return [device["id"] for device in plan["devices"] if device["id"] != "host"] + ([] if feeds_only else ["cpu"])


def drawn(random_: random.Random, names: list[str], items: bool) -> list[str]:
    """The arguments of one random set of pins; `items`: whether a step has several."""
    backend, params, split, lookahead = [], [], [], []
    subjects = ["dit"] + [name for name in ("t5", "clip", "vae") if random_.random() < 0.3]
    for subject in subjects:
        count = 1 if subject in ("clip", "vae") else random_.choice([1, 2, 2, 2, 3, 4])
        devices = [name for name in names if name != "cpu"]
        chosen = random_.sample(devices, min(count, len(devices)))
        modes = ["layer", "layer", "row"] + (["tensor", "tensor"] if subject == "dit" else [])
        modes += ["items", "items", "pipeline", "pipeline"] if subject == "dit" and items else []
        mode = random_.choice(modes)
        if "cpu" in names and (not chosen or random_.random() < 0.1):
            chosen = ["cpu"] if len(chosen) < 2 or mode != "layer" else random_.choice([[*chosen[1:], "cpu"], ["cpu", *chosen[1:]]])
        if len(chosen) > 1 and random_.random() < 0.6:
            chosen = [f"{name}:{random_.randint(1, 12)}" for name in chosen]
        if subject != "dit" or random_.random() < 0.9:
            backend.append(f"{subject}={'&'.join(chosen)}")
            if len(chosen) > 1:
                split.append(f"{subject}={mode}")
        if random_.random() < 0.5:
            params.append(f"{subject}={random_.choice(['cpu', 'cpu', 'locked', 'disk', 'device'])}")
        if subject in ("dit", "t5") and random_.random() < 0.6:
            lookahead.append(f"{subject}={random_.randint(1, 16)}")
    flags = [("--backend", backend), ("--params-backend", params), ("--split-mode", split), ("--lookahead", lookahead)]
    arguments = [word for flag, values in flags if values for word in (flag, ",".join(values))]
    if random_.random() < 0.2:
        arguments += ["--vae-tile", random_.choice(["off", "1024", "768", "512", "256"])]
    return arguments


def compared(planner: Planner, host: str, budget: list[str], pins: list[str]) -> tuple[float, float, dict] | None:
    """The seconds of the pinned plan, and of the chosen one; `None` where one of them does not exist."""
    where = ["--host", host, *budget]
    pinned = planner.plan(*where, *pins)
    if pinned is None:
        return None
    chosen = planner.chosen(*where)
    if chosen is None or is_faster(total_s(pinned), total_s(chosen)):
        # Some profiles have the memory that is free on this machine, which may be another by now.
        pinned, chosen = planner.plan(*where, *pins), planner.plan(*where)
    if chosen is None:
        raise SystemExit(f"{' '.join(where)}: nothing fits by itself, but {' '.join(pins)} does")
    return None if pinned is None else (total_s(pinned), total_s(chosen), pinned)


def total_s(plan: dict) -> float:
    return plan["predicted_ms"]["total"] / 1e3


def is_faster(pinned_s: float, chosen_s: float) -> bool:
    return pinned_s < chosen_s * (1 - FASTER_MAX)


def placed(plan: dict) -> str:
    def one(component: dict) -> str:
        return f"{component['name']} {component['residency']} on {'&'.join(component['devices'])}"

    return ", ".join(one(component) for component in plan["components"])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pins", type=int, default=5000, help="accepted pins in all")
    options.add_argument("--minutes", type=float, default=float("inf"), help="how long pins are drawn at most")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--weights-as", metavar="TYPE", help="plan as if each matrix were stored in this type, as `berth plan` does")
    options.add_argument("--batch", type=int, default=1, help="pictures made together; with several, item splits and pipelines are drawn too")
    options.add_argument("--hosts", nargs="*", help="names or files of profiles; all that are shipped")
    options.add_argument("--made-up", type=int, default=0, metavar="COUNT", help="so many hosts that are drawn, in place of profiles")
    options.add_argument("--model", help="a model's directory in place of the sparse FLUX.1-dev")
    options.add_argument("--berth", type=pathlib.Path, default=ROOT / "target/release/berth")
    options.add_argument("--workers", type=int, default=os.cpu_count())
    given = options.parse_args()
    shipped = [] if given.made_up else sorted(path.stem for path in (ROOT / "profiles").glob("*.toml"))
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        random_ = random.Random(given.seed)
        hosts = (given.hosts or shipped) + [made_up(random_, home, number) for number in range(given.made_up)]
        model = given.model
        if model is None:
            model = str(home / "flux-dev")
            cargo = ["cargo", "run", "--quiet", "--release", "--locked", "--example", "sparse_flux_dev", "--", model]
            subprocess.run(cargo, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return challenge(Planner(given.berth, model, home, given.batch, given.weights_as), hosts, given)


def challenge(planner: Planner, hosts: list[str], given: argparse.Namespace) -> int:
    random_ = random.Random(given.seed)
    names = {host: devices(planner, host) for host in hosts}
    hosts = [host for host in hosts if names[host]]
    accepted, tried, worst, beaten = collections.Counter(), 0, 1.0, 0
    ends = time.monotonic() + 60 * given.minutes
    with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
        while accepted.total() < given.pins and time.monotonic() < ends:
            cases = []
            for _ in range(8 * given.workers):
                host = hosts[(tried + len(cases)) % len(hosts)]
                size = random_.choice(BUDGETS_GIB)
                budget = [] if size is None else ["--max-vram", str(size)]
                cases.append((host, budget, drawn(random_, names[host], given.batch > 1)))
            tried += len(cases)
            for case, result in zip(cases, pool.map(lambda case: compared(planner, *case), cases)):
                if result is None or accepted.total() >= given.pins:
                    continue
                host, budget, pins = case
                accepted[host] += 1
                pinned_s, chosen_s, plan = result
                worst = min(worst, pinned_s / chosen_s)
                if is_faster(pinned_s, chosen_s):
                    beaten += 1
                    words = " ".join([*budget, *pins])
                    print(f"{pathlib.Path(host).stem} {words}: {pinned_s:.2f} s, chosen {chosen_s:.2f} s ({pinned_s / chosen_s:.3f}): {placed(plan)}", flush=True)
    print(f"{accepted.total()} accepted of {tried} drawn: {beaten} faster than what is chosen by more than {FASTER_MAX:.1%}, the best {worst:.4f} of it")
    print(", ".join(f"{pathlib.Path(host).stem} {count}" for host, count in sorted(accepted.items())))
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
