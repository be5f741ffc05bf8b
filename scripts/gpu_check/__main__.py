"""`scripts/gpu-check.sh`: everything that only a GPU can show, in one table.

Exit code 0: all that is required holds; 1: a check failed; 2: there are no programs to run; 3: none failed, and one that is
required was skipped.

    scripts/gpu-check.sh [--binaries DIR] [--out DIR] [--quick] [--only NAME,...] [--markdown FILE]
    scripts/gpu-check.sh --pack [DIR]       where there is Rust: the programs, for a machine without it
    scripts/gpu-check.sh --list             the checks
"""

import argparse
import datetime
import os
import pathlib
import signal
import sys
import time
import traceback

import catalogue
import pack
import programs
import results
from stand import Stand

# All checks together: under 8 minutes.
SECONDS = 460
# A simulated GPU is some processor, which others use too.
SIMULATED_TIMES = 4


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/gpu-check.sh", description=__doc__, formatter_class=formatter)
    # Within what `--pack` wrote all lies beside the manifest.
    packed = (programs.ROOT / programs.MANIFEST).is_file()
    default = programs.ROOT if packed else programs.ROOT / "target/gpu-check"
    parser.add_argument("--pack", nargs="?", const=default, type=pathlib.Path, metavar="DIR", help="[target/gpu-check]")
    parser.add_argument("--binaries", type=pathlib.Path, metavar="DIR", help="what --pack wrote [target/gpu-check]")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="for logs, table.json [target/gpu-check-out]")
    parser.add_argument("--quick", action="store_true", help="no model of FLUX.1-dev's size")
    parser.add_argument("--only", type=lambda names: names.split(","), metavar="NAME,...", help="these checks")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="the table for docs/gpu-runs.md")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for all checks together [{SECONDS}]")
    parser.add_argument("--list", action="store_true", help="the checks by name, and no more")
    args = parser.parse_args()
    if args.list:
        for check in catalogue.CHECKS:
            print(f"{check.name}: {check.about}" + ("" if check.required else " (may be skipped)"))
        return 0
    unknown = sorted(set(args.only or []) - {check.name for check in catalogue.CHECKS})
    if unknown:
        parser.error(f"no check is named {', '.join(unknown)}; --list tells their names")
    if args.pack:
        return pack.pack(args.pack)
    out = (args.out or default.with_name("gpu-check-out")).resolve()
    stand = Stand(out, args.quick)
    try:
        folder = args.binaries or (default if (default / programs.MANIFEST).is_file() else None)
        stand.programs = programs.given(folder.resolve(), stand.work / "programs") if folder else programs.built()
        packed, present = stand.programs.commit, pack.commit()
        if packed and "unknown" not in (packed, present) and packed != present:
            print(f"gpu-check: the programs in {folder} are of {packed}, checked out is {present}", file=sys.stderr)
        return run_all(args, stand)
    finally:
        stand.clear()


def run_all(args, stand):
    chosen = [check for check in catalogue.CHECKS if args.only is None or check.name in args.only]
    ends_at = time.monotonic() + args.seconds * (SIMULATED_TIMES if stand.simulated else 1)
    outcomes = []
    for check in chosen:
        print(f"{check.name} …", file=sys.stderr, flush=True)
        outcomes.append(run_one(check, stand, ends_at))
    facts = facts_of(stand)
    (stand.out / "table.json").write_text(results.document(outcomes, facts))
    if args.markdown:
        args.markdown.write_text(results.markdown(outcomes, facts))
    print(results.table(outcomes))
    for outcome in outcomes:
        if outcome.result == results.FAILED:
            print(f"{outcome.check}: {outcome.log}", file=sys.stderr)
    return results.verdict(outcomes)


def run_one(check, stand, ends_at):
    start = time.monotonic()
    left = ends_at - start
    allowed = check.seconds * (SIMULATED_TIMES if stand.simulated else 1)
    stand.begin(check.name, min(allowed, max(left, 0)))
    data = {}
    try:
        if left <= 1:
            raise results.Failed("no time was left: --seconds")
        figure = check.run(stand)
        text, limit, data = figure.text, figure.limit, figure.data
        result = results.OK if limit else results.MEASURED
    except results.Failed as error:
        result, text, limit = results.FAILED, error.figure, error.limit
    except results.Skipped as error:
        result, text, limit = results.SKIPPED, str(error), ""
    except Exception as error:  # A surprise is a failure of this check, and the others go on.
        stand.log("".join(traceback.format_exception(error)))
        result, text, limit = results.FAILED, f"{type(error).__name__}: {error}".splitlines()[0][:120], ""
    stand.log(f"{result}: {text}")
    seconds = time.monotonic() - start
    return results.Outcome(check.name, result, text, limit, seconds, str(stand.log_path), check.required, data)


def facts_of(stand):
    try:
        device = stand.device()
        gpu = f"{device['name']}, {device['total_bytes'] >> 20} MiB, driver {device['driver']}"
    except (results.Failed, results.Skipped) as error:
        gpu = f"none ({error})"
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": gpu + (" (simulated)" if stand.simulated else ""),
        "commit": stand.programs.commit or pack.commit(),
        "command": "scripts/gpu-check.sh " + " ".join(sys.argv[1:]),
        "processors": str(os.cpu_count()),
    }


if __name__ == "__main__":
    # As at an interrupt: what was started and written is taken away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except programs.NoPrograms as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
