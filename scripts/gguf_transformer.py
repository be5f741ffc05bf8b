"""A transformer as a GGUF file of random quantised blocks; FLUX.1's under the names of Black Forest Labs.

Only files to measure speed with: blocks are random bytes behind scales that give weights the magnitudes of torch's
initial ones. Linear layers whose rows are no whole super-blocks are bf16, vectors f32, as in published files.
"""

import math
import struct

import numpy

# `enum ggml_type` of ggml.h, elements of a block, and its bytes.
TYPES = {"f32": (0, 1, 4), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "bf16": (30, 1, 2)}
SUPER_BLOCK = 256
ALIGNMENT = 32


def shapes(width, head_dim, double_blocks, single_blocks, context, pooled, guidance=False):
    """The tensors' names and shapes, outermost side first."""
    linears = {"img_in": (width, 64), "txt_in": (width, context)}
    for name, inner in [("time_in", 256), ("vector_in", pooled)] + guidance * [("guidance_in", 256)]:
        linears |= {f"{name}.in_layer": (width, inner), f"{name}.out_layer": (width, width)}
    scales = []
    for block in range(double_blocks):
        for stream in (f"double_blocks.{block}.img", f"double_blocks.{block}.txt"):
            linears[f"{stream}_mod.lin"] = (6 * width, width)
            linears[f"{stream}_attn.qkv"], linears[f"{stream}_attn.proj"] = (3 * width, width), (width, width)
            linears[f"{stream}_mlp.0"], linears[f"{stream}_mlp.2"] = (4 * width, width), (width, 4 * width)
            scales.append(f"{stream}_attn.norm")
    for block in range(single_blocks):
        name = f"single_blocks.{block}"
        linears[f"{name}.modulation.lin"] = (3 * width, width)
        linears[f"{name}.linear1"], linears[f"{name}.linear2"] = (7 * width, width), (width, 5 * width)
        scales.append(f"{name}.norm")
    linears["final_layer.linear"], linears["final_layer.adaLN_modulation.1"] = (64, width), (2 * width, width)
    for name, shape in linears.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]
    for name in scales:
        yield f"{name}.query_norm.scale", (head_dim,)
        yield f"{name}.key_norm.scale", (head_dim,)


def data(name, kind, shape, random):
    """A tensor's bytes."""
    count = math.prod(shape)
    bound = 1 / math.sqrt(shape[-1])
    if kind in ("f32", "bf16"):
        values = random.uniform(-bound, bound, count).astype("<f4")
        if name.endswith(".scale"):
            values = numpy.ones(count, "<f4")
        return values.tobytes() if kind == "f32" else (values.view("<u4") >> 16).astype("<u2").tobytes()
    _, elements, size = TYPES[kind]
    blocks = random.integers(0, 256, (count // elements, size), "u1")
    if kind == "q8_0":
        scales = [bound / 128]
    else:
        # Weights are d * scale * number - dmin * minimum: scales and minima are some 31, numbers some 7.5.
        scales = [bound / 31 / 7.5, bound / 31]
    blocks[:, : 2 * len(scales)] = numpy.array(scales, "<f2").view("u1")
    return blocks.tobytes()


def write(path, kind, tensors_of):
    """A file of tensors of these names and shapes, whose linear layers are of this type."""
    random = numpy.random.default_rng(5)
    header, tensors, end = b"", [], 0
    for name, shape in tensors_of:
        is_linear = len(shape) == 2 and shape[1] % SUPER_BLOCK == 0
        stored = "f32" if len(shape) == 1 else kind if is_linear else "bf16"
        number, elements, size = TYPES[stored]
        header += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), number, end)
        tensors.append((name, stored, shape))
        end += math.prod(shape) // elements * size
        end += -end % ALIGNMENT
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 0) + header
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for tensor in tensors:
            value = data(*tensor, random)
            file.write(value + bytes(-len(value) % ALIGNMENT))
