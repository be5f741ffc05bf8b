"""The files of executor/kernels/ptx, as executor/src/backend/cuda/ptx.rs reads them."""

import functools
import hashlib
import pathlib
import zlib

from . import text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PTX = ROOT / "executor" / "kernels" / "ptx"
# Compute capabilities of what is shipped, times ten.
ARCHITECTURES = (75, 80)


def path(source: str, architecture: int) -> pathlib.Path:
    return PTX / f"{source}.{architecture}.ptx.z"


def sources() -> list[str]:
    """Names of the kernels' sources, without their ending."""
    return sorted({file.name.split(".")[0] for file in PTX.glob("*.ptx.z")})


def is_copy(source: str, architecture: int) -> bool:
    """Whether the file is empty as that of the first architecture serves for both."""
    return not path(source, architecture).read_bytes()


@functools.cache
def ptx(source: str, architecture: int) -> str:
    """The PTX of a file, or of the one that serves for it."""
    if is_copy(source, architecture):
        architecture = ARCHITECTURES[0]
    return zlib.decompress(path(source, architecture).read_bytes().partition(b"\n")[2]).decode()


def digest(source: str, architecture: int) -> str:
    return hashlib.sha256(ptx(source, architecture).encode()).hexdigest()[:16]


@functools.cache
def module(source: str, architecture: int) -> text.Module:
    return text.read(ptx(source, architecture))
