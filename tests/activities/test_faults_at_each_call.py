"""Every activity run twice, and failed at each of its calls: before the effect, in it, and after it.

Owns the two ways in which an attempt is repeated. `run_twice`: the first one succeeded and nobody
heard of it. `fails_here`: the first one failed before, in or after its effect. And the matrix: the
fault is put on the first, second, ... call until a run has no such call any more. The step is then
retried as Temporal would, and the world must be as after a run without faults, with nothing done
twice. The scenes are `contract_scenes.py`'s.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import cast

import pytest
from temporalio.client import Client

from activities.kube.client import KubeClient
from activities.policy_file import PolicySource
from activities.registry import Dependencies, build_activities
from tests.activities import test_guard
from tests.activities.conftest import BareNodes
from tests.activities.contract_scenes import (
    CHANGES_NOTHING,
    OF_KARPENTER,
    OF_NEWCOMERS,
    SCENARIOS,
    TELLS_TEMPORAL,
    Scenario,
    Scene,
)
from tests.activities.desk import Desk, name_of
from tests.harness.audit import audit
from tests.harness.cluster import Cluster
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer, Drop, Fault, Hang, Rewrite
from workers.lab.address import LabAddress

MAX_CALLS = 40
_NOTHING = Dependencies(
    cast("KubeClient", None), cast("Client", None), PolicySource(cast("KubeClient", None)), "test"
)
"""For the names of all activities; none is carried out."""

FAULTS: dict[str, Fault] = {
    "dropped-after": Drop(forwarded=True),
    "dropped-before": Drop(),
    "conflict": Answer(409),
    "error-after": Answer(500, forwarded=True),
    "gone": Answer(410),
    "slow-down": Answer(429, retry_after_s=1),
    "unavailable": Answer(503),
    "garbage": Answer(200, body=b"<html>"),
    "silent": Hang(),
    "silent-after": Hang(forwarded=True),
}


@pytest.fixture
def stage(
    desk: Desk,
    faulty_desk: Desk,
    cluster: Cluster,
    bare: BareNodes,
    pool: str,
    lab: LabAddress,
    epoch: str,
) -> Iterator[Callable[[int], Scene]]:
    """A fresh scene for each number."""

    def scene(number: int) -> Scene:
        owner = bare.add(str(number))
        return Scene(desk, faulty_desk, cluster, owner, pool, audit(lab))

    yield scene
    for name in bare.added:
        cluster.delete_pods_of(name)


def run_twice(scenario: Scenario, scene: Scene) -> None:
    """From success: nobody heard of it, so it is carried out once more."""
    scenario.prepare(scene)
    request = scenario.request(scene)
    first = scene.desk.do(scenario.contract, request)
    scenario.check(scene, first)
    told = scene.desk.told[-1:]
    second = scene.desk.do(scenario.contract, request, details=told)
    scenario.check(scene, second)
    scenario.check_once(scene)


class Moment(StrEnum):
    """When an attempt fails."""

    BEFORE = "before"
    IN = "in"
    AFTER = "after"


def fails_here(scenario: Scenario, scene: Scene, moment: Moment, proxy: FaultProxy) -> None:
    """The first attempt fails before, in or after its effect; the next one finds what it left."""
    scenario.prepare(scene)
    method, path = scenario.effect

    def fail_next(answer: bytes) -> bytes:
        proxy.add(Drop())
        return answer

    faults: Mapping[Moment, Fault] = {
        Moment.BEFORE: Drop(),
        Moment.IN: Drop(forwarded=True),
        Moment.AFTER: Rewrite(fail_next),
    }
    rule = proxy.add(faults[moment], method=method, path=path)
    attempts = scene.faulty.do_as_temporal(scenario.contract, scenario.request(scene))
    assert rule.fired == 1, "there was no such effect"
    proxy.clear()
    scenario.check(scene, attempts.result)
    if not attempts.failures:  # no call comes after the effect: the attempt's own answer was lost
        told = scene.faulty.told[-1:]
        again = scene.desk.do(scenario.contract, scenario.request(scene), details=told)
        scenario.check(scene, again)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_run_twice(scenario: Scenario, stage: Callable[[int], Scene]) -> None:
    run_twice(scenario, stage(1))


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_fails_here(
    scenario: Scenario,
    moment: Moment,
    stage: Callable[[int], Scene],
    worker_proxy: FaultProxy,
) -> None:
    fails_here(scenario, stage(1), moment, worker_proxy)


def test_every_contract_is_run_twice_or_changes_nothing() -> None:
    contracts = {name_of(one): one for one in build_activities(_NOTHING)}
    shown = {scenario.contract.name for scenario in SCENARIOS}
    excused = (set(CHANGES_NOTHING), set(TELLS_TEMPORAL), set(OF_KARPENTER), set(OF_NEWCOMERS))
    assert set(contracts) == shown.union(*excused)
    assert len(contracts) == len(shown) + sum(map(len, excused)), "named twice"
    for test in TELLS_TEMPORAL.values():
        assert callable(getattr(test_guard, test))


def run_through(
    scenario: Scenario, fault: Fault, stage: Callable[[int], Scene], proxy: FaultProxy
) -> int:
    """The fault at each call in turn; how many calls there were."""
    for number in range(1, MAX_CALLS):
        scene = stage(number)
        scenario.prepare(scene)
        rule = proxy.add(fault, nth=number)
        attempts = scene.faulty.do_as_temporal(scenario.contract, scenario.request(scene))
        proxy.clear()
        scenario.check(scene, attempts.result)
        if rule.fired == 0:
            return number - 1
    return MAX_CALLS


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_a_fault_at_any_call_changes_nothing_in_the_end(
    scenario: Scenario,
    fault: Fault,
    stage: Callable[[int], Scene],
    worker_proxy: FaultProxy,
) -> None:
    assert run_through(scenario, fault, stage, worker_proxy) >= 2
