"""The agent's stand-in: a container that reports the machine's ailments with the agent's token.

Owns one running agent: its refreshes and its writes. Stands in until the real agent exists, under
the same ServiceAccount and so under the same admission policy. What it says is composed in
`workers.lab.faults.ailment`; whether it speaks is the node's `AgentManners`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from workers.lab.faults.ailment import Ailment, Report, compose_patch
from workers.lab.faults.fault import AgentManners
from workers.lab.kubelet.api import ApiClient, ApiError, JsonObject
from workers.lab.kubelet.container import Exit, now

AGENT_IMAGE: Final = "fleetmend-agent:stand-in"
REFRESH_JITTER: Final = 0.1
"""Share of the refresh interval by which each refresh is moved."""
RETRY_S: Final = 0.5

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Published:
    """One answered PATCH of nodes/status; times in epoch seconds."""

    sent_at: float
    patched_at: float
    resource_version: str


@dataclass(frozen=True)
class AgentSight:
    """What an agent sees of its machine, live."""

    node: str
    boot_id: str
    ailments: Mapping[str, Ailment]
    manners: AgentManners
    refresh_s: float


class NodeReporter:
    """Writes reports of one node, in order; used by the agent and by light nodes."""

    def __init__(self, client: ApiClient, sight: AgentSight) -> None:
        self._client = client
        self._sight = sight
        self._path = f"/api/v1/nodes/{sight.node}"
        self._standing: dict[str, Mapping[str, Any]] | None = None
        self._turn = asyncio.Lock()

    async def write(self) -> Published:
        """One report of what is so now.

        Raises:
            ApiError: refused or unreachable; the Node is as it was, or as written.
        """
        async with self._turn:
            if self._standing is None:
                self._standing = _conditions(await self._client.get(self._path))
            patch = self.compose()
            sent_at = time.time()
            try:
                node = await self._client.patch(self._path + "/status", patch)
            except ApiError:
                # Whether it was written is not known: look again before the next report.
                self._standing = None
                raise
            patched_at = time.time()
            self._standing = _conditions(node)
            return Published(sent_at, patched_at, node["metadata"]["resourceVersion"])

    def compose(self) -> JsonObject:
        """The report of what is so now, as a patch of nodes/status."""
        manners = self._sight.manners
        ailments = () if manners.is_forgetful else tuple(self._sight.ailments.values())
        return compose_patch(Report(self._sight.boot_id, now(), ailments), self._standing or {})


class AgentContainer:
    """The container: reports at its start, then refreshes until it is ended."""

    def __init__(self, client: ApiClient, sight: AgentSight) -> None:
        self.started_at = now()
        self.done: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.reporter = NodeReporter(client, sight)
        self._sight = sight
        self._task = asyncio.create_task(self._report_on())

    def stop(self, grace_s: float) -> None:  # noqa: ARG002 - it needs none of its grace
        self._end(0)

    def kill(self) -> None:
        self._end(137)

    def termination_message(self) -> str:
        return ""

    async def _report_on(self) -> None:
        while True:
            wait_s = self._sight.refresh_s * random.uniform(1 - REFRESH_JITTER, 1 + REFRESH_JITTER)
            if not self._sight.manners.is_silent:
                try:
                    await self.reporter.write()
                except ApiError as error:
                    _log.warning("agent report failed", node=self._sight.node, error=str(error))
                    wait_s = RETRY_S
            await asyncio.sleep(wait_s)

    def _end(self, code: int) -> None:
        self._task.cancel()
        if not self.done.done():
            reason = "Completed" if code == 0 else "Error"
            self.done.set_result(Exit(code, reason, "", self.started_at, now()))


def _conditions(node: JsonObject) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in node.get("status", {}).get("conditions") or []}
