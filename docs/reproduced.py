"""Makes docs/REPRODUCED.md from the published tables and from what jobs have measured.

    python docs/reproduced.py DIR...    adds the values.csv of jobs by ``fedsim reproduce``
    python docs/reproduced.py           the page alone

docs/reproduced.csv holds the values of every run, for each cell of a table; the verdicts follow
from them and from fedsim/audit/papers/ whenever the page is made. A test compares it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from fedsim.audit import published  # noqa: E402
from fedsim.audit.published import Claim, Job, Number, Result, Table  # noqa: E402

PAGE, STORED = DOCS / "REPRODUCED.md", DOCS / "reproduced.csv"
INTRO = """# Published tables, tested

What [`fedsim reproduce`](how-to/reproduce.md) found of published numbers and claims, made by
`python docs/reproduced.py` from the values of every run in `docs/reproduced.csv`. The numbers,
where they were read, and the margins are in `fedsim/audit/papers/`.

A *full* job has the protocol of the paper and tests numbers and claims. A *scaled* job has other
data or a smaller network and tests claims about order alone: what it confirms or contradicts holds
for its own data and network. No scaled job says anything about a number.

- **confirmed**: the 90 % interval of the difference ours - published lies inside the margin; of a
  claim: a paired t test over the seeds finds the order, at level 0.05 with Holm's correction over
  the claims of the table
- **confirmed exactly**: the published values of all seeds are ours to 1e-9
- **contradicted**: the 95 % interval lies outside the margin; of a claim: the test finds the
  opposite
- **not decidable**: neither; the note says how many seeds would decide, with probability 0.8, if
  difference and spread are as observed
- **not testable here**: something is missing, which the note says

Intervals are 90 % for numbers and 95 % for claims (before the correction). Seeds train again on one
partition of the data: nothing here is about other partitions.
"""
NONE = "\N{EN DASH}"
WORDS = ("confirmed exactly", "confirmed", "contradicted", "not decidable")


def add(folder: Path) -> None:
    """Stores the values of a job in place of those that it had before."""
    new = pd.read_csv(folder / published.VALUES)
    every = [new]
    if STORED.exists():
        old = pd.read_csv(STORED)
        same = (old["table"] == new["table"].iloc[0]) & (old["job"] == new["job"].iloc[0])
        every.insert(0, old[~same])
    made = pd.concat(every).sort_values(["table", "job"], kind="stable")
    STORED.write_text(made.to_csv(index=False, lineterminator="\n"), encoding="utf-8")


def stored() -> dict[tuple[str, str], pd.DataFrame]:
    """By table and job the values of their runs."""
    frame = pd.read_csv(STORED)
    return {(str(t), str(j)): part for (t, j), part in frame.groupby(["table", "job"], sort=False)}


def results(table: Table, job: Job) -> list[Result]:
    """The verdicts of a job that has been run; empty where it has not."""
    values = stored().get((table.name, job.name))
    return [] if values is None else published.judge(table, job, values)


def page() -> str:
    """The text of docs/REPRODUCED.md."""
    tables = [published.load(name) for name in published.names()]
    lines = [INTRO, "## All tables", "", *overview(tables)]
    for table in tables:
        lines += ["", *section(table)]
    return "\n".join(lines) + "\n"


def overview(tables: list[Table]) -> list[str]:
    """A row for each job."""
    rows = []
    for table in tables:
        link = f"[{table.name}](#{table.name})"
        for job in table.jobs.values():
            said = published.counts(
                r.verdict.word for r in results(table, job) if r.verdict.word in WORDS
            )
            rows.append([link, job.name, tests(table, job), str(job.runs), state(said)])
        if not table.jobs:
            what = f"{len(table.numbers)} numbers" if table.numbers else NONE
            rows.append([link, NONE, what, NONE, "not testable here"])
    return markdown(["Table", "Job", "Tests", "Runs", "State"], rows)


def tests(table: Table, job: Job) -> str:
    """``18 numbers, 15 claims``."""
    numbers, claims = table.tested(job)
    parts = [(len(numbers), "number"), (len(claims), "claim")]
    return ", ".join(f"{n} {noun}{'s' * (n != 1)}" for n, noun in parts if n)


def state(said: Mapping[str, int]) -> str:
    """The verdicts of a job, counted."""
    return ", ".join(f"{count} {word}" for word, count in said.items()) or "not run yet"


def section(table: Table) -> Iterator[str]:
    """What there is of a table."""
    yield f"## {table.name}"
    yield ""
    yield f"{table.title}. {table.source}."
    for text in (table.about, f"Numbers: {table.provenance}"):
        if text:
            yield ""
            yield text
    if table.missing:
        yield ""
        yield f"*Not testable here*: {table.missing}."
    if table.numbers:
        yield ""
        yield from numbers(table)
    for job in table.jobs.values():
        found = results(table, job)
        yield ""
        cost = "" if job.seconds is None else f", {job.seconds:.0f} s on two busy cores"
        about = f" {job.about[0].upper()}{job.about[1:]}." if job.about else ""
        name = f"**{job.name.capitalize()} job**"
        yield f"{name}: preset `{job.preset}`, {job.runs} runs{cost}.{about}"
        if not found:
            yield f"Not run yet; needs: {job.data}."
            continue
        yield ""
        yield from verdicts(found)


def numbers(table: Table) -> list[str]:
    """The published numbers, methods by settings."""
    settings = list(dict.fromkeys(n.setting for n in table.numbers))
    methods = list(dict.fromkeys(n.method for n in table.numbers))
    known = {(n.method, n.setting): n for n in table.numbers}
    rows = [
        [method, *(number(known.get((method, setting))) for setting in settings)]
        for method in methods
    ]
    return markdown([f"Published ({table.unit})", *settings], rows)


def number(published_one: Number | None) -> str:
    """A number with its standard deviation, if that is known."""
    if published_one is None:
        return NONE
    spread = published_one.sd == published_one.sd
    return f"{published_one.value:g}" + (f" (sd {published_one.sd:g})" if spread else "")


def verdicts(found: list[Result]) -> list[str]:
    """A row for each tested number and claim."""
    shown = [r for r in found if r.verdict.word in WORDS or isinstance(r.result, Claim)]
    rows = []
    for each in shown:
        cells = each.cells
        cells["verdict"] = f"**{cells['verdict']}**"
        rows.append([cells[key].replace("|", "\\|") for key in HEADS])
    return markdown(list(HEADS.values()), rows)


HEADS = {
    "method": "Result", "setting": "Setting", "published": "Published", "ours": "Ours",
    "n": "Seeds", "difference": "Difference", "p": "p (Holm)", "verdict": "Verdict", "note": "Note",
}  # fmt: skip


def markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A table of Markdown."""
    rule = ["---"] * len(heads)
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        add(Path(argument))
    PAGE.write_text(page(), encoding="utf-8")
