"""Numbers, texts and files without an end: each is refused at once, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.config.experiments import MOST_RUNS
from fedsim.config.sections import fields
from fedsim.core.settings import MOST
from tests.fuzz.harness import Case, parts, tried

pytestmark = pytest.mark.integration

HUGE = (str(10**30), "9" * 5000, "1e300", "-1" + "0" * 30)
SERIAL = "run --engine serial --rounds 1 --clients 5 --out out"
SEARCH = """\
algorithm: fedavg
data: {num_clients: 4, val_fraction: 0.2}
model: {name: mlp}
train: {rounds: 1, sample_rate: 0.5, batch_size: 100}
engine: {kind: serial}
search: {train.lr: "loguniform(0.01, 1)"}
"""


def bounded() -> list[str]:
    """The keys that take whole numbers up to :data:`~fedsim.core.settings.MOST`, or words."""
    keys = [k for k, f in fields().items() if any(getattr(m, "le", 0) == MOST for m in f.metadata)]
    words = ("engine.actors", "engine.client_batch", "engine.aggregation_shards")
    return [*keys, *words, "evaluation.conflicts", "data.num_clients", "data.image_size"]


def of_numbers() -> Iterator[Case]:
    for key in bounded():
        for value in HUGE:
            yield Case(f"{key}={value}"[:60], ("run", "--set", f"{key}={value}"), f"--set {key}")


LAWS = (
    *("1e308", "1e-300", "lognormal(1e308, 1e308)", "lognormal(1, 1e308)", "lognormal(1e-300, 1)"),
    *("lognormal(1e99, 1)", "uniform(0, 1e308)", "uniform(1e-200, 1)", "choice(1, 1e200)"),
)


def of_laws() -> Iterator[Case]:
    for key in ("samples_per_second", "download_mb_s", "upload_mb_s", "availability", "work"):
        share = key in ("availability", "work")  # for which a small number is right
        for law in (law for law in LAWS if not (share and ("e-" in law))):
            args = (*SERIAL.split(), "--set", f"clock.{key}={law}")
            yield Case(f"{key} {law}", args, f"--set clock.{key}")
    for value in ("1e308", "1e-300", "5e-324"):
        rows = "client_id,samples_per_second\n" + "".join(f"{k},{value}\n" for k in range(5))
        args = f"{SERIAL} --set clock.trace=t.csv"
        yield Case(f"a trace of {value}", args, "t.csv, row 2", files={"t.csv": rows})


def of_networks() -> Iterator[Case]:
    for text in ("lora(999999)", "lora(999999, 1)", "lora(100000)"):
        args = (*SERIAL.split(), "--model", "mlp", "--set", f"model.trainable={text}")
        yield Case(text, args, "is larger than")
    for text in (f"lora(1, {'9' * 400})", "lora(1000000)", f"lora({'9' * 400})", "lora(1e3)"):
        yield Case(text[:40], (*SERIAL.split(), "--set", f"model.trainable={text}"), "trainable")
    for key, value in {
        "fedsr.z_dim": 10**12, "pfedla.width": 10**12, "pfedla.keep_local": 10**12,
        "fedpac.head_epochs": 10**12, "model.projection": 10**12,
    }.items():  # fmt: skip
        args = f"run --set {key}={value} -a {key.partition('.')[0]}".replace(" -a model", "")
        yield Case(f"{key}={value}", args, key)


def of_searches() -> Iterator[Case]:
    def case(name: str, *args: str, says: str = "") -> Case:
        base = ("tune", "s.yaml", "--out", "out")
        return Case(name[:60], (*base, *args), says, files={"s.yaml": SEARCH})

    for flag in ("--trials", "--confirm", "--sampler-seed", "--parallel"):
        for value in (str(10**30), str(10**25), "9" * 5000, "0x10", "-1", "1e3", "nan"):
            yield case(f"{flag} {value}", flag, value, says=flag)
    for flag in ("--trials", "--confirm"):
        yield case(f"{flag} of too many", flag, str(MOST_RUNS + 1), says=flag)
    for form in (
        *(f"int(0, {10**30})", f"int(-{10**18}, {10**18})", "uniform(0, 1e999)"),
        *("uniform(-1e308, 1e308)", "loguniform(0, 1e308)"),
        *("choice(" + "[" * 3000 + ")", "choice(!!bool x)", "choice(!!int '')", "choice(&a [*a])"),
        *("choice(" + ", ".join(map(str, range(2000))) + ")"),
    ):
        for key in ("train.lr", "data.alpha", "margin_weight"):
            yield case(f"{key}={form}", "--search", f"{key}={form}", says=f"--search {key}")
    wide = ("--sampler", "grid", "--pruner", "none")
    for key, most in (("train.rounds", MOST), ("train.batch_size", MOST), ("seed_", MOST)):
        text = SEARCH.replace("train.lr", key).replace("loguniform(0.01, 1)", f"int(1, {most})")
        args = ("tune", "s.yaml", "--out", "out", *wide)
        yield Case(f"a grid of {key}", args, files={"s.yaml": text})


CASES = [*of_numbers(), *of_laws(), *of_networks(), *of_searches()]


@pytest.mark.parametrize("number", parts(17))
def test_what_has_no_bounds(number: int, tmp_path: Path) -> None:
    tried(CASES[number::17], tmp_path)
