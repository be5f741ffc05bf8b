#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "pillow"]
# ///
"""Makes tests/fixtures/pictures: one pattern of 24x16 pixels in every kind of PNG, JPEG and WebP that is read,
and two sizes of it by Pillow's LANCZOS.

    python3 scripts/picture_fixtures.py
"""

from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent / "tests/fixtures/pictures"

FOLDER.mkdir(exist_ok=True)
y, x = np.mgrid[0:16, 0:24]
rgb = Image.fromarray(np.stack([10 * x, 15 * y, 6 * (x + y)], axis=-1).astype(np.uint8))
gray = Image.fromarray((10 * x).astype(np.uint8))
alpha = Image.fromarray(np.where(x < 12, 255, 51).astype(np.uint8))

rgb.save(FOLDER / "rgb.png")
gray.save(FOLDER / "gray.png")
Image.fromarray((2570 * x).astype(np.uint16)).save(FOLDER / "gray16.png")
rgb.quantize(256).save(FOLDER / "palette.png")
Image.merge("RGBA", (*rgb.split(), alpha)).save(FOLDER / "rgba.png")
Image.merge("LA", (gray, alpha)).save(FOLDER / "gray_alpha.png")

rgb.save(FOLDER / "baseline.jpg", quality=95)
rgb.save(FOLDER / "progressive.jpg", quality=95, progressive=True)
gray.save(FOLDER / "gray.jpg", quality=95)
rgb.convert("CMYK").save(FOLDER / "cmyk.jpg", quality=95)
exif = Image.Exif()
exif[0x0112] = 6  # to be turned clockwise
rgb.transpose(Image.Transpose.ROTATE_90).save(FOLDER / "turned.jpg", quality=95, exif=exif)
rgb.transpose(Image.Transpose.ROTATE_90).save(FOLDER / "turned.png", exif=exif)

rgb.save(FOLDER / "lossless.webp", lossless=True)
rgb.transpose(Image.Transpose.ROTATE_90).save(FOLDER / "turned.webp", lossless=True, exif=exif)
rgb.save(FOLDER / "lossy.webp", quality=100)
Image.merge("RGBA", (*rgb.split(), alpha)).save(FOLDER / "rgba.webp", lossless=True)
Image.merge("RGBA", (*rgb.split(), alpha)).save(FOLDER / "lossy_rgba.webp", quality=100)
rgb.save(FOLDER / "moving.webp", save_all=True, append_images=[gray.convert("RGB")], lossless=True)

rgb.resize((37, 29), Image.Resampling.LANCZOS).save(FOLDER / "grown.png")
rgb.resize((7, 5), Image.Resampling.LANCZOS).save(FOLDER / "shrunk.png")
