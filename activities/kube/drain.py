"""Draining a node: asking its pods to go, waiting for them, and saying who stands in the way.

Owns the activity `drain`: which pods are tried when, the deadline, heartbeats and cancellation.
The verdict on each pod is `workflows/model/remediation/drain.py`, one eviction is `eviction.py`,
the watch behind it is `node_pods.py`.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import errors
from activities.kube.client import KubeClient
from activities.kube.errors import ApiError
from activities.kube.eviction import SLOW_DOWN_S, Ending, Evictor, Tried
from activities.kube.node_pods import (
    Bell,
    Followed,
    follow_budgets,
    follow_pods_on,
    list_pods_on,
    namespaces_with_room,
    view_of,
)
from activities.permit import Authority, StandingPermit
from workflows.contracts.errors import OTHER_HEALER
from workflows.contracts.kube import Drained, DrainRequest
from workflows.model.detection.finding import printable
from workflows.model.node import PodView
from workflows.model.policy import DrainWay
from workflows.model.remediation.drain import (
    Blocked,
    Judged,
    PodVerdict,
    is_drained,
    judge_pod,
)
from workflows.model.remediation.permit import Effect

PARALLEL: Final = 8
"""Evictions of one node at once: under one budget the API server takes about 20 a second."""
LOOK_S: Final = 0.25
"""Longest time between two looks at cancellation and clock; changes wake the drain at once."""
HEARTBEAT_S: Final = 1.0
AGAIN_FIRST_S: Final = 1.0
AGAIN_LAST_S: Final = 5.0
"""Back-off of a blocked pod; a change of a budget or of a pod on the node cuts it short."""
MAX_BLOCKED: Final = 32
"""Pods named in an answer; the count of all is in `remaining`."""
GIVE_WAY_LOOK_S: Final = 5.0
"""Between two looks whether another healer has begun, also while nothing is left to evict."""
MAX_REMEMBERED: Final = 1_000
"""Evicted UIDs that a later attempt is told of, so that it counts each pod once."""
MAX_TOLD: Final = 8
"""Pods in the way that a heartbeat names: it is read by people, and sent every second."""
MAX_TICK_S: Final = 5.0
"""Most of one look that counts as trying: past it the process itself stood still."""
ROUND_S: Final = 60.0
"""How long after its deadline an attempt may still ask pods for the first time: a thousand pods
at 20 a second, or an API server that comes back."""
UNHEARD: Final = (None, Ending.UNANSWERED, Ending.SLOW_DOWN)
"""A pod whose last try ended like this was not asked."""
NOT_ASKED: Final = "still runs; it was not asked to go"
ASKED: Final = "was asked to go and has not ended"

_log = structlog.get_logger(__name__)


class DrainActivity:
    """Drains nodes."""

    def __init__(self, kube: KubeClient, authority: Authority) -> None:
        self._kube = kube
        self._authority = authority

    def drain(self, request: DrainRequest) -> Drained:
        """Implements `drain`: done, or who is left and why.

        Way `now` evicts, `finish-work` waits for the pods to end by themselves, `none` only looks.
        Heartbeats every second with the time spent, the evicted UIDs and who is in the way; a
        second run goes on with the first one's time and count, and pods that are gone stay gone.
        Only time in which an attempt ran counts against the deadline, and no attempt gives up
        before it has asked each pod once. On cancellation it answers truly within a quarter of a
        second after Temporal tells it, as far as it came.

        Raises:
            ApplicationError: the permit is refused before an eviction (overruled, not-owner,
                no slot, paused), or another healer has begun while it waited: some pods may be
                gone, the node is as it was found.
            ApiError: the pods cannot be listed at all.
        """
        progress = _Progress.resumed()
        pods = list_pods_on(self._kube, request.owner.node.name)
        if request.way is DrainWay.NONE or is_drained(pods):
            return _answer(pods, progress.evicted, {})
        with ExitStack() as resources:
            permit = StandingPermit(self._authority, request.owner, Effect.DISRUPT)
            run = _DrainRun(self._kube, permit, request, progress, resources)
            return run.until_done()


@dataclass
class _Try:
    """What is known of one pod's evictions."""

    failures: int = 0
    due_at: float = 0.0
    reason: str = ""
    ending: Ending | None = None


@dataclass
class _Progress:
    """What outlives an attempt, in its heartbeats."""

    spent_s: float = 0.0
    evicted: set[str] = field(default_factory=set)

    @classmethod
    def resumed(cls) -> "_Progress":
        """The former attempt's, or a new one."""
        told: list[Any] = list(activity.info().heartbeat_details)
        if not told or not isinstance(told[0], dict):
            return cls()
        spent = told[0].get("spent_s")
        evicted = {str(uid) for uid in told[0].get("evicted") or [] if uid}
        return cls(max(0.0, spent) if isinstance(spent, int | float) else 0.0, evicted)

    def tell(self, in_the_way: tuple[str, ...]) -> None:
        activity.heartbeat(
            {
                "spent_s": round(self.spent_s, 1),
                "in_the_way": list(in_the_way),
                "evicted": sorted(self.evicted)[:MAX_REMEMBERED],
            }
        )


