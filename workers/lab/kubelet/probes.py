"""Startup, readiness and liveness probes of a pod's processes, as a kubelet asks them.

Owns the reading of the probes, their rhythm, and what they say of a container (`Health`). One task
a run of a container: it ends with the run. What follows from an unready container is `pod_status`'s;
a container whose liveness fails is only asked to stop here, and restarted as any that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
import structlog

from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.container import BadContainer, Container, ContainerSlot, Health, now

STARTUP, READINESS, LIVENESS = "startupProbe", "readinessProbe", "livenessProbe"
KINDS: Final = (STARTUP, READINESS, LIVENESS)
GOOD_BELOW: Final = 400
"""Any status from 200 on below it is a success, as the Kubernetes documentation says."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Probe:
    """One probe with its defaults filled in, as the API server fills them. Times in seconds."""

    url: str
    headers: Mapping[str, str]
    initial_delay_s: float
    period_s: float
    timeout_s: float
    successes: int
    failures: int
    grace_s: float | None
    """None = the pod's."""


def read_probes(container: JsonObject, ip: str) -> Mapping[str, Probe]:
    """The container's probes by kind.

    Raises:
        BadContainer: a probe of another way than plain HTTP, or a port that nothing names.
    """
    return {
        kind: _read_probe(container, kind, container[kind], ip)
        for kind in KINDS
        if container.get(kind)
    }


def _read_probe(container: JsonObject, kind: str, body: JsonObject, ip: str) -> Probe:
    way = body.get("httpGet")
    name = f"container {container['name']}: {kind}"
    if way is None or way.get("scheme", "HTTP") != "HTTP":
        raise BadContainer(f"{name}: only httpGet by plain HTTP is known to the lab")
    port = way["port"]
    if isinstance(port, str):
        named = {p.get("name"): p["containerPort"] for p in container.get("ports") or []}
        if port not in named:
            raise BadContainer(f"{name}: the container has no port named {port!r}")
        port = named[port]
    return Probe(
        url=f"http://{way.get('host') or ip}:{port}/{way.get('path', '/').lstrip('/')}",
        headers={h["name"]: h["value"] for h in way.get("httpHeaders") or []},
        initial_delay_s=body.get("initialDelaySeconds") or 0,
        period_s=body.get("periodSeconds") or 10,
        timeout_s=body.get("timeoutSeconds") or 1,
        successes=body.get("successThreshold") or 1,
        failures=body.get("failureThreshold") or 3,
        grace_s=body.get("terminationGracePeriodSeconds"),
    )


@dataclass(frozen=True)
class Prober:
    """The probes of one run of a container."""

    slot: ContainerSlot
    run_of: Container
    probes: Mapping[str, Probe]
    grace_s: float
    tell: Callable[[], None]
    """Called whenever the container's health is another one."""

    def begin(self) -> None:
        """What is so before the first answer. Not for a run that an earlier kubelet has probed."""
        self.slot.health = Health(
            is_started=STARTUP not in self.probes, is_ready=READINESS not in self.probes
        )

    async def run(self) -> None:
        """Ask until the container's run ends."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            asking = asyncio.ensure_future(self._ask_all(session))
            try:
                await asyncio.wait((asking, self.run_of.done), return_when=asyncio.FIRST_COMPLETED)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def _ask_all(self, session: aiohttp.ClientSession) -> None:
        if not self.slot.health.is_started and not await self._starts(session):
            return
        await asyncio.gather(self._keep_readiness(session), self._keep_liveness(session))

    async def _starts(self, session: aiohttp.ClientSession) -> bool:
        """Whether the startup probe has succeeded; if it gives up, the container is stopped."""
        probe = self.probes[STARTUP]
        failures = 0
        await asyncio.sleep(probe.initial_delay_s)
        while True:
            problem = await _ask(session, probe)
            if not problem:
                self.slot.health.is_started = True
                self._tell()
                return True
            failures += 1
            if failures >= probe.failures:
                self._give_up(STARTUP, probe, problem)
                return False
            await asyncio.sleep(probe.period_s)

    async def _keep_readiness(self, session: aiohttp.ClientSession) -> None:
        probe = self.probes.get(READINESS)
        if probe is None:
            return
        successes = failures = 0
        await asyncio.sleep(probe.initial_delay_s)
        while True:
            problem = await _ask(session, probe)
            successes, failures = (0, failures + 1) if problem else (successes + 1, 0)
            health = self.slot.health
            is_ready = health.is_ready
            if successes >= probe.successes:
                is_ready = True
            elif failures >= probe.failures:
                is_ready = False
            if is_ready != health.is_ready:
                health.is_ready = is_ready
                _log.info("readiness", container=self.slot.name, ready=is_ready, problem=problem)
                self._tell()
            await asyncio.sleep(probe.period_s)

    async def _keep_liveness(self, session: aiohttp.ClientSession) -> None:
        probe = self.probes.get(LIVENESS)
        if probe is None:
            return
        failures = 0
        await asyncio.sleep(probe.initial_delay_s)
        while failures < probe.failures:
            problem = await _ask(session, probe)
            failures = failures + 1 if problem else 0
            if failures >= probe.failures:
                self._give_up(LIVENESS, probe, problem)
            await asyncio.sleep(probe.period_s)

    def _tell(self) -> None:
        self.slot.health.changed_at = now()
        self.tell()

    def _give_up(self, kind: str, probe: Probe, problem: str) -> None:
        _log.warning("container is restarted", container=self.slot.name, by=kind, problem=problem)
        self.run_of.stop(self.grace_s if probe.grace_s is None else probe.grace_s)


async def _ask(session: aiohttp.ClientSession, probe: Probe) -> str:
    """What is wrong; '' = the probe succeeds."""
    timeout = aiohttp.ClientTimeout(total=probe.timeout_s)
    try:
        async with session.get(
            probe.url, headers=dict(probe.headers), timeout=timeout, allow_redirects=False
        ) as answer:
            return "" if 200 <= answer.status < GOOD_BELOW else f"status {answer.status}"
    except TimeoutError:
        return f"no answer within {probe.timeout_s:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return repr(error)[:200]
