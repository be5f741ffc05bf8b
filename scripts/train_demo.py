#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.15.0", "diffusers==0.42.1", "transformers==5.23.0", "numpy", "pillow"]
# ///
# The versions are those that made the model in planner/demo/model.
"""Trains Berth's demo model from nothing: FLUX.1-schnell in miniature, painting coloured shapes.

Nothing is downloaded: the script draws its pictures and writes their captions.

Pictures:   one flat shape on a flat background (68 %), or two side by side or stacked (32 %); eight
            shapes as signed distance functions, ten colours, three sizes, nine positions.
Captions:   "a large red circle on the left of a white background", in several orders and wordings,
            written anew each time a picture is used; 25 % with a capital, 12 % with a final dot.
Tokenizers: CLIP: BPE, 352 entries. T5: Unigram, 128 entries. Each word of a caption is one token;
            letters spell everything else, but the model has never learnt from them.
VAE:        8x smaller, 16 channels, GroupNorm of 2 groups (with more it loses the flat colours).
            Crops first, whole pictures later; then the decoder alone, on noisy latents.
Flow:       CLIP (64 wide, 2 layers), T5 (64, 2 layers) and the transformer (128 wide, 2 double and
            3 single blocks) learn together: x_t = (1-t) x0 + t noise, target noise - x0.

It learns 64x64 pictures and prompts of 24 to 32 tokens: use 32 tokens, and 8 steps. The model in
the repository took 26 minutes for the VAE (30 dB), and 20,000 steps of 64 in five runs on two cores
for the flow. Here the flow is one run: constant learning rate, then a cosine from half time.
"""

import argparse
import collections
import copy
import functools
import json
import math
import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
from diffusers import FluxPipeline, FluxTransformer2DModel
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from transformers import T5Config, T5EncoderModel, T5Tokenizer

COLOURS = {  # sRGB, 0 to 255
    "red": (220, 38, 38), "green": (34, 160, 72), "blue": (37, 84, 220), "yellow": (250, 215, 45),
    "orange": (245, 135, 25), "purple": (135, 55, 185), "pink": (248, 150, 195),
    "cyan": (60, 205, 220), "white": (250, 250, 250), "black": (16, 16, 16),
}
PALETTE = np.array(list(COLOURS.values()), np.float32) / 255
SHAPES = ["circle", "square", "triangle", "star", "ring", "heart", "diamond", "cross"]
SIZES = {"small": ["small", "little", "tiny"], "plain": [""], "large": ["large", "big", "huge"]}
RADII_ONE = {"small": 0.12, "plain": 0.18, "large": 0.26}  # of the shorter side of the picture
RADII_TWO = {"small": 0.11, "plain": 0.16, "large": 0.21}
LARGE_CENTRED = 1.2  # a large shape in the middle has room to be larger still
ROWS, COLUMNS = ("top", "", "bottom"), ("left", "", "right")
RELATIONS = {
    "horizontal": ["{0} to the left of {1}", "{0} left of {1}", "{1} to the right of {0}",
                   "{0} next to {1}", "{0} on the left and {1} on the right"],
    "vertical": ["{0} above {1}", "{1} below {0}", "{1} under {0}",
                 "{0} at the top and {1} at the bottom"],
}
THIRDS = (0.27, 0.5, 0.73)
SIDE, CLIP_TOKENS = 64, 32  # pixels, tokens
CRITERIA = ("colour", "background", "position", "shape", "size")
say = functools.partial(print, file=sys.stderr, flush=True)


# ---- Scenes, captions, pictures ----
# x, y and radius are fractions of the picture.
Shape = collections.namedtuple("Shape", "kind colour size radius x y")
# Position: "top left", ..., "" in the middle for one shape; "horizontal" or "vertical" for two.
Scene = collections.namedtuple("Scene", "background shapes position")


def random_shape(rng, background, radii, weights, x, y):
    colour = rng.choice([name for name in COLOURS if name != background])
    size = rng.choices(list(radii), weights)[0]
    radius = radii[size] * rng.uniform(0.93, 1.07)
    x, y = x + rng.uniform(-0.02, 0.02), y + rng.uniform(-0.02, 0.02)
    return Shape(rng.choice(SHAPES), colour, size, radius, x, y)


