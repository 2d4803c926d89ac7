"""Taking nodes out of service, against the real API server and its admission policies."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from temporalio.exceptions import ApplicationError

from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.harness.audit import WORKER, AuditLog
from tests.harness.cluster import Cluster
from workflows.contracts import errors
from workflows.contracts.kube import QUARANTINE, Owner, Quarantined, QuarantineRequest
from workflows.model.remediation.marks import (
    DO_NOT_DISRUPT,
    DO_NOT_REPAIR,
    EPISODE,
    KARPENTER_NODEPOOL_LABEL,
    Marker,
    Quarantine,
)


def asked(owner: Owner, **fields: object) -> QuarantineRequest:
    marker = Marker(
        episode=owner.episode,
        node_uid=owner.node.uid,
        since=datetime(2026, 11, 29, 12, tzinfo=UTC),
        rule="gpu-lost",
        fault="gpu-lost",
        quarantine=Quarantine.CONFIRMED,
    )
    return replace(QuarantineRequest(owner, marker), **fields)  # type: ignore[arg-type]  # a table


def test_a_second_run_finds_the_mark_of_the_first(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    owner = bare.add("a")
    first = desk.do(QUARANTINE, asked(owner))
    second = desk.do(QUARANTINE, asked(owner))
    assert second.marker == first.marker
    assert first.marker is not None
    assert first.marker.episode == owner.episode
    assert cluster.node(owner.node.name).unschedulable
    assert len(witness.node_writes(owner.node.name)) == 1


def test_what_stood_before_is_in_the_marker(desk: Desk, bare: BareNodes) -> None:
    owner = bare.add(
        "a",
        labels={KARPENTER_NODEPOOL_LABEL: "np"},
        annotations={DO_NOT_DISRUPT: "true"},
        spec={"unschedulable": True},
    )
    marker = desk.do(QUARANTINE, asked(owner)).marker
    assert marker is not None
    assert marker.was_unschedulable
    assert marker.vetoes_before == ((DO_NOT_DISRUPT, "true"),)


def test_karpenters_vetoes_come_with_the_cordon(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = bare.add("a", labels={KARPENTER_NODEPOOL_LABEL: "np"})
    desk.do(QUARANTINE, asked(owner))
    annotations = cluster.node(owner.node.name).annotations
    assert (annotations[DO_NOT_DISRUPT], annotations[DO_NOT_REPAIR]) == ("true", "true")


def test_watchs_marker_is_adopted_as_it_is(desk: Desk, bare: BareNodes, witness: AuditLog) -> None:
    owner = bare.add("a")
    watch = desk.do(QUARANTINE, asked(replace(owner, episode="watch-made")))
    found = desk.do(QUARANTINE, asked(owner, adopt=("watch-made",)))
    assert found.marker == watch.marker
    assert len(witness.node_writes(owner.node.name)) == 1


def test_a_dead_runs_marker_is_taken_over_with_its_memory(desk: Desk, bare: BareNodes) -> None:
    owner = bare.add("a", spec={"unschedulable": True})
    dead = desk.do(QUARANTINE, asked(replace(owner, episode="dead"))).marker
    assert dead is not None
    taken = desk.do(QUARANTINE, asked(owner, replace="dead")).marker
    assert taken == replace(dead, episode=owner.episode)
    assert taken is not None
    assert taken.was_unschedulable


def test_a_dead_runs_marker_that_a_person_took_off_is_not_put_back(
    desk: Desk, bare: BareNodes, witness: AuditLog
) -> None:
    owner = bare.add("a")
    assert failure(desk, asked(owner, replace="dead")).type == errors.OVERRULED
    assert witness.node_writes(owner.node.name) == []


def failure(desk: Desk, request: QuarantineRequest) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        desk.do(QUARANTINE, request)
    return caught.value


def test_anothers_marker_is_not_touched(desk: Desk, bare: BareNodes, witness: AuditLog) -> None:
    owner = bare.add("a")
    desk.do(QUARANTINE, asked(replace(owner, episode="other")))
    assert failure(desk, asked(owner)).type == errors.NOT_OWNER
    assert len(witness.node_writes(owner.node.name)) == 1


def test_an_unreadable_marker_has_an_unknown_owner(
    desk: Desk, bare: BareNodes, witness: AuditLog
) -> None:
    owner = bare.add("a", annotations={EPISODE: "{"})
    assert failure(desk, asked(owner)).type == errors.NOT_OWNER
    assert witness.writes(WORKER) == []


def test_our_marker_without_the_cordon_is_overruled(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = bare.add("a")
    desk.do(QUARANTINE, asked(owner))
    cluster.uncordon(owner.node.name)
    assert failure(desk, asked(owner)).type == errors.OVERRULED
    assert not cluster.node(owner.node.name).unschedulable


def test_a_recreated_node_is_another_node(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    owner = bare.add("a")
    stale = replace(owner, node=replace(owner.node, uid="another"))
    assert failure(desk, asked(stale)).type == errors.NODE_GONE
    bare.remove(owner.node.name)
    assert failure(desk, asked(owner)).type == errors.NODE_GONE
    assert witness.writes(WORKER) == []


@pytest.mark.parametrize(
    ("hinder", "refusal"),
    [
        (lambda c, node, pool: c.disarm(pool), "observing"),
        (lambda c, node, pool: c.annotate(node, pause="hands off"), "paused-node"),
        (lambda c, node, pool: c.annotate(node, ignore="mine"), "out-of-scope"),
    ],
    ids=["observe", "paused", "ignored"],
)
def test_people_forbid_it(  # type: ignore[no-untyped-def]  # a table of lambdas
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, witness: AuditLog, hinder, refusal
) -> None:
    owner = bare.add("a")
    hinder(cluster, owner.node.name, pool)
    refused = failure(desk, asked(owner))
    assert refused.type == errors.NOT_PERMITTED
    assert refused.details[0] == refusal
    assert witness.writes(WORKER) == []


def test_a_pause_of_the_pool_does_not_stop_marks(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str
) -> None:
    owner = bare.add("a")
    cluster.pause(pool)
    try:
        assert desk.do(QUARANTINE, asked(owner)).marker is not None
    finally:
        cluster.resume(pool)


def test_a_stale_grant_is_refused_and_nothing_written(
    desk: Desk, bare: BareNodes, witness: AuditLog, epoch: str
) -> None:
    owner = bare.add("a")
    answer = desk.do(QUARANTINE, asked(owner, epoch="an-older-guard"))
    assert answer.marker is None
    assert "an-older-guard" in answer.refused
    assert witness.node_writes(owner.node.name) == []
    assert desk.do(QUARANTINE, asked(owner, epoch=epoch)).refused == ""


def _begin_disruption(cluster: Cluster, node: str) -> None:
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    cluster.patch_node(node, {"spec": {"taints": [taint]}})


def test_it_yields_to_another_healer_without_a_mark(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    owner = bare.add("a")
    _begin_disruption(cluster, owner.node.name)
    answer = desk.do(QUARANTINE, asked(owner))
    assert "Karpenter" in answer.yielded_to
    assert witness.node_writes(owner.node.name) == []


def test_it_takes_its_mark_off_again_when_another_healer_acts(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = bare.add("a")
    desk.do(QUARANTINE, asked(owner))
    _begin_disruption(cluster, owner.node.name)
    answer: Quarantined = desk.do(QUARANTINE, asked(owner))
    node = cluster.node(owner.node.name)
    assert "Karpenter" in answer.yielded_to
    assert EPISODE not in node.annotations
    assert not node.unschedulable
