#!/usr/bin/env python3
"""Berth against OpenVINO and torch on this machine's processor: steps, text encoders, a decode; time and memory.

    cargo build --release
    python scripts/bench_openvino.py [--cases step-256 vae-512] [--threads 2] [--rounds 2] [--home DIRECTORY]

Needs openvino, nncf, torch, transformers and safetensors (PyPI). Weights are random, the same for all, stored in 16
bits: OpenVINO's in f16, as it compresses them, the others' in bf16. Each run is a process of its own, in turns; the
best of all rounds counts, as whatever else the machine does makes one slower only.

step-256, step-512: a denoising step at FLUX.1's width, 1 double and 2 single blocks, 256 text tokens.
t5: two layers of T5-XXL's width over 512 tokens.  qwen3: four layers of Qwen3-4B's width over 512 tokens.
vae-512: the published decoder of FLUX.1's VAE to 512 x 512.

Berth computes in f32 by --exact-matmul, in bf16 as it does by itself, and in int8 with Q8_0. OpenVINO and torch have
run once before they are timed. Of Berth a step is the mean of steps; a decode is its first; an encoder is the time of
the phase with a negative prompt less that without one. Peaks are the largest resident set of a process. Prints Berth
over OpenVINO, and what part each reaches of this machine's measured peak of that arithmetic.
"""

import argparse
import json
import math
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import bench_step

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT_TOKENS = 256
ENCODED_TOKENS = 512
STEPS = 3
CASES = ["step-256", "step-512", "t5", "qwen3", "vae-512"]
ARITHMETICS = ["f32", "bf16", "int8"]

# The published sizes, but for the numbers of layers. The last layer of Qwen3 is not computed: what Z-Image takes is
# the result of the one before it.
T5 = {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_heads": 64, "num_layers": 2}
QWEN3 = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
}


def fixture(name):
    return ROOT / "tests/fixtures" / name


def encoder(case):
    """transformers' module of an encoder's fixture, enlarged."""
    import transformers

    family, part, sizes, configuration, module = {
        "t5": ("flux_schnell", "text_encoder_2", T5, transformers.T5Config, transformers.T5EncoderModel),
        "qwen3": ("zimage_turbo", "text_encoder", QWEN3, transformers.Qwen3Config, transformers.Qwen3Model),
    }[case]
    config = json.loads((fixture(family) / part / "config.json").read_text()) | sizes
    config.pop("torch_dtype", None)
    return module(configuration(**config)).eval()


def module_and_inputs(case):
    """What is run: a module, and values of its inputs."""
    import torch
    import torch_reference

    kind, _, side = case.partition("-")
    torch.manual_seed(7)
    if kind == "vae":
        side = int(side) // 8
        return torch_reference.published_decoder().eval(), [torch.randn(1, 16, side, side)]
    if kind == "step":
        tokens = (int(side) // 16) ** 2
        angles = torch.randn(TEXT_TOKENS + tokens, 64)
        inputs = [torch.randn(1, tokens, 64), torch.randn(1, TEXT_TOKENS, torch_reference.CONTEXT)]
        inputs += [torch.randn(1, torch_reference.POOLED), torch.tensor([500.0]), angles.cos(), angles.sin()]
        return Step(torch_reference.narrow_transformer().eval()), inputs
    module = encoder(case)
    ids = torch.randint(1000, (1, ENCODED_TOKENS))
    if kind == "t5":
        return Encoded(module), [ids]
    module.layers, module.norm = module.layers[:-1], torch.nn.Identity()
    mask = torch.full((1, 1, ENCODED_TOKENS, ENCODED_TOKENS), -math.inf).triu(1)
    return Encoded(module), [ids, mask]


def Step(module):
    import torch

    class Step(torch.nn.Module):
        """A transformer whose rotary table is two inputs."""

        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, x, context, pooled, timestep, cos, sin):
            return self.module(x, context, pooled, timestep, (cos, sin))

    return Step()


def Encoded(module):
    import torch

    class Encoded(torch.nn.Module):
        """The states of ids; with a mask, causal ones."""

        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, ids, mask=None):
            if mask is None:
                return self.module(input_ids=ids).last_hidden_state
            masks = {"full_attention": mask}
            return self.module(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state

    return Encoded()


def convert(case, home):
    """Writes OpenVINO's models of a case, and how many operations its products are."""
    import nncf
    import openvino
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module, inputs = module_and_inputs(case)
    with torch.inference_mode():
        counter = FlopCounterMode(display=False)
        with counter:
            module(*inputs)
        (home / f"{case}.json").write_text(json.dumps(counter.get_total_flops()))
        model = openvino.convert_model(module, example_input=tuple(inputs), input=[list(x.shape) for x in inputs])
    openvino.save_model(model, home / f"{case}.xml", compress_to_fp16=True)
    if case.startswith("step"):
        openvino.save_model(nncf.compress_weights(model), home / f"{case}-int8.xml", compress_to_fp16=True)


def timed(run):
    run()
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"ms": statistics.mean(times), "peak_bytes": peak_bytes}))


