"""Validation: which idle nodes, in which order, how many, and why not the others."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import NOW, POLICY, condition, node, pod
from workflows.model.amounts import nodes_of_share
from workflows.model.identity import NodeRef
from workflows.model.remediation.arming import Arming, Entry
from workflows.model.remediation.marks import EPISODE, IGNORE, PAUSE
from workflows.model.remediation.validation import (
    DUE_AT,
    IdleNode,
    Sight,
    gpu_user_among,
    is_due,
    pick,
    why_not,
)
from workflows.model.upkeep import AdmissionPolicy, ValidationPolicy

RULE = ValidationPolicy(enabled=True, period_s=86_400, share="10%")
ARMED = Arming(armed=(Entry("training", "ada", NOW, ""),))


def idle(name: str, age: timedelta | None) -> IdleNode:
    return IdleNode(NodeRef(name, f"uid-{name}"), None if age is None else NOW - age)


AGES = st.one_of(st.none(), st.timedeltas(timedelta(0), timedelta(days=40)))
FLEETS = st.dictionaries(st.integers(0, 200), AGES, max_size=20).map(
    lambda ages: [idle(f"n{number}", age) for number, age in ages.items()]
)
SHARES = st.one_of(st.integers(1, 50), st.integers(0, 100).map(lambda percent: f"{percent}%"))


@given(FLEETS, SHARES, st.integers(0, 10))
def test_never_more_than_the_share_of_the_idle_nodes_with_those_under_way(
    nodes: list[IdleNode], share: int | str, under_way: int
) -> None:
    rule = ValidationPolicy(enabled=True, share=share)
    picked = pick(nodes, rule, under_way, NOW)
    assert len(picked) <= max(0, nodes_of_share(share, len(nodes) + under_way) - under_way)


@given(FLEETS, SHARES)
def test_what_is_picked_is_due_and_nobody_left_out_waits_longer(
    nodes: list[IdleNode], share: int | str
) -> None:
    rule = ValidationPolicy(enabled=True, share=share)
    picked = pick(nodes, rule, 0, NOW)
    assert len(set(picked)) == len(picked)
    assert all(is_due(one, rule, NOW) for one in picked)

    def waits(one: IdleNode) -> datetime:
        return one.validated_at or datetime.min.replace(tzinfo=NOW.tzinfo)

    others = [one for one in nodes if one not in picked and is_due(one, rule, NOW)]
    assert all(waits(one) <= waits(other) for one in picked for other in others)


@given(FLEETS)
def test_one_node_that_is_due_is_always_picked(nodes: list[IdleNode]) -> None:
    due = [one for one in nodes if is_due(one, RULE, NOW)]
    assert bool(pick(nodes, RULE, 0, NOW)) is bool(due)


@given(FLEETS, SHARES)
def test_the_order_in_which_nodes_are_listed_does_not_matter(
    nodes: list[IdleNode], share: int | str
) -> None:
    rule = ValidationPolicy(enabled=True, share=share)
    assert pick(nodes, rule, 0, NOW) == pick(nodes[::-1], rule, 0, NOW)


def test_never_validated_ones_come_first_then_the_longest_unvalidated() -> None:
    rule = ValidationPolicy(enabled=True, period_s=86_400, share=3)
    day = timedelta(days=1)
    nodes = [idle("b", 2 * day), idle("c", 9 * day), idle("a", None), idle("d", day / 2)]
    assert [one.node.name for one in pick(nodes, rule, 0, NOW)] == ["a", "c", "b"]


def test_a_node_is_due_before_its_period_is_over() -> None:
    early = timedelta(seconds=RULE.period_s * DUE_AT)
    assert is_due(idle("a", early), RULE, NOW)
    assert not is_due(idle("a", early - timedelta(seconds=1)), RULE, NOW)


@pytest.mark.parametrize(
    ("pods", "user"),
    [
        ([], ""),
        ([pod(requests_gpu=False)], ""),
        ([pod(requests_gpu=True, phase="Succeeded")], ""),
        ([pod(requests_gpu=True, phase="Failed")], ""),
        ([pod(requests_gpu=True, phase="Pending", name="new")], "jobs/new"),
        ([pod(requests_gpu=True, deleting=True, name="leaving")], "jobs/leaving"),
    ],
    ids=["none", "no-gpu", "succeeded", "failed", "not-started", "leaving"],
)
def test_idle_is_without_a_pod_that_requests_gpus(pods: list[Any], user: str) -> None:
    assert gpu_user_among(pods) == user


def test_a_node_that_is_idle_in_service_and_well_may_be_validated() -> None:
    assert why_not(Sight(node()), POLICY, ARMED, NOW) == ""


@pytest.mark.parametrize(
    ("expected", "words"),
    [(8, ""), (None, "set expected_gpus of training")],
    ids=["counted-against-its-pool", "nobody-says-how-many"],
)
def test_a_machine_without_a_baseline_is_examined_where_policy_wants_it_and_says_how_many(
    expected: int | None, words: str
) -> None:
    changes = {"admission": AdmissionPolicy(untainted=True), "expected_gpus": expected}
    pool = POLICY.pools[0].model_copy(update=changes)
    policy = POLICY.model_copy(update={"pools": (pool,)})
    why = why_not(Sight(node(), has_baseline=False), policy, ARMED, NOW)
    assert words in why
    assert bool(why) is bool(words)


@pytest.mark.parametrize(
    ("sight", "arming", "words"),
    [
        (Sight(node()), Arming(), "not armed"),
        (Sight(node(labels={})), ARMED, "in no pool"),
        (Sight(node(annotations={PAUSE: "x"})), ARMED, PAUSE),
        (Sight(node(annotations={IGNORE: "x"})), ARMED, IGNORE),
        (
            Sight(node()),
            Arming(ARMED.armed, (Entry("*", "bob", NOW, ""),)),
            "the fleet is paused by bob",
        ),
        (
            Sight(node()),
            Arming(ARMED.armed, (Entry("training", "bob", NOW, ""),)),
            "pool training is paused by bob",
        ),
        (Sight(node(annotations={EPISODE: "{"})), ARMED, "marked already"),
        (Sight(node(unschedulable=True)), ARMED, "somebody has cordoned it"),
        (Sight(node(deleting=True)), ARMED, "being deleted"),
        (Sight(node(), has_episode=True), ARMED, "open episode"),
        (Sight(node(), worker="a/b"), ARMED, "pod a/b requests its GPUs"),
        (Sight(node(), claimant="a/b"), ARMED, "pod a/b waits"),
        (Sight(node(), has_baseline=False), ARMED, "no baseline"),
        (Sight(node(), protecting=None), ARMED, "cannot be told"),
        (
            Sight(node(conditions={"GPUHealthy": condition("GPUHealthy", "False", "GpuLost")})),
            ARMED,
            "conditions are not good",
        ),
        (
            Sight(node(conditions={"HostHealthy": condition("HostHealthy", "Unknown", "x")})),
            ARMED,
            "conditions are not good",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_a_node_is_left_alone(sight: Sight, arming: Arming, words: str) -> None:
    assert words in why_not(sight, POLICY, arming, NOW)
