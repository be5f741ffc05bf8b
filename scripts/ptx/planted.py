"""Faults that the interpreter must notice: edits of the shipped PTX, in memory, each with the cases that have to fail by it."""

import dataclasses
import re
from collections.abc import Callable

from . import shipped, text


@dataclasses.dataclass(frozen=True)
class Planted:
    """`edit` changes a kernel's text; the named case then ends with a fault of one of these kinds."""

    about: str
    source: str
    architecture: int
    kernel: str
    case: str
    edit: Callable[[str], str]
    kinds: tuple[str, ...]

    def module(self) -> text.Module:
        """The shipped module with the fault in it."""
        module = text.read(shipped.ptx(self.source, self.architecture))
        function = module.functions[self.kernel]
        edited = self.edit(function.text)
        assert edited != function.text, f"{self.about}: nothing was changed in {self.kernel}"
        module.functions[self.kernel] = dataclasses.replace(function, text=edited)
        return module


def replaced(pattern: str, by: str | Callable[[re.Match], str], which: int | None = 0) -> Callable[[str], str]:
    """Changes the match of this number, counted from the end if it is negative; or all of them."""

    def edit(body: str) -> str:
        found = list(re.finditer(pattern, body))
        assert found, f"no {pattern}"
        chosen = found if which is None else [found[which]]
        for match in reversed(chosen):
            body = body[: match.start()] + (by(match) if callable(by) else match.expand(by)) + body[match.end() :]
        return body

    return edit


def without(pattern: str, which: int | None = 0) -> Callable[[str], str]:
    return replaced(pattern, "", which)


def exchanged(operand: int, first: int, second: int, which: int | None = None) -> Callable[[str], str]:
    """Two registers of an operand of products change places."""

    def swap(match: re.Match) -> str:
        vectors = re.findall(r"\{[^}]*\}", match.group())
        names = [name.strip() for name in vectors[operand][1:-1].split(",")]
        names[first], names[second] = names[second], names[first]
        parts = vectors[:operand] + ["{" + ", ".join(names) + "}"] + vectors[operand + 1 :]
        return match.group().split("{")[0] + ", ".join(parts) + ";"

    return replaced(r"mma\.sync[^;]*;", swap, which)


BAR, WARP_BAR = r"bar\.sync\s+0;", r"bar\.warp\.sync\s+-1;"


def lax(by: int) -> Callable[[str], str]:
    """Waits leave so many groups more under way."""
    return replaced(r"(cp\.async\.wait_group )(\d+);", lambda match: f"{match.group(1)}{int(match.group(2)) + by};", None)


