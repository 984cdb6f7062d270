"""Image files that are others than their names say, and names that are more than letters."""

from __future__ import annotations

import io
import json
import struct
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fuzz.harness import Case, Content, attempt, parts, tried
from tests.fuzz.test_terminals import ended, started

pytestmark = pytest.mark.integration

COUNT = 6
PARTITION = "partition -d folder --data-dir data --set data.image_size=8"


def image(form: str, exif: bytes = b"", size: int = 8) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, form, **({"exif": exif} if exif else {}))
    return data.getvalue()


def folder(label: str = "a", site: str = "s", table: str | None = None) -> dict[str, Content]:
    """Six images; ``label`` and ``site`` are those of every second one."""
    rows = [f'{i}.png,"{label if i % 2 else "b"}","{site if i % 2 else "t"}"' for i in range(COUNT)]
    files: dict[str, Content] = {f"data/{i}.png": image("PNG") for i in range(COUNT)}
    files["data/labels.csv"] = table or "filename,label,site\n" + "\n".join(rows) + "\n"
    return files


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes) -> bytes:
    """A PNG file that promises so many pixels and has none."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IEND", b"")


def tiff(*entries: tuple[int, int, int, int]) -> bytes:
    """A TIFF file of some entries (tag, type, count, value)."""
    found = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + found + bytes(4)


BOMB = tiff(
    (256, 4, 1, 60_000), (257, 4, 1, 60_000), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8)
)
LOOP = b"II*\0\x08\0\0\0\0\0\x08\0\0\0"
BAD_IMAGES: dict[str, bytes] = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n",
    "PDF": b"%PDF-1.7\n1 0 obj <</Type /Catalog>> endobj\n%%EOF\n",
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "HTML": b"<html><script>alert(1)</script></html>",
    "ICO": image("ICO", size=16),
    "GIF": image("GIF"),
    "PPM": image("PPM"),
    "TGA": image("TGA"),
    "PSD": b"8BPS\0\1" + bytes(60),
    "FITS": b"SIMPLE  =                    T".ljust(2880),
    "zip": b"PK\x03\x04" + bytes(60),
    "ELF": b"\x7fELF" + bytes(60),
    "PNG bomb": png(60_000, 60_000, chunk(b"IDAT", zlib.compress(bytes(10_000)))),
    "PNG of no width": png(0, 8),
    "PNG text bomb": png(8, 8, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 24)))),
    "PNG without pixels": png(8, 8),
    "TIFF bomb": BOMB,
    "TIFF loop": LOOP,
    "TIFF of nothing": tiff(),
    "cut PNG": image("PNG")[:60],
    "cut JPEG": image("JPEG")[:200],
    "cut TIFF": image("TIFF")[:100],
    "cut BMP": image("BMP")[:60],
    "JPEG head": b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    "BMP head": b"BM" + bytes(12),
    "nothing": b"",
    "NUL": bytes(100),
}
"""Contents of which no image can be made."""
EXTENSIONS = ("png", "jpg", "jpeg", "tif", "tiff", "bmp")


def with_image(content: bytes, extension: str, name: str, status: tuple[int, ...] = (2,)) -> Case:
    files = folder()
    files[f"data/1.{extension}"] = content
    table = str(files["data/labels.csv"]).replace("1.png", f"1.{extension}")
    says = f"data/1.{extension}" if status == (2,) else ""
    return Case(name, PARTITION, says, status, files=files | {"data/labels.csv": table})


IMAGES = [
    with_image(content, extension, f"{kind} as .{extension}")
    for (kind, content), extension in product(BAD_IMAGES.items(), EXTENSIONS)
]
_EXIF = Image.Exif()
_EXIF[0x112] = 6


def damaged(number: int) -> bytes:
    """EXIF data with an orientation, cut off and with some bytes changed."""
    draw, whole = np.random.default_rng(number), _EXIF.tobytes()
    found = bytearray(whole[: draw.integers(1, len(whole) + 1)])
    for place in draw.integers(0, len(found), draw.integers(1, 6)):
        found[place] = draw.integers(0, 256)
    return bytes(found)


EXIF = [
    with_image(image(form, damaged(n)), "png", f"damaged EXIF {n} in {form}", (0, 2))
    for n, form in product(range(15), ("JPEG", "PNG"))
]
HEADER = "filename,label,site"
NUL = [
    Case(f"NUL {n}", PARTITION, "holds a NUL character", files=folder(table=table))
    for n, table in enumerate(
        [
            f"\0{HEADER}\n0.png,a,s\n",
            f"{HEADER}\0\n0.png,a,s\n",
            f"{HEADER}\n0.png,a,s\n1.png,\0,s\n",
            f"{HEADER}\n0.png\0,a,s\n",
            f"{HEADER}\n0.png,a,s\0s\n",
            f"{HEADER}\n\0\n",
            f'{HEADER}\n0.png,"a\0",s\n',
            f"{HEADER}\n0.png,a,s\n" + "\0" * 1000,
        ]
    )
]
NAMES = (
    *(
        "$",
        "$$",
        "$\\frac{$",
        "$\\unknown$",
        "$x^$",
        "\\$",
        "${",
        "a$b$c$d$",
        "\\alpha",
        "a_b",
        "_x",
    ),
    *("\x01", "\x07", "\x08x", "\t", "\x1b", "\x1b[2J", "\x1b[31mred\x1b[0m", "\x1bc", "\x7f"),
    *(
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
        "\x1bP$q\x1b\\",
        "\x9b31m",
        "\x90x",
    ),
    *("\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u00a0"),
    *(
        "\u202e",
        "gnp.\u202eexe",
        "\u2066x\u2069",
        "\u061c",
        "e" + "\u0301" * 60,
        "\U0001f468\u200d\U0001f469",
    ),
    *("\u05e9\u05dc\u05d5\u05dd", "\u533b\u9662", "\U000e0041", "\ue000", "\U0010ffff", "x" * 300),
    *(
        "=1+1",
        "<script>alert(1)</script>",
        "&amp;",
        "%s%n",
        "{0}",
        "[red]x[/red]",
        "[/]",
        "'; DROP",
        "CON",
    ),
)


def names(role: str) -> list[Case]:
    """A folder of images in which one name is odd."""
    found = []
    for name in NAMES:
        args, files = [*PARTITION.split(), "--out", "split"], folder()
        if role == "class":
            files = folder(label=name)
        elif role == "site":
            files = folder(site=name)
        elif role == "out":
            args[-1] = f"o{name}"
        else:
            files = {path.replace("data/", f"d{name}/"): c for path, c in files.items()}
            args = [f"d{name}" if arg == "data" else arg for arg in args]
        if role in ("class", "site") or ("/" not in name and (role == "out" or len(name) < 200)):
            found.append(Case(f"{role} {name!r}", args, status=(0, 2), files=files, stays=False))
    return found


ODD = [case for role in ("class", "site", "out", "folder") for case in names(role)]


@pytest.mark.parametrize("part", parts(29))
def test_other_files_than_images(part: int, tmp_path: Path) -> None:
    tried([*IMAGES, *EXIF, *NUL][part::29], tmp_path)


@pytest.mark.parametrize("part", parts(53))
def test_odd_names(part: int, tmp_path: Path) -> None:
    """Whatever a command says of them is to be seen; it is refused in one line or done."""
    for number, case in enumerate(ODD[part::53]):
        result = attempt(case, tmp_path / str(number))
        odd = {c for c in result.output if not c.isprintable()} - {"\n", "\t"}
        assert not odd, f"{case.name}: {odd}"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["plain", "caf\u00e9"])
def test_a_run_in_a_plain_locale_on_names_in_other_scripts(place: str, tmp_path: Path) -> None:
    """It ends with its summary, also where the working folder has such a name."""
    work = tmp_path / place
    for path, content in folder("\u533b\u9662", "\u05e9$").items():
        assert not callable(content)
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    args = (
        "run",
        "-d",
        "folder",
        "--data-dir",
        "data",
        "--set",
        "data.image_size=8",
        "--out",
        "out",
    )
    args += ("--engine", "serial", "--rounds", "1", "--model", "cnn", "--sample-rate", "1")
    status, _, err = ended(started(work, *args, **plain, FEDSIM_CACHE=str(tmp_path / "cache")))
    assert status == 0, err
    assert (work / "out" / "summary.csv").stat().st_size > 0
    for command in ("show", "runs", "table"):
        status, _, err = ended(started(work, command, "out", **plain))
        assert status == 0, err
    classes = json.loads((work / "out" / "env.json").read_bytes())["classes"]
    assert classes == ["b", "\u533b\u9662"]