class _DrainRun:
    """One attempt."""

    def __init__(
        self,
        kube: KubeClient,
        permit: StandingPermit,
        request: DrainRequest,
        progress: _Progress,
        resources: ExitStack,
    ) -> None:
        self._kube = kube
        self._permit = permit
        self._request = request
        self._node = request.owner.node.name
        self._resources = resources
        self._bell = Bell()
        self._pods = resources.enter_context(follow_pods_on(kube, self._node, self._bell))
        self._budgets: Followed | None = None
        self._rooms: frozenset[str] = frozenset()
        self._evictor = Evictor(kube, permit, self._node)
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="evict")
        resources.callback(self._pool.shutdown, wait=True, cancel_futures=True)
        self._running: dict[str, Future[Tried]] = {}
        self._tries: dict[str, _Try] = {}
        self._progress = progress
        self._latest_s = max(progress.spent_s, request.deadline_s) + ROUND_S
        self._looked_at = monotonic()
        self._last_seen: tuple[PodView, ...] = ()
        self._unasked: set[str] | None = None
        self._told_at = float("-inf")
        self._slow_until = 0.0
        self._healer_look: Future[None] | None = None
        self._healer_due_at = monotonic() + GIVE_WAY_LOOK_S

    def until_done(self) -> Drained:
        """Looks, evicts what is due, waits for the next change; until done or no longer useful."""
        while True:
            self._spend()
            self._tell()
            self._collect()
            self._give_way()
            pods = self._seen()
            if pods is not None:
                self._last_seen = pods
                if is_drained(pods) and (fresh := self._really_drained()) is not None:
                    self._take_under_way()  # the pod may be gone before its eviction is answered
                    return self._answer(fresh)
                if self._only_configuration_blocks(pods):
                    self._take_under_way()
                    return self._answer(pods)
                if self._request.way is DrainWay.NOW:
                    self._evict_due(pods)
            if activity.is_cancelled() or self._has_tried_enough(pods):
                return self._at_end()
            if activity.is_worker_shutdown():
                self._tell(at_once=True)
                raise errors.try_again("drain: this worker is stopping; another one goes on")
            self._bell.wait(LOOK_S)

    def _spend(self) -> None:
        """Counts the time since the last look; what is before an attempt's first look is lost."""
        now = monotonic()
        self._progress.spent_s += min(now - self._looked_at, MAX_TICK_S)
        self._looked_at = now

    def _has_tried_enough(self, pods: tuple[PodView, ...] | None) -> bool:
        """True once the deadline is over and each pod of this attempt's first look was asked.

        An attempt may begin late: the worker was away, or evictions were forbidden till now.
        """
        if pods is not None and self._unasked is None:
            self._unasked = {pod.uid for pod in pods}
        spent_s = self._progress.spent_s
        if spent_s < self._request.deadline_s:
            return False
        if self._request.way is not DrainWay.NOW or spent_s >= self._latest_s:
            return True
        return pods is not None and not any(self._is_unasked(pod) for pod in pods)

    def _is_unasked(self, pod: PodView) -> bool:
        if self._unasked is None or pod.uid not in self._unasked:
            return False
        known = self._tries.get(pod.uid)
        was_asked = known is not None and known.ending not in UNHEARD
        return not was_asked and judge_pod(pod).verdict is PodVerdict.EVICT

    def _seen(self) -> tuple[PodView, ...] | None:
        """The pods by the watch; None until its first list is in."""
        if not self._pods.has_synced:
            return None
        return tuple(view_of(item) for item in self._pods.items())

    def _really_drained(self) -> tuple[PodView, ...] | None:
        """A list of this moment that says so too; the watch may be a moment behind."""
        try:
            pods = list_pods_on(self._kube, self._node)
        except ApiError as error:
            _log.warning("drain_check_failed", node=self._node, error=str(error))
            return None
        return pods if is_drained(pods) else None

    def _evict_due(self, pods: tuple[PodView, ...]) -> None:
        now = monotonic()
        if now < self._slow_until:
            return
        self._cut_waits_short(pods, now)
        for pod in pods:
            if len(self._running) >= PARALLEL:
                return
            if pod.uid in self._running or judge_pod(pod).verdict is not PodVerdict.EVICT:
                continue
            if self._tries.setdefault(pod.uid, _Try()).due_at <= now and pod.name:
                future = self._pool.submit(self._evictor.try_once, pod)
                future.add_done_callback(_ringing(self._bell))
                self._running[pod.uid] = future

    def _cut_waits_short(self, pods: tuple[PodView, ...], now: float) -> None:
        """A budget that has just opened makes its namespace's blocked pods due at once."""
        if self._budgets is None:
            return
        rooms = namespaces_with_room(self._budgets.items())
        opened, self._rooms = rooms - self._rooms, rooms
        for pod in pods:
            known = self._tries.get(pod.uid)
            if known and known.ending is Ending.BLOCKED and pod.namespace in opened:
                known.due_at = now

    def _collect(self) -> None:
        """Takes in the tries that have ended.

        Raises:
            ApplicationError: a permit was refused: the drain ends with it.
        """
        for uid, future in list(self._running.items()):
            if future.done():
                del self._running[uid]
                self._take(uid, future.result())

    def _give_way(self) -> None:
        """Evictions ask for a permit; a wait for pods that were asked to go looks here.

        Raises:
            ApplicationError: another healer has begun on the node.
        """
        if self._healer_look is not None and self._healer_look.done():
            look, self._healer_look = self._healer_look, None
            self._healer_due_at = monotonic() + GIVE_WAY_LOOK_S
            look.result()
        if self._healer_look is None and monotonic() >= self._healer_due_at:
            self._healer_look = self._pool.submit(self._find_healer)

    def _find_healer(self) -> None:
        try:
            self._permit.check()
        except ApiError as error:
            _log.warning("healer_not_looked_for", node=self._node, error=str(error))
        except ApplicationError as refusal:
            if refusal.type == OTHER_HEALER:
                raise

    def _take(self, uid: str, tried: Tried) -> None:
        known = self._tries.setdefault(uid, _Try())
        known.ending, known.reason = tried.ending, tried.reason
        if tried.ending is Ending.EVICTED:
            self._progress.evicted.add(uid)
            known.due_at = monotonic() + AGAIN_LAST_S  # seen as terminating long before
            return
        known.failures += 1
        pause = min(AGAIN_FIRST_S * 2 ** (known.failures - 1), AGAIN_LAST_S)
        known.due_at = monotonic() + max(pause, tried.again_s)
        if tried.ending is Ending.SLOW_DOWN:
            self._slow_until = monotonic() + (tried.again_s or SLOW_DOWN_S)
        if tried.ending is Ending.BLOCKED and self._budgets is None:
            self._budgets = self._resources.enter_context(follow_budgets(self._kube, self._bell))

    def _only_configuration_blocks(self, pods: tuple[PodView, ...]) -> bool:
        """True if waiting is of no use: two budgets hold each pod that is left."""
        left = _left(pods)
        return bool(left) and all(
            (known := self._tries.get(judged.pod.uid)) is not None
            and known.ending is Ending.MISCONFIGURED
            and judged.verdict is PodVerdict.EVICT
            for judged in left
        )

    def _at_end(self) -> Drained:
        """The truth at the deadline or at cancellation, evictions under way included."""
        self._take_under_way()
        return self._answer(list_pods_on(self._kube, self._node))

    def _take_under_way(self) -> None:
        """Waits for the tries that can't be taken back, and takes them in."""
        under_way = {uid: f for uid, f in self._running.items() if not f.cancel()}
        while wait(under_way.values(), LOOK_S).not_done:
            self._tell()
        for uid, future in under_way.items():
            self._take(uid, future.result())

    def _answer(self, pods: tuple[PodView, ...]) -> Drained:
        return _answer(pods, self._progress.evicted, self._reasons())

    def _reasons(self) -> dict[str, str]:
        """What stands in the way of each pod that was asked, by UID."""
        asked = dict.fromkeys(self._progress.evicted, ASKED)
        return asked | {uid: known.reason for uid, known in self._tries.items() if known.reason}

    def _tell(self, *, at_once: bool = False) -> None:
        if at_once or monotonic() - self._told_at >= HEARTBEAT_S:
            self._told_at = monotonic()
            reasons = self._reasons()
            left = _left(self._last_seen)[:MAX_TOLD]
            self._progress.tell(tuple(str(_blocked(judged, reasons)) for judged in left))


def _ringing(bell: Bell) -> Callable[[Future[Tried]], None]:
    return lambda _: bell.ring()


def _left(pods: tuple[PodView, ...]) -> list[Judged]:
    """The pods that may still run something and must go."""
    staying = (PodVerdict.EVICT, PodVerdict.LEAVING)
    return [judged for pod in pods if (judged := judge_pod(pod)).verdict in staying]


def _answer(pods: tuple[PodView, ...], evicted: set[str], reasons: dict[str, str]) -> Drained:
    left = _left(pods)
    return Drained(
        done=not left,
        evicted=len(evicted),
        remaining=len(left),
        blocked=tuple(_blocked(judged, reasons) for judged in left[:MAX_BLOCKED]),
    )


def _blocked(judged: Judged, reasons: dict[str, str]) -> Blocked:
    pod = judged.pod
    reason = judged.reason
    if judged.verdict is PodVerdict.EVICT:
        reason = reasons.get(pod.uid, NOT_ASKED)
    return Blocked(
        pod=f"{pod.namespace}/{pod.name}",
        owner=f"{pod.owner_kind}/{pod.owner_name}" if pod.owner_kind else "no owner",
        reason=printable(reason, 300),
    )
