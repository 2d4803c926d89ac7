"""What an open episode is told of its Node, and when that is something new.

Owns the selection: Ready, boot, allocatable GPUs, the conditions that rules and gate look at, the
marks, a pause, the startup taint; and which of them cannot wait. A node's other conditions, of which there may be any number, neither travel nor
wake an episode. Pure.
"""

from dataclasses import dataclass
from datetime import datetime

from workers.watch.pace import Haste
from workflows.contracts.messages import NodeFacts
from workflows.model.node import NodeView
from workflows.model.policy import Policy
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.marks import PAUSE, Marker


@dataclass(frozen=True)
class FactsKey:
    """The parts of `NodeFacts` whose change is told."""

    ready: bool
    boot_id: str
    unschedulable: bool
    marker_episode: str
    gpus: tuple[tuple[str, int], ...]
    conditions: tuple[tuple[str, str], ...]
    paused: bool
    newcomer: bool = False


def told_conditions(policy: Policy) -> frozenset[str]:
    """The condition types that an episode is told about."""
    ruled = {rule.condition for rule in policy.rules}
    return frozenset(ruled | set(policy.gate.conditions) | {"Ready"})


def key_of(node: NodeView, marker: Marker | None, told: frozenset[str]) -> FactsKey:
    """What of `node` is told; equal keys need no second signal."""
    return FactsKey(
        ready=node.ready,
        boot_id=node.boot_id,
        unschedulable=node.unschedulable,
        marker_episode=marker.episode if marker else "",
        gpus=tuple(sorted(node.gpus.items())),
        conditions=tuple(
            sorted((name, c.status) for name, c in node.conditions.items() if name in told)
        ),
        paused=PAUSE in node.annotations,
        newcomer=is_newcomer(node),
    )


def haste_of(key: FactsKey, told: FactsKey | None) -> Haste:
    """How soon `key` must be told to a run that was told `told` before (None = nothing)."""
    if told is None or _decisive(key) != _decisive(told):
        return Haste.NOW
    return Haste.MAY_WAIT


def _decisive(key: FactsKey) -> tuple[object, ...]:
    """What people do, and what proves a boot: an episode acts on these at once."""
    ready = dict(key.conditions).get("Ready")
    return (
        key.ready,
        ready,
        key.boot_id,
        key.unschedulable,
        key.marker_episode,
        key.paused,
        key.newcomer,
    )


def facts_of(node: NodeView, key: FactsKey, now: datetime, *, gone: bool = False) -> NodeFacts:
    """The signal's payload."""
    return NodeFacts(
        uid=node.uid,
        resource_version=node.resource_version,
        ready=key.ready,
        boot_id=key.boot_id,
        unschedulable=key.unschedulable,
        marker_episode=key.marker_episode,
        gpus=dict(key.gpus),
        conditions=dict(key.conditions),
        paused=key.paused,
        at=now,
        gone=gone,
        newcomer=key.newcomer,
    )
