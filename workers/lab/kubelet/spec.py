"""What one simulated node is asked to be, and what the fleet says about it.

Owns the values that cross the fleet's socket: the specification of a node, its view, the receipt of
an injected fault. Does not own any behaviour. Read by every other module of this package, by its
client and by the tests.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

GPU_RESOURCE: Final = "nvidia.com/gpu"
POOL_LABEL: Final = "fleetmend.io/pool"
KIND_LABEL: Final = "lab.fleetmend.io/kind"
AGENT_LABEL: Final = "lab.fleetmend.io/agent"
"""Chooses which of the two agent DaemonSets puts its pod on a full node."""

ROLE_LABEL: Final = "lab.fleetmend.io/role"
SYSTEM_ROLE: Final = "system"
"""Of a node without GPUs, for pods that are no work: fleetmend's own."""

MACHINE_LABEL: Final = "lab.fleetmend.io/machine"
"""On Karpenter's nodes: which machine stands behind a new one, see `Machine`."""

MACHINE_RESOURCES: Final = {
    "cpu": "192",
    "memory": "2Ti",
    "ephemeral-storage": "3Ti",
    "pods": "110",
}
"""What every simulated machine has beside its GPUs; about a DGX H100."""

KARPENTER_PROVIDER: Final = "kwok://"
"""How the provider ids of nodes begin that Karpenter made; nobody registers those but it."""

MAX_GPUS: Final = 16
"""As many as the largest single machine of today (HGX-2) has; the lab knows so many bus ids."""

DEFAULT_MODEL: Final = "NVIDIA H100 80GB HBM3"
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME: Final = 63
"""A node's name is the value of a label, too."""
LONGEST_ADOPTED_NAME: Final = 253
"""Karpenter's kwok provider puts other things into that label and is generous with its names."""


class NodeKind(StrEnum):
    """Full: pods are processes, there is an agent and a host root. Light: an object that beats."""

    FULL = "full"
    LIGHT = "light"


class Machine(StrEnum):
    """What stands behind a Node that Karpenter makes: a new machine, or one the pool gave back."""

    NEW = "new"
    AGAIN = "again"


class TaintEffect(StrEnum):
    """The three effects of Kubernetes."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class WireModel(BaseModel):
    """A frozen value that refuses unknown fields: a typing error must not pass in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeTaint(WireModel):
    """A taint the node registers with."""

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE


LabelValue = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$", description="as of a label"
    ),
]
Seconds = Annotated[float, Field(ge=0, le=86_400)]


class NodeSpec(WireModel):
    """One node to simulate. All times are in seconds.

    The periods are shorter than a real kubelet's (lease 10, status 10, grace 40), in proportion to
    the lab's grace period of 8 s: a Lease slower than a third of the grace makes the
    controller-manager take the whole zone for disrupted.
    """

    # Before the name, whose check asks it.
    provider_id: str | None = Field(default=None, description="None: made up for each machine")
    name: str
    pool: LabelValue = Field(default="default", description="'' = it has no label of a pool")
    kind: NodeKind = NodeKind.FULL
    gpus: int = Field(default=8, ge=0, le=MAX_GPUS)
    model: str = DEFAULT_MODEL
    labels: dict[str, LabelValue] = Field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    system_uuid: str | None = Field(
        default=None, description="None: made up; '' or a shared one imitates a bad BIOS"
    )
    boot_time_s: Seconds = Field(default=1.0, description="from power-off until the kubelet starts")
    shutdown_s: Seconds = Field(default=0.1, description="from `systemctl reboot` to the kill")
    not_ready_after_boot_s: Seconds = Field(
        default=0.05, description="Ready stays False so long; 0: Ready never leaves True"
    )
    device_plugin_s: Seconds = Field(
        default=0.2, description="from the kubelet's start until the GPUs are allocatable"
    )
    lease_period_s: float = Field(default=2.0, gt=0, le=3_600)
    status_period_s: float = Field(default=10.0, gt=0, le=3_600)
    agent: Literal["real", "stand-in", "none"] = Field(
        default="stand-in", description="of a full node; the stand-in says what faults tell it"
    )
    agent_refresh_s: float = Field(default=300.0, gt=0, le=86_400)
    machine: Machine = Field(
        default=Machine.NEW, description="of an adopted node; 'again': one its pool gave back"
    )

    @classmethod
    def system(cls, name: str) -> Self:
        """A node for fleetmend's own pods: no GPUs, no agent, no pool, not even by a label."""
        return cls(name=name, pool="", gpus=0, agent="none", labels={ROLE_LABEL: SYSTEM_ROLE})

    @property
    def has_agent(self) -> bool:
        """Whether a DaemonSet puts an agent on it."""
        return self.kind is NodeKind.FULL and self.agent != "none"

    @property
    def is_adopted(self) -> bool:
        """Whether the Node object is Karpenter's: a kubelet takes it over and never makes one."""
        return (self.provider_id or "").startswith(KARPENTER_PROVIDER)

    @field_validator("name")
    @classmethod
    def _name_is_a_dns_label(cls, name: str, info: ValidationInfo) -> str:
        is_adopted = str(info.data.get("provider_id") or "").startswith(KARPENTER_PROVIDER)
        longest = LONGEST_ADOPTED_NAME if is_adopted else LONGEST_NAME
        if len(name) > longest or not _NODE_NAME.fullmatch(name):
            raise ValueError(
                f"{name[:80]!r} is no node name: use 1 to {longest} of a-z, 0-9 and '-', "
                "beginning and ending with a letter or digit"
            )
        return name


class Power(StrEnum):
    """What the simulated machine is doing."""

    ON = "on"
    BOOTING = "booting"
    HUNG = "hung"
    OFF = "off"


class NodeView(WireModel):
    """One node as the fleet sees it from inside the machine (not as the API server tells it)."""

    name: str
    kind: NodeKind
    pool: str
    power: Power
    boot_id: str
    boots: int = Field(description="boots since the node was added, the first one not counted")
    uid: str = Field(description="of the Node object it registered; '' = not registered")
    provider_id: str
    gpus: int = Field(description="GPUs the machine shows now")
    pods: int
    is_kubelet_running: bool
    is_agent_running: bool
    agent: Literal["real", "stand-in", "none"] = "stand-in"
    faults: tuple[str, ...]
    host_root: str = Field(description="'' on a light node")


class Receipt(WireModel):
    """What an injected or cleared fault led to.

    `patched_at` is when the API server's answer to the conditions' PATCH arrived, `sent_at` when
    that PATCH left (epoch seconds, this machine's clock); None where nothing was written, for
    example because the agent is silent or the fault shows itself in another way.
    """

    node: str
    fault: str
    sent_at: float | None = None
    patched_at: float | None = None
    resource_version: str = ""
    written_at: float | None = Field(
        default=None, description="of the last record in the kernel log; None = none was written"
    )
    cleared: tuple[str, ...] = Field(default=(), description="faults that a clear ended")
