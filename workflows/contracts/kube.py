"""Contracts on the cluster: reading a node, quarantining it, draining it, giving it back.

Owns requests, results and contracts that `activities/kube` implements. Each write is fenced by
the episode (design section 3) and idempotent: a second run finds what the first left and says the
same.
"""

from dataclasses import dataclass

from workflows.contracts import Contract
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView
from workflows.model.policy import DrainWay, Policy
from workflows.model.remediation.drain import Blocked
from workflows.model.remediation.gate import Baseline
from workflows.model.remediation.marks import Marker
from workflows.model.remediation.overrule import Overrule
from workflows.model.remediation.permit import Effect
from workflows.model.remediation.reboot import BootRecord, RebootProof


@dataclass(frozen=True)
class Owner:
    """The episode that asks, and the Node it means."""

    node: NodeRef
    episode: str


@dataclass(frozen=True)
class MachineMemory:
    """What the machine record says that an episode needs."""

    machine_id: str
    baseline: Baseline | None
    strikes: int
    reboots_in_episode: int
    closed_outcome: str
    """The outcome that this very episode was closed with; "" = it was never closed."""
    overruled: tuple[Overrule, ...] = ()
    """What people undid on this machine, by whatever episode."""


@dataclass(frozen=True)
class Reading:
    """A node and its machine, read just now; `marker_problem` = its marker is unreadable."""

    node: NodeView
    machine: MachineMemory
    marker: Marker | None
    marker_problem: str = ""


@dataclass(frozen=True)
class Opened:
    """The first reading, with the policy snapshot that this episode runs under."""

    reading: Reading
    policy: Policy
    pool: str
    pool_size: int


READ_NODE = Contract(
    "read_node", Effect.READ, Owner, Reading, "read the node and its machine record"
)
OPEN_EPISODE = Contract(
    "open_episode", Effect.READ, Owner, Opened, "read the node, its machine and the policy"
)


@dataclass(frozen=True)
class QuarantineRequest:
    """Quarantine for this marker; a marker with one of `adopt` is taken over as it is.

    `replace` lets the sweep's episode take over the marker of a dead run (by its id).
    `epoch` is the guard's that granted it; "" for operator and sweep.
    """

    owner: Owner
    marker: Marker
    adopt: tuple[str, ...] = ()
    replace: str = ""
    epoch: str = ""


@dataclass(frozen=True)
class Quarantined:
    """What stands on the node now.

    `yielded_to` names another healer (then nothing of ours is left there); `refused` says why
    nothing was written: the grant is of an older guard, or a foreign marker is there.
    """

    marker: Marker | None
    resource_version: str
    yielded_to: str = ""
    refused: str = ""


QUARANTINE = Contract(
    "quarantine", Effect.MARK, QuarantineRequest, Quarantined, "cordon and mark the node"
)


@dataclass(frozen=True)
class SlotRequest:
    """Note (or, with `epoch` "", take off) the disruption slot in the marker."""

    owner: Owner
    epoch: str


@dataclass(frozen=True)
class Marked:
    """What the marker says now; `refused` = why it was not changed ("" = it was)."""

    marker: Marker | None
    resource_version: str
    refused: str = ""


NOTE_SLOT = Contract("note_slot", Effect.MARK, SlotRequest, Marked, "note the slot in the marker")
DROP_SLOT = Contract("drop_slot", Effect.MARK, SlotRequest, Marked, "take the slot off the marker")
ASSERT_VETOES = Contract(
    "assert_vetoes", Effect.MARK, Owner, Marked, "set Karpenter's vetoes again if they are lost"
)


@dataclass(frozen=True)
class DrainRequest:
    """Drain in this way; give up after `deadline_s`."""

    owner: Owner
    way: DrainWay
    deadline_s: float


@dataclass(frozen=True)
class Drained:
    """`done` = no non-exempt pod has a running container. `blocked` says who stands in the way."""

    done: bool
    evicted: int
    remaining: int
    blocked: tuple[Blocked, ...] = ()


DRAIN = Contract("drain", Effect.DISRUPT, DrainRequest, Drained, "evict the node's pods")


@dataclass(frozen=True)
class RebootWatch:
    """Compare the Node with what it said before the reboot."""

    owner: Owner
    before: BootRecord


PROVE_REBOOT = Contract("prove_reboot", Effect.READ, RebootWatch, RebootProof, "compare boot ids")
AWAIT_REBOOT = Contract(
    "await_reboot", Effect.READ, RebootWatch, RebootProof, "wait for the new boot"
)
"""Answers only when the reboot is proven; until then `not-yet`, retried slowly."""


@dataclass(frozen=True)
class GiveBackRequest:
    """Take off everything of ours and restore what was there before."""

    owner: Owner


GIVE_BACK = Contract(
    "give_back", Effect.RESTORE, GiveBackRequest, Marked, "uncordon and take the marks off"
)


@dataclass(frozen=True)
class HandOverRequest:
    """Leave the quarantine in place and write who has the node now and why."""

    owner: Owner
    to: str
    reason: str


HAND_OVER = Contract(
    "hand_over", Effect.RESTORE, HandOverRequest, Marked, "hand the node over to people"
)


@dataclass(frozen=True)
class PermitRequest:
    """Ask until this effect is permitted on the node."""

    owner: Owner
    effect: Effect


@dataclass(frozen=True)
class Permitted:
    """It is permitted now."""

    detail: str = ""


AWAIT_PERMIT = Contract(
    "await_permit", Effect.READ, PermitRequest, Permitted, "wait until people allow it"
)


@dataclass(frozen=True)
class AdmitRequest:
    """Let work onto a node that was found well during this boot, and that carries no mark."""

    owner: Owner
    boot_id: str


@dataclass(frozen=True)
class Admitted:
    """The startup taint is off, by us or by somebody else, or `refused` says why it stays."""

    resource_version: str
    refused: str = ""


ADMIT_NODE = Contract(
    "admit_node", Effect.MARK, AdmitRequest, Admitted, "take the startup taint off the node"
)
