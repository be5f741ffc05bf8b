"""All checks in the order in which they run, each with the seconds that it may take; one that is not required may be skipped."""

import dataclasses
import typing

import budgets
import kills
import machine
import placements
import speed
import suites


@dataclasses.dataclass
class Check:
    name: str
    about: str
    run: typing.Callable
    seconds: float
    required: bool = True


CHECKS = [
    Check("environment", "the GPU, its driver and capability, NVML, and cuBLASLt if it is here", machine.environment, 20),
    Check("start", "`berth devices` with a GPU", machine.start, 20),
    Check("self-test", "`berth calibrate --self-test`, and how long the driver compiles for it", machine.self_test, 60),
    Check("operations", "every operation against the host's kernels", suites.operations, 120),
    Check("plans", "random plans, and the race checker over what the streams were given", suites.plans, 120),
    Check("parity-exact", "golden cases in f32", suites.parity_exact, 90),
    Check("parity-half", "golden cases with 16-bit operands, quantised weights too", suites.parity_half, 120),
    Check("demo", "the demo's pictures within 2 levels of diffusers'", suites.demo, 60),
    Check("exactness", "NVML's bytes of the process against the plan, after one calibrated run", budgets.exactness, 60),
    Check("placements", "every placement, over four parts of the GPU: one picture, planned bytes", placements.placements, 120),
    Check("gpus", "splits over the first two GPUs, by peer access where they have it", placements.gpus, 60, required=False),
    Check("budgets", "a sweep of --max-vram: nothing over it, and one byte less refused", budgets.sweep, 90),
    Check("kills", "the executor killed in each phase: memory is freed, the job completes", kills.kills, 90),
    Check("products", "matrix products against torch's best bf16 rate", speed.products, 60),
    Check("step", "a step of FLUX.1-dev's size at 1024x1024 in bf16 against torch", speed.step, 180),
    Check("decode", "the VAE at 1024x1024 against torch in bf16", speed.decode, 60),
    Check("load", "weights on their way to the GPU, against torch's copy from page-locked memory", speed.load, 60, required=False),
    Check("streaming", "a streamed step against max(compute, copy)", speed.streaming, 120),
    Check("step-q4_k", "the step with a DiT in Q4_K, against that in bf16", speed.quantised_step, 60, required=False),
    Check("exactness-large", "as exactness, of the large model", speed.exactness, 60),
]
