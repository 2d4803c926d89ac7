"""Whose NodeClaim a node is, and its one deletion, on the real API server under the worker's rights."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.kube import errors as api
from activities.kube import paths
from activities.kube.client import KubeClient, PatchKind
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.activities.karpenter.conftest import AddNode
from tests.activities.karpenter.kinds import HOLD, Claims
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from workflows.contracts import errors
from workflows.contracts.karpenter import DELETE_CLAIM, RESOLVE_CLAIM, DeleteClaimRequest
from workflows.contracts.kube import (
    ASSERT_VETOES,
    NOTE_SLOT,
    QUARANTINE,
    Owner,
    QuarantineRequest,
    SlotRequest,
)
from workflows.contracts.machines import (
    RECORD_BASELINE,
    RECORD_PHASE,
    Attempt,
    BaselineRequest,
    PhaseRecord,
)
from workflows.model.remediation.gate import Baseline
from workflows.model.remediation.marks import (
    DO_NOT_DISRUPT,
    DO_NOT_REPAIR,
    EPISODE,
    Marker,
    Quarantine,
)
from workflows.model.remediation.replacement import ClaimRef, Standing

AT = datetime(2026, 11, 30, 3, tzinfo=UTC)


def quarantine(desk: Desk, owner: Owner) -> None:
    marker = Marker(owner.episode, owner.node.uid, AT, "r", "gpu-lost", Quarantine.CONFIRMED)
    desk.do(QUARANTINE, QuarantineRequest(owner, marker))


def take(desk: Desk, owner: Owner, epoch: str) -> None:
    """Quarantined, with a slot."""
    quarantine(desk, owner)
    desk.do(NOTE_SLOT, SlotRequest(owner, epoch))


# ---------------------------------------------------------------- resolve


def test_the_claim_is_found_by_providerid(
    desk: Desk, claims: Claims, karpenter_node: AddNode
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner)
    claims.add("c-other-" + owner.node.name, status={"providerID": "lab:///other"})
    claims.make_pool(replicas=3)
    found = desk.do(RESOLVE_CLAIM, owner)
    assert (found.standing, found.claim, found.node_pool) == (Standing.FOUND, ref, claims.pool)
    assert found.is_static
    assert found.horizon is not None


def test_a_node_of_no_nodepool_has_no_claim(desk: Desk, bare: BareNodes) -> None:
    found = desk.do(RESOLVE_CLAIM, bare.add("a"))
    assert (found.standing, found.claim) == (Standing.NONE, None)


def test_a_node_whose_claim_is_gone_has_none(desk: Desk, karpenter_node: AddNode) -> None:
    found = desk.do(RESOLVE_CLAIM, karpenter_node())
    assert found.standing is Standing.NONE
    assert "no NodeClaim has the providerID" in found.detail


def test_a_recreated_node_is_another(desk: Desk, claims: Claims, karpenter_node: AddNode) -> None:
    owner = karpenter_node()
    claims.add_for(owner)
    stale = replace(owner, node=replace(owner.node, uid="another"))
    with pytest.raises(ApplicationError) as caught:
        desk.do(RESOLVE_CLAIM, stale)
    assert caught.value.type == errors.NODE_GONE


def test_a_node_owned_by_a_former_claim_of_that_name_is_a_mismatch(
    desk: Desk, claims: Claims, karpenter_node: AddNode, cluster: Cluster
) -> None:
    owner = karpenter_node()
    other = claims.add(
        f"former-{owner.node.name}"
    )  # exists, or the garbage collector takes the Node
    former = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": other.name}
    refs = [{**former, "uid": other.uid}]
    cluster.patch_node(owner.node.name, {"metadata": {"ownerReferences": refs}})
    claims.add_for(owner)
    found = desk.do(RESOLVE_CLAIM, owner)
    assert (found.standing, found.claim) == (Standing.MISMATCH, None)
    assert "owned by another NodeClaim" in found.detail


def _taint(key: str) -> Callable[[Cluster, Claims, Owner], None]:
    def taint(cluster: Cluster, claims: Claims, owner: Owner) -> None:
        taints = [{"key": key, "effect": "NoSchedule"}]
        cluster.patch_node(owner.node.name, {"spec": {"taints": taints}})

    return taint


def _rebooting(cluster: Cluster, claims: Claims, owner: Owner) -> None:
    status = {"conditions": [{"type": "Rebooting", "status": "True", "reason": "RebootIssued"}]}
    claims.set_status(f"c-{owner.node.name}", status)


def _terminating(cluster: Cluster, claims: Claims, owner: Owner) -> None:
    stamp = {"karpenter.sh/nodeclaim-termination-timestamp": "2026-11-30T03:00:00Z"}
    claims.patch(f"c-{owner.node.name}", {"metadata": {"annotations": stamp}})


def _deleting(cluster: Cluster, claims: Claims, owner: Owner) -> None:
    claims.patch(f"c-{owner.node.name}", {"metadata": {"finalizers": [HOLD]}})
    cluster.kube.delete(paths.node_claim(f"c-{owner.node.name}"), uid=None)


@pytest.mark.parametrize(
    "act",
    [
        _taint("karpenter.sh/disrupted"),
        _taint("karpenter.sh/rebooting"),
        _rebooting,
        _terminating,
        _deleting,
    ],
    ids=["disrupted", "rebooting-taint", "rebooting", "termination-timestamp", "deleting"],
)
def test_karpenter_that_has_begun_is_seen(
    desk: Desk,
    claims: Claims,
    karpenter_node: AddNode,
    cluster: Cluster,
    epoch: str,
    witness: AuditLog,
    act: Callable[[Cluster, Claims, Owner], None],
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner)
    take(desk, owner, epoch)
    act(cluster, claims, owner)
    assert desk.do(RESOLVE_CLAIM, owner).standing is Standing.ACTING
    done = desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, ref))
    assert done.yielded_to or "is being deleted" in done.detail
    assert witness.claim_deletions() == []


# ---------------------------------------------------------------- delete


def test_the_claim_is_deleted_once_and_by_its_uid(
    desk: Desk, claims: Claims, karpenter_node: AddNode, epoch: str, witness: AuditLog
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner, metadata={"finalizers": [HOLD]})
    take(desk, owner, epoch)
    first = desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, ref))
    second = desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, ref))
    assert first == second
    assert "is being deleted" in first.detail
    (event,) = witness.claim_deletions()
    assert event.name == ref.name
    body = claims.read(ref.name)
    assert body is not None
    assert body["metadata"]["deletionTimestamp"]


def test_a_claim_that_is_gone_was_deleted(
    desk: Desk, claims: Claims, karpenter_node: AddNode, witness: AuditLog
) -> None:
    owner = karpenter_node()
    done = desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, ClaimRef("never-was", "uid")))
    assert done.detail.endswith("is gone")
    assert witness.claim_deletions() == []


def test_another_claim_of_that_name_is_not_touched(
    desk: Desk, claims: Claims, karpenter_node: AddNode, epoch: str, witness: AuditLog
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner)
    take(desk, owner, epoch)
    done = desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, replace(ref, uid="former")))
    assert done.detail.endswith("is gone")
    assert witness.claim_deletions() == []
    assert claims.read(ref.name) is not None


def test_the_server_refuses_the_wrong_uid(claims: Claims, worker_kube: KubeClient) -> None:
    ref = claims.add("c-wrong-uid")
    with pytest.raises(api.Conflict):
        worker_kube.delete(paths.node_claim(ref.name), uid="wrong")
    assert claims.read(ref.name) is not None


def test_the_worker_cannot_delete_a_claim_without_its_uid_nor_change_one(
    claims: Claims, worker_kube: KubeClient
) -> None:
    ref = claims.add("c-without-uid")
    with pytest.raises(api.Forbidden, match="fleetmend-worker-claims/2"):
        worker_kube.delete(paths.node_claim(ref.name), uid=None)
    body = {"metadata": {"finalizers": None}}
    with pytest.raises(api.Forbidden):
        worker_kube.patch(paths.node_claim(ref.name), body, kind=PatchKind.MERGE)
    assert claims.read(ref.name) is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodeName": "another"}, "names another, not Node"),
        ({"providerID": "lab:///moved"}, "is another machine than Node"),
    ],
    ids=["other-node", "other-machine"],
)
def test_a_claim_that_is_not_the_nodes_any_more_is_not_deleted(
    desk: Desk,
    claims: Claims,
    karpenter_node: AddNode,
    epoch: str,
    witness: AuditLog,
    change: dict[str, str],
    said: str,
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner)
    take(desk, owner, epoch)
    claims.set_status(ref.name, change)
    with pytest.raises(ApplicationError, match=said) as caught:
        desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, ref))
    assert caught.value.type == errors.BAD_REQUEST
    assert witness.claim_deletions() == []


def _no_slot(desk: Desk, cluster: Cluster, owner: Owner) -> None:
    quarantine(desk, owner)


def _uncordoned(desk: Desk, cluster: Cluster, owner: Owner) -> None:
    take(desk, owner, "epoch-1")
    cluster.uncordon(owner.node.name)


def _unmarked(desk: Desk, cluster: Cluster, owner: Owner) -> None:
    take(desk, owner, "epoch-1")
    cluster.patch_node(owner.node.name, {"metadata": {"annotations": {EPISODE: None}}})


def _paused(desk: Desk, cluster: Cluster, owner: Owner) -> None:
    take(desk, owner, "epoch-1")
    cluster.annotate(owner.node.name, pause="mine")


@pytest.mark.parametrize(
    ("prepare", "type_"),
    [
        (_no_slot, errors.BAD_REQUEST),
        (_uncordoned, errors.OVERRULED),
        (_unmarked, errors.OVERRULED),
        (_paused, errors.NOT_PERMITTED),
    ],
    ids=["no-slot", "uncordoned", "unmarked", "paused"],
)
def test_nothing_is_deleted_without_a_permit(
    desk: Desk,
    claims: Claims,
    karpenter_node: AddNode,
    epoch: str,
    cluster: Cluster,
    witness: AuditLog,
    prepare: Callable[[Desk, Cluster, Owner], None],
    type_: str,
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner)
    prepare(desk, cluster, owner)
    with pytest.raises(ApplicationError) as caught:
        desk.do(DELETE_CLAIM, DeleteClaimRequest(owner, ref))
    assert caught.value.type == type_
    assert witness.claim_deletions() == []


# ---------------------------------------------------------------- vetoes


def test_lost_vetoes_are_set_again_and_go_with_the_return(
    desk: Desk, karpenter_node: AddNode, cluster: Cluster
) -> None:
    owner = karpenter_node()
    quarantine(desk, owner)
    lost: dict[str, Any] = {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}}
    cluster.patch_node(owner.node.name, lost)
    desk.do(ASSERT_VETOES, owner)
    desk.do(ASSERT_VETOES, owner)
    annotations = cluster.node(owner.node.name).annotations
    assert (annotations[DO_NOT_DISRUPT], annotations[DO_NOT_REPAIR]) == ("true", "true")


def test_a_mark_that_a_person_took_off_does_not_come_back_with_the_vetoes(
    desk: Desk, karpenter_node: AddNode, cluster: Cluster
) -> None:
    owner = karpenter_node()
    quarantine(desk, owner)
    cluster.patch_node(owner.node.name, {"metadata": {"annotations": {EPISODE: None}}})
    with pytest.raises(ApplicationError) as caught:
        desk.do(ASSERT_VETOES, owner)
    assert caught.value.type == errors.OVERRULED
    assert EPISODE not in cluster.node(owner.node.name).annotations


def test_new_machines_that_were_given_away_unproven_are_counted_by_pool(
    desk: Desk, claims: Claims, karpenter_node: AddNode, bare: BareNodes
) -> None:
    """With API faults or restarts between: the count is in the machine records."""
    now = datetime.now(UTC)
    for name, age, pool in (
        ("lost-1", timedelta(minutes=1), bare.pool),
        ("lost-2", timedelta(hours=23), bare.pool),
        ("long-ago", timedelta(hours=25), bare.pool),
        ("elsewhere", timedelta(minutes=1), "another"),
    ):
        _give_away(desk, karpenter_node(name), pool, now - age)
    proven = karpenter_node("proven")
    _give_away(desk, proven, bare.pool, now)
    _prove(desk, proven, bare.pool)
    newcomer = karpenter_node("new")
    claims.add_for(newcomer)
    assert desk.do(RESOLVE_CLAIM, newcomer).lost_new == 2
    _prove(desk, newcomer, bare.pool)
    assert desk.do(RESOLVE_CLAIM, newcomer).lost_new == 0


def _give_away(desk: Desk, owner: Owner, pool: str, at: datetime) -> None:
    record = PhaseRecord(
        owner=owner,
        machine_id=f"uuid-{owner.node.name}",
        pool=pool,
        workflow_id="w",
        run_id=owner.episode,
        sequence=1,
        phase="drained",
        fault="gpu-lost",
        detail="",
        at=at,
        attempt=Attempt("replace", at, "done", "boot-1", ""),
    )
    desk.do(RECORD_PHASE, record)


def _prove(desk: Desk, owner: Owner, pool: str) -> None:
    baseline = Baseline(tuple(f"GPU-{n}" for n in range(8)), (), datetime.now(UTC))
    request = BaselineRequest(
        owner=owner,
        machine_id=f"uuid-{owner.node.name}",
        pool=pool,
        provider_id="",
        baseline=baseline,
        model="H100",
        boot_id="boot-1",
    )
    assert desk.do(RECORD_BASELINE, request).refused == ""
