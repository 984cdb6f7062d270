"""Which image files are decoded, and how: formats, EXIF orientation, tables with odd characters."""

from __future__ import annotations

import io
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.core.errors import DataError
from fedsim.data.images import FORMATS, decode, sides

PIXELS = np.arange(6 * 6 * 3, dtype=np.uint8).reshape(6, 6, 3) * 2
UPRIGHT = {
    1: PIXELS,
    2: PIXELS[:, ::-1],
    3: PIXELS[::-1, ::-1],
    4: PIXELS[::-1],
    5: PIXELS.transpose(1, 0, 2),
    6: np.rot90(PIXELS, -1),
    7: np.rot90(PIXELS, 2).transpose(1, 0, 2),
    8: np.rot90(PIXELS),
}
"""The EXIF standard: 6 is shown after a turn by 90 degrees clockwise, 8 anticlockwise."""


def content(form: str, orientation: int | None = None, pixels=PIXELS, exif=None) -> bytes:
    """An image file; ``exif`` are EXIF data as bytes, by default those with the orientation."""
    file = io.BytesIO()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x112] = orientation
    more = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})
    more |= {} if exif is None else {"exif": exif}
    Image.fromarray(pixels).save(file, form, **more)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", [None, *UPRIGHT, 0, 9, 65535])
def test_images_are_turned_as_their_exif_orientation_says(form, orientation, tmp_path: Path):
    path = tmp_path / "x.png"
    path.write_bytes(content(form, orientation))
    wanted = UPRIGHT.get(orientation, PIXELS).transpose(2, 0, 1).astype(int)
    assert np.abs(decode(path, 6).astype(int) - wanted).max() <= (3 if form == "JPEG" else 0)


def test_an_image_on_its_side_is_cropped_upright(tmp_path: Path):
    """12 x 6 as stored, 6 x 12 as shown: the rows in the middle of that are left."""
    wide = np.repeat(np.arange(12, dtype=np.uint8)[None, :, None] * 20, 6, axis=0).repeat(3, axis=2)
    (tmp_path / "x.png").write_bytes(content("PNG", 6, wide))
    assert decode(tmp_path / "x.png", 6)[0, :, 0].tolist() == [60, 80, 100, 120, 140, 160]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["x", "x.png", "x.eps", "x.jpg"])
def test_a_format_that_is_documented_is_read_whatever_the_name(form, name, tmp_path: Path):
    (tmp_path / name).write_bytes(content(form))
    assert decode(tmp_path / name, 6).shape == (3, 6, 6)
    assert sides(tmp_path / name) == (6, 6)


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 6 6
%%Pages: 1
%%EndComments
(touched) (w) file closefile showpage
%%EOF
"""
OTHERS = {
    "GIF": lambda: content("GIF"),
    "ICO": lambda: content("ICO", pixels=np.zeros((16, 16, 3), np.uint8)),
    "PPM": lambda: content("PPM"),
    "EPS": lambda: EPS,
    "PDF": lambda: b"%PDF-1.7\n%%EOF\n",
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="6" height="6"/>',
    "text": lambda: b"no image",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats_are_refused_whatever_the_name(kind, tmp_path: Path, monkeypatch):
    """An EPS file would have Pillow look for Ghostscript, and run it."""
    monkeypatch.setattr(shutil, "which", lambda name, *_: pytest.fail(f"looked for {name}"))
    path = tmp_path / "x.png"
    path.write_bytes(OTHERS[kind]())
    with pytest.raises(DataError, match=r"x\.png: .* not an image of a known format \(PNG, JPEG"):
        decode(path, 6)


def png(depth: int, colours: int) -> bytes:
    """A PNG file of 6 x 6 pixels by its standard."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    row = b"\0" + bytes(6 * channels * depth // 8)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 6, 6, depth, colours, 0, 0, 0))]
    chunks += [(b"PLTE", bytes(range(6)))] * (colours == 3)
    chunks += [(b"IDAT", zlib.compress(6 * row)), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(
    bits: tuple[int, ...], photometric: int, *, extra: tuple[int, ...] = (), sign: int = 1
) -> bytes:
    """A little-endian TIFF file of 6 x 6 pixels by its standard."""
    size = 6 * 6 * sum(bits) // 8
    channels = len(bits)
    tags = {256: (6,), 257: (6,), 258: bits, 259: (1,), 262: (photometric,), 273: (8,)}
    tags |= {277: (channels,), 278: (6,), 279: (size,)}
    tags |= {338: extra} if extra else {}
    tags |= {339: (sign,) * channels}
    tail, entries = b"", b""
    begin = 8 + size + 2 + 12 * len(tags) + 4
    for tag, values in tags.items():
        packed = struct.pack(f"<{len(values)}H", *values)
        if len(packed) > 4:
            packed, tail = struct.pack("<I", begin + len(tail)), tail + packed
        entries += struct.pack("<HHI", tag, 3, len(values)) + packed.ljust(4, b"\0")
    ifd = struct.pack("<H", len(tags)) + entries + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + size) + bytes(size) + ifd + tail


