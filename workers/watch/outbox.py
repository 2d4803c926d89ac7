"""The outbox: what Temporal is to be told about each node, newest first to count, until it is told.

Owns one entry a node (a report, facts, or both), the senders, their back-off, and the dropping of
what is no longer true. Coalesces: a second report replaces the first, facts travel at the node's
own pace, the newest count, and those that the run knows already are not told again. Does not know how a signal is sent (`post.py`) nor what is true
(`lookout.py`). Offers come from any thread and never wait.
"""

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final, Protocol

import structlog

from activities.kube.backoff import Backoff
from workers.watch.metrics import Counter, Metrics
from workers.watch.pace import Haste, Pace
from workflows.contracts.messages import NodeFacts, Report
from workflows.model.identity import NodeRef

SENDERS: Final = 8
"""Enough for 200 nodes in a few seconds; more only queue in the server."""
MAX_ENTRIES: Final = 50_000
"""Nodes, ten times the largest cluster that Kubernetes is tested for."""
MAX_PACES: Final = 1_000
"""Nodes whose pace is remembered before those that have rested are forgotten."""
BACKOFF: Final = Backoff(first_s=0.25, limit_s=5.0)
LOG_EACH: Final = 20
"""Of the failures of one entry in a row, how many make one line of the log."""

_log = structlog.get_logger(__name__)


class CutOff(Exception):
    """Temporal did not answer: every other entry will meet the same."""


class Post(Protocol):
    """How Temporal is told. Each call ends within a bounded time."""

    async def send_report(self, report: Report) -> None:
        """Signal the node's open run, or start one. Raises CutOff, or any other failure."""

    async def send_facts(self, node: NodeRef, facts: NodeFacts) -> bool:
        """Signal the node's open run; False if there is none."""


class Ledger(Protocol):
    """Who knows what is true, and is told what was delivered. Answers at once."""

    def is_open(self) -> bool:
        """True if this replica acts at all."""

    def is_current(self, report: Report) -> bool:
        """True if the report still says something true."""

    def note_delivered(self, report: Report) -> None:
        """The report is in Temporal."""

    def note_no_run(self, uid: str) -> None:
        """No open run exists for this Node."""


@dataclass
class _Entry:
    """What is to be told about one node."""

    node: NodeRef
    report: Report | None = None
    facts: NodeFacts | None = None
    haste: Haste = Haste.MAY_WAIT
    failures: int = 0

    def take(self, facts: NodeFacts, haste: Haste) -> None:
        """Newer facts; what had to be told at once before still has."""
        self.facts = facts
        if haste is Haste.NOW:
            self.haste = haste


