"""A task of the user's with a fault is refused by name, before anything is written."""

from dataclasses import replace

import numpy as np
import pytest

from fedsim import data
from fedsim.core.errors import ConfigError
from fedsim.data.own_task import check_own
from fedsim.tasks import Measure, find


def measured(name="mine", of=lambda f, y: np.array([1.0, 2.0]), **given):
    return {"measures": (Measure(name=name, of=of, **given),), "primary": name}


FAULTS = {
    "stratum": ({"stratum": lambda y: np.zeros(2, np.int64)}, r"stratum is \(2,\), needed is"),
    "predict": ({"predict": lambda outputs: outputs}, "predict returned ndarray, no columns"),
    "collapsed": ({"collapsed": lambda values: values["r3"] < 0}, "r3"),
    "loss of a batch": ({"loss": lambda f, y: (f[:, 0] - y).mean()}, r"shape \(\), needed"),
    "loss that raises": ({"loss": lambda f, y: f.nothing}, "AttributeError"),
    "no sums": (measured(of=lambda f, y: None), "of returned NoneType"),
    "sums too few": (measured(of=lambda f, y: np.array([1.0])), "value of 1 sums"),
    "value": (measured(value=lambda sums: "x"), "value is str"),
    "name of a column": (measured("accuracy"), "'accuracy'"),
    "comma": (measured("a,b"), "'a,b'"),
    "primary": ({"primary": "none"}, "primary is 'none'"),
}


@pytest.mark.parametrize(("changes", "words"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named(changes, words):
    task = replace(find("regression"), **changes)
    with pytest.raises(ConfigError, match=words):
        check_own(task, data.load("diabetes"))
