#!/usr/bin/env python3
"""Predicted against measured times, and the planner's choice against the best placement by hand:
`python3 scripts/bench_predictions.py [--runs 3] [--write docs/predictions.md]`.

Twelve hosts of one to three virtual devices of different speed, link and memory, each written as a host profile. On each host: one
calibration and one job, from which Berth learns; then up to ten placements by hand and the planner's own choice, each of them run
several times in turns, cold. What the first job taught is put back before each run, so that no placement profits from the one
before. A job's time is that from a started executor to the picture: waiting for weights, and all phases. Ratios hold within one
run, times do not.

Prints Markdown tables; the exit code is 1 where the targets of accuracy and choice are missed.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 4
SHAPE = ["--width", "256", "--height", "256", "--steps", str(STEPS), "--max-sequence-length", "32"]
PROMPT = ["--prompt", "a red circle", "--seed", "1", "--output", "picture.png", "--json"]

# Heads of 64, double blocks and single blocks of the DiT: 41 MB in bf16, which one core computes in some 0.1 s a step.
DIT = ["6", "2", "4"]

FAST, SLOW = 2e9, 2e8  # bytes per second of a link: the DiT crosses it in 0.02 and in 0.2 s
WIDE = 1 << 30  # room for everything
BESIDE = 16 << 20  # room for the largest arena, the decoder's of 13 MiB, and its weights

PLACEMENTS_MAX = 10
ERROR_MAX = 0.15
LOSS_MAX = 0.10
GOOD_HOSTS_MIN = 9


@dataclasses.dataclass
class Device:
    speed: float
    link: float
    # Of the DiT's bytes; `None` for room for everything.
    memory: float | None = None
    # Compute threads of its own; `None` for those of the host.
    threads: int | None = None


@dataclasses.dataclass
class Host:
    name: str
    devices: list[Device]
    computes: bool = False

    def profile(self, dit_bytes: int, with_speed: bool) -> str:
        cores = max(1, sum(device.threads or 0 for device in self.devices))
        text = f'name = "{self.name}"\n[host]\ncores = {cores}\ncompute = {str(self.computes).lower()}\n'
        for device in self.devices:
            total = WIDE if device.memory is None else int(device.memory * dit_bytes) + BESIDE
            text += f'[[device]]\nkind = "virtual"\ntotal = "{total}B"\nlink = "{device.link / 1e6:.0f}MB/s"\n'
            if with_speed:
                text += f"speed = {device.speed}\n"
            if device.threads:
                text += f"threads = {device.threads}\n"
        return text

    def described(self) -> str:
        def one(device: Device) -> str:
            memory = "wide" if device.memory is None else f"{device.memory:g} DiT"
            own = f", {device.threads} thread of its own" if device.threads else ""
            return f"{device.speed:g}×, {device.link / 1e6:.0f} MB/s, {memory}{own}"

        host = ["host computes"] if self.computes else []
        return "; ".join([one(device) for device in self.devices] + host)


HOSTS = [
    Host("one-wide", [Device(1, FAST)]),
    Host("one-tight-slow-link", [Device(1, SLOW, 0.5)]),
    Host("one-slow-beside-host", [Device(0.25, SLOW)], computes=True),
    Host("one-tight-beside-host", [Device(0.5, FAST, 0.6)], computes=True),
    Host("two-equal", [Device(1, FAST), Device(1, FAST)]),
    Host("two-fast-tight-slow-wide", [Device(1, FAST, 0.5), Device(0.5, SLOW)]),
    Host("two-tight", [Device(0.5, FAST, 0.6), Device(0.25, FAST, 0.6)]),
    Host("two-links-beside-host", [Device(1, SLOW, 0.4), Device(0.5, FAST, 0.4)], computes=True),
    Host("two-apart", [Device(1, FAST, threads=1), Device(1, FAST, threads=1)]),
    Host("two-apart-unequal", [Device(1, FAST, threads=1), Device(0.5, FAST, threads=1)]),
    Host("three-unequal", [Device(1, FAST, 0.4), Device(0.5, FAST, 0.4), Device(0.25, SLOW, 0.4)]),
    Host("three-slow-links", [Device(0.5, SLOW), Device(0.5, SLOW, 0.5), Device(0.75, SLOW, 0.5)], computes=True),
]


def pinned(backend: str, weights: str, *more: str) -> list[str]:
    return ["--backend", backend, "--params-backend", weights, *more]


def placements(host: Host, batch: int) -> dict[str, list[str]]:
    """Placements by hand, the most different first; what does not fit is left out later."""
    first, count = "virtual0", len(host.devices)
    names = [f"virtual{index}" for index in range(count)]
    found = {"host": ["--backend", "all=cpu"]} if host.computes else {}
    for name in names:
        found[f"{name}, resident"] = pinned(f"all={name}", "all=device")
    if count > 1:
        speeds = [max(1, round(4 * device.speed)) for device in host.devices]
        by_speed = "&".join(f"{name}:{speed}" for name, speed in zip(names, speeds))
        equal = "&".join(names)
        rest = f"all={first}"
        if batch >= count:
            items = ["--split-mode", "dit=items"]
            found["DiT by items, equal shares"] = pinned(f"{rest},dit={equal}", "all=device", *items)
            found["DiT by items, streamed"] = pinned(f"{rest},dit={equal}", "dit=cpu", *items)
        if batch > 1:
            pipeline = ["--split-mode", "dit=pipeline"]
            found["DiT as a pipeline, equal shares"] = pinned(f"{rest},dit={equal}", "all=device", *pipeline)
        found["DiT by layers, equal shares"] = pinned(f"{rest},dit={equal}", "all=device")
        found["DiT by layers, shares by speed"] = pinned(f"{rest},dit={by_speed}", "all=device")
        found["DiT by rows, equal shares"] = pinned(f"{rest},dit={equal}", "all=device", "--split-mode", "dit=row")
        found["DiT by rows, shares by speed"] = pinned(f"{rest},dit={by_speed}", "all=device", "--split-mode", "dit=row")
        found["DiT by heads, equal shares"] = pinned(f"{rest},dit={equal}", "all=device", "--split-mode", "dit=tensor")
        found["DiT by heads, streamed"] = pinned(f"{rest},dit={equal}", "dit=cpu", "--split-mode", "dit=tensor")
        found["DiT apart"] = pinned(f"{rest},dit={names[-1]}", "all=device")
    found[f"{first}, DiT streamed, 2 slots"] = pinned(f"all={first}", "dit=cpu")
    found[f"{first}, lazy"] = pinned(f"all={first}", "all=disk")
    if host.computes:
        found["text encoders on host"] = pinned(f"all={first},te=cpu", "dit=device,vae=device")
        found["VAE on host"] = pinned(f"all={first},vae=cpu", "te=device,dit=device")
        found["DiT on host"] = pinned(f"all={first},dit=cpu", "te=device,vae=device")
    for slots in (1, 4):
        streamed = pinned(f"all={first}", "dit=cpu", "--lookahead", f"dit={slots}")
        found[f"{first}, DiT streamed, {slots} slots"] = streamed
    for name in names[1:]:
        found[f"{name}, DiT streamed, 2 slots"] = pinned(f"all={name}", "dit=cpu")
    found[f"{first}, resident, nothing ahead"] = pinned(f"all={first}", "all=device", "--no-prefetch")
    found[f"{first}, lazy, nothing ahead"] = pinned(f"all={first}", "all=disk", "--no-prefetch")
    found[f"{first}, all streamed"] = pinned(f"all={first}", "all=cpu")
    found[f"{first}, DiT lazy"] = pinned(f"all={first}", "te=device,dit=disk,vae=device")
    found[f"{first}, text encoders lazy"] = pinned(f"all={first}", "te=disk,dit=device,vae=device")
    found[f"{first}, DiT streamed, VAE lazy"] = pinned(f"all={first}", "te=device,dit=cpu,vae=disk")
    return found


class Bench:
    """Runs the program in a home of its own, with a state that is put back before each run."""

    def __init__(self, berth: pathlib.Path, home: pathlib.Path, batch: int):
        self.berth, self.home, self.batch = berth, home, batch
        self.shape = [*SHAPE, "--batch", str(batch)]
        self.learnt = home / "learnt"

    def call(self, arguments: list[str]) -> subprocess.CompletedProcess:
        # Nothing that was measured or set up outside of this home has a say.
        others = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
        own = {"XDG_CONFIG_HOME": "config", "BERTH_STATE_DIR": "state", "BERTH_SYSTEM_DIR": "system"}
        environment = {**others, **{name: str(self.home / folder) for name, folder in own.items()}}
        return subprocess.run([self.berth, *arguments], cwd=self.home, env=environment, capture_output=True, text=True)

    def checked(self, arguments: list[str]) -> str:
        done = self.call(arguments)
        if done.returncode != 0:
            raise SystemExit(f"berth {' '.join(arguments)}\n{done.stderr}")
        return done.stdout

    def knows(self, *arguments: str) -> bool:
        return self.call(list(arguments)).returncode == 0

    def generate(self, more: list[str]) -> dict:
        fixed = ["generate", "model", "--host", "./bench.toml", *self.shape, *PROMPT]
        document = json.loads(self.checked([*fixed, *more]))
        if document["attempts"] != 1:
            raise SystemExit(f"{more}: a plan failed: {document.get('failures')}")
        return document

    def fits(self, more: list[str]) -> bool:
        done = self.call(["plan", "model", "--host", "./bench.toml", *self.shape, "--dry-run", "--json", *more])
        if done.returncode == 2:
            raise SystemExit(f"{more}: {done.stderr}")
        return done.returncode == 0

    def forget(self) -> None:
        for folder in ("state", "learnt"):
            shutil.rmtree(self.home / folder, ignore_errors=True)

    def keep(self) -> None:
        """From now on each run starts from what was learnt so far."""
        state = self.home / "state"
        state.mkdir(exist_ok=True)
        shutil.copytree(state, self.learnt)

    def put_back(self) -> None:
        shutil.rmtree(self.home / "state", ignore_errors=True)
        shutil.copytree(self.learnt, self.home / "state")


def total_ms(measured: dict) -> float:
    """All of a job after its executor's start: `total` leaves out what was waited for while the plan was loaded."""
    steps = STEPS * measured["denoise_step"]
    return measured["load"] + measured["encode"] + measured["condition"] + steps + measured["decode"]


