"""Small listings of our own with what must be found in them, or nothing, and kernels with an instruction less: whether the lint can fail."""

import dataclasses

from . import lint, listing

_HEAD = """
	.section	.text.kernel,"ax",@progbits
.text.kernel:
"""

# What it is about, its instructions, and a word of what must be found; none where nothing is wrong.
PLANTED = [
    ("threads part, and nobody joins them", """
        S2R R0, SR_TID.X ;
        ISETP.GT.U32.AND P0, PT, R0, 0x7, PT ;
        @P0 BRA `(.L_x_1) ;
        FADD R4, R4, R5 ;
.L_x_1:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        EXIT ;
""", "whole warp"),
    ("BSYNC joins them", """
        S2R R0, SR_TID.X ;
        ISETP.GT.U32.AND P0, PT, R0, 0x7, PT ;
        BSSY B0, `(.L_x_1) ;
        @P0 BRA `(.L_x_2) ;
        FADD R4, R4, R5 ;
.L_x_2:
        BSYNC B0 ;
.L_x_1:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        EXIT ;
""", ""),
    ("WARPSYNC joins them", """
        S2R R0, SR_LANEID ;
        ISETP.NE.AND P0, PT, R0, RZ, PT ;
        @P0 BRA `(.L_x_1) ;
        FADD R4, R4, R5 ;
.L_x_1:
        WARPSYNC 0xffffffff ;
        LDSM.16.M88.4 R8, [R4] ;
        EXIT ;
""", ""),
    ("some of them wait, not all", """
        S2R R0, SR_LANEID ;
        ISETP.NE.AND P0, PT, R0, RZ, PT ;
        @P0 BRA `(.L_x_1) ;
        FADD R4, R4, R5 ;
.L_x_1:
        WARPSYNC 0xffff ;
        LDSM.16.M88.4 R8, [R4] ;
        EXIT ;
""", "whole warp"),
    ("BSYNC of what began when they had parted", """
        S2R R0, SR_TID.X ;
        ISETP.GT.U32.AND P0, PT, R0, 0x7, PT ;
        @P0 BRA `(.L_x_1) ;
        FADD R4, R4, R5 ;
.L_x_1:
        BSSY B0, `(.L_x_2) ;
        BSYNC B0 ;
.L_x_2:
        LDSM.16.M88.4 R8, [R4] ;
        EXIT ;
""", "whole warp"),
    ("whole warps part from each other", """
        S2R R0, SR_TID.X ;
        SHF.R.U32.HI R1, RZ, 0x5, R0 ;
        ISETP.NE.AND P0, PT, R1, RZ, PT ;
        ISETP.GT.U32.AND P1, PT, R0, 0x7f, PT ;
        @P0 BRA `(.L_x_1) ;
        @P1 BRA `(.L_x_1) ;
        FADD R4, R4, R5 ;
.L_x_1:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        EXIT ;
""", ""),
    ("some of a warp have ended", """
        S2R R0, SR_TID.X ;
        ISETP.GE.U32.AND P0, PT, R0, c[0x0][0x160], PT ;
        @P0 EXIT ;
        WARPSYNC 0xffffffff ;
        HMMA.16816.F32 R8, R4, R6, R8 ;
        EXIT ;
""", "whole warp"),
    ("a loop that ends for each thread at a time of its own", """
        S2R R0, SR_TID.X ;
.L_x_1:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        IADD3 R0, R0, 0x1, RZ ;
        ISETP.LT.AND P0, PT, R0, c[0x0][0x160], PT ;
        @P0 BRA `(.L_x_1) ;
        EXIT ;
""", "whole warp"),
    ("a loop that ends for all at once", """
        MOV R0, RZ ;
.L_x_1:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        IADD3 R0, R0, 0x1, RZ ;
        ISETP.LT.AND P0, PT, R0, c[0x0][0x160], PT ;
        @P0 BRA `(.L_x_1) ;
        EXIT ;
""", ""),
    ("a counter that parted threads have counted", """
        S2R R0, SR_LANEID ;
        MOV R1, RZ ;
        ISETP.NE.AND P0, PT, R0, RZ, PT ;
        BSSY B0, `(.L_x_1) ;
        @P0 BRA `(.L_x_2) ;
        MOV R1, 0x1 ;
.L_x_2:
        BSYNC B0 ;
.L_x_1:
        ISETP.NE.AND P1, PT, R1, RZ, PT ;
        @P1 BRA `(.L_x_3) ;
        FADD R4, R4, R5 ;
.L_x_3:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        EXIT ;
""", "whole warp"),
    ("registers spilled in a loop of products", """
.L_x_1:
        LDL.64 R4, [R1] ;
        HMMA.16816.F32 R8, R4, R6, R8 ;
        IADD3 R0, R0, 0x1, RZ ;
        ISETP.LT.AND P0, PT, R0, c[0x0][0x160], PT ;
        @P0 BRA `(.L_x_1) ;
        EXIT ;
""", "local memory"),
    ("registers spilled before it", """
        LDL.64 R4, [R1] ;
.L_x_1:
        HMMA.16816.F32 R8, R4, R6, R8 ;
        IADD3 R0, R0, 0x1, RZ ;
        ISETP.LT.AND P0, PT, R0, c[0x0][0x160], PT ;
        @P0 BRA `(.L_x_1) ;
        EXIT ;
""", ""),
]


def wrong() -> list[str]:
    """Listings in which something else is found than what is there."""
    problems = []
    for about, body, word in PLANTED:
        lines = [f"/*{16 * at:04x}*/ {line.strip()}" if line.startswith(" ") else line for at, line in enumerate(body.splitlines())]
        kernel, = listing.read(_HEAD + "\n".join(lines))
        found = lint.findings(kernel)
        if bool(found) != bool(word) or not all(word in sentence for sentence in found):
            problems.append(f"{about}: {found or 'nothing'} was found")
    return problems


def unnoticed(kernel: listing.Listing) -> tuple[int, list[str]]:
    """Takes out each instruction that joins a warp before one that needs all of it: how many there are, and those whose lack is not noticed."""
    whole = [index for index, one in enumerate(kernel.instructions) if one.kind in lint.WHOLE_WARP]
    joins = [index for index, one in enumerate(kernel.instructions) if one.kind in ("BSYNC", "WARPSYNC") and index < max(whole, default=0)]
    unseen = []
    for index in joins:
        without = list(kernel.instructions)
        without[index] = dataclasses.replace(without[index], name="NOP", operands=[])
        if not lint.findings(listing.Listing(kernel.name, without, kernel.labels)):
            unseen.append(f"{kernel.name}: {kernel.instructions[index]} in line {kernel.instructions[index].line}")
    return len(joins), unseen
