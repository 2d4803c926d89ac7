"""The rows of `fleetmend status` and `node`: what one look at cluster and Temporal says of a Node.

Owns the joining of Nodes, machine records, arming, policy and open episodes into rows. Reads
nothing and shows nothing: that is `status.py`. Judges nothing: faults are the rules'.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workers.cli.cluster import Machine
from workers.cli.episodes import OpenEpisode
from workers.cli.next_steps import MAX_WORDS, after_hand_over, is_in_care, paused_by
from workers.cli.polling import Polling
from workflows.model.detection.fault import Fault
from workflows.model.detection.finding import printable
from workflows.model.identity import NodeRef, workflow_id
from workflows.model.node import NodeView, PodView
from workflows.model.policy import Policy
from workflows.model.remediation.admission import is_newcomer, waits_for
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.marks import IGNORE, PAUSE, is_marked, marker_or_problem
from workflows.model.remediation.permit import ALLOWED, Effect, Permit, Refusal
from workflows.model.remediation.phase import Phase
from workflows.model.remediation.protection import decide_protection

HEALTHY = "-"
"""In place of a phase: no episode is open."""
NOT_ADMITTED = "not admitted yet"
WAITS = "waits"
DISRUPTS_NEXT = (Phase.QUARANTINED, Phase.DRAINED)
"""Phases after which the next step drains or reboots, as far as the policy has any for the fault."""


@dataclass(frozen=True)
class Row:
    """One node; "" = nothing to tell. `marks` are the cordon and fleetmend's annotations.

    `protected` = why it is not disrupted whatever befalls it (the policy's scope).
    `waits` says what a new node's admission waits for, or which pause an open episode.
    `next` = what people do about a node that was handed over to them.
    """

    node: str
    uid: str
    pool: str
    armed: bool
    ready: bool
    phase: str
    fault: str
    step: str
    held: bool
    marks: tuple[str, ...]
    detail: str
    workflow_id: str
    protected: str
    waits: str = ""
    next: str = ""

    @property
    def waits_title(self) -> str:
        """What it is that waits: an admission, or an episode."""
        return WAITS if any(mark.startswith("episode") for mark in self.marks) else NOT_ADMITTED

    @property
    def standing(self) -> str:
        """In a word why its episode stands still; "" = it does not, or there is none."""
        if self.held:
            return "held"
        return WAITS if self.waits and self.waits_title == WAITS else ""


@dataclass(frozen=True)
class Sight:
    """Everything one look needs.

    `policy` None = it cannot be used (`policy_problem`), `episodes` None = Temporal was not reached
    (`problem`), `protecting` None = those pods may not be seen.
    """

    nodes: tuple[NodeView, ...]
    machines: tuple[Machine, ...]
    arming: Arming
    policy: Policy | None
    episodes: Mapping[str, OpenEpisode] | None
    cluster: str
    problem: str = ""
    policy_problem: str = ""
    protecting: tuple[PodView, ...] | None = ()
    polling: Polling = field(default_factory=Polling)


def rows_of(sight: Sight) -> list[Row]:
    """One row for each node that fleetmend minds: of a pool, marked, or with an episode."""
    machines = {machine.node_uid: machine for machine in sight.machines}
    rows = (row_of(node, sight, machines) for node in sight.nodes)
    minded = [row for row in rows if row.pool or row.workflow_id or row.marks]
    return sorted(minded, key=lambda row: (row.pool or "~", row.node))


def row_of(node: NodeView, sight: Sight, machines: Mapping[str, Machine]) -> Row:
    """The row of one Node; `machines` by the UID of the Node that each is now."""
    machine = machines.get(node.uid)
    identity = workflow_id(sight.cluster, NodeRef(node.name, node.uid))
    permit = _protection(node, sight)
    found = (sight.episodes or {}).get(identity)
    pool = _pool_name(node, sight.policy, machine)
    recorded = machine if machine and (machine.is_open or machine.outcome == "retired") else None
    phase, fault, held = HEALTHY, "", False
    if found is not None:
        phase, fault, held = found.phase or "suspect", found.fault, found.held
    elif sight.episodes is None and recorded is not None:
        phase, fault = recorded.outcome or recorded.phase, recorded.fault
        held = recorded.held
    elif recorded is not None and recorded.outcome:
        phase, fault = recorded.outcome, recorded.fault
    return Row(
        node=node.name,
        uid=node.uid,
        pool=pool,
        armed=bool(pool and sight.arming.is_armed(pool)),
        ready=node.ready,
        phase=phase,
        fault=fault,
        step=found.step if found else "",
        held=held,
        marks=tuple(_marks(node)),
        detail=machine.held_reason if machine and held else "",
        workflow_id=identity if found else "",
        protected=permit.detail if permit.refusal is Refusal.PROTECTED else "",
        waits=_waits(node, sight, is_open=found is not None)
        or ("" if held else _paused(node, sight, pool, phase, fault)),
        next=after_hand_over(node),
    )


def _protection(node: NodeView, sight: Sight) -> Permit:
    """Whether what runs on the node forbids to disrupt it."""
    if sight.policy is None or sight.policy.pool_of(node.labels) is None:
        return ALLOWED
    return decide_protection(Effect.DISRUPT, node, sight.protecting, sight.policy)


def protection_unknown(sight: Sight, rows: Sequence[Row]) -> str:
    """Why it cannot be told which nodes are protected, as of one of the shown; "" = it can."""
    shown = {row.node for row in rows}
    permits = (_protection(node, sight) for node in sight.nodes if node.name in shown)
    unknown = (p.detail for p in permits if p.refusal is Refusal.PROTECTION_UNKNOWN)
    return next(unknown, "")


def _waits(node: NodeView, sight: Sight, *, is_open: bool) -> str:
    """What keeps a new node from its first job."""
    if not is_newcomer(node) or is_marked(node):
        return ""
    blocked = waits_for(node, sight.policy, sight.arming) if sight.policy else ""
    if blocked or is_open:
        return blocked or "it is being examined, or waits for its turn: see fleetmend node"
    return "it is not Ready yet" if not node.ready else "watch has not started its admission yet"


def _paused(node: NodeView, sight: Sight, pool: str, phase: str, fault: str) -> str:
    """Which pause keeps the node's episode from its next step."""
    marker, _ = marker_or_problem(node)
    if not is_in_care(marker) or phase not in DISRUPTS_NEXT:
        return ""
    faults = sight.policy.faults if sight.policy else {}
    treatment = next((row for known, row in faults.items() if known == fault), None)
    if treatment is not None and not treatment.ladder and fault != Fault.OPERATOR:
        return ""  # it waits for the node's own recovery, which no pause stops
    return paused_by(pool, sight.arming)


def _pool_name(node: NodeView, policy: Policy | None, machine: Machine | None) -> str:
    """By the policy; without one, as the machine's record has it."""
    if policy is None:
        return machine.pool if machine else ""
    pool = policy.pool_of(node.labels)
    return pool.name if pool else ""


def _marks(node: NodeView) -> Iterable[str]:
    if node.unschedulable:
        yield "cordon"
    marker, problem = marker_or_problem(node)
    if problem:
        yield "unreadable marker"
    elif marker and marker.handed_over:
        yield f"handed over to {printable(marker.handed_over, MAX_WORDS)}"
    elif marker:
        yield "episode" + (" + slot" if marker.slot else "")
    if is_newcomer(node):
        yield "new"
    if PAUSE in node.annotations:
        yield "paused"
    if IGNORE in node.annotations:
        yield "ignored"
