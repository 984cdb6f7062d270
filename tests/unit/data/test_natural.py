"""The natural partition: users as clients, some without test samples, some with too few."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset
from fedsim.data import holdout, partitions
from fedsim.data.holdout import of_sites
from fedsim.training.loading import load
from tests.unit.data.leaf_files import write

ALL = {"sample_rate": 1.0}
USERS = Dataset(
    name="toy",
    x=np.zeros((9, 2), np.float32),
    y=np.array([0, 1, 0, 1, 0, 1, 0, 1, 0]),
    class_names=("a", "b"),
    train=np.arange(5),
    val=np.arange(5, 6),
    test=np.arange(6, 9),
    pipeline=None,
    site=np.array([0, 2, 2, 0, 1, 2, 0, 2, 1]),
    site_names=("ann", "bob", "cid"),
    sites_are_users=True,
)


def test_users_own_what_is_theirs_and_may_lack_a_part():
    made = partitions.make(USERS, "natural", min_samples=1)
    assert made.names == ("ann", "bob", "cid")
    assert [own.tolist() for own in made.train] == [[0, 3], [4], [1, 2]]
    assert [own.tolist() for own in made.val] == [[], [], [5]]
    assert [own.tolist() for own in made.test] == [[6], [8], [7]]
    # by_site asks for all or nothing
    assert partitions.make(USERS, "by_site", min_samples=1).val == ()


def test_a_part_that_nobody_owns_is_common():
    other = replace(USERS, site=np.array([0, 2, 2, 0, 1, 2, 3, 3, 3]), site_names=tuple("abcd"))
    assert partitions.make(other, "natural", min_samples=1).test == ()


def test_of_sites_keeps_the_order_of_a_part():
    own = of_sites(
        np.array([4, 0, 3, 1]), np.array([7, 5, 7, 5, 7]), np.array([5, 6, 7]), some=True
    )
    assert [part.tolist() for part in own] == [[3, 1], [], [4, 0]]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"sites_are_users": False}, "natural", "no users; its sites are partition 'by_site'"),
        ({"sites_are_users": False, "site": None}, "natural", "toy has no users$"),
        ({"sites_are_users": False, "site": None}, "by_site", "toy has no sites$"),
        (
            {"sites_are_users": False, "site": None, "clients": {"a": np.arange(2)}},
            "natural",
            "no users; its client lists are partition 'files'",
        ),
    ],
)
def test_data_without_users_are_refused(change, kind, message):
    with pytest.raises(ConfigError, match=message):
        partitions.make(replace(USERS, **change), kind)


def test_users_with_too_few_samples_leave_all_parts():
    kept = holdout.without_small_users(USERS, 2)
    assert kept.train.tolist() == [0, 1, 2, 3]
    assert kept.val.tolist() == [5]
    assert kept.test.tolist() == [6, 7]
    assert (holdout.num_left_out(kept), holdout.num_left_out(USERS)) == (1, 0)
    assert partitions.make(kept, "natural").names == ("ann", "cid")
    with pytest.raises(DataError, match=r"no user has data.min_samples 3 .* the most is 2"):
        holdout.without_small_users(USERS, 3)


def test_a_test_part_of_users_without_training_samples_stays_whole():
    common = replace(USERS, site=np.array([0, 2, 2, 0, 1, 2, 3, 3, 3]), site_names=tuple("abcd"))
    kept = holdout.without_small_users(common, 2)
    assert kept.test.tolist() == [6, 7, 8]
    # but of mixed users those without training samples leave
    mixed = replace(USERS, site=np.array([0, 2, 2, 0, 1, 2, 3, 0, 3]), site_names=tuple("abcd"))
    assert holdout.without_small_users(mixed, 1).test.tolist() == [7]


def files(folder: Path) -> str:
    """Users a to d with 1, 5, 6 and 8 training samples; d has no test samples."""
    sizes = {"a": 1, "b": 5, "c": 6, "d": 8}
    train = {
        u: ([[float(i), 1.0] for i in range(n)], [i % 2 for i in range(n)])
        for u, n in sizes.items()
    }
    write(folder / "train", "x.json", train)
    write(folder / "test", "x.json", {u: ([[9.0, 9.0]] * 2, [0, 1]) for u in "abc"})
    return str(folder)


def test_a_configuration_leaves_small_users_out(tmp_path: Path):
    given = {"name": "synthetic", "dir": files(tmp_path)}
    dataset, partition, kind = load(RunConfig(data=given))
    assert (kind, partition.names) == ("natural", ("b", "c", "d"))
    assert [len(own) for own in partition.test] == [2, 2, 0]
    # everything in the test part is owned, so that it is what the clients own
    assert np.array_equal(np.sort(np.concatenate(partition.test)), dataset.test)
    _, partition, _ = load(RunConfig(data=given | {"min_samples": 6}))
    assert partition.names == ("c", "d")
    # a held-out sample counts as well: 5 - 1 leaves 4
    _, partition, _ = load(RunConfig(data=given | {"min_samples": 5, "client_val_fraction": 0.1}))
    assert partition.names == ("c", "d")
    assert [len(own) for own in partition.val] == [1, 1]
    # what config.yaml says of a finished run gives the same again
    again = given | {"partition": "natural", "num_clients": 3}
    assert load(RunConfig(train=ALL, data=again))[1].names == ("b", "c", "d")


def test_the_command_says_how_many_users_are_left_out(tmp_path: Path):
    done = CliRunner().invoke(main, ["partition", "-d", "synthetic", "--data-dir", files(tmp_path)])
    assert done.exit_code == 0, done.output
    title, left, *_ = done.stdout.splitlines()
    assert title == "synthetic, natural: 19 training samples of 2 classes on 3 clients"
    assert left == "left out: 1 users with fewer than data.min_samples training samples"
    done = CliRunner().invoke(main, ["partition", "-d", "synthetic", "--clients", "3"])
    assert "left out" not in done.stdout