def single_scene(rng):
    background = rng.choice(list(COLOURS))
    cells = [(row, column) for row in range(3) for column in range(3)]
    row, column = rng.choices(cells, [4 if cell == (1, 1) else 1 for cell in cells])[0]
    position = f"{ROWS[row]} {COLUMNS[column]}".strip()
    shape = random_shape(rng, background, RADII_ONE, (1, 1, 1), THIRDS[column], THIRDS[row])
    if shape.size == "large" and not position:
        shape = shape._replace(radius=shape.radius * LARGE_CENTRED)
    return Scene(background, [shape], position)


def double_scene(rng):
    background, position = rng.choice(list(COLOURS)), rng.choice(["horizontal", "vertical"])
    centres = [(along, 0.5) if position == "horizontal" else (0.5, along) for along in (0.26, 0.74)]
    shapes = [random_shape(rng, background, RADII_TWO, (1, 2, 1), x, y) for x, y in centres]
    return Scene(background, shapes, position)


def random_scene(rng):
    return single_scene(rng) if rng.random() < 0.68 else double_scene(rng)


def with_article(phrase):
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def noun_phrase(shape, rng):
    words = [rng.choice(SIZES[shape.size]), shape.colour, shape.kind]
    return with_article(" ".join(word for word in words if word))


def place_phrase(position, rng):
    """Where a single shape is; the middle goes without saying two times in three."""
    if not position:
        middle = rng.choice(["centre", "center", "middle"])
        return f"in the {middle}" if rng.random() < 0.33 else ""
    if " " in position:
        return f"{rng.choice(['in', 'at'])} the {position}{rng.choice(['', ' corner'])}"
    return f"{'at' if position in ROWS else rng.choice(['on', 'at'])} the {position}"


def caption_of(scene, rng):
    plain = f"{scene.background} background"
    ground = rng.choice([with_article(plain), plain, with_article(f"{scene.background} backdrop")])
    if len(scene.shapes) == 1:
        thing, place = noun_phrase(scene.shapes[0], rng), place_phrase(scene.position, rng)
        orders = [f"{thing} on {ground}", f"{thing}, {ground}"]
        if place:
            orders = [f"{thing} {place}{joint} {ground}" for joint in (" of", ",", " on")]
            orders.append(f"{thing} on {ground} {place}")
    else:
        things = [noun_phrase(shape, rng) for shape in scene.shapes]
        both = rng.choice(RELATIONS[scene.position]).format(*things)
        orders = [f"{both} on {ground}", f"{both}, {ground}"]
    text = rng.choice(orders)
    if rng.random() < 0.35:
        text = f"{rng.choice(['a picture of', 'an image of', 'a drawing of'])} {text}"
    if rng.random() < 0.25:
        text = text[0].upper() + text[1:]
    return text + "." if rng.random() < 0.12 else text


def coverage(shape, width, height):
    """How much of each pixel the shape covers: [height, width], 0 to 1."""
    x = (np.arange(width) + 0.5 - shape.x * width)[None, :]
    y = (np.arange(height) + 0.5 - shape.y * height)[:, None]
    r = shape.radius * min(width, height)
    return np.clip(0.5 - signed_distance(shape.kind, x, y, r), 0, 1)


def signed_distance(kind, x, y, r):
    """Distance to the outline, negative inside. y points down; x, y and r are in pixels."""
    ax, ay = np.abs(x), np.abs(y)
    if kind == "circle":
        return np.hypot(x, y) - r
    if kind == "ring":
        return np.abs(np.hypot(x, y) - 0.72 * r) - 0.28 * r
    if kind == "square":
        return np.maximum(ax, ay) - 0.86 * r
    if kind == "cross":
        arm, half = 0.98 * r, 0.34 * r
        return np.minimum(np.maximum(ax - arm, ay - half), np.maximum(ax - half, ay - arm))
    if kind == "diamond":
        return (ax + 0.72 * ay - 0.76 * r) / math.hypot(1, 0.72)
    if kind == "triangle":
        return np.maximum(y, ax * math.sqrt(3) / 2 - y / 2 + 0.18 * r) - 0.68 * r
    if kind == "heart":
        # A square on its tip, with a half circle on each of its upper edges.
        half, root2, y = 0.82 * r, math.sqrt(2), y - 0.08 * r
        tip = (ax + np.abs(y) - half) / root2
        return np.minimum(tip, np.hypot(ax - half / 2, y + half / 2) - half / root2)
    assert kind == "star", kind
    # Folded into the half sector of one point, a star is a single straight edge.
    sector = 2 * math.pi / 5
    angle = np.arctan2(x, -y)
    angle = np.abs(angle - sector * np.round(angle / sector))
    outer, inner = 1.08 * r, 0.48 * r
    dx, dy = inner * math.cos(sector / 2) - outer, inner * math.sin(sector / 2)
    px, py = np.hypot(x, y) * np.cos(angle) - outer, np.hypot(x, y) * np.sin(angle)
    return (px * dy - py * dx) / math.hypot(dx, dy)


