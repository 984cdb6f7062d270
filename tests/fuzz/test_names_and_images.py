"""Image files that are others than their names say, and names that are more than letters."""

from __future__ import annotations

import io
import json
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


def image(form: str) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, form)
    return data.getvalue()


def folder(label: str = "a", site: str = "s") -> dict[str, Content]:
    """Six images; ``label`` and ``site`` are those of every second one."""
    rows = [f'{i}.png,"{label if i % 2 else "b"}","{site if i % 2 else "t"}"' for i in range(COUNT)]
    files: dict[str, Content] = {f"data/{i}.png": image("PNG") for i in range(COUNT)}
    files["data/labels.csv"] = "filename,label,site\n" + "\n".join(rows) + "\n"
    return files


BAD_IMAGES: dict[str, bytes] = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n",
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "GIF": image("GIF"),
    "zip": b"PK\x03\x04" + bytes(60),
    "cut PNG": image("PNG")[:60],
    "cut JPEG": image("JPEG")[:200],
    "cut TIFF": image("TIFF")[:100],
    "cut BMP": image("BMP")[:60],
    "nothing": b"",
    "NUL": bytes(100),
}
"""Contents of which no image can be made."""
EXTENSIONS = ("png", "jpg", "tif")


def with_image(content: bytes, extension: str, name: str) -> Case:
    files = folder()
    files[f"data/1.{extension}"] = content
    table = str(files["data/labels.csv"]).replace("1.png", f"1.{extension}")
    files["data/labels.csv"] = table
    return Case(name, PARTITION, f"data/1.{extension}", files=files)


IMAGES = [
    with_image(content, extension, f"{kind} as .{extension}")
    for (kind, content), extension in product(BAD_IMAGES.items(), EXTENSIONS)
]
NAMES = (
    *("$", "$\\frac{$", "$x^$", "${", "a$b$c$d$", "\\alpha", "a_b", "x" * 300, "[/]", "=1+1"),
    *("\x01", "\x07", "\t", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x7f", "\u2028"),
    *("\u200b", "\ufeff", "\u202e", "e" + "\u0301" * 60, "\u05e9\u05dc", "\u533b\u9662"),
    *("<script>alert(1)</script>", "&amp;", "%s%n", "{0}"),
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


@pytest.mark.parametrize("part", parts(7))
def test_other_files_than_images(part: int, tmp_path: Path) -> None:
    tried(IMAGES[part::7], tmp_path)


@pytest.mark.parametrize("part", parts(23))
def test_odd_names(part: int, tmp_path: Path) -> None:
    """Whatever a command says of them is to be seen; it is refused in one line or done."""
    for number, case in enumerate(ODD[part::23]):
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
    line = "run -d folder --data-dir data --set data.image_size=8 --out out --engine serial"
    args = f"{line} --rounds 1 --model cnn --sample-rate 1".split()
    status, _, err = ended(started(work, *args, **plain, FEDSIM_CACHE=str(tmp_path / "cache")))
    assert status == 0, err
    assert (work / "out" / "summary.csv").stat().st_size > 0
    for command in ("show", "runs", "table"):
        status, _, err = ended(started(work, command, "out", **plain))
        assert status == 0, err
    classes = json.loads((work / "out" / "env.json").read_bytes())["classes"]
    assert classes == ["b", "\u533b\u9662"]
