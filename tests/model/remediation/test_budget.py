"""Budgets: never above the cap, first come first served, and nobody stranded."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.remediation.test_marks import MARKER
from workflows.model.amounts import nodes_of_share
from workflows.model.remediation.budget import Usage, grantable, reflex_quarantines
from workflows.model.remediation.marks import Quarantine

WHO = st.sampled_from("abcdefgh")
LINES = st.lists(WHO, max_size=10)
CAPS = st.integers(min_value=0, max_value=8)


@given(LINES, st.frozensets(WHO), CAPS)
def test_grants_never_bring_the_holders_above_the_cap(
    waiting: list[str], holders: frozenset[str], cap: int
) -> None:
    after = holders | set(grantable(waiting, holders, cap))
    assert len(after) <= max(cap, len(holders))


@given(LINES, st.frozensets(WHO), CAPS)
def test_grants_are_first_come_first_served(
    waiting: list[str], holders: frozenset[str], cap: int
) -> None:
    new = [who for who in dict.fromkeys(waiting) if who not in holders]
    granted = [who for who in grantable(waiting, holders, cap) if who not in holders]
    assert granted == new[: len(granted)]


@given(LINES, st.frozensets(WHO), CAPS)
def test_nobody_waits_while_there_is_room(
    waiting: list[str], holders: frozenset[str], cap: int
) -> None:
    granted = set(grantable(waiting, holders, cap))
    if len(holders | granted) < cap:
        assert granted == set(waiting)


@given(LINES, st.frozensets(WHO), CAPS)
def test_one_who_holds_already_is_granted_again_whatever_the_cap(
    waiting: list[str], holders: frozenset[str], cap: int
) -> None:
    assert holders & set(waiting) <= set(grantable(waiting, holders, cap))


@given(LINES, st.frozensets(WHO), CAPS)
def test_asking_twice_gives_nobody_more(
    waiting: list[str], holders: frozenset[str], cap: int
) -> None:
    once = grantable(waiting, holders, cap)
    assert grantable(waiting, holders | set(once), cap) == once
    assert grantable([*waiting, *waiting], holders, cap) == once
    assert len(set(once)) == len(once)


@pytest.mark.parametrize(
    ("share", "pool", "nodes"),
    [
        ("20%", 1, 1),
        ("20%", 3, 1),
        ("20%", 4, 1),
        ("20%", 5, 1),
        ("20%", 9, 1),
        ("20%", 10, 2),
        ("10%", 0, 1),
        ("0%", 1000, 1),
        ("1%", 288, 2),
        ("29%", 100, 29),
        ("100%", 7, 7),
        (3, 2, 3),
        (1, 1000, 1),
    ],
)
def test_a_share_is_rounded_down_and_never_below_one(
    share: int | str, pool: int, nodes: int
) -> None:
    """R28: the only sick node of a small pool may be repaired, a second one at once may not."""
    assert nodes_of_share(share, pool) == nodes


@given(st.integers(min_value=0, max_value=100), st.integers(min_value=0, max_value=100_000))
def test_a_share_is_exact_integer_arithmetic(percent: int, pool: int) -> None:
    assert nodes_of_share(f"{percent}%", pool) == max(1, pool * percent // 100)


def test_only_watchs_own_quarantines_count_against_the_reflex() -> None:
    reflex = replace(MARKER, quarantine=Quarantine.REFLEX)
    others = [
        replace(MARKER, quarantine=Quarantine.CONFIRMED),
        replace(MARKER, quarantine=Quarantine.OPERATOR),
        replace(reflex, handed_over="operator:why"),
    ]
    assert reflex_quarantines([reflex, reflex, *others]) == 2


@pytest.mark.parametrize(("used", "is_open"), [(0, True), (1, True), (2, False), (3, False)])
def test_usage_is_open_below_its_cap(used: int, is_open: bool) -> None:
    assert Usage(used, 2).is_open is is_open