def openvino_run(case, home, arithmetic, threads):
    import numpy
    import openvino

    core = openvino.Core()
    name = f"{case}-int8" if arithmetic == "int8" else case
    # Beside int8 weights it chooses the precision of what is left itself, and quantises activations.
    options = {"INFERENCE_PRECISION_HINT": arithmetic} if arithmetic != "int8" else {}
    options |= {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(home / f"{name}.xml"), "CPU", options)
    print(compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE"), file=sys.stderr)
    request, random = compiled.create_infer_request(), numpy.random.default_rng(7)
    inputs = []
    for port in compiled.inputs:
        kind, shape = port.element_type.to_dtype(), tuple(port.shape)
        is_float = numpy.issubdtype(kind, numpy.floating)
        inputs.append(random.standard_normal(shape).astype(kind) if is_float else random.integers(1000, size=shape))
    timed(lambda: request.infer(inputs, share_inputs=True))


def torch_run(case, arithmetic, threads):
    import torch

    torch.set_num_threads(threads)
    module, inputs = module_and_inputs(case)
    if arithmetic == "bf16":
        half = torch.bfloat16
        module, inputs = module.to(half), [x.to(half) if x.is_floating_point() else x for x in inputs]
        if hasattr(module, "module"):  # the sinusoids of a timestep are f32, as torch makes them
            torch.set_default_dtype(half)
    with torch.inference_mode():
        timed(lambda: module(*inputs))


def write_files(case, home):
    """Writes what Berth reads for a case into `home`."""
    import torch
    import torch_reference

    if case.startswith("step"):
        for kind in ("bf16", "q8_0"):
            bench_step.write_files(home, kind)
    elif case.startswith("vae"):
        decoder = torch_reference.published_decoder()
        torch_reference.write_model(home / "model", decoder=decoder, decoder_kind=torch.bfloat16)
    else:
        write_encoder(case, home / "model")


def write_encoder(case, directory):
    """An encoder's fixture with the enlarged one, and a transformer that takes what it gives."""
    import torch
    from safetensors.torch import load_file, save_file

    names = {
        "t5": ("flux_schnell", "text_encoder_2", T5, "joint_attention_dim", ["context_embedder.weight"], ""),
        "qwen3": (
            "zimage_turbo",
            "text_encoder",
            QWEN3,
            "cap_feat_dim",
            ["cap_embedder.0.weight", "cap_embedder.1.weight"],
            "model.",
        ),
    }
    family, part, sizes, key, taking, prefix = names[case]
    shutil.copytree(fixture(family), directory)
    state = encoder(case).to(torch.bfloat16).state_dict()
    state.pop("encoder.embed_tokens.weight", None)
    save_file({prefix + name: value.contiguous() for name, value in state.items()}, directory / part / "model.safetensors")
    file = directory / "transformer/diffusion_pytorch_model.safetensors"
    width, state = sizes.get("d_model") or sizes["hidden_size"], load_file(file)
    for name in taking:
        state[name] = torch.randn(*state[name].shape[:-1], width, dtype=state[name].dtype) / math.sqrt(width)
    save_file(state, file)
    for config, keys in [(directory / part / "config.json", sizes), (directory / "transformer/config.json", {key: width})]:
        config.write_text(json.dumps({**json.loads(config.read_text()), **keys}, indent=2))


def berth_run(berth, case, home, arithmetic, threads):
    more = ["--exact-matmul"] if arithmetic == "f32" else []
    kind, _, side = case.partition("-")
    if kind == "step":
        weights = "q8_0" if arithmetic == "int8" else "bf16"
        told, peak_bytes = bench_step.berth_step(berth, home, weights, threads, int(side), TEXT_TOKENS, more)
        return {"ms": told["usage"]["measured_ms"]["denoise_step"], "peak_bytes": peak_bytes}
    if kind == "vae":
        more += ["--width", side, "--height", side, "--steps", "1", "--max-sequence-length", "32"]
        told, peak_bytes = bench_step.generate(berth, home, threads, more)
        return {"ms": told["usage"]["measured_ms"]["decode"], "peak_bytes": peak_bytes}
    more += ["--width", "64", "--height", "64", "--steps", "1", "--max-sequence-length", str(ENCODED_TOKENS)]
    guided = ["--true-cfg-scale" if kind == "t5" else "--guidance-scale", "2", "--negative-prompt", "a blue square " * 600]
    both = [
        bench_step.generate(berth, home, threads, [*more, *negative], "a red circle " * 600) for negative in ([], guided)
    ]
    one, two = (told["usage"]["measured_ms"]["condition"] for told, _ in both)
    return {"ms": two - one, "peak_bytes": both[0][1]}


def peaks(threads):
    """The rates of loops of nothing but multiply-adds, by arithmetic, in operations a second."""
    command = ["cargo", "bench", "-q", "-p", "executor", "--bench", "kernels", "--", "--seconds", "0.5", "peak-"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rates = {line["case"]: line["gflops"] * 1e9 * threads for line in map(json.loads, done.stdout.splitlines())}
    return {name.removeprefix("peak-"): rate for name, rate in rates.items()}


def flags():
    """What the processor says of the instructions that matter here."""
    line = next(line for line in open("/proc/cpuinfo") if line.startswith("flags"))
    wanted = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")
    return " ".join(flag for flag in line.split() if flag in wanted)


def row(case, arithmetic, results, operations, rates):
    def best(name, key):
        return min((result[key] for result in results[name]), default=None)

    cells = [case, arithmetic]
    for name in results:
        cells.append(f"{best(name, 'ms'):.0f}" if results[name] else "")
    cells.append(f"{best('Berth', 'ms') / best('OpenVINO', 'ms'):.2f}")
    rate = rates.get(arithmetic)
    cells += [f"{operations / best(name, 'ms') * 1e3 / rate:.2f}" if rate else "" for name in ("OpenVINO", "Berth")]
    theirs, ours = (max(result["peak_bytes"] for result in results[name]) for name in ("OpenVINO", "Berth"))
    cells += [f"{theirs >> 20}", f"{ours >> 20}", f"{ours / theirs:.2f}"]
    return f"| {' | '.join(cells)} |"


def compare(case, args, root, rates):
    home = root / case.partition("-")[0]
    home.mkdir(exist_ok=True)
    itself = [sys.executable, __file__, "--home", str(home), "--threads", str(args.threads)]
    if not (home / f"{case}.xml").exists():
        subprocess.run([*itself, "--convert", case], check=True, stdout=subprocess.DEVNULL)
    if not (home / "model").exists():
        subprocess.run([*itself, "--write", case], check=True)
    operations = json.loads((home / f"{case}.json").read_text())

    def other(flag, arithmetic):
        command = [*itself, flag, case, "--arithmetic", arithmetic]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout)

    arithmetics = [name for name in args.arithmetics if name != "int8" or case.startswith("step")]
    results = {name: {"OpenVINO": [], "torch": [], "Berth": []} for name in arithmetics}
    for _ in range(args.rounds):
        for arithmetic, of in results.items():
            of["OpenVINO"].append(other("--openvino", arithmetic))
            of["Berth"].append(berth_run(args.berth.resolve(), case, home, arithmetic, args.threads))
            if arithmetic != "int8" and not args.no_torch:
                of["torch"].append(other("--torch", arithmetic))
    for arithmetic, of in results.items():
        print(row(case, arithmetic, of, operations, rates), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--arithmetics", nargs="+", choices=ARITHMETICS, default=ARITHMETICS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    parser.add_argument("--berth", type=pathlib.Path, default=ROOT / "target/release/berth")
    parser.add_argument("--home", type=pathlib.Path, help="a directory in which models stay for the next run")
    for name in ("--convert", "--write", "--openvino", "--torch", "--arithmetic"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.convert:
        return convert(args.convert, args.home)
    if args.write:
        return write_files(args.write, args.home)
    if args.openvino:
        return openvino_run(args.openvino, args.home, args.arithmetic, args.threads)
    if args.torch:
        return torch_run(args.torch, args.arithmetic, args.threads)
    rates = peaks(args.threads)
    print(f"{flags()}; peaks of {args.threads} threads, in Gop/s:", {name: round(r / 1e9) for name, r in rates.items()})
    heads = ["case", "arithmetic", "OpenVINO ms", "torch ms", "Berth ms", "Berth / OpenVINO", "OpenVINO / peak"]
    heads += ["Berth / peak", "OpenVINO MiB", "Berth MiB", "ratio"]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        root = args.home or pathlib.Path(name)
        root.mkdir(parents=True, exist_ok=True)
        for case in args.cases:
            compare(case, args, root, rates)


if __name__ == "__main__":
    main()
