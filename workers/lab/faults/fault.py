"""What a fault is, and what a fault may do to a node.

Owns the base class of all faults with its typed options, and the protocol that a simulated node
offers to them. Doesn't import the nodes: they implement the protocol. Each fault is one small class
in a module beside this one; `registry` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from workers.lab.devices.devices import Devices
from workers.lab.faults.ailment import Ailment


class NeedsFullNode(Exception):
    """The fault needs what only a full node has."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is light and has no {what}: add a full node (without --light) for this"
        )


class NotKarpenters(Exception):
    """The fault makes a Node object anew, which for this node only Karpenter does."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"node {node} was made by Karpenter: delete its NodeClaim for another machine, or use "
            "a node of the lab's own"
        )


class NoSuchGpu(Exception):
    """An option names a GPU the node doesn't have."""

    def __init__(self, node: str, index: int, count: int) -> None:
        has = f"0 to {count - 1}" if count else "none"
        super().__init__(f"gpu={index}: node {node} has GPUs {has}; choose one of those")


@dataclass
class BootPlan:
    """How the node will behave when a reboot is asked for; faults write it, the node reads it."""

    boot_time_s: float | None = None
    """None: as the node's specification says."""
    hangs: bool = False
    lies: bool = False
    flaps_ready: bool = False
    """With `lies`: Ready goes to False and back though nothing booted."""
    missing_gpus: set[int] = field(default_factory=set)
    """GPUs that a boot doesn't find."""


@dataclass
class AgentManners:
    """How the node's agent behaves; faults write it, the agent reads it."""

    is_silent: bool = False
    is_forgetful: bool = False
    """Reports health whatever ails the machine."""


class FaultyNode(Protocol):
    """What a simulated node lets a fault do."""

    @property
    def name(self) -> str: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def devices(self) -> Devices:
        """The simulated hardware; raises NeedsFullNode on a light node."""

    @property
    def has_real_agent(self) -> bool:
        """Whether the agent detects by itself, from the devices, what is wrong."""

    @property
    def plan(self) -> BootPlan: ...

    @property
    def agent(self) -> AgentManners: ...

    @property
    def ailments(self) -> dict[str, Ailment]:
        """What is wrong with the machine, by a key of the fault's own; change it, then publish."""

    def gpu_uuid(self, index: int) -> str:
        """UUID of a GPU; raises NoSuchGpu."""

    async def publish(self) -> None:
        """Let the agent report what is so now. Returns when the API server has answered."""

    async def stop_kubelet(self) -> None:
        """Heartbeats and pod work end; what runs goes on."""

    async def restart_kubelet(self) -> None:
        """The kubelet is back, if the machine is on."""

    async def power_on(self) -> None:
        """Boot a machine that hangs; nothing if it doesn't."""

    async def replace_machine(self, *, keeps_hardware: bool) -> None:
        """Delete the Node and let a machine of its name register afresh."""


class Fault(BaseModel):
    """Base of all faults; the fields are its options, as `key=value` on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: ClassVar[str] = ""
    is_event: ClassVar[bool] = False
    """Over as soon as it happened: there is nothing to clear."""
    needs_full: ClassVar[bool] = False

    for_s: float | None = Field(
        default=None,
        alias="for",
        gt=0,
        description="seconds until it clears itself; never if unset",
    )

    @property
    def key(self) -> str:
        """What tells two active faults of one node apart."""
        return self.name

    async def inject(self, node: FaultyNode) -> None:
        """Make it so."""
        raise NotImplementedError(type(self).__name__)

    async def clear(self, node: FaultyNode) -> None:
        """Undo it, as far as the world allows."""

    def survives_boot(self, node: FaultyNode) -> bool:  # noqa: ARG002 - for those that look
        """Called when the machine boots, before anything on it runs: is the fault still there?

        It may change the node's ailments and boot plan. The agent reports the rest by itself.
        """
        return True

    def booted(self, node: FaultyNode) -> None:
        """Called after a boot which the fault survived, when the devices are up again."""