def render(scene, rng, jitter, width=SIDE, height=SIDE):
    """The picture [3, height, width] in -1 to 1; colours are off by up to `jitter`, in 0 to 1."""

    def colour(name):
        rgb = [value / 255 + rng.uniform(-jitter, jitter) for value in COLOURS[name]]
        return np.clip(rgb, 0, 1)[:, None, None]

    picture = np.broadcast_to(colour(scene.background), (3, height, width))
    for shape in scene.shapes:
        alpha = coverage(shape, width, height)
        picture = picture * (1 - alpha) + colour(shape.colour) * alpha
    return torch.from_numpy(np.ascontiguousarray(picture * 2 - 1, dtype=np.float32))


def random_crop(scene, rng, side=32):
    """A square of the picture, which holds the middle of one of the shapes."""
    shape = rng.choice(scene.shapes)
    starts = [int(at * SIDE) - rng.randrange(4, side - 4) for at in (shape.y, shape.x)]
    top, left = (min(max(start, 0), SIDE - side) for start in starts)
    return render(scene, rng, 0.03)[:, top : top + side, left : left + side]


# ---- Tokenizers ----
def build_clip_tokenizer(captions):
    """Merges are learnt until each word is one token; printable ASCII is the alphabet."""
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=10_000, end_of_word_suffix="</w>", show_progress=False)
    learner.train_from_iterator((caption.lower() for caption in captions), trainer)
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    ascii_printable = [chr(code) for code in range(33, 127)]
    entries = ascii_printable + [f"{character}</w>" for character in ascii_printable]
    entries = list(dict.fromkeys(entries + ["".join(pair) for pair in merges]))
    assert len(entries) <= 350, f"{len(entries)} entries leave no room for the two special tokens"
    entries += [f"<|reserved{index}|>" for index in range(len(entries), 350)]
    entries += ["<|startoftext|>", "<|endoftext|>"]
    vocab = {entry: index for index, entry in enumerate(entries)}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=CLIP_TOKENS)


def build_t5_tokenizer(captions):
    """Words score their log frequency, so that a known word always beats spelling it."""
    counts = collections.Counter(word for text in captions for word in re.findall(r"\w+", text))
    entries = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0), (",", -3.0), (".", -4.0)]
    entries += [(f"▁{w}", round(math.log(n / counts.total()), 4)) for w, n in counts.most_common()]
    letters = "abcdefghijklmnopqrstuvwxyz"
    entries += [(character, -12.0) for character in letters + letters.upper() + "0123456789-'!?;:"]
    assert len(entries) <= 128, f"{len(entries)} entries are more than the embedding has"
    entries += [(f"<extra_id_{index}>", 0.0) for index in range(128 - len(entries))]
    return T5Tokenizer(vocab=entries, extra_ids=0, model_max_length=512)


def token_ids(tokenizer, captions, length):
    batch = tokenizer(captions, padding="max_length", max_length=length, truncation=True)
    return torch.tensor(batch["input_ids"])


