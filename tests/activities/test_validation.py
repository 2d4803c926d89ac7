"""Which idle nodes are picked, on a real API server: due ones by schedule, named ones by hand."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.harness.cluster import Cluster
from tests.harness.policies import TestPool, write_policy
from tests.harness.waiting import wait_until
from workflows.contracts import errors
from workflows.contracts.fleet import PICK_IDLE, READ_IDLENESS, FleetOrder, Picks
from workflows.contracts.kube import QUARANTINE, Owner, QuarantineRequest
from workflows.contracts.machines import (
    RECORD_BASELINE,
    RECORD_PHASE,
    TAKEN_BACK,
    BaselineRequest,
    PhaseRecord,
    Validation,
)
from workflows.model.identity import NodeRef, machine_id
from workflows.model.remediation.gate import Baseline
from workflows.model.remediation.marks import Marker, Quarantine

NOW = datetime.now(UTC)
GPUS = tuple(f"GPU-{n}" for n in range(8))
HOUR = 3600.0


@pytest.fixture
def policy_file(tmp_path: Path, pool: str) -> Path:
    """Two nodes of the pool at once, each hour; bare nodes have no agent whose word could count."""
    path = tmp_path / "policy.yaml"
    rule = {"enabled": True, "period_s": HOUR, "level": 2, "share": 2}
    write_policy(path, [TestPool(pool, validation=rule)], gate={"conditions": []})
    return path


@pytest.fixture
def known(desk: Desk, bare: BareNodes, cluster: Cluster, pool: str) -> Callable[[str], Owner]:
    """Adds a node whose machine has a baseline."""

    def add(name: str) -> Owner:
        owner = bare.add(name)
        baseline = Baseline(GPUS, (("nvidia.com/gpu", 8),), NOW)
        request = BaselineRequest(
            owner, machine_of(cluster, owner), pool, "", baseline, "H100", "boot-1"
        )
        assert desk.do(RECORD_BASELINE, request).refused == ""
        return owner

    return add


def machine_of(cluster: Cluster, owner: Owner) -> str:
    node = cluster.node(owner.node.name)
    return machine_id(node.system_uuid, node.provider_id, node.uid)


def validated(desk: Desk, cluster: Cluster, owner: Owner, age: timedelta, level: int = 2) -> None:
    """The machine's record says that it passed so long ago."""
    at = datetime.now(UTC) - age
    remember(desk, cluster, owner, Validation(at, "passed", level, "8 GPUs"), "returned")


def taken_back(desk: Desk, cluster: Cluster, owner: Owner, age: timedelta) -> None:
    """The machine's record says that a person ended its validation so long ago."""
    at = datetime.now(UTC) - age
    remember(desk, cluster, owner, Validation(at, TAKEN_BACK, 2, ""), "dismissed")


def remember(
    desk: Desk, cluster: Cluster, owner: Owner, validation: Validation, outcome: str
) -> None:
    record = PhaseRecord(
        owner,
        machine_of(cluster, owner),
        "",
        "node/x",
        "run-1",
        1,
        "closed",
        "operator",
        "validated",
        validation.at,
        outcome=outcome,
        validation=validation,
    )
    desk.do(RECORD_PHASE, record)


def names(picks: Picks) -> list[str]:
    return [one.node.name for one in picks.picked]


def order(desk: Desk, **more: object) -> FleetOrder:
    return FleetOrder(desk.dependencies.cluster, **more)  # type: ignore[arg-type]  # a table of tests


def test_a_tick_takes_those_that_are_due_the_longest_unvalidated_first(
    desk: Desk, cluster: Cluster, known: Callable[[str], Owner]
) -> None:
    fresh, old, older, never = known("a"), known("b"), known("c"), known("d")
    validated(desk, cluster, fresh, timedelta(minutes=5))
    validated(desk, cluster, old, timedelta(hours=2))
    validated(desk, cluster, older, timedelta(hours=3))
    picks = desk.do(PICK_IDLE, order(desk))
    assert names(picks) == [never.node.name, older.node.name]
    assert {one.level for one in picks.picked} == {2}
    assert len({one.episode for one in picks.picked}) == 2
    assert picks.left == ()


def test_what_passed_only_at_a_lower_level_is_due(
    desk: Desk, cluster: Cluster, known: Callable[[str], Owner]
) -> None:
    owner = known("a")
    validated(desk, cluster, owner, timedelta(minutes=5), level=1)
    assert names(desk.do(PICK_IDLE, order(desk))) == [owner.node.name]


