"""Runs one set of experiments in two checkouts and compares every table and model byte by byte.

``python -m benchmarks.same_bytes BEFORE AFTER`` takes two checkouts, each with its own ``.venv``.
It shows that a change of the code changed no result: all methods with the serial engine and on Ray,
every split and scope of the decomposition, cosines, the loss matrix, clients' evaluation, the clock
with a deadline, LEAF text, clients by site, and a run that BEFORE began, that was killed, and that
AFTER resumed. Files that hold times and places are not compared: timings.csv, env.json,
config.yaml, the seconds of the summaries, and checkpoints. AFTER may have more columns at the end
of a table, and the tables that came later.

``python -m benchmarks.same_bytes --random N --seed S`` draws N configurations and does each on the
serial engine, on Ray with one and with two actors, in one of two processes of a parallel sweep, and
in a process that is killed in a random round and resumed: all tables and models must be equal.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from benchmarks.draws import SHORTCUT
from benchmarks.results import equal, results, write_shakespeare

METHODS = (
    *("fedavg", "fedprox", "fedbn", "fedpac", "fedgh", "fedld", "fednova", "feddecorr"),
    *("fedld_released", "fedgh_released", "simagg", "regagg", "robfedavg", "fedsr", "scaffold"),
    *("fedcm", "feddyn", "moon", "fedadam", "fedyogi", "fedadagrad", "fedavgm", "slowmo"),
    *("fedsam", "pcgrad", "fediir", "pfedla", "matched_mean"),
)
TWO_ROUNDS = """\
data: {name: digits, num_clients: 8}
train: {rounds: 2, sample_rate: 0.5, batch_size: 20}
"""
OWN_PARTS = "client_val_fraction: 0.2, client_test_fraction: 0.2"


def sweeps(folder: Path) -> dict[str, str]:
    """The text of each sweep file by its name."""
    methods = f"grid: {{algorithm: [{', '.join(METHODS)}]}}\n"
    looks = [
        f"    - {split}_{scope}: {{evaluation.decompose_split: {split}, "
        f"evaluation.decompose_scope: {scope}}}\n"
        for split in ("train", "val", "test", "common_test")
        for scope in ("cohort", "population")
    ]
    return {
        "serial": f"{TWO_ROUNDS}engine: {{kind: serial}}\n{methods}",
        "ray": f"{TWO_ROUNDS}engine: {{kind: ray, actors: 2}}\n{methods}",
        "decomposition": (
            f"data: {{name: digits, num_clients: 8, {OWN_PARTS}}}\n"
            "train: {rounds: 2, sample_rate: 0.5, batch_size: 20}\n"
            "evaluation: {decompose_every: 1, loss_matrix: true, cosines: true, clients_every: 1}\n"
            "engine: {kind: ray, actors: 2}\n"
            f"grid:\n  algorithm: [fedld, fedbn]\n  look:\n{''.join(looks)}"
        ),
        "others": (
            "train: {rounds: 3, sample_rate: 0.5, batch_size: 20}\nengine: {kind: serial}\n"
            "grid:\n  what:\n"
            "    - clock: {data.num_clients: 8, clock.samples_per_second: 'lognormal(60, 1)', "
            "clock.upload_mb_s: 'uniform(0.01, 0.1)', clock.deadline: 1.0, clock.late: partial, "
            "clock.availability: 0.8, clock.work: 'uniform(0.2, 1)'}\n"
            f"    - by_site: {{data.name: '{SHORTCUT}', data.partition: by_site}}\n"
            f"    - correlated: {{data.name: '{SHORTCUT}', '{SHORTCUT}.sites': 4, "
            f"'{SHORTCUT}.correlation': 0.5, '{SHORTCUT}.samples_per_site': 20}}\n"
            "    - synthetic: {data.name: synthetic, data.num_clients: 5, "
            "synthetic.alpha: 1.0, synthetic.beta: 0.5}\n"
            f"    - text: {{data.name: shakespeare, data.dir: '{folder / 'shakespeare'}'}}\n"
            "    - served: {algorithm: fedprox, server: fedgh, data.num_clients: 8}\n"
            "    - normalised: {algorithm: fednova, server: fedgh, data.num_clients: 8}\n"
            "    - optimised: {algorithm: scaffold, server: fedadam, data.num_clients: 8}\n"
            "    - exchanged: {algorithm: fedpac, server: fedld, data.num_clients: 8}\n"
            "    - margin: {algorithm: fedavg, margin: sigma_damp, data.num_clients: 8}\n"
            "    - shifted: {data.feature_shift: rotation, data.partition: shards, "
            "data.num_clients: 8}\n"
            "    - augmented: {data.augment: autoaugment_cifar10, data.num_clients: 8}\n"
        ),
    }


def fedsim(checkout: Path, *arguments: object) -> list[str]:
    """The command line of ``fedsim`` in a checkout."""
    return [str(checkout / ".venv/bin/python"), "-m", "fedsim", *map(str, arguments)]


def killed_and_resumed(began: Path, resumed: Path, out: Path) -> None:
    """A run with client states that one checkout begins and another one ends."""
    settings = "--set train.momentum=0 -a scaffold --clients 8 --sample-rate 0.5 --rounds 60"
    more = "--engine serial --seed 3 --cosines"
    command = fedsim(began, "run", *settings.split(), *more.split(), "--out", out)
    with subprocess.Popen(command, cwd=began, stdout=subprocess.DEVNULL) as process:
        while not list(out.glob("checkpoints/round-*.json")):
            if process.poll() is not None:
                raise RuntimeError("the run ended before it was killed")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    subprocess.run(fedsim(resumed, "resume", out), cwd=resumed, check=True, capture_output=True)


def differences(before: Path, after: Path) -> Iterator[str]:
    """What is not equal in two folders of results."""
    old, new = results(before), results(after)
    yield from (f"missing after: {name}" for name in old.keys() - new.keys())
    yield from (f"missing before: {name}" for name in new.keys() - old.keys())
    for name in sorted(old.keys() & new.keys()):
        if not equal(old[name], new[name]):
            yield f"differs: {name}"


def make(checkout: Path, resumes: Path, folder: Path, only: Sequence[str]) -> None:
    """Runs everything in a checkout; what is there already is kept."""
    shared = folder.parent
    for name, text in sweeps(shared).items():
        if only and name not in only:
            continue
        file = shared / f"{name}.yaml"
        file.write_text(text)
        begun = time.perf_counter()
        command = fedsim(checkout, "sweep", file, "--out", folder / name)
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        click.echo(f"{checkout}: {name}, {time.perf_counter() - begun:.0f} s")
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    if (not only or "resumed" in only) and not (folder / "resumed").exists():
        killed_and_resumed(resumes, checkout, folder / "resumed")


def random_runs(count: int, seed: int, folder: Path) -> int:
    """Prints the configurations whose ways differ, and a line that counts; how many they are."""
    from benchmarks.ways import Ways, described

    drawn = Ways(seed, folder, lambda line: click.echo(line, err=True)).all(count)
    different = [one for one in drawn if one.problems]
    for one in different:
        click.echo(described(one))
    refused, killed = sum(one.refused for one in drawn), sum(bool(one.killed) for one in drawn)
    click.echo(
        f"{count} configurations of seed {seed} ({refused} others refused), each in five ways, "
        f"{killed} killed in a round; {len(different)} with differences"
    )
    return len(different)


@click.command(help=__doc__)
@click.argument("before", type=click.Path(exists=True, path_type=Path), required=False)
@click.argument("after", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--keep", type=click.Path(path_type=Path), help="A folder for the runs, kept there.")
@click.option("--only", multiple=True, help="One of the sweeps, or 'resumed'; repeatable.")
@click.option("--random", "count", type=click.IntRange(1), help="So many random configurations.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the random ones.")
def main(
    before: Path | None,
    after: Path | None,
    keep: Path | None,
    only: tuple[str, ...],
    count: int | None,
    seed: int,
) -> None:
    """Compares two checkouts, or the ways to do random configurations."""
    if (count is None) == (before is None or after is None):
        raise click.UsageError("give either BEFORE and AFTER, or --random N")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if count is not None:
            sys.exit(bool(random_runs(count, seed, folder)))
        if before is None or after is None:
            return
        if not (folder / "shakespeare").exists():
            write_shakespeare(folder)
        before, after = before.resolve(), after.resolve()
        make(before, before, folder / "before", only)
        make(after, before, folder / "after", only)
        compared = len(results(folder / "before"))
        problems = list(differences(folder / "before", folder / "after"))
    click.echo("\n".join([*problems, f"{compared} files compared, {len(problems)} differences"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