# ---- Models ----
def build_flow():
    """The two text encoders and the transformer, whose blocks all start as the identity."""
    clip = CLIPTextConfig(
        vocab_size=352, hidden_size=64, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=CLIP_TOKENS, projection_dim=64,
        bos_token_id=350, eos_token_id=351, pad_token_id=351,
    )
    t5 = T5Config(
        vocab_size=128, d_model=64, d_kv=32, d_ff=128, num_layers=2, num_heads=2,
        feed_forward_proj="gated-gelu", dropout_rate=0.0, is_encoder_decoder=False,
        decoder_start_token_id=0, scale_decoder_outputs=False, use_cache=False,
    )
    transformer = FluxTransformer2DModel(
        in_channels=64, num_layers=2, num_single_layers=3, num_attention_heads=4,
        attention_head_dim=32, axes_dims_rope=(8, 12, 12), joint_attention_dim=64,
        pooled_projection_dim=64, guidance_embeds=False,
    )
    for name, module in transformer.named_modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(module.weight)
            torch.nn.init.zeros_(module.bias)
            if name == "proj_out" or re.search(r"norm\w*\.linear$", name):
                torch.nn.init.zeros_(module.weight)
    return torch.nn.ModuleList([CLIPTextModel(clip), T5EncoderModel(t5), transformer])


# ---- Training ----
class Trainer:
    """AdamW on the parameters of `trained`, and a moving average of the whole `module`."""

    def __init__(self, label, module, trained, peak, beta2, decay, norm_max, average, hold=0.0):
        self.label, self.module, self.trained = label, module, list(trained.parameters())
        self.peak, self.norm_max, self.hold = peak, norm_max, hold
        self.average, self.average_decay = copy.deepcopy(module), average
        groups = [
            {"params": [p for p in self.trained if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in self.trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, beta2))
        self.step, self.done = 0, 0.0

    def until(self, minutes, steps):
        """Yields the part done until the steps, or without any the minutes, are over."""
        start = time.monotonic()
        while self.done < 1:
            yield self.done
            seconds = time.monotonic() - start
            self.done = self.step / steps if steps else seconds / max(60 * minutes, 1)
        say(f"{self.label}: {self.step} steps in {seconds:.0f} s")

    def descend(self, loss):
        """One step: 60 of warm-up, a constant rate until `hold`, a cosine to zero at the end."""
        cosine = (1 + math.cos(math.pi * max(0.0, self.done - self.hold) / (1 - self.hold))) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * cosine * min(1.0, (self.step + 1) / 60)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, self.norm_max)
        self.optimizer.step()
        if self.step % 50 == 0:
            say(f"{self.label}: step {self.step}, {self.done:.0%}, loss {loss.item():.4f}")
        self.step += 1
        # In the beginning the average looks less far back.
        decay = min(self.average_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            averages = list(self.average.parameters())
            torch._foreach_lerp_(averages, list(self.module.parameters()), 1 - decay)


def picture_batch(rng, scenes, jitter, width=SIDE, height=SIDE):
    pictures = [render(scene, rng, jitter, width, height) for scene in scenes]
    return torch.stack(pictures).to(memory_format=torch.channels_last)


def vae_batch(rng, done):
    """Mostly crops in the first 45 % of the training, then whole pictures of a few sizes."""
    if done < 0.45 and rng.random() < 0.85:
        crops = [random_crop(random_scene(rng), rng) for _ in range(32)]
        return torch.stack(crops).to(memory_format=torch.channels_last)
    sizes = [(64, 64, 16), (96, 64, 12), (64, 96, 12), (128, 128, 4)]
    width, height, count = rng.choices(sizes, [17, 1, 1, 1])[0]
    return picture_batch(rng, [random_scene(rng) for _ in range(count)], 0.03, width, height)


def reconstruction_loss(picture, target):
    error = picture - target
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 2 * error.square().mean() + 0.25 * edges


def train_vae(rng, minutes, steps):
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 32, 64), layers_per_block=1, latent_channels=16,
        norm_num_groups=2, sample_size=SIDE, force_upcast=False,
        use_quant_conv=False, use_post_quant_conv=False,
    ).to(memory_format=torch.channels_last)
    trainer = Trainer("vae", vae, vae, 2e-3, 0.99, 1e-4, 3.0, 0.997)
    for done in trainer.until(0.7 * minutes, steps):
        pictures = vae_batch(rng, done)
        posterior = vae.encode(pictures).latent_dist
        loss = reconstruction_loss(vae.decode(posterior.sample()).sample, pictures)
        trainer.descend(loss + 1e-3 * posterior.kl().sum() / pictures.numel())
    vae = trainer.average
    trainer = Trainer("decoder", vae, vae.decoder, 6e-4, 0.99, 1e-4, 3.0, 0.997)
    for _ in trainer.until(0.3 * minutes, steps):
        pictures = picture_batch(rng, [random_scene(rng) for _ in range(12)], 0.03)
        with torch.no_grad():
            latents = vae.encode(pictures).latent_dist.mode()
        # The flow's samples are never quite clean. 1.44 is about the deviation of the latents.
        noise_std = torch.rand(len(latents), 1, 1, 1) * 0.15 * 1.44
        decoded = vae.decode(latents + noise_std * torch.randn_like(latents)).sample
        trainer.descend(reconstruction_loss(decoded, pictures))
    return trainer.average.requires_grad_(False)


