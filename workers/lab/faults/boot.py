"""Faults of the reboot: slow, hanging, pretended, or of another machine.

Owns slow-boot, reboot-hangs, reboot-lies and node-recreated-same-name. The first three write the
node's boot plan, which the node follows when a reboot is asked for.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from workers.lab.faults.fault import Fault, FaultyNode


class SlowBoot(Fault):
    """The next boots take longer."""

    name: ClassVar[str] = "slow-boot"
    needs_full: ClassVar[bool] = True

    seconds: float = Field(default=30.0, ge=0, le=86_400, description="how long a boot takes")

    async def inject(self, node: FaultyNode) -> None:
        node.plan.boot_time_s = self.seconds

    async def clear(self, node: FaultyNode) -> None:
        node.plan.boot_time_s = None


class RebootHangs(Fault):
    """A reboot takes the machine down and it never comes back, until this is cleared."""

    name: ClassVar[str] = "reboot-hangs"
    needs_full: ClassVar[bool] = True

    async def inject(self, node: FaultyNode) -> None:
        node.plan.hangs = True

    async def clear(self, node: FaultyNode) -> None:
        node.plan.hangs = False
        await node.power_on()


class RebootLies(Fault):
    """systemctl says yes and nothing happens: the boot id stays. flap=true lets Ready flap."""

    name: ClassVar[str] = "reboot-lies"
    needs_full: ClassVar[bool] = True

    flap: bool = Field(default=False, description="Ready goes to False and back at each request")

    async def inject(self, node: FaultyNode) -> None:
        node.plan.lies = True
        node.plan.flaps_ready = self.flap

    async def clear(self, node: FaultyNode) -> None:
        node.plan.lies = False
        node.plan.flaps_ready = False


class NodeRecreatedSameName(Fault):
    """The Node is deleted and registered again: new UID, boot id and, by default, new iron."""

    name: ClassVar[str] = "node-recreated-same-name"
    is_event: ClassVar[bool] = True

    same_machine: bool = Field(
        default=False, alias="same-machine", description="keep providerID, machine id and GPUs"
    )

    async def inject(self, node: FaultyNode) -> None:
        await node.replace_machine(keeps_hardware=self.same_machine)
