"""Who comes after a node that was given away, or why nobody has."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.kube import paths
from activities.kube.client import PatchKind
from tests.activities.desk import Desk
from tests.activities.karpenter.conftest import AddNode
from tests.activities.karpenter.kinds import Claims
from tests.harness.cluster import Cluster
from workflows.contracts import errors
from workflows.contracts.karpenter import (
    FIND_SUCCESSOR,
    LOOK_FOR_SUCCESSOR,
    RESOLVE_CLAIM,
    SuccessorRequest,
)


def test_the_newcomer_is_found_once_its_node_is_ready(
    desk: Desk,
    claims: Claims,
    karpenter_node: AddNode,
    cluster: Cluster,
    unique: Callable[[str], str],
) -> None:
    owner = karpenter_node()
    claims.add_for(owner)
    horizon = desk.do(RESOLVE_CLAIM, owner).horizon
    assert horizon is not None
    request = SuccessorRequest(owner, claims.pool, horizon)
    assert "has made no NodeClaim since" in desk.do(LOOK_FOR_SUCCESSOR, request).reason

    launching = claims.add(unique("new"), status={"conditions": []})
    found = desk.do(LOOK_FOR_SUCCESSOR, request)
    assert (found.successor, found.reason) == (
        None,
        f"NodeClaim {launching.name} is not launched yet",
    )
    with pytest.raises(ApplicationError) as caught:
        desk.do(FIND_SUCCESSOR, request)
    assert caught.value.type == errors.NOT_YET

    newcomer = karpenter_node("b")
    ref = claims.add_for(newcomer)
    successor = desk.do(FIND_SUCCESSOR, request).successor
    assert successor is not None
    assert (successor.claim, successor.node, successor.gpus) == (ref, newcomer.node, 8)


def test_two_episodes_never_take_the_same_newcomer(
    desk: Desk, claims: Claims, karpenter_node: AddNode, cluster: Cluster
) -> None:
    """Both machines were given away before either newcomer came, so each would do for both."""
    owners = [karpenter_node("a"), karpenter_node("b")]
    for owner in owners:
        claims.add_for(owner)
    requests = []
    for owner in owners:
        horizon = desk.do(RESOLVE_CLAIM, owner).horizon
        assert horizon is not None
        requests.append(SuccessorRequest(owner, claims.pool, horizon))
    first = karpenter_node("c")
    claims.add_for(first)
    with ThreadPoolExecutor(2) as hands:
        found = [
            answer.successor.node if answer.successor else None
            for answer in hands.map(lambda r: desk.do(LOOK_FOR_SUCCESSOR, r), requests)
        ]
    assert sorted(map(str, found)) == sorted(map(str, [first.node, None]))
    winner, loser = found.index(first.node), found.index(None)
    assert "has made no NodeClaim since" in desk.do(LOOK_FOR_SUCCESSOR, requests[loser]).reason
    second = karpenter_node("d")
    claims.add_for(second)
    for _ in range(2):  # a worker that died after it had taken one finds the same again
        for index, node in ((winner, first.node), (loser, second.node)):
            successor = desk.do(FIND_SUCCESSOR, requests[index]).successor
            assert successor is not None
            assert successor.node == node


def test_the_same_iron_under_another_claim_may_be_taken_again(
    desk: Desk, claims: Claims, karpenter_node: AddNode, cluster: Cluster
) -> None:
    owners = [karpenter_node("a"), karpenter_node("b")]
    for owner in owners:
        claims.add_for(owner)
    horizon = desk.do(RESOLVE_CLAIM, owners[0]).horizon
    assert horizon is not None
    for name, owner in (("c", owners[0]), ("d", owners[1])):
        newcomer = karpenter_node(name, system_uuid=f"iron-{claims.pool}"[:60])
        claim = claims.add_for(newcomer)
        request = SuccessorRequest(owner, claims.pool, horizon)
        successor = desk.do(LOOK_FOR_SUCCESSOR, request).successor
        assert successor is not None
        assert successor.node == newcomer.node
        cluster.kube.delete(paths.node_claim(claim.name), uid=claim.uid)


def test_limits_and_waiting_pods_are_told(
    desk: Desk,
    claims: Claims,
    karpenter_node: AddNode,
    cluster: Cluster,
    unique: Callable[[str], str],
) -> None:
    owner = karpenter_node()
    claims.add_for(owner)
    claims.make_pool(limits={"nvidia.com/gpu": "8", "memory": "100Gi"})
    path = paths.object_path(
        paths.collection_path(paths.KARPENTER_GROUP, "nodepools"),
        claims.pool,
        subresource="status",
    )
    used = {"status": {"resources": {"nvidia.com/gpu": "8", "memory": "200Gi"}}}
    cluster.kube.patch(path, used, kind=PatchKind.MERGE)
    horizon = desk.do(RESOLVE_CLAIM, owner).horizon
    assert horizon is not None
    request = SuccessorRequest(owner, claims.pool, horizon)
    found = desk.do(LOOK_FOR_SUCCESSOR, request)
    assert "at its limits (nvidia.com/gpu 8 of 8)" in found.reason

    pod = _waiting(unique("pod"))
    cluster.kube.create(paths.pods("default"), pod)
    found = desk.do(LOOK_FOR_SUCCESSOR, request)
    assert (found.is_coming, found.waiting >= 1) == (False, True)
    cluster.kube.delete(paths.pod("default", pod["metadata"]["name"]), uid=None, grace_s=0)


def _waiting(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"no": "node"}, "containers": [container]},
    }
