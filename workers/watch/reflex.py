"""The reflex: one quarantine at once, within its budget, by the writer only.

Owns the request, the look at the Lease and the budget right before it, and what its answer means.
A mark that may have been written and was not seen yet counts as written. Does not judge:
`lookout.py` does, and asks again after a conflict. Talks to `activities/kube`.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

import structlog

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, JsonObject, KubeClient, PatchKind
from workers.watch.fleet import Fleet, Tracked, counts_as_reflex
from workflows.model.amounts import nodes_of_share
from workflows.model.detection.rules import RuleMatch
from workflows.model.node import BadObject, parse_node
from workflows.model.policy import Policy
from workflows.model.remediation.marks import (
    Marker,
    Quarantine,
    entry_marker,
    entry_patch,
    exit_patch,
)

TIMEOUT: Final = CallTimeout(connect_s=1.0, read_s=2.0)
"""A patch that takes longer is asked about anew; every other node waits behind it."""

_log = structlog.get_logger(__name__)


class Result(StrEnum):
    """How a quarantine at once went."""

    DONE = "done"
    BUDGET_FULL = "budget-full"
    NOT_WRITER = "not-writer"
    CHANGED = "changed"
    """The Node is not as it was judged; its present form is in the fleet."""
    GONE = "gone"
    """The Node was deleted; the stream will say so."""
    FAILED = "failed"
    """Nothing was written, or it is not known; to be judged again soon."""


@dataclass(frozen=True)
class Attempt:
    """What was tried, and how it went. `used` of `cap` places were taken before.

    `is_doubtful` = it failed without an answer that says whether it was applied.
    """

    result: Result
    marker: Marker | None = None
    used: int = 0
    cap: int = 0
    problem: str = ""
    is_doubtful: bool = False


class Reflex:
    """Writes marks. Called under the lookout's lock, so that one request is in flight at most."""

    def __init__(self, client: KubeClient, fleet: Fleet, is_writer: Callable[[], bool]) -> None:
        """A reflex over the views of `fleet`, for as long as `is_writer` says so."""
        self._client = client
        self._fleet = fleet
        self._is_writer = is_writer
        self._doubtful: dict[str, str] = {}
        """Pool by UID of Nodes whose mark may have been written, without an answer."""

    def quarantine(
        self, tracked: Tracked, match: RuleMatch, policy: Policy, now: datetime
    ) -> Attempt:
        """Cordon and mark this node for `match`, if a place of its pool's reflex budget is free."""
        node = tracked.view
        if node.uid in self._doubtful:
            # It is read again first; its mark counts until that succeeds.
            attempt = self._look_again(tracked, policy)
            if attempt.result is not Result.FAILED:
                del self._doubtful[node.uid]
            return attempt
        used, cap = self._places(tracked.pool, policy)
        if used >= cap:
            return Attempt(Result.BUDGET_FULL, used=used, cap=cap)
        marker = entry_marker(node, _draft(match, now))
        attempt = self._send(tracked, entry_patch(node, marker), policy)
        if attempt.is_doubtful:
            self._doubtful[node.uid] = tracked.pool
        if attempt.result is not Result.DONE:
            return attempt
        return replace(attempt, marker=marker, used=used, cap=cap)

    def take_off(self, tracked: Tracked, policy: Policy) -> Attempt:
        """Take a handed-over mark off a node that a person has put back to work.

        The vetoes become what they were before it. Twice is once: the Node is then another than it
        was judged to be. Applied or not, if there was no answer: the stream shows which.
        """
        if tracked.marker is None:
            return Attempt(Result.CHANGED)
        attempt = self._send(tracked, exit_patch(tracked.view, tracked.marker), policy)
        if attempt.result is Result.FAILED:
            _log.warning(
                "mark_not_taken_off",
                node=tracked.view.name,
                uid=tracked.view.uid,
                problem=attempt.problem,
            )
        return attempt

    def _send(self, tracked: Tracked, body: JsonObject, policy: Policy) -> Attempt:
        """One guarded patch, if this replica may write at this very moment."""
        if not self._is_writer():
            return Attempt(Result.NOT_WRITER)
        try:
            answer = self._client.patch(
                paths.node(tracked.view.name), body, kind=PatchKind.MERGE, timeout=TIMEOUT
            )
            self._fleet.put(parse_node(answer), policy, is_ours=True)
        except errors.Conflict:
            return self._look_again(tracked, policy)
        except errors.NotFound:
            return Attempt(Result.GONE)
        except errors.ApiError as error:
            return Attempt(Result.FAILED, problem=str(error), is_doubtful=error.maybe_done)
        except BadObject as error:
            return Attempt(Result.FAILED, problem=str(error), is_doubtful=True)
        return Attempt(Result.DONE)

    def forget(self, uid: str) -> None:
        """The Node is gone: whatever was written on it takes no place any more."""
        self._doubtful.pop(uid, None)

    def see(self, tracked: Tracked) -> None:
        """The stream shows the Node marked: no doubt is left."""
        if counts_as_reflex(tracked.marker):
            self._doubtful.pop(tracked.view.uid, None)

    def _places(self, pool: str, policy: Policy) -> tuple[int, int]:
        row = policy.pool_named(pool)
        if row is None:
            return 0, 0
        doubtful = sum(1 for p in self._doubtful.values() if p == pool)
        used = self._fleet.reflex_marks(pool) + doubtful
        return used, nodes_of_share(row.budgets.reflex_quarantine, self._fleet.pool_size(pool))

    def _look_again(self, tracked: Tracked, policy: Policy) -> Attempt:
        """The Node as it is now into the fleet."""
        try:
            node = parse_node(self._client.get(paths.node(tracked.view.name), timeout=TIMEOUT))
        except errors.NotFound:
            return Attempt(Result.GONE)
        except (errors.ApiError, BadObject) as error:
            return Attempt(Result.FAILED, problem=str(error))
        if node.uid != tracked.view.uid:
            return Attempt(Result.GONE)
        self._fleet.put(node, policy, is_ours=True)
        return Attempt(Result.CHANGED)


def _draft(match: RuleMatch, now: datetime) -> Marker:
    return Marker(
        episode=secrets.token_hex(8),
        node_uid="",
        since=now,
        rule=match.rule,
        fault=match.fault.value,
        quarantine=Quarantine.REFLEX,
    )