@torch.no_grad()
def encode_scenes(vae, rng, count):
    """Scenes and their normalised latents [count, 16, 8, 8]; sets shift and scale of the VAE."""
    scenes, latents = [random_scene(rng) for _ in range(count)], []
    for start in range(0, count, 64):
        pictures = picture_batch(rng, scenes[start : start + 64], 0.012)
        latents.append(vae.encode(pictures).latent_dist.mode().contiguous())
    latents = torch.cat(latents)
    shift, scale = round(latents.mean().item(), 4), round(1 / latents.std().item(), 4)
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    # `pictures` is the last batch, of up to 64.
    decoded = vae.decode(latents[-len(pictures) :]).sample.clamp(-1, 1)
    error = ((decoded - pictures) / 2).square().mean().item()
    say(f"vae: PSNR {-10 * math.log10(error):.2f} dB, shift {shift}, scale {scale}")
    return scenes, (latents - shift) * scale


def train_flow(rng, scenes, latents, tokenizers, minutes, steps, batch=64):
    model = build_flow().train()
    clip, t5, transformer = model
    trainer = Trainer("flow", model, model, 1.5e-3, 0.98, 0.01, 1.0, 0.998, hold=0.5)
    rows = latents.shape[2] // 2
    image_ids = FluxPipeline._prepare_latent_image_ids(1, rows, rows, "cpu", torch.float32)
    for _ in trainer.until(minutes, steps):
        picks = [rng.randrange(len(scenes)) for _ in range(batch)]
        captions = [caption_of(scenes[pick], rng) for pick in picks]
        text_tokens = rng.choices([24, 32, 64], [75, 23, 2])[0]
        pooled = clip(token_ids(tokenizers[0], captions, CLIP_TOKENS)).pooler_output
        states = t5(token_ids(tokenizers[1], captions, text_tokens)).last_hidden_state
        clean = FluxPipeline._pack_latents(latents[picks], batch, 16, 2 * rows, 2 * rows)
        noise = torch.randn_like(clean)  # [batch, tokens, 64]
        t = torch.sigmoid(torch.randn(batch) + 0.3)
        t = torch.where(torch.rand(batch) < 0.25, torch.rand(batch), t)
        velocity = transformer(
            hidden_states=torch.lerp(clean, noise, t[:, None, None]), timestep=t,
            encoder_hidden_states=states, pooled_projections=pooled,
            img_ids=image_ids, txt_ids=torch.zeros(text_tokens, 3),
        ).sample
        trainer.descend((velocity - (noise - clean)).square().mean())
    return list(trainer.average.eval())


# ---- Export and evaluation ----
def export(output, vae, tokenizers, clip, t5, transformer):
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        vae=vae.to(memory_format=torch.contiguous_format), transformer=transformer,
        text_encoder=clip, tokenizer=tokenizers[0], text_encoder_2=t5, tokenizer_2=tokenizers[1],
    )
    for tokenizer in tokenizers:  # training has set lengths, which are no part of a tokenizer
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    pipeline.to(torch.bfloat16).save_pretrained(output)
    tokenizers[0].backend_tokenizer.model.save(str(output / "tokenizer"))  # vocab.json, merges.txt


