"""A denoising step of Qwen-Image, SD3.5 medium and FLUX.2 klein in torch, for comparison: one block of each kind, as wide
as the published models. Weights have the names of diffusers, so that a dict of them is a checkpoint. Heads, norms and
feed-forward layers are those of diffusers' models of the same names; each function is a step.
"""

import math

import torch
import torch.nn.functional as F

# What differs from the fixtures' transformers; what text encoders and VAEs give is as wide as the fixtures' own.
CONFIGS = {
    # Qwen/Qwen-Image, transformer/config.json; of 60 blocks one.
    "qwen_image": {"num_attention_heads": 24, "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "num_layers": 1},
    # stabilityai/stable-diffusion-3.5-medium; of 24 blocks one with a second attention, one without, and the last.
    "sd35_medium": {
        "num_attention_heads": 24,
        "attention_head_dim": 64,
        "caption_projection_dim": 1536,
        "num_layers": 3,
        "dual_attention_layers": [0],
    },
    # black-forest-labs/FLUX.2-klein-4B; of 5 double and 20 single blocks one each.
    "flux2_klein": {
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "axes_dims_rope": [32, 32, 32, 32],
        "num_layers": 1,
        "num_single_layers": 1,
    },
}


def linear(w, name, x):
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def norm(x, shift, scale):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def chunks(w, name, emb, count):
    return linear(w, name, F.silu(emb)).unsqueeze(1).chunk(count, dim=-1)


def sinusoid(timestep):  # [batch] to [batch, 256]
    angles = timestep[:, None] * torch.exp(-math.log(1e4) * torch.arange(128) / 128)
    return torch.cat([angles.cos(), angles.sin()], 1)


def embedded(w, name, x):
    return linear(w, f"{name}.linear_2", F.silu(linear(w, f"{name}.linear_1", x)))


def rotated(x, rope):  # [batch, heads, tokens, head_dim]
    if rope is None:
        return x
    cos, sin = rope
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([real * cos - imaginary * sin, imaginary * cos + real * sin], -1).flatten(3)


def split(x, heads):  # [batch, tokens, width] to [batch, heads, tokens, head_dim]
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def normalised(w, name, x):
    return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], 1e-6)


def heads_of(w, name, x, projections, norms, heads):
    q, k, v = (split(linear(w, f"{name}.{part}", x), heads) for part in projections)
    return normalised(w, f"{name}.{norms[0]}", q), normalised(w, f"{name}.{norms[1]}", k), v


def attended(q, k, v, rope):
    q, k = rotated(q, rope), rotated(k, rope)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


OWN = (("to_q", "to_k", "to_v"), ("norm_q", "norm_k"))
ADDED = (("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k"))


def joint(w, name, x, c, rope, heads):
    """Attention over both streams, the text's first; what becomes of the picture's and of the text's tokens."""
    own, added = heads_of(w, name, x, *OWN, heads), heads_of(w, name, c, *ADDED, heads)
    y = attended(*(torch.cat([other, one], 2) for one, other in zip(own, added)), rope)
    return y[:, c.shape[1] :], y[:, : c.shape[1]]


def gelu_forward(w, name, x):
    return linear(w, f"{name}.net.2", F.gelu(linear(w, f"{name}.net.0.proj", x), approximate="tanh"))


def swiglu(x):
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def swiglu_forward(w, name, x):
    return linear(w, f"{name}.linear_out", swiglu(linear(w, f"{name}.linear_in", x)))


def two_streams(w, name, x, c, m, n, rope, heads, forward, parts):
    """A block whose streams are each modulated by six chunks; by nine, the picture's has an attention of its own."""
    h, g = joint(w, f"{name}.attn", norm(x, m[0], m[1]), norm(c, n[0], n[1]), rope, heads)
    second = norm(x, m[6], m[7]) if len(m) == 9 else None
    x = x + m[2] * linear(w, f"{name}.attn.to_out.0", h)
    if second is not None:
        h = attended(*heads_of(w, f"{name}.attn2", second, *OWN, heads), rope)
        x = x + m[8] * linear(w, f"{name}.attn2.to_out.0", h)
    c = c + n[2] * linear(w, f"{name}.attn.to_add_out", g)
    x = x + m[5] * forward(w, f"{name}.{parts[0]}", norm(x, m[3], m[4]))
    return x, c + n[5] * forward(w, f"{name}.{parts[1]}", norm(c, n[3], n[4]))


def qwen_image(w, x, c, timestep, rope, heads):
    temb = embedded(w, "time_text_embed.timestep_embedder", sinusoid(timestep))
    x, c = linear(w, "img_in", x), linear(w, "txt_in", normalised(w, "txt_norm", c))
    name = "transformer_blocks.0"
    m, n = (chunks(w, f"{name}.{part}.1", temb, 6) for part in ("img_mod", "txt_mod"))
    x, c = two_streams(w, name, x, c, m, n, rope, heads, gelu_forward, ("img_mlp", "txt_mlp"))
    scale, shift = chunks(w, "norm_out.linear", temb, 2)
    return linear(w, "proj_out", norm(x, shift, scale))


