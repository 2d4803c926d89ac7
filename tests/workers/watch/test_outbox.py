"""The outbox alone: order, coalescing, back-off, and what is dropped. Temporal is a port here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from tests.workers.watch.nodes_in_memory import NOW
from workers.watch.facts import FactsKey, haste_of
from workers.watch.metrics import Counter, Metrics
from workers.watch.outbox import SENDERS, CutOff, Outbox
from workers.watch.pace import (
    BURST,
    COALESCE_S,
    LONG_BURST,
    LONG_REFILL_S,
    REFILL_S,
    REPORT_BURST,
    REPORT_REFILL_S,
    SPACING_S,
    Haste,
    Pace,
)
from workflows.contracts.messages import NodeFacts, Report
from workflows.model.identity import NodeRef

SOON_S = 10.0


@dataclass
class Letters:
    """A post that keeps what it is given, and fails as it is told."""

    sent: list[Report | NodeFacts] = field(default_factory=list)
    failure: Exception | None = None
    has_run: bool = True
    tries: int = 0
    waiting: int = 0
    most_waiting: int = 0
    gate: asyncio.Event | None = None

    async def send_report(self, report: Report) -> None:
        await self._send(report)

    async def send_facts(self, node: NodeRef, facts: NodeFacts) -> bool:
        await self._send(facts)
        return self.has_run

    async def _send(self, letter: Report | NodeFacts) -> None:
        self.tries += 1
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        if self.gate is not None:
            await self.gate.wait()
        self.waiting -= 1
        if self.failure is not None:
            raise self.failure
        self.sent.append(letter)


@dataclass
class Book:
    """A ledger by which everything is true, or nothing."""

    is_true: bool = True
    delivered: list[Report] = field(default_factory=list)
    without_run: list[str] = field(default_factory=list)

    def is_open(self) -> bool:
        return True

    def is_current(self, report: Report) -> bool:
        return self.is_true

    def note_delivered(self, report: Report) -> None:
        self.delivered.append(report)

    def note_no_run(self, uid: str) -> None:
        self.without_run.append(uid)


@dataclass
class Office:
    """An outbox that runs."""

    outbox: Outbox
    letters: Letters
    book: Book
    metrics: Metrics

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON_S):
            while not is_so():
                await asyncio.sleep(0.005)

    async def until_sent(self, count: int) -> None:
        await self.until(lambda: len(self.letters.sent) >= count)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    metrics = Metrics()
    own = Office(Outbox(metrics), Letters(), Book(), metrics)
    running = asyncio.create_task(own.outbox.run(own.letters, own.book))
    await asyncio.sleep(0)
    yield own
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def _report(number: int, episode: str = "e") -> Report:
    return Report(NodeRef(f"n{number}", f"u{number}"), episode, "a", (), "boot", NOW)


def _facts(number: int, version: int) -> NodeFacts:
    return NodeFacts(f"u{number}", str(version), True, "boot", True, "e", {}, {}, False, NOW)


async def test_report_goes_before_the_facts_of_the_same_node(office: Office) -> None:
    office.outbox.offer_facts(NodeRef("n1", "u1"), _facts(1, 5), Haste.NOW)
    office.outbox.offer_report(_report(1))
    await office.until(lambda: len(office.letters.sent) == 2)
    assert [type(letter) for letter in office.letters.sent] == [Report, NodeFacts]
    assert office.book.delivered == [_report(1)]


async def test_newest_facts_travel_once(office: Office) -> None:
    for version in range(50):
        office.outbox.offer_facts(NodeRef("n1", "u1"), _facts(1, version), Haste.NOW)
    await office.until(lambda: office.letters.sent)
    assert office.letters.sent == [_facts(1, 49)]


async def test_what_comes_during_a_send_is_sent_after_it(office: Office) -> None:
    office.letters.gate = asyncio.Event()
    office.outbox.offer_report(_report(1, "first"))
    await office.until(lambda: office.letters.waiting)
    office.outbox.offer_report(_report(1, "second"))
    office.outbox.offer_report(_report(1, "third"))
    office.letters.gate.set()
    await office.until(lambda: len(office.letters.sent) == 2)
    assert office.letters.sent == [_report(1, "first"), _report(1, "third")]


async def test_failed_send_is_repeated_with_what_is_newest(office: Office) -> None:
    office.letters.failure = CutOff("away")
    office.outbox.offer_report(_report(1, "first"))
    await office.until(lambda: office.letters.tries == 1)
    office.outbox.offer_report(_report(1, "second"))
    office.letters.failure = None
    await office.until(lambda: office.letters.sent)
    assert office.letters.sent == [_report(1, "second")]
    assert len(office.outbox) == 0


async def test_one_answer_sends_all_that_only_waited_for_temporal(office: Office) -> None:
    office.letters.failure = CutOff("away")
    for number in range(40):
        office.outbox.offer_report(_report(number))
    # Long enough in the dark that each pause has grown.
    await office.until(lambda: office.letters.tries >= 160)
    office.letters.failure = None
    begun = monotonic()
    await office.until(lambda: len(office.letters.sent) == 40)
    assert monotonic() - begun < 4.0
    assert office.letters.most_waiting <= SENDERS


async def test_failure_of_one_entry_holds_no_other_up(office: Office) -> None:
    class Picky(Letters):
        async def send_report(self, report: Report) -> None:
            if report.node.uid == "u1":
                self.tries += 1
                raise ValueError("cannot be encoded")
            self.sent.append(report)

    picky = Picky()
    metrics = Metrics()
    outbox = Outbox(metrics)
    running = asyncio.create_task(outbox.run(picky, Book()))
    for number in range(20):
        outbox.offer_report(_report(number))
    await office.until(lambda: len(picky.sent) == 19)
    assert len(outbox) == 1
    assert metrics.total(Counter.SEND_FAILURES) >= 1
    running.cancel()


async def test_report_that_is_not_true_any_more_is_dropped(office: Office) -> None:
    office.book.is_true = False
    office.outbox.offer_report(_report(1))
    await office.until(lambda: office.metrics.total(Counter.REPORTS_DROPPED) == 1)
    assert office.letters.sent == []
    assert len(office.outbox) == 0


async def test_node_without_a_run_is_told_once_and_forgotten(office: Office) -> None:
    office.letters.has_run = False
    office.outbox.offer_facts(NodeRef("n1", "u1"), _facts(1, 5), Haste.NOW)
    await office.until(lambda: office.book.without_run)
    assert office.book.without_run == ["u1"]
    assert len(office.outbox) == 0


async def test_offers_before_the_start_are_kept() -> None:
    outbox, letters = Outbox(Metrics()), Letters()
    outbox.offer_report(_report(1))
    running = asyncio.create_task(outbox.run(letters, Book()))
    async with asyncio.timeout(SOON_S):
        while not letters.sent:
            await asyncio.sleep(0.005)
    running.cancel()


def test_pace_is_a_burst_and_then_seldom() -> None:
    pace, now = Pace(), 1000.0
    assert pace.delay_s(now, Haste.NOW) == COALESCE_S
    for _ in range(BURST):
        pace.note_sent(now)
        assert pace.delay_s(now, Haste.NOW) >= SPACING_S
        now += SPACING_S
    assert pace.delay_s(now, Haste.NOW) > SPACING_S
    assert not pace.is_rested(now)
    later = now + timedelta(seconds=LONG_REFILL_S * BURST).total_seconds()
    assert pace.is_rested(later)
    assert pace.delay_s(later, Haste.MAY_WAIT) == COALESCE_S


def _flapped(pace: Pace, now: float, times: int = LONG_BURST) -> float:
    """So many signals, each as soon as the short burst lets it; when the last was."""
    for _ in range(times):
        pace.note_sent(now)
        now += REFILL_S
    return now


def test_what_may_wait_is_held_back_after_a_long_burst_and_what_may_not_is_not() -> None:
    pace = Pace()
    now = _flapped(pace, 1000.0)
    # Over the time of the burst some places came back.
    now = _flapped(pace, now, int(LONG_BURST * REFILL_S / LONG_REFILL_S) + 1)
    assert LONG_REFILL_S / 2 < pace.delay_s(now, Haste.MAY_WAIT) <= LONG_REFILL_S
    assert pace.delay_s(now, Haste.NOW) <= REFILL_S


def test_what_may_not_wait_takes_places_too_but_never_more_than_there_are() -> None:
    pace = Pace()
    now = _flapped(pace, 1000.0, 10 * LONG_BURST)
    assert pace.delay_s(now, Haste.MAY_WAIT) <= LONG_REFILL_S


def test_a_day_of_flapping_is_a_bounded_number_of_signals() -> None:
    pace, now, sent = Pace(), 0.0, 0
    day_s = 86_400.0
    while now < day_s:
        now += pace.delay_s(now, Haste.MAY_WAIT)
        pace.note_sent(now)
        sent += 1
    assert sent <= LONG_BURST + day_s / LONG_REFILL_S + 1


@dataclass
class Clock:
    """A clock that a test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def flapping() -> AsyncIterator[tuple[Office, Clock]]:
    """An office in which node 1 has used up its long burst; the run knows version 60."""
    clock, metrics = Clock(), Metrics()
    own = Office(Outbox(metrics, clock=clock), Letters(), Book(), metrics)
    running = asyncio.create_task(own.outbox.run(own.letters, own.book))
    await asyncio.sleep(0)
    for number in range(LONG_BURST + 3):
        own.outbox.offer_facts(NodeRef("n1", "u1"), _flap(number), Haste.NOW)
        await own.until_sent(number + 1)
        clock.now += REFILL_S
    own.letters.sent.clear()
    yield own, clock
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def _flap(version: int, status: str = "True") -> NodeFacts:
    return replace(_facts(1, version), conditions={"GPUHealthy": status})


