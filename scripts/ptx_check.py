#!/usr/bin/env python3
"""Runs the PTX that is shipped, executor/kernels/ptx, over small cases in an interpreter of our own, and compares the results.

    scripts/ptx_check.py                  the files that have no record of having passed as they are
    scripts/ptx_check.py --all            every file
    scripts/ptx_check.py --kernel NAME    the cases of one source, or those whose name has this in it
    scripts/ptx_check.py --self-test      whether faults that are planted into the PTX are noticed
    scripts/ptx_check.py --record         write what passed to executor/kernels/interpreted.txt

The interpreter, scripts/ptx, follows the PTX ISA's documentation, and tells of memory outside its buffers, addresses that are not
aligned, memory that nobody wrote, elements of a result that are written twice or not at all, races, copies that were not waited
for, and results that are not those of a reference in numpy. It needs Python 3.10 and numpy, no GPU, driver or CUDA. Without numpy it
says so and succeeds, unless --require is given. interpreted.txt has the digests of what passed, and of the interpreter and its cases.
"""

import argparse
import hashlib
import multiprocessing
import os
import pathlib
import sys
import time
import traceback
import zlib

try:
    import numpy as np

    from ptx import cases, planted, shipped
    from ptx.errors import Fault, Unsupported
    from ptx.launch import Device
except ImportError as error:
    if error.name != "numpy":
        raise
    np = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "executor" / "kernels" / "interpreted.txt"
# Sources whose cases take longest.
SLOW = ("conv_exact", "attention_exact", "attention_wide", "conv_half", "linear_exact", "linear_few")


def interpreter_digest() -> str:
    """Of the interpreter and its cases."""
    whole = hashlib.sha256()
    for path in sorted((ROOT / "scripts" / "ptx").rglob("*.py")):
        whole.update(path.name.encode() + b"\n" + path.read_bytes())
    return whole.hexdigest()[:16]


def digest(source: str) -> str:
    """Of what is shipped of a source."""
    return "-".join(shipped.digest(source, architecture) for architecture in shipped.ARCHITECTURES)


