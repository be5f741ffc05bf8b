"""Speed, against torch on the same GPU and against the step's own bounds.

On a simulated GPU, and with `--quick`, the model is small: times are then shown and compared with nothing.
"""

import json
import sys

import budgets
import models
import programs
from results import Failed, Figure, Skipped
from stand import SMALL_SHAPE, component, require_exact

# Parts of the reference's time or rate that are allowed: "Done when" of the CUDA backend.
STEP_MAX, DECODE_MAX, STREAMED_MAX, PRODUCTS_MIN = 1.0, 1.0, 1.05, 0.70

SIDE = 1024
SHAPE = ["--width", str(SIDE), "--height", str(SIDE), "--steps", "5", "--max-sequence-length", "512"]
# As many as FLUX.1-dev has.
BLOCKS = (19, 38)

# What a segment is that comes anew in each step, and how many times more steps the longer run has.
STREAMED = ("streamed", "locked")
MORE_STEPS = 3

# The limit is for products with many rows, as one row is bound by memory, and in bf16.
MANY_ROWS = 64
TINY_PRODUCTS = ["64x256x256:bf16", "1x256x512:bf16", "64x256x256:q8_0"]


def torch(stand, ours, *arguments):
    """What torch takes; where it is not here, `Skipped` with the reason and our figure."""
    command = [sys.executable, programs.ROOT / "scripts/gpu_check/torch_side.py", *arguments]
    ended = stand.command(command, code=None)
    if ended.code == 3:
        raise Skipped(f"{ended.stdout.strip()}; {ours} without comparison")
    if ended.code != 0:
        raise Failed(f"torch: exit code {ended.code}, see the log")
    return json.loads(ended.stdout.splitlines()[-1])


def large_run(stand):
    """A job of the large model with all of it on the GPU, after a calibration and a run that taught the plan."""

    def run():
        home = stand.home("large").profile()
        model = models.sparse(stand)
        # A plan reads headers only.
        if not home.plan(model, RESIDENT, code=None, shape=SHAPE)["feasible"]:
            raise Skipped("the GPU has no room for the whole model")
        models.fill_with_noise(stand, model)
        home.berth(["calibrate", "--host", "./host.toml", "--json"])
        home.generate(model, RESIDENT, shape=SHAPE)
        return home, model, home.generate(model, RESIDENT, shape=SHAPE)

    return stand.keep("large run", run)


RESIDENT = ["--backend", "all=cuda0", "--params-backend", "dit=device"]


def small_run(stand):
    """The same of the small model, for its figures alone."""
    home = stand.home("small").profile()
    return home, stand.wide(), home.generate(stand.wide(), RESIDENT)


def run(stand):
    return small_run(stand) if stand.simulated or stand.quick else large_run(stand)


def against_torch(stand, figure, limit, *arguments):
    """Berth's milliseconds over torch's, if the sizes are those of torch's model."""
    _, _, document = run(stand)
    ours = document["usage"]["measured_ms"][figure]
    if stand.simulated or stand.quick:
        return Figure(f"{ours:.1f} ms of a small model", "", {"berth_ms": ours})
    theirs = torch(stand, f"{ours:.0f} ms", *arguments)
    ratio = ours / theirs["ms"]
    text, limit_text = f"{ours:.0f} ms, torch {theirs['ms']:.0f} ms: {ratio:.2f}", f"{limit:.2f} of torch {theirs['torch']}"
    if ratio > limit:
        raise Failed(text, limit_text)
    return Figure(text, limit_text, {"berth_ms": ours, **theirs})


def step(stand):
    return against_torch(stand, "denoise_step", STEP_MAX, "step", *BLOCKS, SIDE)


def quantised_step(stand):
    """The same step with a DiT of random Q4_K blocks, against that in bf16."""
    if stand.simulated or stand.quick:
        raise Skipped("a simulated GPU is too slow for it" if stand.simulated else "--quick")
    home, model, document = large_run(stand)
    quantised = home.generate(model, [*RESIDENT, "--diffusion-model", models.quantised(model)], shape=SHAPE)
    require_exact(quantised, "q4_k")
    ms, bf16_ms = (told["usage"]["measured_ms"]["denoise_step"] for told in (quantised, document))
    return Figure(f"{ms:.0f} ms, {bf16_ms:.0f} ms in bf16: {ms / bf16_ms:.2f}", "", {"q4_k_ms": ms, "bf16_ms": bf16_ms})


def decode(stand):
    return against_torch(stand, "decode", DECODE_MAX, "decode", SIDE)


def exactness(stand):
    if stand.simulated or stand.quick:
        raise Skipped("a simulated GPU is too slow for it" if stand.simulated else "--quick")
    return budgets.process_bytes(large_run(stand)[2])