def pages(form: str) -> bytes:
    """Two different images in one file."""
    file = io.BytesIO()
    frames = [Image.fromarray(np.full((6, 6, 3), value, np.uint8)) for value in (0, 200)]
    frames[0].save(file, form, save_all=True, append_images=frames[1:])
    return file.getvalue()


WHOLE = {
    "png grey": lambda: png(8, 0),
    "png rgb": lambda: png(8, 2),
    "png palette": lambda: png(8, 3),
    "png grey+alpha": lambda: png(8, 4),
    "png rgba": lambda: png(8, 6),
    "tiff grey": lambda: tiff((8,), 1),
    "tiff rgb": lambda: tiff((8, 8, 8), 2),
    "tiff rgba": lambda: tiff((8, 8, 8, 8), 2, extra=(2,)),
    "tiff cmyk": lambda: tiff((8, 8, 8, 8), 5),
    "jpeg with previews": lambda: pages("MPO"),
}
CUT = {
    "png grey 16": (lambda: png(16, 0), "16 bits a channel"),
    "png rgb 16": (lambda: png(16, 2), "16 bits a channel"),
    "png grey+alpha 16": (lambda: png(16, 4), "16 bits a channel"),
    "png rgba 16": (lambda: png(16, 6), "16 bits a channel"),
    "tiff grey 12": (lambda: tiff((12,), 1), "12 bits a channel"),
    "tiff grey 16": (lambda: tiff((16,), 1), "16 bits a channel"),
    "tiff grey 32": (lambda: tiff((32,), 1), "32 bits a channel"),
    "tiff float": (lambda: tiff((32,), 1, sign=3), "32 bits a channel"),
    "tiff signed": (lambda: tiff((8,), 1, sign=2), "signed numbers"),
    "tiff rgb 16": (lambda: tiff((16, 16, 16), 2), "16 bits a channel"),
    "tiff rgba 16": (lambda: tiff((16, 16, 16, 16), 2, extra=(2,)), "16 bits a channel"),
    "tiff cmyk 16": (lambda: tiff((16, 16, 16, 16), 5), "16 bits a channel"),
    "tiff rgb + infrared": (lambda: tiff((8, 8, 8, 8), 2, extra=(0,)), "a channel beside colours"),
    "tiff stack": (lambda: pages("TIFF"), "2 pages or frames, needed is a file for each image"),
    "apng": (lambda: pages("PNG"), "2 pages or frames"),
}


@pytest.mark.parametrize("kind", [*WHOLE, *CUT])
def test_an_image_is_read_whole_or_refused(kind, tmp_path: Path):
    """Pillow cuts 16-bit colours to their high bytes, and reads the first page alone."""
    path = tmp_path / "x.png"
    path.write_bytes(WHOLE[kind]() if kind in WHOLE else CUT[kind][0]())
    if kind in WHOLE:
        assert decode(path, 6).shape == decode(path.read_bytes(), 6).shape == (3, 6, 6)
        return
    for source in (path, path.read_bytes()):
        with pytest.raises(DataError, match=rf"x\.png: {CUT[kind][1]}"):
            decode(source, 6, "" if source is path else "x.png")
