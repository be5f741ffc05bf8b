"""Cases of every kernel that is shipped, by the family of its operation."""

from . import norms, rows
from .tools import Case

FAMILIES = (rows, norms)


def all_cases() -> list[Case]:
    return [case for family in FAMILIES for case in family.cases()]
