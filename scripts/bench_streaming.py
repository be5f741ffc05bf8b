#!/usr/bin/env python3
"""Streaming against its bound: `python3 scripts/bench_streaming.py [--target-dir target]`.

Runs the real program, built for release, on virtual devices whose links make the DiT bound by computing, by
neither, and by the link; streamed with 1, 2 and 4 slots, and from page-locked copies with 4, and compares each step with max(compute, bytes / link).
Then a cold start with and without loads ahead of their phases. Prints Markdown tables; ratios hold within one
run, times do not. Each figure is the least of some runs, taken in turns. Devices compute with one thread, so that on a
machine of two cores the copy engine's thread, which stands for a DMA engine, has one of its own.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["--width", "256", "--height", "256", "--steps", "6", "--max-sequence-length", "32"]
PASSING = ("streamed", "locked")
PROMPT = ["--prompt", "a red circle", "--seed", "1", "--output", "picture.png", "--json"]


def profile(link: float) -> str:
    return f"""
name = "bench"
[host]
cores = 1
[[device]]
kind = "virtual"
total = "4GiB"
link = "{link / 1e6:.3f}MB/s"
"""


class Bench:
    def __init__(self, berth: pathlib.Path, home: pathlib.Path):
        self.berth, self.home = berth, home

    def run(self, command: str, more: list[str]) -> dict:
        arguments = [self.berth, command, "model", "--host", "bench.toml", *SHAPE, *more]
        done = subprocess.run(arguments, cwd=self.home, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, arguments))}\n{done.stderr}")
        return json.loads(done.stdout)

    def generate(self, more: list[str]) -> dict:
        return self.run("generate", [*PROMPT, *more])

    def link(self, bytes_per_s: float) -> None:
        (self.home / "bench.toml").write_text(profile(bytes_per_s))


def component(plan: dict, name: str) -> dict:
    return next(c for c in plan["components"] if c["name"] == name)


def least(runs: int, variants: dict[str, list[str]], bench: Bench, field: str) -> dict[str, float]:
    """The least of a measured time for each variant, taken in turns."""
    best: dict[str, float] = {}
    for _ in range(runs):
        for name, more in variants.items():
            ms = bench.generate(more)["usage"]["measured_ms"][field]
            best[name] = min(best.get(name, ms), ms)
    return best


def streamed(bench: Bench, runs: int) -> None:
    on_device = ["--backend", "all=virtual0"]
    in_ram = [*on_device, "--params-backend", "dit=cpu"]
    bench.link(4e9)
    # Just enough memory for the ring and nothing held: what the smallest plan takes.
    def budget(lookahead: int) -> str:
        dry = ["--dry-run", "--json", *in_ram, "--lookahead", str(lookahead)]
        low, high = 1 << 20, 4 << 30
        while high - low > 1 << 16:
            middle = (low + high) // 2
            arguments = [bench.berth, "plan", "model", "--host", "bench.toml", *SHAPE]
            arguments += [*dry, "--max-vram", f"{middle}B"]
            fits = subprocess.run(arguments, cwd=bench.home, capture_output=True).returncode == 0
            low, high = (low, middle) if fits else (middle, high)
        return f"{high}B"

    budgets = {n: budget(n) for n in (1, 2, 4)}
    variants = {"resident": on_device}
    for n, size in budgets.items():
        variants[str(n)] = [*in_ram, "--lookahead", str(n), "--max-vram", size]
    variants["locked"] = [*on_device, "--params-backend", "dit=locked", *variants["4"][4:]]
    plan = bench.run("plan", ["--dry-run", "--json", *variants["2"]])
    segments = component(plan, "dit")["segments"]
    moved = sum(s["weights_bytes"] for s in segments if s["residency"] in PASSING)
    held = sum(s["weights_bytes"] for s in segments if s["residency"] not in PASSING)
    compute_ms = least(runs, {"resident": on_device}, bench, "denoise_step")["resident"]
    balanced = moved / (compute_ms / 1e3)
    print(f"DiT of {(moved + held) / 1e6:.0f} MB, {moved / 1e6:.0f} MB streamed each step\n")
    print("| link | compute alone | bytes / link | 1 slot | 2 slots | 4 slots | 4 slots, page-locked |")
    print("|---|---|---|---|---|---|---|")
    for name, factor in [("fast: bound by computing", 4.0), ("balanced", 1.0), ("slow: bound by the link", 0.4)]:
        bench.link(balanced * factor)
        times = least(runs, variants, bench, "denoise_step")
        compute_ms = times["resident"]
        link_ms = 1e3 * moved / (balanced * factor)
        bound = max(compute_ms, link_ms)
        row = [f"{times[str(n)]:.0f} ms ({times[str(n)] / bound:.2f})" for n in (1, 2, 4, "locked")]
        print(f"| {name}, {balanced * factor / 1e6:.0f} MB/s | {compute_ms:.0f} ms | {link_ms:.0f} ms | {' | '.join(row)} |")
    print("\nIn brackets: the step over max(compute alone, bytes / link).")


def prefetched(bench: Bench, runs: int) -> None:
    print("\n| weights | link | with prefetch | without | ratio |")
    print("|---|---|---|---|---|")
    for name, more in [("resident", []), ("lazy", ["--params-backend", "all=disk"])]:
        for link in (4e8, 2e9):
            bench.link(link)
            variants = {
                "with": ["--backend", "all=virtual0", *more],
                "without": ["--backend", "all=virtual0", *more, "--no-prefetch"],
            }
            best: dict[str, float] = {}
            for _ in range(runs):
                for key, arguments in variants.items():
                    ms = bench.generate(arguments)["usage"]["measured_ms"]
                    total = ms["total"] + (ms["load"] if name == "resident" and key == "without" else 0.0)
                    best[key] = min(best.get(key, total), total)
            ratio = best["with"] / best["without"]
            print(f"| {name} | {link / 1e6:.0f} MB/s | {best['with']:.0f} ms | {best['without']:.0f} ms | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target-dir", default=str(ROOT / "target"))
    parser.add_argument("--runs", type=int, default=3)
    sizes = "heads of 64, double blocks and single blocks of the DiT"
    parser.add_argument("--dit", nargs=3, default=["8", "4", "10"], metavar="COUNT", help=sizes)
    parser.add_argument("--only-streamed", action="store_true", help="leave out the cold starts")
    arguments = parser.parse_args()
    target = pathlib.Path(arguments.target_dir)
    build = ["cargo", "build", "--release", "--target-dir", str(target), "-p", "planner"]
    subprocess.run(build, cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as home:
        model = ["cargo", "run", "--release", "--target-dir", str(target), "-p", "planner"]
        model += ["--example", "wide_model", "--", f"{home}/model", *arguments.dit]
        subprocess.run(model, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        bench = Bench(target.resolve() / "release" / "berth", pathlib.Path(home))
        streamed(bench, arguments.runs)
        if not arguments.only_streamed:
            prefetched(bench, arguments.runs)


if __name__ == "__main__":
    main()
