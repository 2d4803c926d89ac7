"""Slot, return and hand-over: fenced, idempotent, and only ours."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.kube import paths
from activities.kube.client import PatchKind
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from workflows.contracts import Contract, errors
from workflows.contracts.kube import (
    AWAIT_PERMIT,
    DROP_SLOT,
    GIVE_BACK,
    HAND_OVER,
    NOTE_SLOT,
    QUARANTINE,
    GiveBackRequest,
    HandOverRequest,
    Owner,
    PermitRequest,
    QuarantineRequest,
    SlotRequest,
)
from workflows.model.remediation.marks import (
    DO_NOT_DISRUPT,
    EPISODE,
    KARPENTER_NODEPOOL_LABEL,
    Marker,
    Quarantine,
)
from workflows.model.remediation.permit import Effect


def quarantined(desk: Desk, owner: Owner) -> Owner:
    marker = Marker(
        owner.episode, owner.node.uid, datetime.now(UTC), "r", "gpu-lost", Quarantine.CONFIRMED
    )
    desk.do(QUARANTINE, QuarantineRequest(owner, marker))
    return owner


def failure(desk: Desk, contract: Contract[Any, Any], request: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        desk.do(contract, request)
    return caught.value


# ---- slot


def test_a_slot_is_noted_once_and_dropped_once(
    desk: Desk, bare: BareNodes, witness: AuditLog, epoch: str
) -> None:
    owner = quarantined(desk, bare.add("a"))
    noted = desk.do(NOTE_SLOT, SlotRequest(owner, epoch))
    assert noted.marker is not None
    assert noted.marker.slot is not None
    assert noted.marker.slot.epoch == epoch
    assert desk.do(NOTE_SLOT, SlotRequest(owner, epoch)).marker == noted.marker
    dropped = desk.do(DROP_SLOT, SlotRequest(owner, ""))
    assert dropped.marker == replace(noted.marker, slot=None)
    assert desk.do(DROP_SLOT, SlotRequest(owner, "")).marker == dropped.marker
    assert len(witness.node_writes(owner.node.name)) == 3


def test_a_slot_of_an_older_guard_is_refused(
    desk: Desk, bare: BareNodes, witness: AuditLog, epoch: str
) -> None:
    owner = quarantined(desk, bare.add("a"))
    answer = desk.do(NOTE_SLOT, SlotRequest(owner, "older"))
    assert epoch in answer.refused
    assert answer.marker is not None
    assert answer.marker.slot is None
    assert len(witness.node_writes(owner.node.name)) == 1


def test_no_slot_without_our_marker_and_cordon(
    desk: Desk, bare: BareNodes, cluster: Cluster, epoch: str
) -> None:
    owner = bare.add("a")
    assert failure(desk, NOTE_SLOT, SlotRequest(owner, epoch)).type == errors.OVERRULED
    quarantined(desk, owner)
    other = SlotRequest(replace(owner, episode="other"), epoch)
    assert failure(desk, NOTE_SLOT, other).type == errors.NOT_OWNER
    cluster.uncordon(owner.node.name)
    assert failure(desk, NOTE_SLOT, SlotRequest(owner, epoch)).type == errors.OVERRULED
    assert failure(desk, NOTE_SLOT, SlotRequest(owner, "")).type == errors.BAD_REQUEST


def test_dropping_a_slot_that_is_not_ours_writes_nothing(
    desk: Desk, bare: BareNodes, witness: AuditLog
) -> None:
    owner = quarantined(desk, bare.add("a"))
    answer = desk.do(DROP_SLOT, SlotRequest(replace(owner, episode="other"), ""))
    assert answer.marker is not None
    assert len(witness.node_writes(owner.node.name)) == 1


# ---- give back


def test_give_back_twice_leaves_the_node_as_it_was(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    owner = quarantined(desk, bare.add("a"))
    assert desk.do(GIVE_BACK, GiveBackRequest(owner)).marker is None
    assert desk.do(GIVE_BACK, GiveBackRequest(owner)).marker is None
    node = cluster.node(owner.node.name)
    assert (node.unschedulable, EPISODE in node.annotations) == (False, False)
    assert len(witness.node_writes(owner.node.name)) == 2


def test_give_back_keeps_a_cordon_that_was_there_before(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = quarantined(desk, bare.add("a", spec={"unschedulable": True}))
    desk.do(GIVE_BACK, GiveBackRequest(owner))
    told = list(desk.told)
    assert cluster.node(owner.node.name).unschedulable
    # The worker died after its patch: the next attempt knows from the heartbeat that it was ours.
    assert desk.do(GIVE_BACK, GiveBackRequest(owner), details=told).marker is None


def test_give_back_does_not_bring_back_what_a_person_undid(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = bare.add(
        "a",
        spec={"unschedulable": True},
        labels={KARPENTER_NODEPOOL_LABEL: "np"},
        annotations={DO_NOT_DISRUPT: "true"},
    )
    quarantined(desk, owner)
    cluster.uncordon(owner.node.name)
    cluster.patch_node(owner.node.name, {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}})
    desk.do(GIVE_BACK, GiveBackRequest(owner))
    node = cluster.node(owner.node.name)
    assert not node.unschedulable
    assert DO_NOT_DISRUPT not in node.annotations


def test_a_marker_that_a_person_removed_is_overruled(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    owner = quarantined(desk, bare.add("a"))
    cluster.annotate(owner.node.name, episode=None)
    assert failure(desk, GIVE_BACK, GiveBackRequest(owner)).type == errors.OVERRULED
    assert cluster.node(owner.node.name).unschedulable
    assert len(witness.node_writes(owner.node.name)) == 1


def test_a_stale_exit_of_an_older_episode_is_refused(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    old = quarantined(desk, bare.add("a"))
    desk.do(GIVE_BACK, GiveBackRequest(old))
    new = quarantined(desk, replace(old, episode="newer"))
    assert failure(desk, GIVE_BACK, GiveBackRequest(old)).type == errors.NOT_OWNER
    marker = cluster.marker(new.node.name)
    assert marker is not None
    assert marker.episode == "newer"
    assert len(witness.node_writes(new.node.name)) == 3


def test_give_back_is_not_blocked_by_a_pause_of_pool_or_fleet(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str
) -> None:
    owner = quarantined(desk, bare.add("a"))
    cluster.pause(pool)
    try:
        desk.do(GIVE_BACK, GiveBackRequest(owner))
    finally:
        cluster.resume(pool)
    assert not cluster.node(owner.node.name).unschedulable


# ---- hand over


def test_hand_over_twice_says_the_same_and_keeps_the_cordon(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog, epoch: str
) -> None:
    owner = quarantined(desk, bare.add("a"))
    desk.do(NOTE_SLOT, SlotRequest(owner, epoch))
    request = HandOverRequest(owner, "operator", "by \x1b[31malice: dead `fan`\n" + "x" * 9000)
    first = desk.do(HAND_OVER, request)
    assert desk.do(HAND_OVER, request).marker == first.marker
    marker = cluster.marker(owner.node.name)
    assert marker is not None
    assert marker == first.marker
    assert marker.handed_over.startswith("operator:by  31malice: dead fan xxx")
    assert marker.slot is None
    assert cluster.node(owner.node.name).unschedulable
    assert len(witness.node_writes(owner.node.name)) == 3


def test_a_node_that_a_person_put_into_service_is_not_handed_over(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = quarantined(desk, bare.add("a"))
    cluster.uncordon(owner.node.name)
    refusal = failure(desk, HAND_OVER, HandOverRequest(owner, "operator", "why"))
    assert refusal.type == errors.OVERRULED
    marker = cluster.marker(owner.node.name)
    assert marker is not None
    assert not marker.handed_over


def test_what_was_handed_over_is_nobody_elses(desk: Desk, bare: BareNodes, epoch: str) -> None:
    owner = quarantined(desk, bare.add("a"))
    desk.do(HAND_OVER, HandOverRequest(owner, "operator", "why"))
    assert failure(desk, GIVE_BACK, GiveBackRequest(owner)).type == errors.NOT_OWNER
    assert failure(desk, NOTE_SLOT, SlotRequest(owner, epoch)).type == errors.NOT_OWNER


# ---- waiting for people


def test_await_permit_waits_only_for_what_people_can_lift(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, epoch: str
) -> None:
    owner = quarantined(desk, bare.add("a"))
    disrupt = PermitRequest(owner, Effect.DISRUPT)
    cluster.pause(pool)
    try:
        waiting = failure(desk, AWAIT_PERMIT, disrupt)
    finally:
        cluster.resume(pool)
    assert (waiting.type, waiting.non_retryable) == (errors.NOT_YET, False)
    assert failure(desk, AWAIT_PERMIT, disrupt).type == errors.BAD_REQUEST  # no slot
    desk.do(NOTE_SLOT, SlotRequest(owner, epoch))
    desk.do(AWAIT_PERMIT, disrupt)
    cluster.annotate(owner.node.name, episode=None)
    assert failure(desk, AWAIT_PERMIT, disrupt).type == errors.OVERRULED


def test_an_unusable_policy_forbids_disruption_but_not_the_return(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str
) -> None:
    owner = quarantined(desk, bare.add("a"))
    path = paths.config_map("fleetmend", "fleetmend-policy")
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "fleetmend-policy"},
        "data": {"policy.yaml": "pools: 7"},
    }
    cluster.kube.create(paths.config_maps("fleetmend"), body)
    try:
        desk.dependencies.policies._read_at = None  # as after FRESH_S
        refused = failure(desk, AWAIT_PERMIT, PermitRequest(owner, Effect.DISRUPT))
        assert refused.type == errors.NOT_YET
        assert "pools" in refused.message
        desk.do(GIVE_BACK, GiveBackRequest(owner))
    finally:
        cluster.kube.delete(path, uid=None)
    assert not cluster.node(owner.node.name).unschedulable


def test_the_marker_is_written_under_the_version_it_was_decided_on(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = quarantined(desk, bare.add("a"))
    node = cluster.node(owner.node.name)
    stale = {"metadata": {"annotations": {EPISODE: None}}}
    cluster.annotate(owner.node.name, note="moved on")
    with pytest.raises(Exception, match="409"):
        desk.dependencies.kube.patch(
            paths.node(node.name),
            stale,
            kind=PatchKind.MERGE,
            resource_version=node.resource_version,
        )
