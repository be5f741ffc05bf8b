#!/usr/bin/env python3
"""Whether a search by hand beats the placement that Berth chooses: `python3 scripts/climb_plans.py [--made-up 14] [--hosts ...]`.

For each host and budget the DiT is pinned to every list of two to four devices, by heads and by layers. From those that take little more
than what is chosen, the shares are changed step by step as long as the plan gets faster: what a patient person would do. A pin that
`scripts/challenge_plans.py` draws at random seldom comes as near. Prints the plans that are beaten, and by how much; the exit code is 1
where one is by more than 0.2 percent.
"""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from challenge_plans import ROOT, Planner, is_faster, made_up, placed, total_s

# Searches begin at pins that take at most this times what is chosen, and at so many of these.
LONGER_MAX = 1.06
STARTS_MAX = 4

# A share of heads is one in so many: eighths of FLUX.1's 24. A step moves so many of them, or half segments.
HEAD_SHARES = 192
STEPS = {"tensor": (8, 3, 1), "layer": (6, 2)}


class Search:
    """The pins of one host and budget."""

    def __init__(self, planner: Planner, host: str, budget: list[str]):
        self.planner, self.where = planner, ["--host", host, *budget]
        self.chosen = planner.plan(*self.where)
        self.known: dict[tuple, dict | None] = {}

    def plan(self, mode: str, names: tuple[str, ...], shares: tuple[int, ...] | None) -> dict | None:
        key = (mode, names, shares)
        if key not in self.known:
            devices = names if shares is None else [f"{name}:{share}" for name, share in zip(names, shares)]
            pins = ["--backend", f"dit={'&'.join(devices)}", "--split-mode", f"dit={mode}"]
            self.known[key] = self.planner.plan(*self.where, *pins)
        return self.known[key]

    def seconds(self, mode: str, names: tuple[str, ...], shares: tuple[int, ...] | None) -> float:
        plan = self.plan(mode, names, shares)
        return float("inf") if plan is None else total_s(plan)

    def lists(self, mode: str) -> list[tuple[str, ...]]:
        """Every order by layers, over up to three devices; by heads every first device."""
        devices = [device["id"] for device in self.chosen["devices"] if device["id"] != "host"]
        counts = range(2, min(3 if mode == "layer" else 4, len(devices)) + 1)
        orders = [names for count in counts for names in itertools.permutations(devices, count)]
        return [names for names in orders if mode == "layer" or list(names[1:]) == sorted(names[1:])]

    def fastest(self) -> tuple[float, tuple] | None:
        """The fastest pins that are found, and their seconds; `None` where nothing fits."""
        if self.chosen is None:
            return None
        starts = [(self.seconds(mode, names, None), mode, names) for mode in STEPS for names in self.lists(mode)]
        limit = total_s(self.chosen) * LONGER_MAX
        starts = sorted(start for start in starts if start[0] <= limit)[:STARTS_MAX]
        found = [(seconds, (mode, names, None)) for seconds, mode, names in starts]
        found += [self.climbed(mode, names) for _, mode, names in starts]
        return min(found, key=lambda one: one[0], default=None)

    def climbed(self, mode: str, names: tuple[str, ...]) -> tuple[float, tuple]:
        shares = first_shares(self.plan(mode, names, None), mode, names)
        seconds = self.seconds(mode, names, shares)
        for step in STEPS[mode]:
            better = True
            while better:
                better = False
                for more, less in itertools.permutations(range(len(names)), 2):
                    moved = list(shares)
                    moved[more], moved[less] = moved[more] + step, moved[less] - step
                    if moved[less] > 0 and (other_s := self.seconds(mode, names, tuple(moved))) < seconds:
                        shares, seconds, better = tuple(moved), other_s, True
        return seconds, (mode, names, shares)


def first_shares(plan: dict, mode: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """What a plan gave to each device, in the numbers that are moved."""
    dit = next(component for component in plan["components"] if component["name"] == "dit")
    if mode == "tensor":
        of = dict(zip(dit["devices"], dit["tensor_shares"]))
        return tuple(max(1, round(HEAD_SHARES * of[name] / sum(of.values()))) for name in names)
    return tuple(2 * sum(segment["device"] == name for segment in dit["segments"]) for name in names)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=2026, help="of the hosts that are drawn")
    options.add_argument("--hosts", nargs="*", default=[], help="names or files of profiles")
    options.add_argument("--made-up", type=int, default=0, metavar="COUNT", help="so many hosts that are drawn, too")
    options.add_argument("--gib", nargs="*", type=float, default=[0, 3, 5, 8, 12], help="budgets of each device; 0 is all that is free")
    options.add_argument("--model", help="a model's directory in place of the sparse FLUX.1-dev")
    options.add_argument("--berth", type=pathlib.Path, default=ROOT / "target/release/berth")
    options.add_argument("--workers", type=int, default=os.cpu_count())
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, random_ = pathlib.Path(folder), random.Random(given.seed)
        hosts = given.hosts + [made_up(random_, home, number) for number in range(given.made_up)]
        model = given.model
        if model is None:
            model = str(home / "flux-dev")
            cargo = ["cargo", "run", "--quiet", "--release", "--locked", "--example", "sparse_flux_dev", "--", model]
            subprocess.run(cargo, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        planner = Planner(given.berth, model, home, 1, None)
        budgets = [["--max-vram", f"{gib:g}"] if gib else [] for gib in given.gib]
        searches = [(host, budget) for host in hosts for budget in budgets]
        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            found = pool.map(lambda case: told(Search(planner, *case), *case), searches)
            beaten = [ratio for ratio in found if ratio is not None]
    faster = sum(ratio < 1 - 0.002 for ratio in beaten)
    print(f"{len(beaten)} plans: {faster} beaten by more than 0.2 %, the best pin takes {min(beaten, default=1):.4f} of one")
    return 1 if faster else 0


def told(search: Search, host: str, budget: list[str]) -> float | None:
    """How long the fastest pin takes beside what is chosen; told where it is faster. `None` where nothing fits."""
    if search.chosen is None:
        return None
    found = search.fastest()
    chosen_s = total_s(search.chosen)
    if found is None:
        return 1.0
    seconds, (mode, names, shares) = found
    if is_faster(seconds, chosen_s):
        words = " ".join([pathlib.Path(host).stem, *budget, mode, "&".join(names), str(shares)])
        print(f"{words}: {seconds:.2f} s, chosen {chosen_s:.2f} s ({seconds / chosen_s:.4f}): {placed(search.chosen)}", flush=True)
    return min(1.0, seconds / chosen_s)


if __name__ == "__main__":
    sys.exit(main())
