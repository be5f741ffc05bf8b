"""Outcomes of checks: one table for people, a JSON document, and Markdown for docs/gpu-runs.md."""

import dataclasses
import json

# `measured` is a figure that is compared with nothing.
OK, MEASURED, FAILED, SKIPPED = "ok", "measured", "failed", "skipped"


class Failed(Exception):
    """What was measured is not what must hold."""

    def __init__(self, figure, limit=""):
        super().__init__(figure)
        self.figure, self.limit = figure, limit


class Skipped(Exception):
    """The check cannot be made here, for this reason."""


@dataclasses.dataclass
class Figure:
    """What a check found: a short text, the limit that it kept, if it has one, and the numbers for JSON."""

    text: str
    limit: str = ""
    data: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outcome:
    """One row of the table. `log` is the file with all that the check ran and read."""

    check: str
    result: str
    figure: str
    limit: str
    seconds: float
    log: str
    required: bool
    data: dict = dataclasses.field(default_factory=dict)

    def cells(self):
        result = f"{SKIPPED}: {self.figure}" if self.result == SKIPPED else self.result
        figure = "" if self.result == SKIPPED else self.figure
        return [self.check, result, figure, self.limit, f"{self.seconds:.1f}"]


HEAD = ["check", "result", "figure", "limit", "seconds"]


def table(outcomes):
    rows = [HEAD, *(outcome.cells() for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(outcomes, facts):
    """A section to be pasted into a page."""
    lines = [f"## {facts['date']}: {facts['gpu']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if name not in ("date", "gpu")]
    lines += ["", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for outcome in outcomes:
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in outcome.cells()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def document(outcomes, facts):
    rows = [dataclasses.asdict(outcome) for outcome in outcomes]
    return json.dumps({"schema": 1, "facts": facts, "exit_code": verdict(outcomes), "checks": rows}, indent=2) + "\n"


# Exit codes: all that is required holds; something failed; nothing failed, and something required was skipped.
HOLDS, FAILS, UNKNOWN = 0, 1, 3


def verdict(outcomes):
    if any(outcome.result == FAILED for outcome in outcomes) or not outcomes:
        return FAILS
    return UNKNOWN if any(outcome.result == SKIPPED and outcome.required for outcome in outcomes) else HOLDS