def load(stand):
    """Weights per second of waiting for them, from files that are in memory."""
    home, model, document = run(stand)
    # Nothing computes meanwhile: without prefetch a phase begins when its weights are there.
    document = home.generate(model, [*RESIDENT, "--no-prefetch"], shape=SMALL_SHAPE if stand.simulated or stand.quick else SHAPE)
    count = sum(part["resident_bytes"] + part["lazy_bytes"] for c in document["plan"]["components"] for part in c["parts"])
    rate = count / document["usage"]["measured_ms"]["load"] / 1e6
    data = {"gb_per_s": rate, "weights_bytes": count}
    if stand.simulated or stand.quick:
        return Figure(f"{rate:.1f} GB/s of a small model", "", data)
    theirs = torch(stand, f"{rate:.1f} GB/s", "copy")["bytes_per_s"] / 1e9
    return Figure(f"{rate:.1f} GB/s, torch's copy {theirs:.1f} GB/s: {rate / theirs:.2f}", "", {**data, "torch_gb_per_s": theirs})


def measured_products(stand, environment):
    """All shapes, and the lowest and highest rate of those in bf16 with many rows."""
    command = [stand.need("gpu_products"), *(TINY_PRODUCTS if stand.simulated else [])]
    ended = stand.command(command, env={**stand.environment(), **environment})
    products = [json.loads(line) for line in ended.stdout.splitlines()]
    many = [product for product in products if int(product["shape"].split("x")[0]) >= MANY_ROWS]
    rates = [product["tflops"] for product in many if product["shape"].endswith(":bf16")]
    return products, min(rates), max(rates)


def products(stand):
    """As a run multiplies, by cuBLASLt where it is; and by our kernels alone."""
    found, least, most = measured_products(stand, {})
    own, own_least, own_most = measured_products(stand, {"BERTH_CUDA_PATH": ""})
    data = {"products": found, "own_products": own}
    if stand.simulated:
        return Figure(f"{len(found)} shapes", "", data)
    peak = torch(stand, f"{least:.0f} to {most:.0f} TFLOP/s", "peak")["tflops"]
    text = f"{least:.0f} to {most:.0f} TFLOP/s of {peak:.0f}: {least / peak:.2f} to {most / peak:.2f}"
    text += f"; by our kernels {own_least:.0f} to {own_most:.0f}"
    limit = f"{PRODUCTS_MIN:.2f} of torch's best"
    if least / peak < PRODUCTS_MIN:
        raise Failed(text, limit)
    return Figure(text, limit, {**data, "peak_tflops": peak})


def streaming(stand):
    """A step with its weights on their way, against the longer of the step without and the way alone.

    Weights come from page-locked copies, which the first step fills: what more steps take longer is what counts.
    """
    home, model, document = run(stand)
    shape = SMALL_SHAPE if stand.simulated or stand.quick else SHAPE
    steps = int(shape[shape.index("--steps") + 1])
    compute_ms = document["usage"]["measured_ms"]["denoise_step"]
    # The plan may take one slot where that saves more before the first step than it costs in all: not what is measured here.
    asked = ["--backend", "all=cuda0", "--params-backend", "dit=locked", "--lookahead", "2"]
    least = home.plan(model, [*asked, "--max-vram", "cuda0=1B"], code=1, shape=shape)["nearest"]["max_vram_bytes"]
    whole = document["plan"]["devices"][0]["peak_bytes"]
    # About half of the weights are streamed, and the ring has room.
    asked += ["--max-vram", f"cuda0={least + (whole - least) // 2}B"]

    def denoise_ms(steps):
        streamed = home.generate(model, asked, shape=with_steps(shape, steps))
        require_exact(streamed, "streamed")
        return streamed["usage"]["measured_ms"]["denoise_step"] * steps, streamed["plan"]

    few_ms, plan = denoise_ms(steps)
    moved = sum(s["weights_bytes"] for s in component(plan, "dit")["segments"] if s["residency"] in STREAMED)
    if moved == 0:
        raise Failed("nothing was streamed")
    many_ms, _ = denoise_ms(MORE_STEPS * steps)
    step_ms = (many_ms - few_ms) / ((MORE_STEPS - 1) * steps)
    data = {"step_ms": step_ms, "compute_ms": compute_ms, "moved_bytes": moved}
    if stand.simulated or stand.quick:
        return Figure(f"{moved >> 10} KiB a step, {step_ms:.1f} ms, {compute_ms:.1f} ms without", "", data)
    copy_ms = moved / link(home) * 1e3
    bound = max(compute_ms, copy_ms)
    text = f"{step_ms:.0f} ms, compute {compute_ms:.0f} ms, copy {copy_ms:.0f} ms: {step_ms / bound:.3f}"
    limit = f"{STREAMED_MAX} x max(compute, copy)"
    if step_ms / bound > STREAMED_MAX:
        raise Failed(text, limit)
    return Figure(text, limit, {**data, "copy_ms": copy_ms})


def with_steps(shape, steps):
    at = shape.index("--steps")
    return [*shape[: at + 1], str(steps), *shape[at + 2 :]]


def link(home):
    """Bytes per second of the GPU's link, as it was calibrated: from page-locked memory."""
    found = json.loads(home.berth(["devices", "--json", "--host", "./host.toml"]).stdout)
    rate = next(device for device in found["devices"] if device["kind"] == "cuda")["link_bytes_per_s"]
    if rate["source"] == "assumed":
        raise Failed("the link was not measured")
    return rate["value"]