def recorded() -> dict[str, str]:
    """The digests of the sources that passed, by name."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    if lines[:1] != [f"interpreter {interpreter_digest()}"]:
        return {}
    return dict(line.split(" ") for line in lines[1:])


def record(sources: list[str]):
    """Notes that these passed as they are; forgets those that are gone."""
    known = recorded() | {source: digest(source) for source in sources}
    lines = [f"{name} {known[name]}" for name in shipped.sources() if name in known]
    RECORD.write_text("\n".join([f"interpreter {interpreter_digest()}", *lines]) + "\n")


def architectures_of(case) -> list[int]:
    """Those whose PTX of this case's source is not the same as another's."""
    both = [of for of in case.architectures if of == shipped.ARCHITECTURES[0] or not shipped.is_copy(case.source, of)]
    return both or list(case.architectures[:1])


ALL = {} if np is None else {(case.source, case.name): case for case in cases.all_cases()}


def run(task: tuple[str, str, int]):
    """One case: what went wrong, seconds, and for each function that ran which instructions were reached."""
    source, name, architecture = task
    device = Device(architecture)
    begin = time.monotonic()
    problem = ""
    try:
        ALL[source, name].run(device, np.random.default_rng(zlib.crc32(name.encode())))
    except (Fault, Unsupported) as error:
        problem = str(error)
    except Exception:
        problem = traceback.format_exc()
    reached = {}
    for of, module in device.modules.items():
        for function in module.functions.values():
            if "reached" in function.__dict__ and function.reached.any():
                reached[of, function.name] = np.packbits(function.reached).tobytes(), function.reached.size
    return task, problem, time.monotonic() - begin, reached


def run_all(tasks: list, jobs: int):
    tasks = sorted(tasks, key=lambda task: SLOW.index(task[0]) if task[0] in SLOW else len(SLOW))
    if jobs == 1:
        return [run(task) for task in tasks]
    with multiprocessing.Pool(jobs) as pool:
        return pool.map(run, tasks, chunksize=1)


def unreached(results: list, tasks: list) -> tuple[list[str], int, int]:
    """Entries that no case launched, and how many instructions of how many were executed."""
    together: dict = {}
    for (_, _, architecture), _, _, reached in results:
        for (source, function), (bits, size) in reached.items():
            mine = np.unpackbits(np.frombuffer(bits, np.uint8), count=size)
            key = source, architecture, function
            together[key] = together[key] | mine if key in together else mine
    missing = []
    for source, architecture in sorted({(source, architecture) for source, _, architecture in tasks}):
        for function in shipped.module(source, architecture).functions.values():
            if function.is_entry and (source, architecture, function.name) not in together:
                missing.append(f"{function.name} of {source}.{architecture}")
    return missing, sum(int(bits.sum()) for bits in together.values()), sum(bits.size for bits in together.values())


def plant(index: int) -> tuple[str, str]:
    """Runs the case of a planted fault: what it was, and what is wrong with how it ended."""
    one = planted.PLANTED[index]
    device = Device(one.architecture, {one.source: one.module()})
    try:
        ALL[one.source, one.case].run(device, np.random.default_rng(zlib.crc32(one.case.encode())))
    except Fault as fault:
        if fault.kind in one.kinds:
            return f"{one.about} in {one.kernel}.{one.architecture}: {fault}", ""
        return one.about, f"{one.about} in {one.kernel}.{one.architecture} was taken for this: {fault}"
    except AssertionError as error:
        return one.about, f"{one.about} in {one.kernel}.{one.architecture}: {error}"
    return one.about, f"{one.about} in {one.kernel}.{one.architecture} was not noticed"


def self_test(jobs: int, verbose: bool) -> int:
    with multiprocessing.Pool(jobs) as pool:
        outcomes = pool.map(plant, range(len(planted.PLANTED)), chunksize=1)
    wrong = [problem for _, problem in outcomes if problem]
    for problem in wrong:
        print(f"ptx: {problem}")
    for about, problem in outcomes if verbose else []:
        if not problem:
            print(about)
    print(f"ptx: {len(outcomes) - len(wrong)} of {len(outcomes)} planted faults noticed")
    return 1 if wrong else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every file, whatever is recorded")
    which.add_argument("--kernel", metavar="NAME", help="cases of this source, or with this in their name")
    which.add_argument("--self-test", action="store_true", help="only whether planted faults are noticed")
    parser.add_argument("--record", action="store_true", help="write what passed to executor/kernels/interpreted.txt")
    parser.add_argument("--require", action="store_true", help="fail where numpy is missing")
    parser.add_argument("--verbose", action="store_true", help="each case with its seconds; each planted fault with what was said")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes [as many as there are cores]")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if np is None:
        print("ptx: numpy is not here, so the PTX is not interpreted; `pip install numpy` gets it")
        return 1 if given.require else 0
    if given.self_test:
        return self_test(given.jobs, given.verbose)
    known = {} if given.all or given.kernel else recorded()
    sources = [source for source in shipped.sources() if known.get(source) != digest(source)]
    chosen = [case for case in ALL.values() if case.source in sources]
    if given.kernel:
        exact = [case for case in chosen if case.source == given.kernel]
        chosen = exact or [case for case in chosen if given.kernel in case.name]
        if not chosen:
            print(f"ptx: no case is of {given.kernel}; the sources are {', '.join(shipped.sources())}")
            return 2
    tasks = [(case.source, case.name, architecture) for case in chosen for architecture in architectures_of(case)]
    begin = time.monotonic()
    results = run_all(tasks, given.jobs)
    bad = set()
    for (source, name, architecture), problem, seconds, _ in results:
        if given.verbose:
            print(f"{source}.{architecture} {name}: {seconds:.2f} s")
        if problem:
            print(f"{source}.{architecture} {name}: {problem}")
            bad.add(source)
    failures = sum(bool(problem) for _, problem, _, _ in results)
    missing, executed, all_of_them = unreached(results, tasks)
    if not given.kernel:
        for entry in missing:
            print(f"ptx: no case launches {entry}")
            failures += 1
    if given.record and not given.kernel:
        record([source for source in sources if source not in bad and not missing])
    passed = f", {len(shipped.sources()) - len(sources)} files passed as they are" if known else ""
    share = f"{executed / all_of_them:.1%} of {all_of_them} instructions executed" if all_of_them else "nothing to run"
    print(f"ptx: {len({case.source for case in chosen})} files, {len(tasks)} cases, {share}, {time.monotonic() - begin:.0f} s{passed}: "
          f"{f'{failures} failures' if failures else 'all good'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
