"""The steps of a replacement: run twice, and failed at each of their calls, as every activity is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from activities.kube import paths
from tests.activities import test_faults_at_each_call as matrix
from tests.activities.conftest import BareNodes
from tests.activities.contract_scenes import Scenario, Scene
from tests.activities.desk import Desk
from tests.activities.karpenter.conftest import AddNode
from tests.activities.karpenter.kinds import HOLD, Claims
from tests.harness.audit import audit
from tests.harness.cluster import Cluster
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Fault
from workers.lab.address import LabAddress
from workflows.contracts.karpenter import (
    AWAIT_CLAIM_GONE,
    DELETE_CLAIM,
    FIND_SUCCESSOR,
    LOOK_FOR_SUCCESSOR,
    READ_CLAIM_END,
    RESOLVE_CLAIM,
    ClaimWatch,
    DeleteClaimRequest,
    SuccessorRequest,
)
from workflows.contracts.kube import ASSERT_VETOES
from workflows.model.remediation.marks import DO_NOT_DISRUPT, lost_vetoes
from workflows.model.remediation.replacement import ClaimRef, Standing


@dataclass
class ClaimScene(Scene):
    """A node with its NodeClaim."""

    claims: Claims
    claim: ClaimRef
    add_node: AddNode


class Resolving(Scenario):
    contract = RESOLVE_CLAIM

    def request(self, scene: Any) -> Any:
        return scene.owner

    def check(self, scene: Any, result: Any) -> None:
        assert (result.standing, result.claim) == (Standing.FOUND, scene.claim)


class Deleting(Scenario):
    contract = DELETE_CLAIM
    effect = ("DELETE", "/nodeclaims/")

    def prepare(self, scene: Any) -> None:
        scene.with_slot()

    def request(self, scene: Any) -> Any:
        return DeleteClaimRequest(scene.owner, scene.claim)

    def check(self, scene: Any, result: Any) -> None:
        body = scene.claims.read(scene.claim.name)
        assert body["metadata"]["deletionTimestamp"]
        # Asked for again, after an answer that was lost, it must still mean this very claim.
        assert set(self._deleted(scene)) == {scene.claim.uid}

    def check_once(self, scene: Any) -> None:
        assert len(self._deleted(scene)) == 1

    def _deleted(self, scene: Any) -> list[str]:
        """UIDs that deletions of the claim have named."""
        events = [e for e in scene.witness.claim_deletions() if e.name == scene.claim.name]
        return [e.body["preconditions"]["uid"] for e in events]


class ReadingTheEnd(Scenario):
    contract = READ_CLAIM_END

    def request(self, scene: Any) -> Any:
        return ClaimWatch(scene.owner, scene.claim)

    def check(self, scene: Any, result: Any) -> None:
        assert not result.gone
        assert [b.name for b in result.blockers] == [HOLD]


class AwaitingTheEnd(Scenario):
    contract = AWAIT_CLAIM_GONE

    def prepare(self, scene: Any) -> None:
        scene.claims.patch(scene.claim.name, {"metadata": {"finalizers": None}})
        scene.cluster.kube.delete(paths.node_claim(scene.claim.name), uid=None)
        scene.cluster.kube.delete(paths.node(scene.name), uid=None)

    def request(self, scene: Any) -> Any:
        return ClaimWatch(scene.owner, scene.claim)

    def check(self, scene: Any, result: Any) -> None:
        assert result.gone


class Looking(Scenario):
    contract = LOOK_FOR_SUCCESSOR

    def prepare(self, scene: Any) -> None:
        self.horizon = scene.desk.do(RESOLVE_CLAIM, scene.owner).horizon
        self.newcomer = scene.add_node(f"{scene.name[-6:]}-new")
        self.claim = scene.claims.add_for(self.newcomer)

    def request(self, scene: Any) -> Any:
        return SuccessorRequest(scene.owner, scene.claims.pool, self.horizon)

    def check(self, scene: Any, result: Any) -> None:
        assert result.successor.node == self.newcomer.node


class Finding(Looking):
    contract = FIND_SUCCESSOR


class AssertingVetoes(Scenario):
    contract = ASSERT_VETOES

    def prepare(self, scene: Any) -> None:
        scene.quarantined()
        lost: dict[str, Any] = {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}}
        scene.cluster.patch_node(scene.name, lost)

    def request(self, scene: Any) -> Any:
        return scene.owner

    def check(self, scene: Any, result: Any) -> None:
        assert lost_vetoes(scene.cluster.node(scene.name)) == ()
        assert scene.patches() == 2


SCENARIOS = (
    Resolving(),
    Deleting(),
    ReadingTheEnd(),
    AwaitingTheEnd(),
    Looking(),
    Finding(),
    AssertingVetoes(),
)
CHANGING = (Deleting(), AssertingVetoes())


@pytest.fixture
def stage(
    desk: Desk,
    faulty_desk: Desk,
    cluster: Cluster,
    bare: BareNodes,
    lab: LabAddress,
    epoch: str,
    claims: Claims,
    karpenter_node: AddNode,
) -> Iterator[Callable[[int], ClaimScene]]:
    """A fresh scene for each number, in a NodePool of its own."""
    pool = claims.pool

    def scene(number: int) -> ClaimScene:
        claims.pool = f"{pool}-{number}"
        owner = karpenter_node(str(number))
        claim = claims.add_for(owner, metadata={**_labelled(claims), "finalizers": [HOLD]})
        return ClaimScene(
            desk, faulty_desk, cluster, owner, bare.pool, audit(lab), claims, claim, karpenter_node
        )

    yield scene
    claims.pool = pool


def _labelled(claims: Claims) -> dict[str, Any]:
    return {"labels": {"karpenter.sh/nodepool": claims.pool}}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_a_step_of_a_replacement_is_run_twice(
    scenario: Scenario, stage: Callable[[int], Scene]
) -> None:
    matrix.run_twice(scenario, stage(1))


@pytest.mark.parametrize("moment", matrix.Moment)
@pytest.mark.parametrize("scenario", CHANGING, ids=lambda s: type(s).__name__)
def test_a_step_of_a_replacement_fails_here(
    scenario: Scenario,
    moment: matrix.Moment,
    stage: Callable[[int], Scene],
    worker_proxy: FaultProxy,
) -> None:
    matrix.fails_here(scenario, stage(1), moment, worker_proxy)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", matrix.FAULTS.values(), ids=matrix.FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_a_fault_at_any_call_of_a_replacement_changes_nothing_in_the_end(
    scenario: Scenario,
    fault: Fault,
    stage: Callable[[int], Scene],
    worker_proxy: FaultProxy,
) -> None:
    assert matrix.run_through(scenario, fault, stage, worker_proxy) >= 2