@dataclasses.dataclass
class Times:
    """A placement's predicted times, and all of its measured ones."""

    plan: dict
    totals: list[float] = dataclasses.field(default_factory=list)
    steps: list[float] = dataclasses.field(default_factory=list)

    def total(self) -> float:
        return statistics.median(self.totals)

    def step(self) -> float:
        return statistics.median(self.steps)

    def errors(self) -> tuple[float, float]:
        """Of the total and of the step, as a part of the measured."""
        predicted = self.plan["predicted_ms"]
        return predicted["total"] / self.total() - 1, predicted["denoise_step"] / self.step() - 1


OWN = "the planner's choice"


def measured(bench: Bench, host: Host, runs: int) -> dict[str, Times]:
    """All placements of a host, the planner's own among them, in turns."""
    bench.put_back()
    variants = {OWN: []}
    for name, more in placements(host, bench.batch).items():
        if len(variants) <= PLACEMENTS_MAX and bench.fits(more):
            variants[name] = more
    times: dict[str, Times] = {}
    for _ in range(runs):
        for name, more in variants.items():
            bench.put_back()
            document = bench.generate(more)
            of = times.setdefault(name, Times(document["plan"]))
            if of.plan["predicted_ms"] != document["plan"]["predicted_ms"]:
                print(f"{host.name}, {name}: not the same prediction each time", file=sys.stderr)
            ms = document["usage"]["measured_ms"]
            of.totals.append(total_ms(ms))
            of.steps.append(ms["denoise_step"])
    return times


