"""Ray started ahead of a run: what goes wrong is said, and nothing is left behind."""

from __future__ import annotations

import pytest

from fedsim.cli.common import session_ahead
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.engine.ray import ahead
from fedsim.engine.ray.placement import Share
from fedsim.engine.ray.pool import Session


def started(monkeypatch, engine, **given):
    """A session of which nothing but the connection and the actors are counted, and the counts."""
    found = {"connected": 0, "actors": [], "ended": []}

    def connect(_):
        found["connected"] += 1
        return lambda: found.update(connected=found["connected"] - 1)

    def acquire(self):
        if self._idle or self._ahead:
            return (self._idle or self._ahead).pop()
        found["actors"].append(self.share)
        return len(found["actors"])

    monkeypatch.setattr(ahead, "connect", connect)
    monkeypatch.setattr("fedsim.engine.ray.pool.own_processes", dict)
    monkeypatch.setattr(Session, "acquire", acquire)
    monkeypatch.setattr(Session, "end", lambda self, actors: found["ended"].extend(actors))
    return ahead.SessionAhead(RunConfig(engine=engine, **given)), found


def test_what_does_not_fit_starts_nothing_and_is_raised(monkeypatch, caplog) -> None:
    session, found = started(monkeypatch, {"cpus_per_client": 1000})
    with pytest.raises(ConfigError, match="1000"):
        session.result()
    session.close()
    assert found["connected"] == 0
    assert not caplog.records


def test_an_actor_for_each_client_of_a_round_and_no_more(monkeypatch) -> None:
    session, found = started(
        monkeypatch, {"cpus_per_client": 0.1}, data={"num_clients": 20}, train={"sample_rate": 0.15}
    )
    made = session.result()
    assert found["actors"] == [Share(0.1, 0.0)] * 3
    made.prepare(Share(0.1, 0.0), 2)
    assert found["ended"] == [3], "the data or the memory allow fewer"
    assert [made.acquire(), made.acquire(), made.acquire()] == [2, 1, 4]
    session.close()
    assert found["connected"] == 0


def test_no_ray_for_another_engine_or_without_the_data(tmp_path) -> None:
    assert session_ahead(None, RunConfig(engine={"kind": "serial"})) is None
    absent = {"name": "mnist", "dir": str(tmp_path / "absent")}
    assert session_ahead(None, RunConfig(data=absent)) is None
