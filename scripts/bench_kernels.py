#!/usr/bin/env python3
"""Kernels against torch, `gemm` and the machine's peaks: `python3 scripts/bench_kernels.py [--python PATH] [GROUP]...`.

Builds the bench for release and runs, in turns and with one thread, torch f32, `gemm`, loops of nothing but
multiply-adds, and ours; prints Markdown tables of ratios. The best of all turns counts, as whatever else the machine
does makes a turn slower only. Ratios hold within one run, rates do not. torch comes from PyPI into a virtual
environment under target/, unless --python names an interpreter that has it.

To add a group: a function in GROUPS that lists its cases, what torch does for each in TORCH, and in executor/benches/kernels.rs
what we do.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Case:
    """One row: our case, and the case of torch that it is compared with."""

    ours: str
    torch: str
    isa: str = ""
    gemm: str = ""


def matmul() -> list[Case]:
    shapes = ["512x3072x3072", "1024x3072x12288"]
    types = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]
    return [Case(f"{name} {shape}", f"linear {shape}", gemm=f"gemm {shape}") for shape in shapes for name in types]


def isas() -> list[Case]:
    shape, names = "512x3072x3072", ["avx512-vnni", "avx512", "avx2-vnni", "avx2", "portable"]
    types = ["f32", "bf16", "q8_0", "q4_k", "q6_k"]
    return [Case(f"{t} {shape}", f"linear {shape}", isa, f"gemm {shape}") for isa in names for t in types]


def rows() -> list[Case]:
    shape = "1x3072x18432"
    types = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]
    return [Case(f"{name} {shape}", f"linear {shape}", gemm=f"gemm {shape}") for name in types]


GROUPS = {"matmul": matmul, "isas": isas, "rows": rows}


def torch_linear(shape: str):
    import torch

    rows, k, n = map(int, shape.split("x"))
    x, w = torch.randn(rows, k), torch.randn(n, k)
    return 2 * rows * k * n, lambda: torch.nn.functional.linear(x, w)


TORCH = {"linear": torch_linear}


def torch_child(seconds: float) -> None:
    """Reads cases, answers each with its rate. One at a time is kept, as large operands push others out of caches."""
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    name, held = "", None
    for line in sys.stdin:
        if line.strip() != name:
            name = line.strip()
            kind, shape = name.split()
            held = TORCH[kind](shape)
            held[1]()
        operations, run = held
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
        print(operations / best / 1e9, flush=True)


class Bench:
    """The program that is measured, and the best rate of each case, in GFLOP/s."""

    def __init__(self, python: pathlib.Path, program: str, seconds: float):
        self.program, self.seconds = program, seconds
        child = [str(python), __file__, "--torch-child", str(seconds)]
        self.child = subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.best: dict[tuple[str, str], float] = {}

    def keep(self, key: tuple[str, str], rate: float) -> None:
        self.best[key] = max(self.best.get(key, 0.0), rate)

    def torch(self, case: str) -> None:
        self.child.stdin.write(case + "\n")
        self.child.stdin.flush()
        self.keep(("torch", case), float(self.child.stdout.readline()))

    def ours(self, isa: str, cases: list[str]) -> None:
        shape = ["--shape", cases[0].split()[1]]
        cases = [*cases, "peak-f32", "peak-int8", "peak-bf16"]
        command = [self.program, "--exact-names", "--seconds", str(self.seconds), *shape, *cases]
        environment = {**os.environ, **({"BERTH_ISA": isa} if isa else {})}
        lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for line in lines.stdout.splitlines():
            told = json.loads(line)
            if not isa or told["isa"] == isa:
                self.keep((isa, told["case"]), told["gflops"])


def build() -> str:
    """Builds the bench and tells where it is."""
    command = ["cargo", "bench", "--no-run", "-p", "executor", "--bench", "kernels", "--message-format", "json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(t["executable"] for t in told if t.get("executable") and "bench" in t["target"]["kind"])


def interpreter(named: str | None) -> pathlib.Path:
    if named:
        return pathlib.Path(named)
    home = ROOT / "target" / "bench-venv"
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", "torch", "numpy"], check=True)
    return home / "bin" / "python"


def table(name: str, cases: list[Case], best: dict[tuple[str, str], float]) -> str:
    lines = [f"\n### {name}\n"]
    lines.append("| case | instruction set | GFLOP/s | / torch f32 | / gemm | / peak f32 | / peak int8 | / peak bf16 |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for case in cases:
        rate = best.get((case.isa, case.ours))
        if rate is None:
            continue
        peaks = [(case.isa, f"peak-{what}") for what in ("f32", "int8", "bf16")]
        others = [("torch", case.torch), (case.isa, case.gemm), *peaks]
        ratios = [f"{rate / best[key]:.2f}" if key in best else "" for key in others]
        lines.append(f"| {case.ours} | {case.isa or 'best'} | {rate:.0f} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} [default: all]")
    parser.add_argument("--python", help="an interpreter that has torch")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each case in each turn")
    parser.add_argument("--output", help="a file to write the tables to, besides")
    parser.add_argument("--torch-child", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch_child is not None:
        torch_child(arguments.torch_child)
        return
    unknown = [name for name in arguments.groups if name not in GROUPS]
    if unknown:
        parser.error(f"there is no group {unknown[0]}")
    groups = {name: GROUPS[name]() for name in arguments.groups or GROUPS}
    bench = Bench(interpreter(arguments.python), build(), arguments.seconds)
    for cases in groups.values():
        # All rows of a comparison stand together in each turn.
        sets = dict.fromkeys((case.isa, case.torch) for case in cases)
        for _ in range(arguments.turns):
            for isa, torch in sets:
                bench.torch(torch)
                mine = [case for case in cases if (case.isa, case.torch) == (isa, torch)]
                names = [case.ours for case in mine]
                names += dict.fromkeys(case.gemm for case in mine if case.gemm)
                bench.ours(isa, names)
    bench.child.stdin.close()
    text = "\n".join(table(name, cases, bench.best) for name, cases in groups.items())
    print(text)
    if arguments.output:
        pathlib.Path(arguments.output).write_text(text + "\n")


if __name__ == "__main__":
    main()
