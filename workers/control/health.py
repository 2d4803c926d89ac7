"""What the worker answers to its probes.

Owns the two answers: healthy = the process's event loop turned lately (a workflow or an activity
that blocks it would stop everything); ready = it has all it waits for and polls Temporal. An outage
after that makes it neither: a restart would mend nothing. Served by `workers.health`.
"""

import asyncio
from time import monotonic
from typing import Final

from workers.health import Probes

BEAT_S: Final = 1.0
STUCK_AFTER_S: Final = 60.0
"""Chosen far above the longest pause seen on a machine with ten times its load."""


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

    @property
    def probes(self) -> Probes:
        """Both, for `workers.health`; there are no metrics."""
        return Probes(self.unhealthy, lambda: self.unready)
