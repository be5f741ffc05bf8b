"""Cases of every kernel that is shipped, by the family of its operation."""

from . import attention, converting, convolution, linear_bytes, linear_f32, linear_half, norms, rows, stored
from .tools import Case

FAMILIES = (rows, norms, stored, converting, linear_f32, linear_half, linear_bytes, attention, convolution)


def all_cases() -> list[Case]:
    return [case for family in FAMILIES for case in family.cases()]
