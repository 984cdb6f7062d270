"""The sentences of captions, figures and reports: blocks of the templates beside this file."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

TEXTS = ("tables.j2", "figures.j2", "report.j2")
"""The templates with sentences; a text's block is called as its table or figure, then itself."""


@cache
def environment() -> Environment:
    """The templates, with filters for counts, numbers and lists; HTML is escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=select_autoescape(["html"]), undefined=StrictUndefined,
    )  # fmt: skip
    made.filters |= {"at": at, "count": count, "fmt": format, "listed": listed}
    return made


def say(name: str, **values: object) -> str:
    """The text of a block, such as ``caption.bold``, on one line and with the values filled in."""
    block = name.replace(".", "_")
    templates = map(environment().get_template, TEXTS)
    template = next(template for template in templates if block in template.blocks)
    text = "".join(template.blocks[block](template.new_context(values)))
    return re.sub(r"[ \n]+", " ", text).strip()


def at(setting: str) -> str:
    """A setting before what is said of it."""
    return f"{setting}: " if setting else ""


def count(number: int, noun: str) -> str:
    """``1 run`` or ``3 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sentences(*parts: str) -> str:
    """The parts that are not empty, side by side."""
    return " ".join(filter(None, parts))


def listed(names: Sequence[str], most: int = 6) -> str:
    """``a, b and c``, of at most ``most`` names: ``a, b and 2 more``."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else ())]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