class Outbox:
    """Entries by node UID, and the senders that empty it. `run` lives in an event loop."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = monotonic) -> None:
        """An outbox that only collects until `run`; `clock` is the paces'."""
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # All below is touched in the loop's thread only.
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._busy: set[str] = set()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._cut_off: set[str] = set()
        self._paces: dict[str, Pace] = {}
        self._known: dict[str, NodeFacts] = {}
        """What the node's open run was told last, while that is certain."""

    def offer_report(self, report: Report) -> bool:
        """Tell Temporal this at once, or at the node's pace if it was told much; False = full."""
        with self._lock:
            entry = self._entry(report.node)
            if entry is None:
                return False
            entry.report = _in_place_of(entry.report, report)
        self._wake(report.node.uid)
        return True

    def offer_facts(self, node: NodeRef, facts: NodeFacts, haste: Haste) -> bool:
        """Tell the node's open run this at the node's pace; False if the outbox is full."""
        with self._lock:
            entry = self._entry(node)
            if entry is None:
                return False
            entry.take(facts, haste)
        self._wake(node.uid)
        return True

    def __len__(self) -> int:
        """How many nodes wait."""
        return len(self._entries)

    async def run(self, post: Post, ledger: Ledger) -> None:
        """Send what waits and what comes, until cancelled."""
        self._loop = asyncio.get_running_loop()
        with self._lock:
            waiting = tuple(self._entries)
        for uid in waiting:
            self._schedule(uid)
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._send_forever(post, ledger))

    def _entry(self, node: NodeRef) -> _Entry | None:
        entry = self._entries.get(node.uid)
        if entry is None and len(self._entries) < MAX_ENTRIES:
            entry = self._entries[node.uid] = _Entry(node)
        return entry

    def _wake(self, uid: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule, uid)

    def _schedule(self, uid: str) -> None:
        """Send this entry at the node's pace: a report at once unless there were many."""
        entry = self._entries.get(uid)
        if entry is None or uid in self._queued or uid in self._busy or self._is_backing_off(uid):
            return
        pace, now = self._pace(uid), self._clock()
        if entry.report is None:
            self._enqueue_within(uid, pace.delay_s(now, entry.haste))
        elif wait_s := pace.reports.wait_s(now):
            self._enqueue_within(uid, wait_s)
        else:
            self._enqueue(uid)

    def _enqueue_within(self, uid: str, delay_s: float) -> None:
        """Enqueue it then, or when that was due anyway."""
        assert self._loop is not None
        due = self._loop.time() + delay_s
        waiting = self._later.get(uid)
        if waiting is not None:
            if waiting.when() <= due:
                return
            waiting.cancel()
        self._later[uid] = self._loop.call_at(due, self._enqueue, uid)

    def _pace(self, uid: str) -> Pace:
        return self._paces.setdefault(uid, Pace())

    def _is_backing_off(self, uid: str) -> bool:
        entry = self._entries.get(uid)
        return entry is not None and entry.failures > 0 and uid in self._later

    def _enqueue(self, uid: str) -> None:
        later = self._later.pop(uid, None)
        if later is not None:
            later.cancel()
        if uid not in self._queued and uid not in self._busy:
            self._queued.add(uid)
            self._ready.put_nowait(uid)

    async def _send_forever(self, post: Post, ledger: Ledger) -> None:
        while True:
            uid = await self._ready.get()
            self._queued.discard(uid)
            with self._lock:
                entry = self._entries.pop(uid, None)
            if entry is None:
                continue
            self._busy.add(uid)
            try:
                await self._send(entry, post, ledger)
            except CutOff as error:
                self._put_back(entry, str(error))
                self._cut_off.add(uid)
            except Exception as error:  # noqa: BLE001 - a main loop; each entry is retried for ever
                self._put_back(entry, f"{type(error).__name__}: {error}")
            finally:
                self._busy.discard(uid)
            if uid not in self._later:
                self._schedule(uid)

    async def _send(self, entry: _Entry, post: Post, ledger: Ledger) -> None:
        """Report first: facts are for the run that it may start."""
        if entry.report is not None:
            if ledger.is_current(entry.report):
                # It may start another run, which has been told nothing but this.
                self._known.pop(entry.node.uid, None)
                await post.send_report(entry.report)
                self._pace(entry.node.uid).reports.take(self._clock())
                self._metrics.count(Counter.REPORTS_SENT)
                if entry.report.facts is not None:
                    self._known[entry.node.uid] = entry.report.facts
                    self._keep_pace(entry.node.uid)
                ledger.note_delivered(entry.report)
                self._note_success()
            else:
                self._metrics.count(Counter.REPORTS_DROPPED)
                _log.info("report_dropped", node=entry.node.name, uid=entry.node.uid)
                if entry.facts is None and entry.report.facts is not None:
                    entry.take(entry.report.facts, Haste.NOW)
            entry.report = None
        if entry.facts is not None and ledger.is_open():
            await self._send_facts(entry, entry.facts, post, ledger)

    async def _send_facts(
        self, entry: _Entry, facts: NodeFacts, post: Post, ledger: Ledger
    ) -> None:
        uid = entry.node.uid
        if entry.haste is Haste.MAY_WAIT and self._pace(uid).is_scarce(self._clock()):
            known = self._known.get(uid)
            if known is not None and _says_the_same(facts, known):
                return  # it came and went while it was held back
            if self._pace(uid).held_s(self._clock()) > 0:
                self._hold(entry, facts)
                return
        # A send without an answer leaves open what the run knows.
        self._known.pop(uid, None)
        if await post.send_facts(entry.node, facts):
            self._metrics.count(Counter.FACTS_SENT)
            self._known[uid] = facts
        else:
            ledger.note_no_run(uid)
        self._note_success()
        self._keep_pace(uid)

    def _hold(self, entry: _Entry, facts: NodeFacts) -> None:
        """Facts that came to a sender with a report, and may not be told yet."""
        with self._lock:
            newer = self._entries.setdefault(entry.node.uid, _Entry(entry.node))
            if newer.facts is None:
                newer.take(facts, entry.haste)

    def _keep_pace(self, uid: str) -> None:
        now = self._clock()
        self._pace(uid).note_sent(now)
        if len(self._paces) > MAX_PACES:
            self._paces = {u: p for u, p in self._paces.items() if not p.is_rested(now)}
            self._known = {u: f for u, f in self._known.items() if u in self._paces}

    def _put_back(self, entry: _Entry, problem: str) -> None:
        """Keep what was not sent; what was offered meanwhile is newer and counts."""
        with self._lock:
            newer = self._entries.get(entry.node.uid)
            if newer is not None:
                entry.report = _in_place_of(entry.report, newer.report)
                if newer.facts is not None:
                    entry.take(newer.facts, newer.haste)
            self._entries[entry.node.uid] = entry
        entry.failures += 1
        self._metrics.count(Counter.SEND_FAILURES)
        if entry.failures % LOG_EACH == 1:
            _log.warning(
                "report_not_sent",
                node=entry.node.name,
                uid=entry.node.uid,
                attempt=entry.failures,
                problem=problem[:300],
            )
        assert self._loop is not None
        # Jitter needs no seed: it only keeps entries out of step.
        pause_s = BACKOFF.pause_s(entry.failures, random.Random())
        self._later[entry.node.uid] = self._loop.call_later(pause_s, self._enqueue, entry.node.uid)

    def _note_success(self) -> None:
        """Temporal answers: what only waited for that waits no longer."""
        waiting, self._cut_off = self._cut_off, set()
        for uid in waiting:
            if uid in self._later:
                self._enqueue(uid)


def _says_the_same(facts: NodeFacts, other: NodeFacts) -> bool:
    """True if they differ in nothing but version and time."""
    return facts == replace(other, resource_version=facts.resource_version, at=facts.at)


def _in_place_of(older: Report | None, newer: Report | None) -> Report | None:
    """The newer report; what was to be told with the older one stays to be told."""
    if newer is None or older is None or newer.facts is not None:
        return newer or older
    return replace(newer, facts=older.facts)
