"""A node that runs a pod of fleetmend's own Deployments is left alone, until the pod has moved."""

from collections.abc import Callable

import pytest
from temporalio.exceptions import ApplicationError

from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.activities.kube.test_quarantine import asked
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.services import service_on
from workflows.contracts import errors
from workflows.contracts.kube import (
    AWAIT_PERMIT,
    GIVE_BACK,
    NOTE_SLOT,
    QUARANTINE,
    GiveBackRequest,
    PermitRequest,
    SlotRequest,
)
from workflows.model.remediation.permit import Effect, Refusal


def test_no_cordon_while_the_pod_is_there_and_a_cordon_afterwards(
    desk: Desk,
    bare: BareNodes,
    cluster: Cluster,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    owner = bare.add("a")
    with service_on(cluster, owner.node.name, unique("svc")) as service:
        with pytest.raises(ApplicationError) as refused:
            desk.do(QUARANTINE, asked(owner))
        assert refused.value.type == errors.NOT_PERMITTED
        assert refused.value.details[0] == Refusal.PROTECTED
        assert f"fleetmend/{service.pods()[0]}" in str(refused.value)
        with pytest.raises(ApplicationError) as waiting:
            desk.do(AWAIT_PERMIT, PermitRequest(owner, Effect.MARK))
        assert waiting.value.type == errors.NOT_YET
        assert not witness.node_writes(owner.node.name)
        service.leave()
        assert desk.do(QUARANTINE, asked(owner)).marker is not None


def test_a_service_elsewhere_protects_no_other_node(
    desk: Desk, bare: BareNodes, cluster: Cluster, unique: Callable[[str], str]
) -> None:
    owner, other = bare.add("a"), bare.add("b")
    with service_on(cluster, other.node.name, unique("svc")):
        assert desk.do(QUARANTINE, asked(owner)).marker is not None


def test_a_service_outside_the_named_namespaces_protects_nothing(
    desk: Desk, bare: BareNodes, cluster: Cluster, unique: Callable[[str], str]
) -> None:
    owner = bare.add("a")
    with service_on(cluster, owner.node.name, unique("svc"), namespace="default"):
        assert desk.do(QUARANTINE, asked(owner)).marker is not None


def test_giving_back_is_not_refused(
    desk: Desk, bare: BareNodes, cluster: Cluster, epoch: str, unique: Callable[[str], str]
) -> None:
    """P8; the disruption of the same node is."""
    owner = bare.add("a")
    desk.do(QUARANTINE, asked(owner))
    desk.do(NOTE_SLOT, SlotRequest(owner, epoch))
    with service_on(cluster, owner.node.name, unique("svc")):
        with pytest.raises(ApplicationError) as waiting:
            desk.do(AWAIT_PERMIT, PermitRequest(owner, Effect.DISRUPT))
        assert "scope.protected_namespaces" in str(waiting.value)
        desk.do(GIVE_BACK, GiveBackRequest(owner))
    assert not cluster.node(owner.node.name).unschedulable
