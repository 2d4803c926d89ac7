"""The lookout: sees every change, has it judged, and acts on the verdict.

Owns the order of things for one node (quarantine at once, then report, then tell what changed) and
the lock under which nodes are looked at one at a time. Only the writer acts; a standby keeps the
same cache warm. Nothing here waits for Temporal: reports go into the outbox. Talks to `judge`,
`reflex`, `outbox`, `current_rules`; `sinks.py` feeds it.
"""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from workers.watch.current_rules import CurrentRules
from workers.watch.facts import facts_of, haste_of, key_of
from workers.watch.fleet import Fleet, Tracked, counts_as_reflex, readable_marker
from workers.watch.judge import Sight, Verdict, judge
from workers.watch.machine import MachineRecord, is_overruled, marks_of
from workers.watch.metrics import Counter, Metrics
from workers.watch.notices import Notice, Notices
from workers.watch.outbox import Outbox
from workers.watch.pace import Haste
from workers.watch.reflex import Attempt, Reflex, Result
from workers.watch.telling import Telling
from workflows.contracts.messages import NodeFacts, Report
from workflows.model.detection.rules import RuleMatch, match_rules
from workflows.model.node import NodeView, PodView
from workflows.model.policy import Policy
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.marks import is_marked, other_healer

MAX_LOOKS: Final = 5
"""How often one change is judged anew after conflicts; then the next tick goes on."""

