"""The permit of a running activity: shared for at most two seconds, and refused for good."""

import pytest
from temporalio.exceptions import ApplicationError

from activities.permit import Authority, StandingPermit
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.activities.test_policy_file import Clock
from tests.harness.cluster import Cluster
from workflows.contracts import errors
from workflows.model.remediation.permit import FRESH_S, Effect


def standing(desk: Desk, bare: BareNodes, clock: Clock) -> tuple[StandingPermit, str]:
    owner = bare.add("a")
    authority = Authority(desk.dependencies.kube, desk.dependencies.policies)
    return StandingPermit(authority, owner, Effect.MARK, clock=clock), owner.node.name


def test_it_is_asked_again_when_it_is_no_longer_fresh(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    clock = Clock()
    permit, node = standing(desk, bare, clock)
    permit.check()
    cluster.annotate(node, pause="hands off")
    clock.now = FRESH_S - 0.1
    permit.check()
    clock.now = FRESH_S
    for _ in range(2):
        with pytest.raises(ApplicationError) as caught:
            permit.check()
        assert caught.value.type == errors.NOT_PERMITTED


def test_it_is_as_old_as_its_question(desk: Desk, bare: BareNodes, cluster: Cluster) -> None:
    class SlowClock(Clock):
        """Two seconds pass while the first question is answered."""

        def __call__(self) -> float:
            self.now += FRESH_S
            return self.now

    permit, node = standing(desk, bare, SlowClock())
    permit.check()
    cluster.annotate(node, ignore="mine")
    with pytest.raises(ApplicationError):
        permit.check()
