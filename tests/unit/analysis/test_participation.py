"""How often clients took part: counts, their table and the panels that runs have data for."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.figures import updates
from analysis.figures.grid import Absent, Drawing
from analysis.runs import Group
from analysis.tables import participation

CLIENTS = "round,client_id,status,staleness\n1,0,ok,0\n1,2,ok,1\n2,0,ok,3\n2,3,dropped,\n3,0,ok,2\n"
ROUNDS = "round,epsilon,attack_success_rate\n1,0.5,0.1\n2,0.7,0.3\n3,0.9,0.2\n"


def group(folder: Path, label: str = "fedavg", clients: str = CLIENTS, **settings: object) -> Group:
    run = folder / label
    run.mkdir()
    (run / "clients.csv").write_text(clients)
    (run / "rounds.csv").write_text(ROUNDS)
    row = {"seed": 0, "path": str(run), "num_clients": 5, "algorithm": "fedavg", **settings}
    return Group(label, pd.DataFrame([row]))


def test_the_table_by_hand(tmp_path: Path) -> None:
    """Four of five clients may train: 0 0 1 3 rounds; Gini (3 * 3 + 1 * 1) / (4 * 4) = 10 / 16."""
    one = group(tmp_path, **{"data.heldout_clients": 1.0})
    assert participation.rounds_by_client([one])["fedavg"]["rounds"].tolist() == [0, 0, 1, 3]
    made = participation.table([one])
    (row,) = made.rows
    assert row[1:] == ["0.00", "1.00", "3.00", "50.00", "0.62"]


def test_panels_are_those_that_runs_have_data_for(tmp_path: Path) -> None:
    full = group(tmp_path, **{"train.selection": "oort"})
    drawn = updates.participation({"": [full]})
    assert isinstance(drawn, Drawing)
    labels = [axes.get_ylabel().partition(" ")[0] for axes in drawn.figure.axes]
    assert labels == ["Staleness", "Attack", "Privacy", "Rounds"]
    staleness = drawn.figure.axes[0].get_lines()[0].get_ydata()
    assert [*staleness] == [0.5, 3, 2]


def test_uniform_runs_have_no_panels(tmp_path: Path) -> None:
    plain = group(tmp_path, clients=CLIENTS.replace("staleness", "other"))
    (tmp_path / "fedavg" / "rounds.csv").write_text("round,test_loss\n1,0.5\n")
    assert isinstance(updates.participation({"": [plain]}), Absent)


def test_runs_without_clients_are_an_error(tmp_path: Path) -> None:
    plain = group(tmp_path, clients="round,client_id,status\n")
    with pytest.raises(participation.AnalysisError, match=r"in no run clients\.csv has rows"):
        participation.table([plain])