def sd35_medium(w, x, c, timestep, rope, heads):
    temb = embedded(w, "time_text_embed.timestep_embedder", sinusoid(timestep))
    pooled = torch.ones(1, w["time_text_embed.text_embedder.linear_1.weight"].shape[1])
    temb = temb + embedded(w, "time_text_embed.text_embedder", pooled)
    x = F.linear(x, w["pos_embed.proj.weight"].flatten(1), w["pos_embed.proj.bias"])
    x = x + w["pos_embed.pos_embed"][:, : x.shape[1]]
    c = linear(w, "context_embedder", c)
    for block, count in enumerate([9, 6]):
        name = f"transformer_blocks.{block}"
        m, n = chunks(w, f"{name}.norm1.linear", temb, count), chunks(w, f"{name}.norm1_context.linear", temb, 6)
        x, c = two_streams(w, name, x, c, m, n, None, heads, gelu_forward, ("ff", "ff_context"))
    name = "transformer_blocks.2"
    m, n = chunks(w, f"{name}.norm1.linear", temb, 6), chunks(w, f"{name}.norm1_context.linear", temb, 2)
    h, _ = joint(w, f"{name}.attn", norm(x, m[0], m[1]), norm(c, n[1], n[0]), None, heads)
    x = x + m[2] * linear(w, f"{name}.attn.to_out.0", h)
    x = x + m[5] * gelu_forward(w, f"{name}.ff", norm(x, m[3], m[4]))
    scale, shift = chunks(w, "norm_out.linear", temb, 2)
    return linear(w, "proj_out", norm(x, shift, scale))


def flux2_klein(w, x, c, timestep, rope, heads):
    temb = embedded(w, "time_guidance_embed.timestep_embedder", sinusoid(timestep))
    x, c = linear(w, "x_embedder", x), linear(w, "context_embedder", c)
    m, n = (chunks(w, f"double_stream_modulation_{part}.linear", temb, 6) for part in ("img", "txt"))
    name = "transformer_blocks.0"
    x, c = two_streams(w, name, x, c, m, n, rope, heads, swiglu_forward, ("ff", "ff_context"))
    x, text = torch.cat([c, x], 1), c.shape[1]
    m = chunks(w, "single_stream_modulation.linear", temb, 3)
    name = "single_transformer_blocks.0.attn"
    width = x.shape[-1]
    h = linear(w, f"{name}.to_qkv_mlp_proj", norm(x, m[0], m[1]))
    q, k, v = (split(part, heads) for part in h[..., : 3 * width].chunk(3, dim=-1))
    y = attended(normalised(w, f"{name}.norm_q", q), normalised(w, f"{name}.norm_k", k), v, rope)
    x = x + m[2] * linear(w, f"{name}.to_out", torch.cat([y, swiglu(h[..., 3 * width :])], 2))
    scale, shift = chunks(w, "norm_out.linear", temb, 2)
    return linear(w, "proj_out", norm(x[:, text:], shift, scale))


STEPS = {"qwen_image": qwen_image, "sd35_medium": sd35_medium, "flux2_klein": flux2_klein}


def wide_shapes(family, fixture, config):
    """Shapes of the wide model's tensors by their names; `fixture`: those of the fixture's, `config`: its configuration."""
    wide = CONFIGS[family]
    old, new = (of["num_attention_heads"] * of["attention_head_dim"] for of in (config, wide))
    layers = {"transformer_blocks": wide["num_layers"], "single_transformer_blocks": wide.get("num_single_layers", 0)}
    for name, shape in fixture.items():
        start, *rest = name.split(".")
        if start in layers and int(rest[0]) >= layers[start]:
            continue
        dual = wide.get("dual_attention_layers")
        if dual is not None and "attn2" in rest and int(rest[0]) not in dual:
            continue
        sides = [side * new // old for side in shape]
        if start in layers and rest[-2].startswith("norm_"):
            sides = [wide["attention_head_dim"]]
        elif dual is not None and rest[1:3] == ["norm1", "linear"]:
            sides[0] = (9 if int(rest[0]) in dual else 6) * new
        elif name == "pos_embed.pos_embed":
            sides = [*shape[:2], new]
        elif start in ("img_in", "txt_in", "x_embedder", "context_embedder", "pos_embed") or "linear_1" in rest:
            # What comes from picture, text and time is as wide as it was.
            sides[1:] = shape[1:]
        elif start in ("txt_norm", "proj_out"):
            sides[0] = shape[0]
        yield name, sides
