"""The agent at work: sources under supervision, their ledger, the reporter, health and signals.

Owns the wiring and the process's life: SIGTERM ends children and agent, SIGUSR1 releases the GPUs.
What each part does is its own module's. One thread, one loop; children are forked from it.
"""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from activities.devices.reading import ConditionType, Reading
from workers.agent.boot import read_boot_id
from workers.agent.children import Kill, Source
from workers.agent.findings import SUPERVISION, Ledger, Moment
from workers.agent.health import HealthServer
from workers.agent.metrics import render
from workers.agent.reporter import Reporter, wall_and_monotonic
from workers.agent.settings import AgentSettings
from workers.agent.supervision import Silence, Supervisor

RELEASE_S: Final = 120.0
"""A GPU reset takes seconds; so long nobody asks NVML after SIGUSR1."""
GPU_HOLDERS: Final = frozenset({"nvml"})
"""Sources whose child is an NVML client: a GPU is not reset while one is there (nvidia-smi(1))."""
END_S: Final = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What a test may put in the machine's place."""

    kill: Kill = os.killpg
    clock: Callable[[], Moment] = wall_and_monotonic


class Agent:
    """One agent; `run` returns after SIGTERM."""

    def __init__(
        self,
        settings: AgentSettings,
        sources: Sequence[Source],
        surroundings: Surroundings | None = None,
    ) -> None:
        """An agent that has begun nothing.

        Raises:
            workers.agent.boot.NoBootId: the host's root is not mounted.
        """
        self._settings = settings
        self._sources = tuple(sources)
        self._around = surroundings or Surroundings()
        self._ledger = self._new_ledger(read_boot_id(settings.host_root))
        self._supervisors: tuple[Supervisor, ...] = ()
        self._reporter: Reporter | None = None

    async def run(self) -> None:
        """Watch and report until SIGTERM or SIGINT.

        Raises:
            OSError: the address for health is taken or not ours.
        """
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        loop.add_signal_handler(signal.SIGUSR1, self._release_gpus)
        self._reporter = Reporter(
            self._settings, lambda: self._ledger, self._begin_boot, self._around.clock
        )
        health = await self._serve_health()
        self._watch_sources()
        reporting = asyncio.create_task(self._reporter.run())
        ending = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait({reporting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reporting.done():
                await reporting
        finally:
            reporting.cancel()
            ending.cancel()
            if health is not None:
                health.stop()
            await self._end_children()
        _log.info("agent_ended", extra={"node": self._settings.node})

    # What the supervisors tell (Listener).

    def answered(self, source: Source, readings: tuple[Reading, ...]) -> None:
        """A source has answered."""
        if hasattr(source, "poll"):
            self._ledger.polled(source.name, readings)
        else:
            self._ledger.news(source.name, readings, self._around.clock())
        self._touch()

    def silent(self, source: Source, why: Silence, text: str) -> None:
        """A source cannot tell."""
        self._ledger.silent(source.name, why, text, self._around.clock())
        self._touch()

    def unkillable(self, source: Source, *, is_so: bool) -> None:
        """A source's child sits in the kernel, or does so no longer."""
        text = f"the child of {source.name} cannot be killed: it sits in the kernel"
        self._ledger.unkillable(source.name, text, self._around.clock(), is_so=is_so)
        self._touch()

    def metrics(self) -> str:
        """Prometheus text."""
        return render(self._ledger, self._supervisors, self._reporter)

    def _new_ledger(self, boot_id: str) -> Ledger:
        answering = [(source.name, source.conditions) for source in self._sources]
        # For the host the agent answers itself: it runs, and knows the boot it runs in.
        ledger = Ledger(boot_id, [(SUPERVISION, frozenset({ConditionType.HOST})), *answering])
        ledger.polled(SUPERVISION, ())
        return ledger

    def _begin_boot(self, boot_id: str) -> None:
        """Nothing of another boot is true in this one: a new ledger and new children."""
        for supervisor in self._supervisors:
            supervisor.stop()
        self._ledger = self._new_ledger(boot_id)
        self._watch_sources()

    def _watch_sources(self) -> None:
        # What is there by now is shared with the children and never collected.
        gc.collect()
        gc.freeze()
        self._supervisors = tuple(
            Supervisor(source, self, self._around.kill) for source in self._sources
        )
        for supervisor in self._supervisors:
            supervisor.start()

    async def _serve_health(self) -> HealthServer | None:
        listen = self._settings.listen
        health = None if listen is None else HealthServer(listen, self.metrics)
        port = 0 if health is None else await health.start()
        names = [source.name for source in self._sources]
        facts = {"node": self._settings.node, "port": port, "pid": os.getpid(), "sources": names}
        _log.info("agent_started", extra=facts)
        return health

    def _release_gpus(self) -> None:
        for supervisor in self._supervisors:
            if supervisor.source.name in GPU_HOLDERS:
                supervisor.release(RELEASE_S)

    def _touch(self) -> None:
        if self._reporter is not None:
            self._reporter.touch()

    async def _end_children(self) -> None:
        for supervisor in self._supervisors:
            supervisor.stop()
        try:
            async with asyncio.timeout(END_S):
                for supervisor in self._supervisors:
                    await supervisor.gone.wait()
        except TimeoutError:
            _log.error("children_left", extra={"node": self._settings.node})
