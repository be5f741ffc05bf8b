"""FLUX.1's transformer and the decoder of its VAE in torch, for comparison, and models of random weights for Berth.

Modules have the names of diffusers, so that a state dict is a checkpoint. Only what a step and a decode need; no
tokenizers or text encoders: those are the test fixture's.
"""

import json
import math
import pathlib
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/flux_schnell"


class Attention(nn.Module):
    def __init__(self, width, heads, added):
        super().__init__()
        self.heads = heads
        names = ["to_q", "to_k", "to_v"] + (["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] if added else [])
        for name in names:
            setattr(self, name, nn.Linear(width, width))
        for name in ["norm_q", "norm_k"] + (["norm_added_q", "norm_added_k"] if added else []):
            setattr(self, name, nn.RMSNorm(width // heads, eps=1e-6))
        if added:
            self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def split(self, x):  # [batch, tokens, width] to [batch, heads, tokens, head_dim]
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q, k, v, rope):
        q, k = rotate(q, rope), rotate(k, rope)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def rotate(x, rope):
    cos, sin = rope
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([real * cos - imaginary * sin, imaginary * cos + real * sin], -1).flatten(3)


class Modulation(nn.Module):
    def __init__(self, width, chunks):
        super().__init__()
        self.linear, self.chunks = nn.Linear(width, chunks * width), chunks

    def forward(self, temb):
        return self.linear(F.silu(temb)).unsqueeze(1).chunk(self.chunks, dim=-1)


def norm(x, shift, scale):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class Projected(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 4 * width)

    def forward(self, x):
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.ModuleList([Projected(width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x):
        return self.net[2](self.net[0](x))


class DoubleBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm1_context = Modulation(width, 6), Modulation(width, 6)
        self.attn = Attention(width, heads, True)
        self.ff, self.ff_context = FeedForward(width), FeedForward(width)

    def forward(self, x, c, temb, rope):
        m, n, a = self.norm1(temb), self.norm1_context(temb), self.attn
        h, g = norm(x, m[0], m[1]), norm(c, n[0], n[1])
        q = torch.cat([a.norm_added_q(a.split(a.add_q_proj(g))), a.norm_q(a.split(a.to_q(h)))], 2)
        k = torch.cat([a.norm_added_k(a.split(a.add_k_proj(g))), a.norm_k(a.split(a.to_k(h)))], 2)
        v = torch.cat([a.split(a.add_v_proj(g)), a.split(a.to_v(h))], 2)
        y = a.attend(q, k, v, rope)
        x = x + m[2] * a.to_out[0](y[:, c.shape[1] :])
        c = c + n[2] * a.to_add_out(y[:, : c.shape[1]])
        x = x + m[5] * self.ff(norm(x, m[3], m[4]))
        return x, c + n[5] * self.ff_context(norm(c, n[3], n[4]))


class SingleBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.attn = Modulation(width, 3), Attention(width, heads, False)
        self.proj_mlp, self.proj_out = nn.Linear(width, 4 * width), nn.Linear(5 * width, width)

    def forward(self, x, temb, rope):
        m, a = self.norm(temb), self.attn
        h = norm(x, m[0], m[1])
        mlp = F.gelu(self.proj_mlp(h), approximate="tanh")
        y = a.attend(a.norm_q(a.split(a.to_q(h))), a.norm_k(a.split(a.to_k(h))), a.split(a.to_v(h)), rope)
        return x + m[2] * self.proj_out(torch.cat([y, mlp], 2))


class Embedder(nn.Module):
    def __init__(self, inner, width):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(inner, width), nn.Linear(width, width)

    def forward(self, x):
        return self.linear_2(F.silu(self.linear_1(x)))


class TimeText(nn.Module):
    def __init__(self, width, pooled):
        super().__init__()
        self.timestep_embedder, self.text_embedder = Embedder(256, width), Embedder(pooled, width)


class Transformer(nn.Module):
    """`FluxTransformer2DModel` without guidance."""

    def __init__(self, heads, head_dim, double_blocks, single_blocks, context, pooled):
        super().__init__()
        width = heads * head_dim
        self.time_text_embed = TimeText(width, pooled)
        self.context_embedder, self.x_embedder = nn.Linear(context, width), nn.Linear(64, width)
        self.transformer_blocks = nn.ModuleList(DoubleBlock(width, heads) for _ in range(double_blocks))
        self.single_transformer_blocks = nn.ModuleList(SingleBlock(width, heads) for _ in range(single_blocks))
        self.norm_out, self.proj_out = Modulation(width, 2), nn.Linear(width, 64)

    def forward(self, x, context, pooled, timestep, rope):
        angles = timestep[:, None] * torch.exp(-math.log(1e4) * torch.arange(128) / 128)
        time = self.time_text_embed.timestep_embedder(torch.cat([angles.cos(), angles.sin()], 1))
        temb = time + self.time_text_embed.text_embedder(pooled)
        x, c = self.x_embedder(x), self.context_embedder(context)
        for block in self.transformer_blocks:
            x, c = block(x, c, temb, rope)
        x = torch.cat([c, x], 1)
        for block in self.single_transformer_blocks:
            x = block(x, temb, rope)
        scale, shift = self.norm_out(temb)
        return self.proj_out(norm(x[:, c.shape[1] :], shift, scale))


class Resnet(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inner, 1e-6), nn.GroupNorm(32, outer, 1e-6)
        self.conv1, self.conv2 = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else None

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class PictureAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.group_norm = nn.GroupNorm(32, width, 1e-6)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x):
        h = self.group_norm(x).flatten(2).transpose(1, 2)
        q, k, v = (project(h).unsqueeze(1) for project in (self.to_q, self.to_k, self.to_v))
        h = self.to_out[0](F.scaled_dot_product_attention(q, k, v).squeeze(1))
        return x + h.transpose(1, 2).unflatten(2, x.shape[2:])


class Block(nn.Module):
    def __init__(self, resnets, attention=None, upsampled=None):
        super().__init__()
        self.resnets = nn.ModuleList(resnets)
        if attention:
            self.attentions = nn.ModuleList([PictureAttention(attention)])
        if upsampled:
            conv = nn.Module()
            conv.conv = nn.Conv2d(upsampled, upsampled, 3, padding=1)
            self.upsamplers = nn.ModuleList([conv])

    def forward(self, x):
        x = self.resnets[0](x)
        for index, resnet in enumerate(self.resnets[1:]):
            x = resnet(self.attentions[index](x) if hasattr(self, "attentions") else x)
        if hasattr(self, "upsamplers"):
            x = self.upsamplers[0].conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x


class Decoder(nn.Module):
    """`AutoencoderKL`'s decoder."""

    def __init__(self, widths, layers, latent_channels):
        super().__init__()
        widths = widths[::-1]
        self.conv_in = nn.Conv2d(latent_channels, widths[0], 3, padding=1)
        self.mid_block = Block([Resnet(widths[0], widths[0]) for _ in range(2)], attention=widths[0])
        blocks, inner = [], widths[0]
        for level, outer in enumerate(widths):
            resnets = [Resnet(inner if i == 0 else outer, outer) for i in range(layers + 1)]
            blocks.append(Block(resnets, upsampled=outer if level + 1 < len(widths) else None))
            inner = outer
        self.up_blocks = nn.ModuleList(blocks)
        self.conv_norm_out, self.conv_out = nn.GroupNorm(32, inner, 1e-6), nn.Conv2d(inner, 3, 3, padding=1)

    def forward(self, x):
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


# The published VAE of FLUX.1.
VAE = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "latent_channels": 16, "norm_num_groups": 32}


def published_decoder():
    return Decoder(VAE["block_out_channels"], VAE["layers_per_block"], VAE["latent_channels"])


# A step of FLUX.1's width; text encoders are the fixture's, so what comes from them is narrow.
DIT = {"attention_head_dim": 128, "num_attention_heads": 24, "num_layers": 1, "num_single_layers": 2}
CONTEXT, POOLED = 48, 32


def narrow_transformer():
    return Transformer(24, 128, DIT["num_layers"], DIT["num_single_layers"], CONTEXT, POOLED)


def write_model(directory, transformer=None, decoder=None, decoder_kind=torch.float32):
    """The fixture with these parts in place of its own, in bf16 and `decoder_kind`."""
    shutil.copytree(FIXTURE, directory)
    stem = "diffusion_pytorch_model.safetensors"
    for part, module, prefix, kind, keys in [
        ("transformer", transformer, "", torch.bfloat16, {**DIT, "axes_dims_rope": [16, 56, 56]}),
        ("vae", decoder, "decoder.", decoder_kind, VAE),
    ]:
        if module is None:
            continue
        state = {prefix + name: value.to(kind).contiguous() for name, value in module.state_dict().items()}
        save_file(state, directory / part / stem)
        config = json.loads((directory / part / "config.json").read_text())
        (directory / part / "config.json").write_text(json.dumps({**config, **keys}, indent=2))
