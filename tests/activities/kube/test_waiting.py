"""Waiting by watch finds what happens, through faults, and always ends."""

import itertools
import threading
import time
from collections.abc import Mapping

import pytest

from activities.kube import errors
from activities.kube.client import JsonObject, KubeClient
from activities.kube.waiting import WaitTarget, wait_until
from tests.activities.kube.conftest import Cards
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import (
    GARBAGE_FRAME,
    GONE_FRAME,
    NAMELESS_FRAME,
    Answer,
    CutWatch,
    Drop,
    Fault,
    InsertFrame,
)


def no_tick() -> None:
    """Nothing to report."""


def value_is(value: str) -> object:
    def look(objects: Mapping[str, JsonObject]) -> str | None:
        return next((uid for uid, item in objects.items() if item["data"]["v"] == value), None)

    return look


def is_empty(objects: Mapping[str, JsonObject]) -> bool | None:
    return None if objects else True


def later(delay_s: float, do: object) -> None:
    assert callable(do)
    timer = threading.Timer(delay_s, do)
    timer.daemon = True
    timer.start()


def target_of(cards: Cards) -> WaitTarget:
    return WaitTarget.one(cards.collection, cards.name("a"))


def test_finds_what_is_there_already(cards: Cards, kube: KubeClient) -> None:
    uid = cards.add("a", v="1")["metadata"]["uid"]
    look = value_is("1")
    assert callable(look)
    assert wait_until(kube, target_of(cards), look, timeout_s=0, tick=no_tick) == uid


def test_finds_a_change_soon_after_it_happens(cards: Cards, kube: KubeClient) -> None:
    cards.add("a", v="1")
    look = value_is("2")
    assert callable(look)
    later(0.3, lambda: cards.change("a", v="2"))
    begun = time.monotonic()
    assert wait_until(kube, target_of(cards), look, timeout_s=10, tick=no_tick)
    assert time.monotonic() - begun < 1.0


def test_sees_a_deletion(cards: Cards, kube: KubeClient) -> None:
    cards.add("a", v="1")
    later(0.3, lambda: cards.remove("a"))
    assert wait_until(kube, target_of(cards), is_empty, timeout_s=10, tick=no_tick)


def test_ends_when_its_time_is_over(cards: Cards, kube: KubeClient) -> None:
    cards.add("a", v="1")
    ticks: list[float] = []
    found = wait_until(
        kube, target_of(cards), is_empty, timeout_s=3, tick=lambda: ticks.append(time.monotonic())
    )
    assert found is None
    assert len(ticks) >= 3
    assert max(b - a for a, b in itertools.pairwise(ticks)) < 3.5


def test_what_the_tick_raises_ends_the_wait(cards: Cards, kube: KubeClient) -> None:
    cards.add("a", v="1")

    class Cancelled(Exception):
        pass

    calls = 0

    def tick() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        wait_until(kube, target_of(cards), is_empty, timeout_s=30, tick=tick)


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        (Answer(410), "WATCH"),
        (Answer(500), "WATCH"),
        (Answer(429), "GET"),
        (Drop(), "GET"),
        (CutWatch(), "WATCH"),
        (InsertFrame(line=GONE_FRAME), "WATCH"),
        (InsertFrame(line=GARBAGE_FRAME), "WATCH"),
        (InsertFrame(line=NAMELESS_FRAME), "WATCH"),
    ],
    ids=repr,
)
def test_goes_on_after_a_fault(
    fault: Fault, method: str, cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    cards.add("a", v="1")
    rule = proxy.add(fault, method=method)
    look = value_is("2")
    assert callable(look)
    later(0.5, lambda: cards.change("a", v="2"))
    assert wait_until(faulty, target_of(cards), look, timeout_s=15, tick=no_tick)
    assert rule.fired == 1


def test_says_that_the_server_was_away_when_the_time_is_over(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    proxy.refuse()
    begun = time.monotonic()
    with pytest.raises(errors.Unreachable):
        wait_until(faulty, target_of(cards), is_empty, timeout_s=1.5, tick=no_tick)
    assert time.monotonic() - begun < 3.0


def test_does_not_wait_where_it_may_not_look(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    proxy.add(Answer(403))
    with pytest.raises(errors.Forbidden):
        wait_until(faulty, target_of(cards), is_empty, timeout_s=30, tick=no_tick)
