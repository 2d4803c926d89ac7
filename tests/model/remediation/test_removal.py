"""Removal: what blocks is named, the first stage alone, and nothing blocks what is gone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, NOW
from workflows.model.node import PodView
from workflows.model.remediation.removal import (
    MAX_BLOCKERS,
    BlockerKind,
    Remains,
    blockers_of,
)
from workflows.model.remediation.replacement import ClaimView

CLAIM = ClaimView("c", "u", NOW, "np", "p", "n", finalizers=("karpenter.sh/termination",))


def pod(name: str = "p", *, deleting: bool = False, owner: str = "Job") -> PodView:
    return PodView(
        "ns", name, f"u-{name}", "Running", deleting, 1, True, owner, "o", labels={"app": name}
    )


def budget(selector: Any, allowed: int = 0, namespace: str = "ns") -> dict[str, Any]:
    return {
        "metadata": {"name": "pdb", "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }


def test_pods_come_before_volumes_and_volumes_before_finalizers() -> None:
    everything = Remains(CLAIM, ("hold",), (pod(),), (), ("va",))
    assert [b.kind for b in blockers_of(everything)] == [BlockerKind.POD]
    assert [b.kind for b in blockers_of(Remains(CLAIM, ("hold",), (), (), ("va",)))] == [
        BlockerKind.VOLUME
    ]
    left = blockers_of(Remains(CLAIM, ("hold",)))
    assert [str(b) for b in left] == [
        "finalizer hold holds the Node",
        "finalizer karpenter.sh/termination holds NodeClaim c",
    ]


def test_nothing_blocks_what_is_gone() -> None:
    assert blockers_of(Remains(None, None)) == ()
    assert Remains(None, None).is_gone
    assert not Remains(CLAIM, None).is_gone
    assert not Remains(None, ()).is_gone


def test_daemons_and_pods_without_containers_block_nothing() -> None:
    remains = Remains(None, (), (pod(owner="DaemonSet"),))
    assert blockers_of(remains) == ()


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ({"matchLabels": {"app": "p"}}, True),
        ({"matchLabels": {"app": "q"}}, False),
        ({}, True),
        (None, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["p"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["p"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "app"}]}, False),
    ],
    ids=str,
)
def test_a_budget_is_named_if_it_selects_the_pod(selector: Any, holds: bool) -> None:
    (blocker,) = blockers_of(Remains(CLAIM, (), (pod(),), (budget(selector),)))
    assert (blocker.kind is BlockerKind.PDB) is holds
    assert "ns/p" in str(blocker)


@pytest.mark.parametrize(
    "other", [budget({}, allowed=1), budget({}, namespace="else")], ids=["allows", "elsewhere"]
)
def test_a_budget_with_room_or_of_another_namespace_is_not_named(other: dict[str, Any]) -> None:
    (blocker,) = blockers_of(Remains(CLAIM, (), (pod(),), (other,)))
    assert blocker.kind is BlockerKind.POD


def test_many_blockers_are_cut() -> None:
    many = tuple(pod(f"p{n}") for n in range(50))
    assert len(blockers_of(Remains(CLAIM, (), many))) == MAX_BLOCKERS


@given(st.lists(ANY_JSON.filter(lambda body: isinstance(body, dict)), max_size=3))
def test_odd_budgets_hide_no_pod(budgets: Any) -> None:
    (blocker,) = blockers_of(Remains(CLAIM, (), (pod(),), tuple(budgets)))
    assert "ns/p" in str(blocker)