N1 = NodeRef("n1", "u1")
WAIT, NOW_ = Haste.MAY_WAIT, Haste.NOW


async def _settled(office: Office) -> None:
    """Another node's facts, offered later, are told: what could be told by now has been."""
    other = NodeRef("n2", "u2")
    office.outbox.offer_facts(other, _facts(2, 1), Haste.NOW)
    await office.until(lambda: any(letter == _facts(2, 1) for letter in office.letters.sent))
    office.letters.sent.remove(_facts(2, 1))


async def test_newest_of_what_was_held_back_is_told_when_its_time_has_come(
    flapping: tuple[Office, Clock],
) -> None:
    office, clock = flapping
    for version, status in enumerate(("False", "True", "Unknown"), start=100):
        office.outbox.offer_facts(N1, _flap(version, status), WAIT)
    await _settled(office)
    assert office.letters.sent == []
    assert len(office.outbox) == 1
    clock.now += LONG_REFILL_S
    office.outbox.offer_facts(N1, _flap(103, "False"), WAIT)
    await office.until(lambda: office.letters.sent)
    assert office.letters.sent == [_flap(103, "False")]
    assert len(office.outbox) == 0


async def test_what_went_back_to_what_is_known_is_not_told(
    flapping: tuple[Office, Clock],
) -> None:
    office, clock = flapping
    office.outbox.offer_facts(N1, _flap(100, "False"), WAIT)
    await _settled(office)
    clock.now += LONG_REFILL_S
    office.outbox.offer_facts(N1, _flap(101), WAIT)
    await office.until(lambda: len(office.outbox) == 0)
    await _settled(office)
    assert office.letters.sent == []