def test_the_schedule_leaves_a_node_to_the_person_who_took_it_back_for_one_period(
    desk: Desk, cluster: Cluster, known: Callable[[str], Owner]
) -> None:
    """Or it would be cordoned again ten minutes after somebody uncordoned it."""
    lately, long_ago = known("a"), known("b")
    taken_back(desk, cluster, lately, timedelta(minutes=10))
    taken_back(desk, cluster, long_ago, timedelta(hours=1))
    picks = desk.do(PICK_IDLE, order(desk))
    assert names(picks) == [long_ago.node.name]
    (left,) = picks.left
    assert left.node == lately.node.name
    assert "a person took it back from its validation" in left.why
    by_hand = desk.do(PICK_IDLE, order(desk, node=lately.node.name, by="ada"))
    assert names(by_hand) == [lately.node.name]


def test_one_under_validation_takes_of_the_share(desk: Desk, known: Callable[[str], Owner]) -> None:
    running, *others = known("a"), known("b"), known("c"), known("d")
    marker = Marker(
        running.episode, running.node.uid, NOW, "validation", "operator", Quarantine.VALIDATION
    )
    desk.do(QUARANTINE, QuarantineRequest(running, marker))
    assert names(desk.do(PICK_IDLE, order(desk))) == [others[0].node.name]


def test_new_nodes_without_the_taint_are_examined_where_policy_says_so(
    desk: Desk, bare: BareNodes, known: Callable[[str], Owner], policy_file: Path, pool: str
) -> None:
    """Also in a pool that is not validated by itself; those with a baseline are not new."""
    known("proven")
    new = bare.add("new")
    assert new.node.name not in names(desk.do(PICK_IDLE, order(desk)))
    rule = {"untainted": True, "level": 3}
    write_policy(policy_file, [TestPool(pool, admission=rule)], gate={"conditions": []})
    expected = [(new.node, True, 3)]

    def picked() -> list[tuple[NodeRef, bool, int]]:
        found = desk.do(PICK_IDLE, order(desk)).picked
        return [(one.node, one.is_new, one.level) for one in found]

    wait_until(lambda: picked() == expected, 30, "the changed policy is read", saw=picked)
    assert desk.do(READ_IDLENESS, new).why_not == ""


def test_by_hand_every_node_of_the_pool_that_may_be_and_the_reason_of_each_other(
    desk: Desk, cluster: Cluster, pool: str, bare: BareNodes, known: Callable[[str], Owner]
) -> None:
    fresh, other = known("a"), known("b")
    validated(desk, cluster, fresh, timedelta(minutes=5))
    new = bare.add("c")
    cluster.annotate(other.node.name, pause="mine")
    picks = desk.do(PICK_IDLE, order(desk, pool=pool, by="ada", level=1))
    assert names(picks) == [fresh.node.name]
    assert picks.picked[0].level == 1
    why = {one.node: one.why for one in picks.left}
    assert "fleetmend.io/pause" in why[other.node.name]
    assert "no baseline" in why[new.node.name]


def test_a_node_that_a_person_names_and_that_is_not_there_is_told(desk: Desk) -> None:
    picks = desk.do(PICK_IDLE, order(desk, node="nobody", by="ada"))
    assert [(one.node, one.why) for one in picks.left] == [("nobody", "there is no such Node")]


@pytest.mark.parametrize(
    ("more", "words"), [({"pool": "no-such-pool"}, "no pool"), ({"cluster": "other"}, "serves")]
)
def test_an_order_that_cannot_be_meant_is_refused(
    desk: Desk, more: dict[str, str], words: str
) -> None:
    wrong = replace(order(desk), **more)  # type: ignore[arg-type]  # texts, of text fields
    with pytest.raises(ApplicationError, match=words) as refused:
        desk.do(PICK_IDLE, wrong)
    assert refused.value.type == errors.BAD_REQUEST


def test_nothing_is_picked_while_the_pool_is_paused(
    desk: Desk, cluster: Cluster, pool: str, known: Callable[[str], Owner]
) -> None:
    owner = known("a")
    assert names(desk.do(PICK_IDLE, order(desk))) == [owner.node.name]
    cluster.pause(pool)
    try:
        assert names(desk.do(PICK_IDLE, order(desk))) == []
        assert "paused" in desk.do(READ_IDLENESS, owner).why_not
    finally:
        cluster.resume(pool)


def test_an_idle_node_is_idle_also_when_it_is_cordoned_and_marked(
    desk: Desk, known: Callable[[str], Owner]
) -> None:
    owner = known("a")
    assert desk.do(READ_IDLENESS, owner).why_not == ""
    marker = Marker(
        owner.episode, owner.node.uid, NOW, "validation", "operator", Quarantine.VALIDATION
    )
    desk.do(QUARANTINE, QuarantineRequest(owner, marker))
    idleness = desk.do(READ_IDLENESS, owner)
    assert idleness.why_not == "it is marked already"
    assert idleness.work == ""
