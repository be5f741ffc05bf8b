"""The pixels of a PNG as `berth` writes them: 8 bits, RGB, not interlaced."""

import struct
import zlib


def pixels(path):
    """Width, height, and `[height, width, 3]` bytes."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is no PNG"
    at, packed, width, height = 8, b"", 0, 0
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (bits, colour, interlaced) == (8, 2, 0), f"{path} is of another kind"
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    return width, height, unfiltered(zlib.decompress(packed), 3 * width, height)


def unfiltered(lines, stride, height):
    """The rows without their filters (PNG, section 9.2)."""
    above, out = bytes(stride), bytearray()
    for row in range(height):
        start = row * (stride + 1)
        kind, line = lines[start], bytearray(lines[start + 1 : start + 1 + stride])
        for i in range(stride if kind else 0):
            left = line[i - 3] if i >= 3 else 0
            corner = above[i - 3] if i >= 3 else 0
            up = above[i]
            guess = (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]
            line[i] = (line[i] + guess) & 255
        out += line
        above = bytes(line)
    return bytes(out)


def paeth(left, up, corner):
    near = left + up - corner
    apart = abs(near - left), abs(near - up), abs(near - corner)
    return (left, up, corner)[apart.index(min(apart))]


def levels_apart(one, other):
    """The largest difference of two pictures of one size, in levels of 255."""
    assert one[:2] == other[:2], "pictures of different sizes"
    return max((abs(a - b) for a, b in zip(one[2], other[2])), default=0)
