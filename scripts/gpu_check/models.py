"""A model of FLUX.1-dev's sizes with random weights: the sparse files that Berth's own example writes, filled.

Random, as products of zeros take less power and so less time. Each bf16 has an exponent of 2^-7 or 2^-6 and a random sign and
mantissa: sums over some thousand of them neither overflow nor vanish. It paints nothing.
"""

import concurrent.futures
import os
import pathlib
import shutil
import sys

from results import Skipped

# The files' 33.8 GB, a DiT in Q4_K, and what a job may want beside them.
ROOM_BYTES = 44 << 30

# A pattern repeats after so many bytes: no power of two, so that rows of a matrix are not alike.
PATTERN_BYTES = (16 << 20) + 2 * 4099

WRITERS = 8


def sparse(stand):
    """The model's folder, its weights not written yet: in memory where there is room, as a disk would take longer than all checks."""
    write = stand.need("sparse_flux_dev")
    if stand.simulated or stand.quick:
        raise Skipped("a simulated GPU is too slow for it" if stand.simulated else "--quick")
    memory = pathlib.Path("/dev/shm")
    roomy = [place for place in (memory, stand.work) if place.is_dir() and shutil.disk_usage(place).free >= ROOM_BYTES]
    if not roomy:
        raise Skipped(f"no {ROOM_BYTES >> 30} GiB are free in {memory} or {stand.work}")
    folder = roomy[0] / f"berth-gpu-check-{os.getpid()}"
    stand.remove_later(folder)
    stand.command([write, folder], env=stand.environment())
    return folder


def fill_with_noise(stand, folder):
    """Writes the weights."""
    files = sorted(folder.rglob("*.safetensors"))
    pattern = random_bf16(PATTERN_BYTES)
    spans = [span for path in files for span in spans_of(path)]
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as writers:
        for done in writers.map(lambda span: fill(*span, pattern), spans):
            stand.check_time()
    stand.log(f"{len(files)} files, {sum(path.stat().st_size for path in files)} B in {folder}")


def quantised(folder):
    """The model's DiT in Q4_K, beside its other files."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    try:
        import gguf_transformer
    except ImportError as error:
        raise Skipped(f"no numpy: {error}") from None
    path = folder / "dit-q4_k.gguf"
    gguf_transformer.write(path, "q4_k", gguf_transformer.shapes(3072, 128, 19, 38, 4096, 768, guidance=True))
    return path


def random_bf16(count):
    """So many bytes, an even number, of bf16 in little-endian order."""
    out = bytearray(count)
    out[0::2] = os.urandom(count // 2)
    # Sign, and the upper seven bits of the exponent; its last bit and the mantissa are the other byte.
    high = bytes((byte & 0x80) | 0x3C for byte in range(256))
    out[1::2] = os.urandom(count // 2).translate(high)
    return bytes(out)


def spans_of(path):
    """Pieces of a safetensors file's data: path, first byte, length."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    end = path.stat().st_size
    return [(path, at, min(PATTERN_BYTES, end - at)) for at in range(start, end, PATTERN_BYTES)]


def fill(path, at, count, pattern):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        written = 0
        while written < count:
            written += os.pwrite(descriptor, memoryview(pattern)[written:count], at + written)
    finally:
        os.close(descriptor)
