"""Bytes: a sweep of budgets, and what NVML says of the process."""

import png
from results import Failed, Figure
from stand import mib, peaks, require_exact

ON_ONE = ["--backend", "all=cuda0", "--vae-tile", "off"]

# Budgets between the smallest and what all takes, both included.
BUDGETS = 5

# What the process may take beside its plan, once measured: the larger of a share and of a sum.
SHARE_MAX, BYTES_MAX = 0.02, 64 << 20


def sweep(stand):
    model = stand.wide()
    # What a run learns would change the next plan: bytes are told in a home of their own each time.
    whole = stand.home().profile().plan(model, [*ON_ONE, "--params-backend", "all=device"])["devices"][0]["peak_bytes"]
    least = smallest(stand, model)
    pictures = set()
    for index in range(BUDGETS):
        budget = least + (whole - least) * index // (BUDGETS - 1)
        home = stand.home().profile()
        document = home.generate(model, [*ON_ONE, "--max-vram", f"cuda0={budget}B"])
        require_exact(document, f"{budget} B")
        most = max(measured for device, _, _, measured in peaks(document) if device == "cuda0")
        if most > budget:
            raise Failed(f"{most} B of {budget} B", "the budget")
        pictures.add(png.pixels(home.path("picture.png")))
    if len(pictures) != 1:
        raise Failed(f"{len(pictures)} pictures for {BUDGETS} budgets", "one picture")
    stand.home().profile().plan(model, [*ON_ONE, "--max-vram", f"cuda0={least - 1}B"], code=1)
    text = f"{BUDGETS} budgets from {mib(least)} to {mib(whole)}"
    return Figure(text, "predicted = measured <= budget", {"least_bytes": least, "whole_bytes": whole})


def smallest(stand, model):
    """The smallest budget that fits, as the refusal of one byte tells it."""
    refused = stand.home().profile().plan(model, [*ON_ONE, "--max-vram", "cuda0=1B"], code=1)
    return refused["nearest"]["max_vram_bytes"]


def exactness(stand):
    home = stand.home().profile()
    # The first run teaches what a context takes. No model is named: the demo.
    for _ in range(2):
        document = home.generate(None, ["--backend", "all=cuda0"], shape=["--steps", "2"])
    return process_bytes(document)


def process_bytes(document):
    """What NVML says of the process against the plan."""
    gpus = document["usage"]["gpus"]
    if len(gpus) != 1:
        raise Failed(f"NVML told of {len(gpus)} GPUs")
    planned, taken = gpus[0]["predicted_peak_bytes"], gpus[0]["measured_peak_bytes"]
    allowed = max(SHARE_MAX * planned, BYTES_MAX)
    apart = taken - planned
    how = "the process" if gpus[0]["source"] == "process" else "what is free"
    text, limit = f"{mib(taken)} by {how}, {apart / (1 << 20):+.1f} MiB of the plan", f"{mib(allowed)} apart"
    if abs(apart) > allowed:
        raise Failed(text, limit)
    source = next(d["overhead_source"] for d in document["plan"]["devices"] if d["id"] == "cuda0")
    if source != "measured":
        raise Failed(f"the plan's overhead is {source}", "measured")
    return Figure(text, limit, {"planned_bytes": planned, "taken_bytes": taken, "by": gpus[0]["source"]})
