"""Replacement: a claim is only the node's if all agrees, and the newcomer is nobody of before."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, NOW, node
from workflows.model.node import BadObject
from workflows.model.policy import Pool, Posture, Rung
from workflows.model.remediation.ladder import rungs_for
from workflows.model.remediation.marks import KARPENTER_NODEPOOL_LABEL
from workflows.model.remediation.replacement import (
    ClaimView,
    Horizon,
    NodePoolView,
    Standing,
    horizon_of,
    is_beyond,
    is_by_hand,
    limits_reached,
    must_be_refilled,
    newcomers_of,
    owning_claim_uid,
    parse_claim,
    parse_node_pool,
    refusal_by_capacity,
    resolve,
)

NODE = node(labels={KARPENTER_NODEPOOL_LABEL: "np"}, provider_id="p-1")
CLAIM = ClaimView("claim-1", "uid-1", NOW, "np", "p-1", NODE.name, gpus=8)
POOL = Pool(name="training", selector={"pool": "training"})


def test_the_claim_with_the_providerid_is_found_among_others() -> None:
    others = [replace(CLAIM, name=f"c-{n}", uid=f"u-{n}", provider_id=f"p-{n}") for n in (2, 3)]
    found = resolve(NODE, CLAIM.uid, [*others, CLAIM])
    assert (found.standing, found.claim) == (Standing.FOUND, CLAIM)


MISMATCHES: dict[str, tuple[list[ClaimView], str]] = {
    "none": ([], ""),
    "two": ([CLAIM, replace(CLAIM, name="c-2", uid="u-2")], ""),
    "another-node": ([replace(CLAIM, node_name="other")], ""),
    "not-registered": ([replace(CLAIM, node_name="")], ""),
    "another-owner": ([CLAIM], "former"),
    "another-pool": ([replace(CLAIM, node_pool="other")], ""),
}


@pytest.mark.parametrize(("claims", "owner"), MISMATCHES.values(), ids=MISMATCHES)
def test_any_disagreement_is_no_claim(claims: list[ClaimView], owner: str) -> None:
    found = resolve(NODE, owner, claims)
    assert found.standing in (Standing.NONE, Standing.MISMATCH)
    assert found.claim is None
    assert found.detail


def test_a_node_without_providerid_is_nobodys() -> None:
    found = resolve(replace(NODE, provider_id=""), "", [replace(CLAIM, provider_id="")])
    assert found.standing is Standing.MISMATCH


ACTS: dict[str, Callable[[], ClaimView]] = {
    "deleting": lambda: replace(CLAIM, deleting=True),
    "timestamp": lambda: replace(CLAIM, terminating_at="2026-11-30T03:00:00Z"),
    "rebooting": lambda: replace(CLAIM, conditions={"Rebooting": "True"}),
}


@pytest.mark.parametrize("acts", ACTS.values(), ids=ACTS)
def test_who_acts_on_the_claim_is_seen(acts: Callable[[], ClaimView]) -> None:
    assert resolve(NODE, "", [acts()]).standing is Standing.ACTING


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_reboot_that_is_over_is_nobodys_act(status: str) -> None:
    claim = replace(CLAIM, conditions={"Rebooting": status})
    assert resolve(NODE, "", [claim]).standing is Standing.FOUND


@pytest.mark.parametrize("taint", ["karpenter.sh/disrupted", "karpenter.sh/rebooting"])
def test_karpenters_taint_on_the_node_is_an_act(taint: str) -> None:
    tainted = replace(NODE, taints=(f"{taint}:NoSchedule",))
    assert resolve(tainted, "", [CLAIM]).standing is Standing.ACTING


# ---------------------------------------------------------------- may it be replaced


@pytest.mark.parametrize(
    ("posture", "on_karpenter", "rungs", "by_hand"),
    [
        (None, True, 2, False),
        (None, False, 1, True),
        (Posture.ELASTIC, True, 2, False),
        (Posture.STATIC, False, 2, True),
        (Posture.EXTERNAL, True, 2, True),
        (Posture.EXTERNAL, False, 2, True),
    ],
)
def test_what_the_rung_means_by_posture_and_claim(
    posture: Posture | None, on_karpenter: bool, rungs: int, by_hand: bool
) -> None:
    pool = POOL.model_copy(update={"posture": posture})
    ladder = (Rung.REBOOT, Rung.REPLACE)
    assert len(rungs_for(ladder, pool, is_on_karpenter=on_karpenter)) == rungs
    assert is_by_hand(pool, is_on_karpenter=on_karpenter) is by_hand


@pytest.mark.parametrize(
    ("posture", "is_static", "refilled"),
    [
        (None, False, False),
        (None, True, True),
        (Posture.ELASTIC, True, False),
        (Posture.RESERVED, False, True),
        (Posture.STATIC, False, True),
    ],
)
def test_who_must_be_refilled(posture: Posture | None, is_static: bool, refilled: bool) -> None:
    pool = POOL.model_copy(update={"posture": posture})
    assert must_be_refilled(pool, is_static=is_static) is refilled


def test_near_the_end_of_a_capacity_block_nothing_is_given_away() -> None:
    ends = datetime(2026, 12, 31, 12, tzinfo=UTC)
    pool = POOL.model_copy(update={"capacity_ends": ends})
    assert refusal_by_capacity(pool, ends - timedelta(minutes=61)) == ""
    assert "ends at 2026-12-31 12:00Z" in refusal_by_capacity(pool, ends - timedelta(minutes=60))
    assert refusal_by_capacity(pool, ends + timedelta(days=1)) != ""
    assert refusal_by_capacity(POOL, ends) == ""


# ---------------------------------------------------------------- who comes after it

SECONDS = st.integers(0, 3)
CLAIMS = st.lists(
    st.builds(
        lambda uid, second, deleting: ClaimView(
            f"c-{uid}",
            f"u-{uid}",
            NOW + timedelta(seconds=second),
            "np",
            "",
            "",
            deleting=deleting,
        ),
        st.integers(0, 20),
        SECONDS,
        st.booleans(),
    ),
    unique_by=lambda claim: claim.uid,
    max_size=8,
)


@given(CLAIMS.filter(bool))
def test_nobody_of_before_is_a_newcomer(claims: list[ClaimView]) -> None:
    horizon = horizon_of(claims)
    assert not any(is_beyond(claim, horizon) for claim in claims)
    assert newcomers_of(claims, horizon) == []


@given(CLAIMS.filter(bool), st.integers(0, 5))
def test_whoever_is_made_later_is_one_even_in_the_same_second(
    claims: list[ClaimView], later: int
) -> None:
    horizon = horizon_of(claims)
    made = ClaimView("new", "u-new", horizon.newest + timedelta(seconds=later), "np", "", "")
    assert newcomers_of([*claims, made], horizon) == [made]


def test_the_one_that_is_furthest_comes_first_after_the_one_that_was_taken() -> None:
    horizon = Horizon(NOW, ())
    first = ClaimView("a", "u-a", NOW + timedelta(seconds=1), "np", "", "")
    ready = replace(first, name="b", uid="u-b", created=NOW + timedelta(seconds=2))
    ready = replace(ready, conditions={"Launched": "True", "Registered": "True"})
    assert newcomers_of([first, ready], horizon) == [ready, first]
    assert newcomers_of([ready, first], horizon) == [ready, first]
    assert newcomers_of([ready, first], horizon, {"u-a"}) == [first, ready]
    leaving = replace(ready, deleting=True)
    assert newcomers_of([first, leaving], horizon) == [first]


@pytest.mark.parametrize(
    ("limits", "used", "said"),
    [
        ({}, {"nvidia.com/gpu": "8"}, ""),
        ({"nvidia.com/gpu": "16"}, {"nvidia.com/gpu": "8"}, ""),
        ({"nvidia.com/gpu": "16"}, {"nvidia.com/gpu": "16"}, "nvidia.com/gpu 16 of 16"),
        ({"memory": "100Gi"}, {"memory": "200Gi"}, ""),
        ({"nodes": "2"}, {}, ""),
    ],
    ids=["none", "room", "full", "not-counted", "unknown-use"],
)
def test_limits_that_are_reached_are_named(
    limits: dict[str, str], used: dict[str, str], said: str
) -> None:
    assert limits_reached(NodePoolView("np", None, limits, used)) == said


# ---------------------------------------------------------------- hostile input


@given(ANY_JSON)
def test_any_object_is_a_claim_or_a_bad_object(body: Any) -> None:
    for parse in (parse_claim, parse_node_pool):
        with suppress(BadObject):
            parse(body)
    assert isinstance(owning_claim_uid(body), str)