def percent(part: float) -> str:
    return f"{100 * part:+.0f} %"


def placed(plan: dict) -> str:
    def one(component: dict) -> str:
        where = "&".join(component["devices"])
        split = f" by {component['placement']}" if component["placement"] in ("layer", "row", "tensor", "items", "pipeline") else ""
        return f"{component['name']} {where}{split} {component['residency']}"

    return ", ".join(one(component) for component in plan["components"])


def report(results: dict[str, tuple[Host, dict[str, Times]]]) -> bool:
    """Prints all tables; whether the targets are met."""
    print("| host | devices: speed, link, memory | placements | total off by | step off by | choice | best by hand | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    accurate = good = 0
    for name, (host, times) in results.items():
        by_hand = {key: of for key, of in times.items() if key != OWN}
        errors = [of.errors() for of in by_hand.values()]
        total, step = (statistics.median(abs(error[index]) for error in errors) for index in (0, 1))
        best = min(by_hand, key=lambda key: by_hand[key].total())
        ratio = times[OWN].total() / by_hand[best].total()
        accurate += total <= ERROR_MAX and step <= ERROR_MAX
        good += ratio <= 1 + LOSS_MAX
        print(
            f"| {name} | {host.described()} | {len(by_hand)} | {100 * total:.0f} % | {100 * step:.0f} % "
            f"| {times[OWN].total():.0f} ms | {by_hand[best].total():.0f} ms: {best} | {ratio:.2f} |"
        )
    every = [of.errors() for _, times in results.values() for key, of in times.items() if key != OWN]
    total, step = (statistics.median(abs(error[index]) for error in every) for index in (0, 1))
    print(f"\nMedian over all placements: the total is off by {100 * total:.0f} %, the step by {100 * step:.0f} %.")
    print(f"Medians within {100 * ERROR_MAX:.0f} % on {accurate} of {len(results)} hosts; the choice within", end=" ")
    print(f"{100 * LOSS_MAX:.0f} % of the fastest placement by hand on {good} of {len(results)}.")
    for name, (_, times) in results.items():
        print(f"\n### {name}\n\nChosen: {placed(times[OWN].plan)}.\n")
        print("| placement | total predicted | measured | off by | step predicted | measured | off by |")
        print("|---|---|---|---|---|---|---|")
        for key, of in sorted(times.items(), key=lambda entry: entry[1].total()):
            predicted, (total_error, step_error) = of.plan["predicted_ms"], of.errors()
            print(
                f"| {key} | {predicted['total']:.0f} ms | {of.total():.0f} ms | {percent(total_error)} "
                f"| {predicted['denoise_step']:.0f} ms | {of.step():.0f} ms | {percent(step_error)} |"
            )
    enough = min(GOOD_HOSTS_MIN, len(results))
    return total <= ERROR_MAX and step <= ERROR_MAX and good >= enough


def page(tables: str, command: str) -> str:
    return f"""# Predictions against measurements

{__doc__.split(chr(10) * 2)[1]}

`{command}`, with medians of each placement's runs. A speed of 0.5× computes at half of the
host kernels' speed; memory is in parts of the DiT's bytes, with room for arenas beside. `off by` is predicted over measured, and
in the first table the median over the placements by hand, whatever its sign.

{tables.strip()}
"""


def prepared(arguments: argparse.Namespace, home: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The program, and the DiT's bytes of the model that was written."""
    target = pathlib.Path(arguments.target_dir)
    cargo = ["--release", "--target-dir", str(target), "-p", "planner"]
    writer = ["cargo", "run", "--quiet", *cargo, "--example", "wide_model", "--"]
    berth = pathlib.Path(arguments.berth or target / "release" / "berth").resolve()
    if arguments.berth:
        writer = [berth.parent / "examples" / "wide_model"]
    else:
        subprocess.run(["cargo", "build", *cargo], cwd=ROOT, check=True)
    command = [*writer, f"{home}/model", *arguments.dit]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    # `DIR: N B in the DiT, M B in T5`
    return berth, int(done.stdout.rsplit(": ", 1)[1].split(" ")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-dir", default=str(ROOT / "target"))
    parser.add_argument("--berth", help="a program that is built already, with its examples beside it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--host", action="append", help="only these of the hosts")
    parser.add_argument("--batch", type=int, default=1, help="pictures made together")
    parser.add_argument("--dit", nargs=3, default=DIT, metavar="COUNT", help="heads, double and single blocks")
    parser.add_argument("--write", type=pathlib.Path, help="also write a page with the tables")
    arguments = parser.parse_args()
    hosts = [host for host in HOSTS if not arguments.host or host.name in arguments.host]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        berth, dit_bytes = prepared(arguments, home)
        bench = Bench(berth, home, arguments.batch)
        (home / "bench.toml").write_text(HOSTS[0].profile(dit_bytes, True))
        with_speed = bench.knows("devices", "--host", "./bench.toml", "--json")
        calibrates = bench.knows("calibrate", "--help")
        if not (with_speed and calibrates):
            print("this program lacks `speed` of devices or `calibrate`: not what is to be measured", file=sys.stderr)
        for host in hosts:
            bench.forget()
            (home / "bench.toml").write_text(host.profile(dit_bytes, with_speed))
            if calibrates:
                bench.checked(["calibrate", "--host", "./bench.toml"])
            bench.generate([])
            bench.keep()
            print(f"{host.name} …", file=sys.stderr)
            results[host.name] = (host, measured(bench, host, arguments.runs))
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        met = report(results)
    print(text.getvalue())
    if arguments.write:
        command = f"python3 scripts/bench_predictions.py --runs {arguments.runs}"
        arguments.write.write_text(page(text.getvalue(), command))
    sys.exit(not met)


if __name__ == "__main__":
    main()
