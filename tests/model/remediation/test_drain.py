"""Drain verdicts: for each pod what happens to it, and when a node is empty."""

from typing import Any

import pytest

from tests.model.views import pod
from workflows.model.remediation.drain import (
    FILTERS,
    MIRROR_ANNOTATION,
    PodVerdict,
    is_drained,
    is_idle,
    judge_pod,
)

EXEMPT, GONE = PodVerdict.EXEMPT, PodVerdict.GONE
LEAVING, EVICT = PodVerdict.LEAVING, PodVerdict.EVICT

TABLE = [
    pytest.param({}, EVICT, id="job"),
    pytest.param({"owner_kind": ""}, EVICT, id="nobody-owns-it"),
    pytest.param({"phase": "Pending", "running_containers": 0}, EVICT, id="bound-not-started"),
    pytest.param({"phase": "Unknown"}, EVICT, id="unknown-phase"),
    pytest.param({"owner_kind": "DaemonSet"}, EXEMPT, id="daemon"),
    pytest.param({"owner_kind": "DaemonSet", "deleting": True}, EXEMPT, id="daemon-leaving"),
    pytest.param({"annotations": {MIRROR_ANNOTATION: "x"}}, EXEMPT, id="mirror"),
    pytest.param({"labels": {"fleetmend.io/task": "reboot"}}, EXEMPT, id="our-own-task"),
    pytest.param({"phase": "Succeeded"}, GONE, id="succeeded"),
    pytest.param({"phase": "Failed"}, GONE, id="failed-R8"),
    pytest.param({"deleting": True, "running_containers": 0}, GONE, id="waits-for-a-finalizer-R7"),
    pytest.param({"deleting": True}, LEAVING, id="terminating"),
    pytest.param({"tolerates_all": True}, EVICT, id="tolerations-exempt-nothing"),
]


@pytest.mark.parametrize(("changes", "verdict"), TABLE)
def test_verdict(changes: dict[str, Any], verdict: PodVerdict) -> None:
    judged = judge_pod(pod(**changes))
    assert judged.verdict is verdict
    assert judged.reason


@pytest.mark.parametrize(("changes", "verdict"), TABLE)
def test_a_node_is_drained_when_nothing_on_it_may_still_run(
    changes: dict[str, Any], verdict: PodVerdict
) -> None:
    pods = (pod(owner_kind="DaemonSet"), pod(**changes))
    assert is_drained(pods) is (verdict in (EXEMPT, GONE))


def test_an_empty_node_is_drained_and_idle() -> None:
    assert is_drained(())
    assert is_idle(())


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({}, False),
        ({"requests_gpu": False}, True),
        ({"phase": "Succeeded"}, True),
        ({"deleting": True}, False),
        ({"owner_kind": "DaemonSet"}, False),
    ],
    ids=["works", "no-gpu", "ended", "terminating", "daemon-with-gpu"],
)
def test_idle_means_no_pod_that_asked_for_gpus(changes: dict[str, Any], idle: bool) -> None:
    assert is_idle((pod(**changes),)) is idle


def test_no_filter_evicts() -> None:
    """Eviction is what is left when nobody objects, so that a new filter can only spare."""
    for row in TABLE:
        changes = row.values[0]
        assert isinstance(changes, dict)
        opinions = [found for f in FILTERS if (found := f(pod(**changes))) is not None]
        assert all(verdict is not EVICT for verdict, _ in opinions)
