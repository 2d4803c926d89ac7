"""Arming: read live, and closed when it cannot be read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, NOW, TEXT
from workflows.model.remediation.arming import (
    FLEET,
    Arming,
    Entry,
    encode_arming,
    parse_arming,
)

ENTRY = Entry("training", "alice", NOW, "why not")
ENTRIES = st.lists(
    st.builds(Entry, st.sampled_from(["training", FLEET]), TEXT, st.just(NOW), TEXT), max_size=3
).map(tuple)


@given(ENTRIES, ENTRIES)
def test_what_is_read_is_what_was_written(
    armed: tuple[Entry, ...], paused: tuple[Entry, ...]
) -> None:
    arming = Arming(armed, paused)
    assert parse_arming(encode_arming(arming)) == arming


@pytest.mark.parametrize("body", [None, {}, {"other": "x"}], ids=["none", "empty", "other"])
def test_nothing_written_is_nothing_armed(body: dict[str, str] | None) -> None:
    assert parse_arming(body) == Arming()


@given(st.dictionaries(st.sampled_from(["armed", "paused"]), TEXT | ANY_JSON.map(json.dumps)))
def test_what_cannot_be_read_arms_nothing_and_says_so(body: dict[str, str]) -> None:
    arming = parse_arming(body)
    if arming.problem:
        assert arming.armed == ()
        assert "fleetmend arm" in arming.problem


def test_a_broken_pause_disarms_too() -> None:
    """A pause that cannot be read may have been meant for this pool."""
    body = {**encode_arming(Arming(armed=(ENTRY,))), "paused": "[{"}
    assert not parse_arming(body).is_armed("training")


@pytest.mark.parametrize(
    ("scope", "covers"), [("training", True), (FLEET, True), ("inference", False)]
)
def test_a_pause_covers_its_pool_or_the_fleet(scope: str, covers: bool) -> None:
    arming = Arming(paused=(Entry(scope, "a", NOW, "r"),))
    assert (arming.pause_of("training") is not None) is covers
