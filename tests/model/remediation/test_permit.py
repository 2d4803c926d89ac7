"""The permit over the whole cross product of effects and situations: one exact answer each."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.model.remediation.test_marks import MARKER
from tests.model.views import NOW, POLICY, node
from workflows.model.node import NodeView
from workflows.model.remediation.arming import FLEET, Arming, Entry
from workflows.model.remediation.marks import (
    EPISODE,
    IGNORE,
    KARPENTER_NODEPOOL_LABEL,
    PAUSE,
    Marker,
    Slot,
)
from workflows.model.remediation.permit import (
    ALLOWED,
    PASSING,
    Claim,
    Effect,
    Refusal,
    decide_permit,
)

CLAIM = Claim("ep-1", "uid-1")
SLOTTED = replace(MARKER, slot=Slot("epoch", NOW))
READ, MARK, DISRUPT, RESTORE = Effect.READ, Effect.MARK, Effect.DISRUPT, Effect.RESTORE


def entry(scope: str) -> Entry:
    return Entry(scope, "alice", NOW, "maintenance")


ARMED = Arming(armed=(entry("training"),))


@dataclass(frozen=True)
class Situation:
    """A node and settings; `refused` says for each effect what is answered (left out = allowed)."""

    name: str
    refused: dict[Effect, Refusal]
    marker: Marker | str | None = SLOTTED
    changes: dict[str, Any] = field(default_factory=dict)
    arming: Arming = ARMED

    def node(self) -> NodeView:
        changes = {"unschedulable": True, **self.changes}
        annotations = dict(changes.pop("annotations", {}))
        if self.marker is not None:
            text = self.marker if isinstance(self.marker, str) else self.marker.encode()
            annotations[EPISODE] = text
        return node(annotations=annotations, **changes)


def all_but_read(refusal: Refusal) -> dict[Effect, Refusal]:
    return dict.fromkeys((MARK, DISRUPT, RESTORE), refusal)


def fenced(refusal: Refusal) -> dict[Effect, Refusal]:
    return dict.fromkeys((DISRUPT, RESTORE), refusal)


PAUSED_POOL = Arming(armed=ARMED.armed, paused=(entry("training"),))
SITUATIONS = (
    Situation("in order", {}),
    Situation(
        "another Node of this name",
        dict.fromkeys(Effect, Refusal.NODE_GONE),
        changes={"uid": "uid-2"},
    ),
    Situation("observe mode", all_but_read(Refusal.OBSERVING), arming=Arming()),
    Situation(
        "another pool is armed",
        all_but_read(Refusal.OBSERVING),
        arming=Arming(armed=(entry("inference"), entry(FLEET))),
    ),
    Situation(
        "arming unreadable", all_but_read(Refusal.OBSERVING), arming=Arming(problem="cannot read")
    ),
    Situation(
        "node paused",
        all_but_read(Refusal.PAUSED_NODE),
        changes={"annotations": {PAUSE: "maintenance"}},
    ),
    Situation(
        "node paused with an empty reason",
        all_but_read(Refusal.PAUSED_NODE),
        changes={"annotations": {PAUSE: ""}},
    ),
    Situation("pool paused", {DISRUPT: Refusal.PAUSED}, arming=PAUSED_POOL),
    Situation(
        "fleet paused",
        {DISRUPT: Refusal.PAUSED},
        arming=Arming(armed=ARMED.armed, paused=(entry(FLEET),)),
    ),
    Situation(
        "another pool paused", {}, arming=Arming(armed=ARMED.armed, paused=(entry("inference"),))
    ),
    Situation("ignored", all_but_read(Refusal.OUT_OF_SCOPE), changes={"annotations": {IGNORE: ""}}),
    Situation(
        "control plane",
        all_but_read(Refusal.OUT_OF_SCOPE),
        changes={
            "labels": {"pool": "training", "node-role.kubernetes.io/control-plane": ""},
        },
    ),
    Situation(
        "in no pool", all_but_read(Refusal.OUT_OF_SCOPE), changes={"labels": {"pool": "other"}}
    ),
    Situation("no marker", fenced(Refusal.OVERRULED), marker=None),
    Situation("foreign marker", fenced(Refusal.NOT_OWNER), marker=replace(SLOTTED, episode="ep-2")),
    Situation("unreadable marker", fenced(Refusal.NOT_OWNER), marker="garbage"),
    Situation(
        "handed over",
        fenced(Refusal.NOT_OWNER),
        marker=replace(SLOTTED, handed_over="operator:fan"),
    ),
    Situation("no slot", {DISRUPT: Refusal.NO_SLOT}, marker=MARKER),
    Situation(
        "Karpenter has begun",
        {DISRUPT: Refusal.OTHER_HEALER},
        changes={
            "labels": {"pool": "training", KARPENTER_NODEPOOL_LABEL: "np"},
            "taints": ("karpenter.sh/rebooting:NoSchedule",),
        },
    ),
    Situation("cordon removed", {DISRUPT: Refusal.OVERRULED}, changes={"unschedulable": False}),
    Situation(
        "paused node in a pool that is not armed",
        all_but_read(Refusal.OBSERVING),
        changes={"annotations": {PAUSE: "x"}},
        arming=Arming(),
    ),
    Situation(
        "paused pool and no slot", {DISRUPT: Refusal.PAUSED}, marker=MARKER, arming=PAUSED_POOL
    ),
)


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_each_effect_in_each_situation(situation: Situation, effect: Effect) -> None:
    permit = decide_permit(effect, situation.node(), CLAIM, situation.arming, POLICY)
    assert permit.refusal is situation.refused.get(effect)
    if permit.refusal is None:
        assert permit is ALLOWED
    else:
        assert permit.detail


def test_every_refusal_occurs() -> None:
    elsewhere = {Refusal.PROTECTED, Refusal.PROTECTION_UNKNOWN}  # test_protection.py
    assert {r for s in SITUATIONS for r in s.refused.values()} == set(Refusal) - elsewhere


def test_no_pause_of_fleet_or_pool_keeps_a_node_from_its_return() -> None:
    """P8."""
    for situation in SITUATIONS:
        if situation.name in ("pool paused", "fleet paused"):
            assert RESTORE not in situation.refused


def test_only_what_a_person_may_lift_is_waited_for() -> None:
    assert {
        Refusal.OBSERVING,
        Refusal.PAUSED_NODE,
        Refusal.PAUSED,
        Refusal.OUT_OF_SCOPE,
        Refusal.PROTECTED,
        Refusal.PROTECTION_UNKNOWN,
    } == PASSING


def test_the_refusal_names_who_paused_and_why() -> None:
    permit = decide_permit(DISRUPT, SITUATIONS[0].node(), CLAIM, PAUSED_POOL, POLICY)
    assert permit.detail == "pool training is paused by alice: maintenance"
