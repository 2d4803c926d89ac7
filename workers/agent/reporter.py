"""The one writer of the Node's conditions and findings: level-triggered, paced, never giving up.

Owns when a report is due (something changed; or the refresh), the repetition of what failed, and
what an agent takes over at its start. What is said is `conditions.py`'s; what stands is the
ledger's, which is looked at again for each try: a failed report is never lost, only late.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from activities.devices.reading import ConditionType
from workers.agent.boot import NoBootId, read_boot_id
from workers.agent.conditions import (
    UNKNOWN,
    Report,
    Status,
    Word,
    body,
    compose,
    forerunners,
    is_said,
    reported_boot,
)
from workers.agent.findings import SUPERVISION, Ledger, Moment
from workers.agent.node_api import ApiProblem, NodeApi, OwnNode, Problem
from workers.agent.settings import AgentSettings
from workflows.model.detection.finding import FINDINGS_ANNOTATION, FindingsError

PACE_S: Final = 0.2
"""Between two reports: at most 5 a second, whatever flaps."""
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 15.0
JITTER: Final = 0.1
"""Share of the refresh interval by which each refresh is moved, so that a fleet spreads out."""
WAITING_MESSAGE: Final = "not looked at yet in this boot"

_log = logging.getLogger(__name__)


def wall_and_monotonic() -> Moment:
    """This moment by the machine's own clocks."""
    return Moment(datetime.now(UTC), time.monotonic())


@dataclass
class Counts:
    """Totals for the metrics."""

    written: int = 0
    failed: dict[Problem, int] = field(default_factory=dict)


class Reporter:
    """Writes what the ledger says; `run` goes on until it is cancelled."""

    def __init__(
        self,
        settings: AgentSettings,
        ledger: Callable[[], Ledger],
        new_boot: Callable[[str], None],
        clock: Callable[[], Moment] = wall_and_monotonic,
    ) -> None:
        """A reporter that has read nothing yet.

        Args:
            settings: of the agent.
            ledger: the ledger of the present boot.
            new_boot: called with the boot's id when the machine is found in another one.
            clock: of this machine.
        """
        self.counts = Counts()
        self.last: Report | None = None
        """The last one that was written."""
        self._settings = settings
        self._ledger = ledger
        self._new_boot = new_boot
        self._clock = clock
        self._api = NodeApi(settings)
        self._node: OwnNode | None = None
        self._changed = asyncio.Event()
        self._refresh_at = 0.0
        self._last_at = -PACE_S
        self._failures = 0
        self._is_unsure = False

    def touch(self) -> None:
        """Something may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Report for ever."""
        try:
            while True:
                await self._await_change()
                try:
                    await self._report()
                    self._failures = 0
                except ApiProblem as problem:
                    await self._wait_after(problem)
        finally:
            self._api.close()

    async def _await_change(self) -> None:
        if self._failures:
            return
        wait_s = max(0.0, self._refresh_at - time.monotonic())
        if wait_s > 0 or self._node is not None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._changed.clear()
        await asyncio.sleep(max(0.0, self._last_at + PACE_S - time.monotonic()))

    async def _report(self) -> None:
        """One look at the ledger, and the PATCH if there is something to say."""
        self._look_at_boot()
        if self._node is None:
            self._node = await self._read_node()
        ledger = self._ledger()
        ledger.expire(self._clock())
        report = compose(ledger)
        said = self._node.annotations.get(FINDINGS_ANNOTATION, "")
        is_held = False
        if reported_boot(said) != ledger.boot_id and not report.is_complete:
            # Conditions of another boot must not pass for this one's: all are told at once, or,
            # when something is bad, the others as unknown.
            is_held = not any(word.status is Status.FALSE for word in report.words.values())
            report = with_unknown(report, self._node)
        is_due = report.is_complete and time.monotonic() >= self._refresh_at
        is_news = self._is_unsure or not is_said(report, self._node.conditions, said)
        if report.words and not is_held and (is_due or is_news):
            await self._write(report, self._node)
        else:
            self._refresh_at = max(self._refresh_at, time.monotonic() + PACE_S)

    async def _write(self, report: Report, node: OwnNode) -> None:
        self._last_at = time.monotonic()
        patch = body(report, node.conditions, node.uid, self._clock())
        # Until the answer it is not known what stands there.
        self._is_unsure = True
        self._node = await self._api.patch_status(patch)
        self._is_unsure = False
        level = logging.INFO if self.last is None else logging.DEBUG
        self.last = report
        self.counts.written += 1
        jitter = random.uniform(1 - JITTER, 1 + JITTER)
        self._refresh_at = time.monotonic() + self._settings.refresh_s * jitter
        words = {kind.value: word.reason for kind, word in report.words.items()}
        _log.log(level, "reported", extra={"node": self._settings.node, "conditions": words})

    async def _read_node(self) -> OwnNode:
        node = await self._api.read()
        ledger = self._ledger()
        if node.boot_id and node.boot_id != ledger.boot_id:
            _log.info("kubelet_names_another_boot", extra={"theirs": node.boot_id})
        try:
            found = forerunners(node.annotations.get(FINDINGS_ANNOTATION, ""), ledger.boot_id)
        except FindingsError as error:
            _log.warning("earlier_findings_unreadable", extra={"error": str(error)})
            found = ()
        ledger.take_over(found, self._clock())
        _log.info("took_over", extra={"node": self._settings.node, "findings": len(found)})
        return node

    def _look_at_boot(self) -> None:
        try:
            boot_id = read_boot_id(self._settings.host_root)
        except NoBootId as error:
            self._ledger().silent(SUPERVISION, "no-boot-id", str(error), self._clock())
            return
        self._ledger().news(SUPERVISION, (), self._clock())
        if boot_id != self._ledger().boot_id:
            _log.warning("another_boot", extra={"boot": boot_id})
            self._new_boot(boot_id)

    async def _wait_after(self, problem: ApiProblem) -> None:
        kind = problem.problem
        self.counts.failed[kind] = self.counts.failed.get(kind, 0) + 1
        self._failures += 1
        if kind not in (Problem.UNREACHABLE, Problem.BUSY, Problem.UNAUTHORIZED):
            self._node = None  # perhaps another Node has our name now
        limit_s = min(RETRY_LAST_S, RETRY_FIRST_S * 2 ** min(self._failures, 10))
        wait_s = max(problem.retry_after_s, random.uniform(limit_s / 2, limit_s))
        _log.warning("report_failed", extra={"error": str(problem), "next_try_s": round(wait_s, 2)})
        await asyncio.sleep(wait_s)


def with_unknown(report: Report, node: OwnNode) -> Report:
    """The report with "unknown" for what stands on the Node from before this boot."""
    word = Word(Status.UNKNOWN, UNKNOWN, WAITING_MESSAGE)
    stale = {kind: word for kind in ConditionType if kind in node.conditions}
    return replace(report, words={**stale, **report.words})