async def test_what_may_not_wait_brings_what_was_held_back_along(
    flapping: tuple[Office, Clock],
) -> None:
    office, _ = flapping
    office.outbox.offer_facts(N1, _flap(100, "False"), WAIT)
    await _settled(office)
    lifted = replace(_flap(101, "False"), unschedulable=False)
    office.outbox.offer_facts(N1, lifted, NOW_)
    # A later change that may wait does not slow it down.
    office.outbox.offer_facts(N1, replace(lifted, resource_version="102"), WAIT)
    await office.until(lambda: office.letters.sent)
    assert office.letters.sent == [replace(lifted, resource_version="102")]


async def test_report_goes_at_once_and_held_facts_stay_held(
    flapping: tuple[Office, Clock],
) -> None:
    office, _ = flapping
    office.outbox.offer_facts(N1, _flap(100, "False"), WAIT)
    office.outbox.offer_report(_report(1))
    await office.until(lambda: office.letters.sent)
    await _settled(office)
    assert office.letters.sent == [_report(1)]
    assert len(office.outbox) == 1


async def test_reports_of_a_flapping_node_come_at_its_pace_and_the_newest_counts(
    flapping: tuple[Office, Clock],
) -> None:
    office, clock = flapping
    for number in range(REPORT_BURST):
        office.outbox.offer_report(_report(1, f"e{number}"))
        await office.until_sent(number + 1)
    office.outbox.offer_report(_report(1, "held"))
    office.outbox.offer_report(_report(1, "newest"))
    await _settled(office)
    assert len(office.letters.sent) == REPORT_BURST
    clock.now += REPORT_REFILL_S
    office.outbox.offer_report(_report(1, "newest"))
    await office.until_sent(REPORT_BURST + 1)
    assert office.letters.sent[-1] == _report(1, "newest")


