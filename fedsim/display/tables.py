"""Tables of text for people, in aligned columns."""

import math
from collections.abc import Mapping, Sequence

from fedsim.core.terminal import echo, printable


def show(rows: Sequence[Mapping[str, str]], title: str = "") -> None:
    """Prints rows that share their keys; the keys are the headings, numbers align right."""
    if rows and title:
        echo(title)
    if rows:
        echo("\n".join(aligned([{printable(k): printable(v) for k, v in r.items()} for r in rows])))


def interval(mean: float, half: float, digits: int) -> str:
    """``0.9123 +- 0.0045``, without the half-width where it is NaN; ``-`` where the mean is."""
    if math.isnan(mean):
        return "-"
    return f"{mean:.{digits}f}" + ("" if math.isnan(half) else f" +- {half:.{digits}f}")


def aligned(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The heading and the rows as lines of aligned columns, two spaces apart."""
    columns = []
    for key in rows[0]:
        cells = [row[key] for row in rows]
        values = [cell.split(" ")[0] for cell in cells if cell not in ("", "-")]
        numeric = all(value.replace(".", "").lstrip("-").isdigit() for value in values) and values
        width = max(map(len, (key, *cells)))
        columns.append([f"{cell:{'>' if numeric else '<'}{width}}" for cell in (key, *cells)])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