PLANTED = [
    Planted("a wait that is too lax", "linear_half", 80, "linear_half_bf16_small", "bf16 small 136", lax(2), ("pending", "race")),
    Planted("a wait that is too lax", "attention_half", 80, "attention_half_32", "32 plain", lax(1), ("pending",)),
    Planted("a wait that is too lax", "conv_half", 80, "conv_half_k3_8", "3x3 3 to 8", lax(1), ("pending",)),
    Planted("no wait", "linear_decoded", 80, "linear_decoded_q8_0_small", "q8_0 small", without(r"cp\.async\.wait_group 0;", None),
            ("pending",)),
    Planted("a wait that is too lax", "attention_tall", 80, "attention_tall_128", "tall plain", lax(1), ("pending",)),
    Planted("a barrier removed", "attention_tall", 80, "attention_tall_128", "tall plain", without(BAR, 1), ("race",)),
    Planted("columns of A exchanged", "attention_tall", 80, "attention_tall_128", "tall plain", exchanged(1, 1, 2, 3), ("difference",)),
    Planted("copies that are not committed", "attention_wide", 80, "attention_wide_256", "256 few",
            without(r"cp\.async\.commit_group;", None), ("pending",)),
    *(Planted(f"barrier {which} removed", "linear_half", 80, "linear_half_bf16_small", "bf16 small 136", without(BAR, which), ("race",))
      for which in (0, 1)),
    Planted("a barrier removed", "linear_exact", 80, "linear_exact_f32_small", "f32 small", without(BAR, -1), ("race",)),
    Planted("a barrier removed", "attention_half", 75, "attention_half_direct_16", "direct 16 plain", without(BAR, 1), ("race",)),
    Planted("a barrier removed", "attention_wide", 75, "attention_wide_256", "256 few", without(BAR, 1), ("race",)),
    Planted("a barrier removed", "conv_half", 75, "conv_half_k1_32", "1x1 to 32", without(BAR), ("race",)),
    Planted("a barrier removed", "group_norm", 75, "group_norm_spread", "group_norm f32", without(BAR), ("race",)),
    Planted("a barrier removed", "norm", 75, "layer_norm", "layer_norm 2308 f32", without(BAR, 1), ("race",)),
    Planted("a syncwarp removed", "linear_half", 80, "linear_half_bf16_small", "bf16 small 136", without(WARP_BAR), ("race",)),
    Planted("a syncwarp removed", "linear_scaled", 75, "linear_scaled_q8_0_small", "q8_0 small", without(WARP_BAR, 1), ("race",)),
    Planted("a syncwarp removed", "linear_decoded", 80, "linear_decoded_bf16_small", "bf16 small", without(WARP_BAR, -1), ("race",)),
    Planted("rows of A exchanged", "linear_half", 80, "linear_half_bf16_small", "bf16 small 136", exchanged(1, 0, 1), ("difference",)),
    Planted("columns of A exchanged", "attention_half", 80, "attention_half_32", "32 plain", exchanged(1, 1, 2, 3), ("difference",)),
    Planted("columns of A exchanged", "attention_half", 75, "attention_half_32", "32 plain", exchanged(1, 0, 1, 3), ("difference",)),
    Planted("halves of B exchanged", "conv_half", 80, "conv_half_k1_32", "1x1 to 32", exchanged(2, 0, 1, 0), ("difference",)),
    Planted("sums exchanged", "linear_scaled", 75, "linear_scaled_q8_0_small", "q8_0 small", exchanged(0, 0, 2, 0), ("difference",)),
    Planted("no wait", "linear_bytes", 80, "linear_bytes_small", "small 160", without(r"cp\.async\.wait_group 0;", None), ("pending",)),
    Planted("a barrier removed", "linear_bytes", 75, "linear_bytes_small", "small 160", without(BAR, 1), ("race",)),
    Planted("rows of A exchanged", "linear_bytes", 75, "linear_bytes_small", "small 160", exchanged(0, 0, 1, 0), ("difference",)),
    Planted("columns of A exchanged", "linear_bytes", 80, "linear_bytes_small", "small 160", exchanged(1, 1, 2, 0), ("difference",)),
    Planted("a lane too far", "quantise", 80, "quantise", "f32 of (64,)",
            replaced(r"(shfl\.sync\.bfly\.b32\s+%r\d+\|%p\d+, %r\d+, )(%r\d+|\d+)", r"\g<1>8", 1), ("difference",)),
    Planted("a matrix that is not turned", "attention_half", 80, "attention_half_32", "32 plain", without(r"\.trans"), ("difference",)),
    Planted("a bound that is one too large", "attention_pack", 80, "attention_pack", "attention_pack (1, 3, 1, 7, 16)",
            replaced(r"setp\.ge\.u64", "setp.gt.u64"), ("bounds", "not written")),
    Planted("a bound that is one too large", "pad_tokens", 75, "pad_tokens", "pad_tokens f32",
            replaced(r"setp\.ge\.u32", "setp.gt.u32", 0), ("bounds",)),
    Planted("a bound that is one too large", "decode", 75, "decode_f32", "f32, odd",
            replaced(r"setp\.(lt|ge)\.s64", lambda m: f"setp.{'le' if m.group(1) == 'lt' else 'gt'}.s64", None), ("bounds",)),
    Planted("a bound that is one too large", "linear_few", 80, "linear_few_f32_eight", "f32 eight",
            replaced(r"setp\.(lt|ge)\.s32", lambda m: f"setp.{'le' if m.group(1) == 'lt' else 'gt'}.s32", -1), ("bounds", "difference", "race")),
    Planted("a bound that is one too small", "elementwise", 75, "add", "add 1003",
            replaced(r"setp\.ge\.s64(.*?), (%rd\d+);", r"setp.gt.s64\1, \2;", None), ("bounds", "not written", "written twice", "race")),
    Planted("a store beside its place", "token_rows", 75, "gated_add", "gated_add 1x5x7",
            replaced(r"(st\.global\.f32\s+\[%rd\d+)\]", r"\1+4]"), ("written twice", "race", "bounds", "not written")),
    Planted("a vector that is not aligned", "token_rows", 75, "gated_add", "gated_add 2x3x20 False",
            replaced(r"(ld\.global\.v4\.f32\s+\{[^}]*\}, \[%rd\d+)\]", r"\1+4]"), ("alignment",)),
    Planted("shared memory that nobody wrote", "linear_few", 75, "linear_few_f32_one", "f32 one", without(r"st\.shared\.v4\.f32[^;]*;", 0),
            ("uninitialised",)),
    Planted("a lane too far", "norm", 75, "layer_norm", "layer_norm f32",
            replaced(r"(shfl\.sync\.bfly\.b32\s+%r\d+\|%p\d+, %r\d+, )(%r\d+)", r"\g<1>3", 0), ("difference",)),
]  # fmt: skip