TOLD = FactsKey(
    ready=True,
    boot_id="b",
    unschedulable=True,
    marker_episode="e",
    gpus=(),
    conditions=(("GPUHealthy", "True"), ("Ready", "True")),
    paused=False,
)


@pytest.mark.parametrize(
    ("changed", "haste"),
    [
        ({"gpus": (("nvidia.com/gpu", 7),)}, WAIT),
        ({"conditions": (("GPUHealthy", "False"), ("Ready", "True"))}, WAIT),
        ({"conditions": (("GPUHealthy", "True"), ("Ready", "Unknown"))}, NOW_),
        ({"ready": False}, NOW_),
        ({"boot_id": "c"}, NOW_),
        ({"unschedulable": False}, NOW_),
        ({"marker_episode": ""}, NOW_),
        ({"paused": True}, NOW_),
    ],
    ids=["gpus", "condition", "Ready", "ready", "boot", "cordon", "marker", "pause"],
)
def test_people_and_boots_do_not_wait(changed: dict[str, Any], haste: Haste) -> None:
    assert haste_of(replace(TOLD, **changed), TOLD) is haste
    assert haste_of(replace(TOLD, **changed), None) is NOW_


async def test_facts_travel_with_the_report_in_one_signal(office: Office) -> None:
    office.outbox.offer_report(replace(_report(1), facts=_facts(1, 5)))
    await office.until_sent(1)
    assert office.letters.sent == [replace(_report(1), facts=_facts(1, 5))]


async def test_facts_of_a_replaced_report_travel_with_the_next(office: Office) -> None:
    office.letters.failure = CutOff("away")
    office.outbox.offer_report(replace(_report(1, "first"), facts=_facts(1, 5)))
    await office.until(lambda: office.letters.tries == 1)
    office.outbox.offer_report(_report(1, "second"))
    office.letters.failure = None
    await office.until_sent(1)
    assert office.letters.sent == [replace(_report(1, "second"), facts=_facts(1, 5))]


async def test_facts_of_a_report_that_is_no_longer_true_are_told_alone(office: Office) -> None:
    office.book.is_true = False
    office.outbox.offer_report(replace(_report(1), facts=_facts(1, 5)))
    await office.until_sent(1)
    assert office.letters.sent == [_facts(1, 5)]