def describe(picture):
    """What a picture [height, width, 3] in 0 to 1 shows, in the order of CRITERIA."""
    border = np.concatenate([picture[:3], picture[-3:]]).reshape(-1, 3)
    ground = np.median(border, axis=0)
    from_ground = np.linalg.norm(picture - ground, axis=2)
    mask = from_ground > 0.16  # half the distance of the two closest colours
    ink = np.median(picture[mask], axis=0) if mask.any() else ground
    mask = np.linalg.norm(picture - ink, axis=2) < from_ground
    colour, background = (
        list(COLOURS)[np.square(PALETTE - rgb).sum(axis=1).argmin()] for rgb in (ink, ground)
    )
    if not mask.any():
        return [None, background, None, None, None]
    y, x = (np.mean(axis + 0.5) / SIDE for axis in np.nonzero(mask))
    position = f"{ROWS[min(int(y * 3), 2)]} {COLUMNS[min(int(x * 3), 2)]}".strip()

    def overlap(kind, size, stretch):
        radius = RADII_ONE[size] * stretch
        radius *= LARGE_CENTRED if size == "large" and not position else 1
        template = coverage(Shape(kind, "", size, radius, 0.5, 0.5), SIDE, SIDE) > 0.5
        ty, tx = (np.mean(axis + 0.5) / SIDE for axis in np.nonzero(template))
        # Drawn again so that the centroids meet.
        shape = Shape(kind, "", size, radius, x + 0.5 - tx, y + 0.5 - ty)
        template = coverage(shape, SIDE, SIDE) > 0.5
        return (template & mask).sum() / (template | mask).sum()

    candidates = [(k, s, f) for k in SHAPES for s in RADII_ONE for f in (0.93, 1.0, 1.07)]
    kind, size, _ = max(candidates, key=lambda candidate: overlap(*candidate))
    return [colour, background, position, kind, size]


def evaluate(output, seed, prompt_count, step_counts=(8, 12, 20)):
    """Prints how often the pictures show what their single-shape prompts ask for."""
    pipeline = FluxPipeline.from_pretrained(output, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    rng = random.Random(seed + 1)
    scenes = [single_scene(rng) for _ in range(prompt_count)]
    prompts = [caption_of(scene, rng) for scene in scenes]
    # Drawn pictures come first: what is less than 100 % there is the checker's own mistake.
    rows = {"drawn": (picture_batch(rng, scenes, 0.0).permute(0, 2, 3, 1).numpy() + 1) / 2}
    for steps in step_counts:
        rows[str(steps)] = pipeline(
            prompts, width=SIDE, height=SIDE, num_inference_steps=steps, guidance_scale=0.0,
            max_sequence_length=32, generator=torch.Generator().manual_seed(seed), output_type="np",
        ).images
    print(f"| steps | {' | '.join(CRITERIA)} |\n|{'---|' * (len(CRITERIA) + 1)}")
    for label, pictures in rows.items():
        hits = collections.Counter()
        for scene, picture in zip(scenes, pictures, strict=True):
            shape, seen = scene.shapes[0], describe(picture)
            wanted = [shape.colour, scene.background, scene.position, shape.kind, shape.size]
            hits.update(np.array(CRITERIA)[np.array(seen) == np.array(wanted)])
        print(f"| {label} | {' | '.join(f'{hits[c] / len(scenes):.0%}' for c in CRITERIA)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the new model")
    parser.add_argument("--vae-minutes", type=float, default=26, help="VAE training (default 26)")
    parser.add_argument("--flow-minutes", type=float, default=100, help="the rest (default 100)")
    parser.add_argument("--steps", type=int, help="flow steps, instead of minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--check", action="store_true", help="a few steps of each stage, to try it")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    steps, scene_count, prompt_count = (3, 128, 4) if options.check else (options.steps, 20_000, 60)
    captions = [caption_of(random_scene(rng), rng) for _ in range(40_000)]
    tokenizers = build_clip_tokenizer(captions), build_t5_tokenizer(captions)
    vae = train_vae(rng, options.vae_minutes, steps if options.check else None)
    scenes, latents = encode_scenes(vae, rng, scene_count)
    trained = train_flow(rng, scenes, latents, tokenizers, options.flow_minutes, steps)
    export(options.output, vae, tokenizers, *trained)
    evaluate(options.output, options.seed, prompt_count)


if __name__ == "__main__":
    main()