TAKE_OFF_AGAIN: Final = timedelta(seconds=2)
"""After a request that failed: a spent mark keeps a fault from being answered."""
ADMISSION: Final = "admission"
"""Before a new node's boot: in the place of a match's id, so that its run is started once a boot."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Hands:
    """What the lookout acts with."""

    reflex: Reflex
    outbox: Outbox
    notices: Notices
    metrics: Metrics


PodsOnNode = Callable[[str, tuple[str, ...]], tuple[PodView, ...] | None]
"""The pods of these namespaces on the node of this name; None = cannot tell."""


class Lookout:
    """The one place where a node's change becomes an action."""

    def __init__(
        self,
        rules: CurrentRules,
        fleet: Fleet,
        hands: Hands,
        is_writer: Callable[[], bool],
        pods_on_node: PodsOnNode,
    ) -> None:
        """A lookout that only fills `fleet` until `take_over`."""
        self._rules = rules
        self._fleet = fleet
        self._hands = hands
        self._telling = Telling(hands.notices, hands.metrics)
        self._is_writer = is_writer
        self._pods_on_node = pods_on_node
        self._has_taken_over = False
        self._lock = threading.RLock()

    # What changes

    def see_node(self, view: NodeView) -> None:
        """A Node is there, or is another than before."""
        with self._lock:
            known = self._fleet.nodes.get(view.uid)
            before = known.view if known is not None else None
            had_marker = known is not None and known.marker is not None
            had_garbage = before is not None and not had_marker and is_marked(before)
            if known is not None and known.view.boot_id != view.boot_id:
                known.overruled = frozenset()
            tracked = self._fleet.put(view, self._rules.policy or self._rules.fallback)
            self._hands.reflex.see(tracked)
            if before is not None and had_marker:
                self._note_undone(tracked, before)
            elif had_garbage and not is_marked(tracked.view):
                tracked.reported = None  # the run that met it has yielded: nobody has the fault
            if before is not None and other_healer(before) and not other_healer(tracked.view):
                # It ended or gave up what our run gave way to. What a person undid says the record.
                tracked.reported, tracked.overruled = None, frozenset()
            self._react(tracked)

    def lose_node(self, uid: str) -> None:
        """A Node is gone."""
        with self._lock:
            tracked = self._fleet.remove(uid)
            if tracked is None:
                return
            self._hands.reflex.forget(uid)
            if self._is_open() and (tracked.has_run or tracked.marker is not None):
                key = key_of(tracked.view, tracked.marker, self._rules.told)
                facts = facts_of(tracked.view, key, datetime.now(UTC), gone=True)
                self._hands.outbox.offer_facts(tracked.ref, facts, Haste.NOW)

    def see_machine(self, record: MachineRecord) -> None:
        """A machine record is there, or says something new."""
        with self._lock:
            for tracked in self._fleet.nodes_of_machine(record.name):
                # From here on the record says what was undone, and when it counts again.
                tracked.overruled -= record.overruled_marks(tracked.view.boot_id)
                self._react(tracked)

    def change_rules(self) -> None:
        """Policy, arming or pauses are others than before: every node is judged again."""
        with self._lock:
            if self._rules.policy is not None:
                self._fleet.refile(self._rules.policy)
        self.look_at_all()

    def look_at_all(self) -> None:
        """Something that holds for every node is known now."""
        for tracked in self._fleet:
            self._look(tracked)

    def see_pods(self, node_name: str) -> None:
        """Other pods than before protect this node, or none any more."""
        with self._lock:
            for tracked in self._fleet.nodes_named(node_name):
                self._react(tracked)

    def take_over(self, fresh: list[NodeView]) -> None:
        """This replica is the writer now.

        Args:
            fresh: every Node, read after the Lease was taken: marks that the last writer made are
                counted before the first of ours.
        """
        with self._lock:
            policy = self._rules.policy or self._rules.fallback
            for view in fresh:
                self._fleet.put(view, policy, is_ours=True)
            self._has_taken_over = True
        for tracked in self._fleet:
            with self._lock:
                tracked.reported = tracked.told = None
                # One without a mark waits for the very change that came while nobody watched.
                record = self._rules.machine_of(tracked.view)
                if record is not None and record.has_open_episode(tracked.view):
                    tracked.has_run = True
                self._look(tracked)

    def stand_by(self) -> None:
        """This replica is not the writer, or not yet sure of the marks."""
        self._has_taken_over = False

    def tick(self) -> None:
        """Judge again what the clock changes, and what could not be done before."""
        now = datetime.now(UTC)
        for tracked in self._fleet:
            if tracked.retry or (tracked.again_at is not None and tracked.again_at <= now):
                self._look(tracked)

    # What the outbox asks and tells (from its own thread, without the lock: a patch that hangs
    # must not hang the senders)

    def is_current(self, report: Report) -> bool:
        """True if the report still says something true.

        The same Node is there, and it is marked or something matches.
        """
        tracked = self._fleet.nodes.get(report.node.uid)
        if tracked is None or not self._is_open():
            return False
        return is_marked(tracked.view) or tracked.reported is not None

    def is_open(self) -> bool:
        """True if this replica acts."""
        return self._is_open()

    def note_delivered(self, report: Report) -> None:
        """The report is in Temporal."""
        tracked = self._fleet.nodes.get(report.node.uid)
        if tracked is not None:
            tracked.has_run = True

    def note_no_run(self, uid: str) -> None:
        """No open run exists for this Node."""
        tracked = self._fleet.nodes.get(uid)
        if tracked is not None:
            tracked.has_run = False
            if tracked.marker is None:
                tracked.episode = ""
                if is_newcomer(tracked.view):  # its run was lost: nobody else admits it
                    tracked.reported, tracked.retry = None, True

    # One node

    def _is_open(self) -> bool:
        return self._has_taken_over and self._is_writer()

    def _look(self, tracked: Tracked) -> None:
        with self._lock:
            if self._fleet.nodes.get(tracked.view.uid) is tracked:
                self._react(tracked)

    def _react(self, tracked: Tracked) -> None:
        policy = self._rules.policy
        if policy is None or not self._is_open():
            return
        now = datetime.now(UTC)
        verdict, attempt = self._act(tracked, policy, now)
        if self._fleet.nodes.get(tracked.view.uid) is not tracked:
            return
        tracked.again_at = verdict.again_at
        is_known = tracked.has_run or (verdict.marker is not None and not _is_done(attempt))
        report = self._report(tracked, verdict, now)
        change = self._change(tracked, now, is_news=is_known)
        self._offer(tracked, report, change)
        if attempt is not None:
            self._account(tracked, *attempt)
        self._telling.tell(tracked, verdict)

    def _act(
        self, tracked: Tracked, policy: Policy, now: datetime
    ) -> tuple[Verdict, tuple[RuleMatch, Attempt] | None]:
        """Judge, and quarantine at once if that is due; the verdict on what the node is then."""
        last: tuple[RuleMatch, Attempt] | None = None
        for _ in range(MAX_LOOKS):
            verdict = self._judge(tracked, policy, now)
            if verdict.is_spent:
                if self._take_off(tracked, verdict, policy):
                    continue
                verdict = replace(verdict, again_at=now + TAKE_OFF_AGAIN)
                break
            if verdict.reflex is None:
                break
            attempt = self._hands.reflex.quarantine(tracked, verdict.reflex, policy, now)
            last = (verdict.reflex, attempt)
            if attempt.result is Result.DONE:
                tracked.reported = None
            elif attempt.result is Result.BUDGET_FULL:
                tracked.refused |= {verdict.reflex.id}
            elif attempt.result is Result.CHANGED:
                self._hands.metrics.count(Counter.REFLEX_CONFLICTS)
            else:
                break
        else:
            verdict = self._judge(tracked, policy, now)
        return verdict, last

    def _take_off(self, tracked: Tracked, verdict: Verdict, policy: Policy) -> bool:
        """A handed-over mark of a node that is back at work; True = judge again, it has changed."""
        result = self._hands.reflex.take_off(tracked, policy).result
        if result is Result.DONE and verdict.marker is not None:
            self._telling.tell_taken_off(
                tracked, verdict.marker, self._leave_alone(tracked, policy)
            )
        return result in (Result.DONE, Result.CHANGED)

    def _judge(self, tracked: Tracked, policy: Policy, now: datetime) -> Verdict:
        sight = Sight(
            tracked.view,
            self._rules.machine_of(tracked.view),
            tracked.overruled,
            tracked.refused,
            tracked.silent_since,
            self._pods_on_node(tracked.view.name, policy.scope.protected_namespaces),
        )
        verdict = judge(sight, policy, self._rules.arming, now)
        tracked.silent_since = (tracked.silent_since or now) if verdict.is_silent else None
        return verdict

    def _note_undone(self, tracked: Tracked, before: NodeView) -> None:
        """Whether our quarantine went from the node: the cordon, the marker or both.

        If the workflow gave it back, nothing matched. Otherwise a person took it off, and what
        they saw until then (not what is reported afterwards) is not answered with another one.
        """
        policy = self._rules.policy
        if policy is None:
            return
        if before.unschedulable and not _is_quarantined(tracked):
            tracked.overruled = marks_of(match_rules(before, policy, datetime.now(UTC)))
        if tracked.reported is None and not is_marked(tracked.view):
            # It had been handed over: no episode is open that could hold.
            self._telling.tell_left_alone(tracked, self._leave_alone(tracked, policy))

    def _leave_alone(self, tracked: Tracked, policy: Policy) -> list[RuleMatch]:
        """What a person saw when they put the node back to work is reported no more; those matches."""
        matches = match_rules(tracked.view, policy, datetime.now(UTC))
        undone = [match for match in matches if is_overruled(match, tracked.overruled)]
        tracked.reported = frozenset(match.id for match in undone) or None
        return undone

    def _report(self, tracked: Tracked, verdict: Verdict, now: datetime) -> Report | None:
        """What is to be reported; None = nothing that was not reported before."""
        ids = frozenset(match.id for match in verdict.matches)
        self._forget_what_passed(tracked, verdict, ids)
        if verdict.is_due:
            ids |= {f"{ADMISSION}/{tracked.view.boot_id}"}
        if not verdict.has_episode or not (ids or verdict.marker):
            # What is reported next is another episode: an id is not used for two.
            tracked.reported, tracked.episode = None, ""
            return None
        # A mark of the reflex that this run has not heard of: its request had no clear answer.
        marker = verdict.marker
        is_new_mark = (
            marker is not None and counts_as_reflex(marker) and tracked.episode != marker.episode
        )
        if tracked.reported is not None and ids <= tracked.reported and not is_new_mark:
            tracked.reported = ids
            return None
        if not tracked.episode or marker is not None:
            tracked.episode = marker.episode if marker is not None else secrets.token_hex(8)
        # Before it is offered: the outbox may ask at once whether it is still true.
        tracked.reported = ids
        tracked.has_run = True
        return Report(
            node=tracked.ref,
            episode=tracked.episode,
            pool=verdict.pool or tracked.pool,
            matches=verdict.matches,
            boot_id=tracked.view.boot_id,
            at=now,
            # The run then knows that a quarantine it doesn't find was taken off by somebody.
            marked_at=tracked.view.resource_version if _is_quarantined(tracked) else "",
            newcomer=verdict.is_due,
        )

    def _forget_what_passed(self, tracked: Tracked, verdict: Verdict, ids: frozenset[str]) -> None:
        tracked.retry = False
        tracked.refused &= ids
        if tracked.overruled:
            tracked.overruled &= marks_of(
                match_rules(tracked.view, self._rules.policy or Policy(), datetime.now(UTC))
            )
        if verdict.marker is not None and verdict.marker.handed_over:
            tracked.has_run = False

    def _change(
        self, tracked: Tracked, now: datetime, *, is_news: bool
    ) -> tuple[NodeFacts, Haste] | None:
        """What the open run may wait for, if it changed; one that just starts reads it by itself."""
        marker = readable_marker(tracked.view)
        is_ours = marker is not None and not marker.handed_over
        if not (is_ours or tracked.has_run):
            tracked.told = None
            return None
        key = key_of(tracked.view, marker, self._rules.told)
        told, tracked.told = tracked.told, key
        if key == told or not is_news:
            return None
        return facts_of(tracked.view, key, now), haste_of(key, told)

    def _offer(
        self, tracked: Tracked, report: Report | None, change: tuple[NodeFacts, Haste] | None
    ) -> None:
        """What is reported and what has changed are one signal: each costs the run a task."""
        outbox = self._hands.outbox
        if report is not None:
            facts = change[0] if change is not None else None
            if not outbox.offer_report(replace(report, facts=facts)):
                tracked.reported = None
                tracked.retry = True
        elif change is not None:
            outbox.offer_facts(tracked.ref, *change)

    # What people see of it, after the fact

    def _account(self, tracked: Tracked, match: RuleMatch, attempt: Attempt) -> None:
        metrics = self._hands.metrics
        fields = {"node": tracked.view.name, "uid": tracked.view.uid, "rule": match.rule}
        if attempt.result is Result.DONE and attempt.marker is not None:
            metrics.count(Counter.REFLEX_QUARANTINES, tracked.pool)
            tracked.trouble = ""
            _log.info(
                "quarantined_at_once",
                **fields,
                episode=attempt.marker.episode,
                fault=match.fault.value,
                used=attempt.used + 1,
                cap=attempt.cap,
            )
            text = f"quarantined at once for {match.fault} (rule {match.rule}): {match.text}"
            self._hands.notices.tell(
                Notice(tracked.ref, attempt.marker.episode, "Quarantined", text, is_warning=True)
            )
        elif attempt.result is Result.BUDGET_FULL:
            metrics.count(Counter.REFLEX_BUDGET_FULL, tracked.pool)
            _log.warning("reflex_budget_full", **fields, used=attempt.used, cap=attempt.cap)
        elif attempt.result in (Result.FAILED, Result.CHANGED):
            metrics.count(Counter.REFLEX_FAILURES, tracked.pool)
            tracked.retry = True
            problem = attempt.problem or "the Node changed at each try"
            if problem != tracked.trouble:
                # Once for each cause: it is tried again at each tick.
                _log.warning("quarantine_not_done", **fields, problem=problem)
            tracked.trouble = problem


def _is_quarantined(tracked: Tracked) -> bool:
    return tracked.marker is not None and tracked.view.unschedulable


def _is_done(attempt: tuple[RuleMatch, Attempt] | None) -> bool:
    return attempt is not None and attempt[1].result is Result.DONE
