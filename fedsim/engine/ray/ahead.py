"""Ray and its client actors, started while the driver imports torch and reads data."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.engine.ray.cluster import connect, machines, plan_for

if TYPE_CHECKING:
    from fedsim.engine.ray.pool import Session


class SessionAhead:
    """A session that a thread starts, with as many actors as the first round is likely to need.

    Errors of the start are raised by :meth:`result`. The actors import torch first.

    Args:
        config: of the run; settings that depend on the data may still be open.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._session: Future[Session] = Future()
        self._closed = threading.Event()
        threading.Thread(target=self._start, name="ray-session", daemon=True).start()

    def result(self) -> Session:
        """Waits for the session.

        Raises:
            ConfigError: as of :class:`~fedsim.engine.ray.pool.Session`, or nothing fits.
        """
        return self._session.result()

    def close(self) -> None:
        """Ends Ray and its actors, after waiting for a start in progress.

        A failed start is ignored here; :meth:`result` raises it.
        """
        error = self._session.exception()
        try:
            if error is None:
                self._session.result().close()
        finally:
            self._closed.set()

    def _start(self) -> None:
        try:
            self._session.set_result(self._started())
        except BaseException as error:  # noqa: BLE001 - the thread that asks gets it
            self._session.set_exception(error)
        self._closed.wait()  # Ray's processes are killed when the thread that started them ends

    def _started(self) -> Session:
        engine, clients = self._config.engine, self._config.data.num_clients
        if engine.address is None:  # refused before anything starts
            plan_for(engine, machines(), clients)
        disconnect = connect(engine)
        try:
            from fedsim.engine.ray.pool import Session  # imports torch

            session = Session(engine, disconnect=disconnect)
            plan = plan_for(engine, machines(), clients)
            cohort = cohort_size(clients, self._config.train.sample_rate)
            session.start_ahead(plan.share, min(plan.actors, cohort))
        except BaseException:
            disconnect()
            raise
        return session
