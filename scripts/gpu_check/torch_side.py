"""The measure of speed: torch on the same GPU, in a process of its own; prints one JSON object.

    python3 torch_side.py step DOUBLE SINGLE SIDE | decode SIDE | peak | copy

Models are those of scripts/torch_reference.py with random weights in bf16, attention is `scaled_dot_product_attention`, nothing is
compiled. Times are medians by CUDA events, after runs that are not measured. Ends with exit code 3 and a reason where torch is not
here, or sees no GPU.
"""

import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

UNMEASURED, MEASURED = 2, 5
# Text tokens, and what T5 and CLIP give, as FLUX.1-dev has them.
TEXT_TOKENS, CONTEXT, POOLED = 512, 4096, 768


def median_ms(torch, work, runs=MEASURED):
    for _ in range(UNMEASURED):
        work()
    times = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def step(torch, double_blocks, single_blocks, side):
    import torch_reference

    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = torch_reference.Transformer(24, 128, double_blocks, single_blocks, CONTEXT, POOLED).eval()
        tokens = (side // 16) ** 2
        angles = torch.randn(TEXT_TOKENS + tokens, 64)
        rope = angles.cos(), angles.sin()
        x, context = torch.randn(1, tokens, 64), torch.randn(1, TEXT_TOKENS, CONTEXT)
        pooled, timestep = torch.randn(1, POOLED), torch.tensor([500.0])
        ms = median_ms(torch, lambda: model(x, context, pooled, timestep, rope))
    return {"ms": ms, "peak_bytes": torch.cuda.max_memory_allocated()}


def decode(torch, side):
    import torch_reference

    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = torch_reference.published_decoder().eval()
        latents = torch.randn(1, torch_reference.VAE["latent_channels"], side // 8, side // 8)
        ms = median_ms(torch, lambda: model(latents))
    return {"ms": ms, "peak_bytes": torch.cuda.max_memory_allocated()}


def peak(torch):
    """The best rate of bf16 products, of random numbers, as those of zeros are faster."""
    best = 0.0
    for side in (4096, 8192):
        a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        ms = median_ms(torch, lambda: a @ b, 10)
        best = max(best, 2 * side**3 / ms / 1e9)
    return {"tflops": best}


def copy(torch):
    """The rate of copies from page-locked memory, in bytes per second."""
    count = 1 << 30
    source = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(count, dtype=torch.uint8, device="cuda")
    ms = median_ms(torch, lambda: target.copy_(source, non_blocking=True))
    return {"bytes_per_s": count / ms * 1e3}


def main():
    try:
        import torch
    except ImportError as error:
        print(f"no torch: {error}")
        return 3
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU")
        return 3
    name, *numbers = sys.argv[1:]
    with torch.inference_mode():
        result = {"step": step, "decode": decode, "peak": peak, "copy": copy}[name](torch, *map(int, numbers))
    print(json.dumps({**result, "torch": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
