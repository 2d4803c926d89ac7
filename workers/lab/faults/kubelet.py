"""Faults of the kubelet and of the agent: the node's two voices.

Owns kubelet-dead, agent-forgets and agent-silent. They touch no hardware.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from workers.lab.faults.fault import Fault, FaultyNode


class KubeletDead(Fault):
    """The kubelet is down: no Lease, no status, no pod work; processes that run go on."""

    name: ClassVar[str] = "kubelet-dead"

    heals_by_boot: bool = Field(
        default=False, alias="heals-by-boot", description="whether a reboot brings it back"
    )

    async def inject(self, node: FaultyNode) -> None:
        await node.stop_kubelet()

    async def clear(self, node: FaultyNode) -> None:
        await node.restart_kubelet()

    def survives_boot(self, node: FaultyNode) -> bool:  # noqa: ARG002 - the signature of Fault
        return not self.heals_by_boot


class AgentForgets(Fault):
    """The agent reports health though the fault is still there; no boot happened."""

    name: ClassVar[str] = "agent-forgets"

    async def inject(self, node: FaultyNode) -> None:
        node.agent.is_forgetful = True
        await node.publish()

    async def clear(self, node: FaultyNode) -> None:
        node.agent.is_forgetful = False
        await node.publish()


class AgentSilent(Fault):
    """The agent writes nothing any more: its conditions grow old."""

    name: ClassVar[str] = "agent-silent"

    async def inject(self, node: FaultyNode) -> None:
        node.agent.is_silent = True

    async def clear(self, node: FaultyNode) -> None:
        node.agent.is_silent = False
        await node.publish()
