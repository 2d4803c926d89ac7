"""What the worker answers to its probes.

Owns the two answers: healthy = the process's event loop turned lately (a workflow or an activity
that blocks it would stop everything); ready = it has all it waits for and polls Temporal. An outage
after that makes it neither: a restart would mend nothing. Served by `workers.health`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import structlog

from workers.health import HealthServer, Probes
from workers.listening import Listen

BEAT_S: Final = 1.0
STUCK_AFTER_S: Final = 60.0
"""Chosen far above the longest pause seen on a machine with ten times its load."""

_log = structlog.get_logger(__name__)


class WorkerHealth:
    """Written by the process, read by the probes' threads."""

    def __init__(self) -> None:
        self._turned_at = monotonic()
        self.unready = "it waits for the cluster, its policy and Temporal"
        """Why it is not ready; "" = it is."""

    async def beat(self) -> None:
        """Says that the loop turns, until it is cancelled."""
        while True:
            self._turned_at = monotonic()
            await asyncio.sleep(BEAT_S)

    def unhealthy(self) -> str:
        """Why the process is to be restarted; "" = it is not."""
        silence_s = monotonic() - self._turned_at
        return f"its loop stands since {silence_s:.0f} s" if silence_s > STUCK_AFTER_S else ""


@contextmanager
def served(health: WorkerHealth, listen: Listen | None) -> Iterator[None]:
    """The probes at this address, or nowhere.

    An address that can't be had is told and no reason to end, as running episodes matter more.
    """
    if listen is None:
        yield
        return
    probes = Probes(health.unhealthy, lambda: health.unready)
    try:
        server = HealthServer(listen, probes)
    except OSError as error:
        _log.warning(
            "health_not_served", address=f"{listen.host}:{listen.port}", problem=str(error)
        )
        yield
        return
    server.start()
    _log.info("health_served", port=server.port)
    try:
        yield
    finally:
        server.stop()
