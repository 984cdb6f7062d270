"""The server step of robust rules, relative to that of fedld on the same updates.

``python -m benchmarks.robust`` has all rules take turns in every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from benchmarks import serverstep
from benchmarks.pairing import Spread

SPAN = (
    "krum", "multikrum", "geometric_median", "centered_clipping", "mda",
    "nnm,krum", "nnm,geometric_median", "bucketing,krum", "norm_clipping", "fltrust",
)  # fmt: skip
"""Rules in the span of the updates (fltrust: beside the server's own one)."""
COORDINATES = ("coordinate_median", "trimmed_mean", "bulyan")


def measure(rules: Sequence[str], m: int, d: int, blocks: int) -> dict[str, Spread]:
    """Seconds of each rule over those of fedld, block by block, after one that warms up."""
    rows = serverstep.updates(m, d)
    ratios: dict[str, list[float]] = {rule: [] for rule in rules}
    for block in range(1 + blocks):
        own = serverstep.best(partial(serverstep.step, "fedld", rows), 2)
        for rule in rules:
            spent = serverstep.best(partial(serverstep.step, rule, rows), 2)
            if block:
                ratios[rule].append(spent / own)
    return {rule: Spread.of(ratio) for rule, ratio in ratios.items()}


@click.command()
@click.option("-m", "m", default=50, show_default=True, help="Updates.")
@click.option("-d", "d", default=2_400_000, show_default=True, help="Parameters.")
@click.option("--blocks", default=8, show_default=True, help="Turns of every rule.")
@click.option("--coordinates", is_flag=True, help="Coordinate-wise rules, too; they take seconds.")
def main(m: int, d: int, blocks: int, coordinates: bool) -> None:
    """Seconds of a robust rule's server step / those of fedld's, median (quartiles)."""
    rules = (*SPAN, *(COORDINATES if coordinates else ()))
    for rule, ratio in measure(rules, m, d, blocks).items():
        click.echo(f"{rule:24} {ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})")


if __name__ == "__main__":
    main()
