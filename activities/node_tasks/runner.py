"""Running a node task: one pod, its verdict, and the pod gone again before anybody goes on.

Owns the activities `inventory`, `reboot`, `diagnose` and `kernel_log`. The pod's shape is `pod.py`, the reading of its
verdict (hostile) `workflows/contracts/node_tasks.py`, the program inside it `workers/node_task`.
Every defect is an answer `unknown` with its reason, never a guess.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final

import structlog
from pydantic import TypeAdapter
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import errors
from activities.kube import paths
from activities.kube.client import CallTimeout, JsonObject, KubeClient
from activities.kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from activities.kube.node_pods import Bell, Followed, follow_pod, list_pods_on
from activities.node_tasks.demand import Demand
from activities.node_tasks.pod import (
    NAMESPACE,
    GpuAccess,
    TaskPod,
    foreign,
    order_of,
    read_task_pod,
    task_name,
    task_pod,
)
from activities.permit import Authority
from workflows.contracts.node_tasks import NodeTaskRequest, TaskAnswer, read_verdict
from workflows.model.detection.finding import printable
from workflows.model.node import NodeView, parse_instant
from workflows.model.node_task import IDLE_LEVEL, MAX_LEVEL, Result, TaskKind
from workflows.model.remediation.drain import PodVerdict as Judgement
from workflows.model.remediation.drain import is_drained, judge_pod
from workflows.model.remediation.permit import Effect

RELEASE_CONFIG_MAP: Final = "fleetmend-release"
IMAGE_KEY: Final = "image"
RUNTIME_KEY: Final = "runtimeClassName"
ENGINE_KEY: Final = "dcgmHostEngine"
RELEASE_RULES: Final = tuple(f"fleetmend-worker-pods/{number}:" for number in (4, 12, 23))
"""Of deploy/chart: image, env and runtime class are the release's. Between the two objects of an upgrade
that say which, no task can be made; one that would have certified a node is asked for again."""
IMAGE_TRIES: Final = 20
IMAGE_AGAIN_S: Final = 3.0
START_SHARE: Final = 0.5
"""Part of the deadline (without the diagnostic's own time) within which the container must have started: what has not, rarely will."""
LOOK_S: Final = 0.25
"""Longest time between two looks at cancellation and clock; changes of the pod wake at once."""
NET_S: Final = 5.0
"""Between two reads that do not trust the watch."""
HEARTBEAT_S: Final = 1.0
CREATE_TIMEOUT: Final = CallTimeout(connect_s=2.0, read_s=3.0)
"""Of the pod's creation: over before Temporal misses a heartbeat and starts another attempt."""

_ANSWER: Final = TypeAdapter(TaskAnswer)
_log = structlog.get_logger(__name__)


class NodeTaskActivities:
    """Runs node tasks."""

    def __init__(self, kube: KubeClient, authority: Authority) -> None:
        self._kube = kube
        self._authority = authority

    def inventory(self, request: NodeTaskRequest) -> TaskAnswer:
        """Implements `inventory`: what the node itself counts.

        Idempotent: a second run finds the pod of the first by its name. Heartbeats every second.

        Raises:
            ApplicationError: not-permitted, node-gone; bad-request: a foreign pod has the name.
        """
        return self._run(request, TaskKind.INVENTORY)

    def reboot(self, request: NodeTaskRequest) -> TaskAnswer:
        """Implements `reboot`: `done` says only that the reboot was asked for.

        At most one pod for each request: a second run finds the first one's pod, or its heartbeat,
        or another boot than the expected one, and then asks for nothing. The permit (fence, slot)
        and, unless the request waives it, that the node is still drained are checked right before
        the pod is created. Heartbeats every second.

        Raises:
            ApplicationError: overruled, not-owner, not-permitted, no slot, node-gone;
                bad-request: no expected boot id, or a foreign pod has the name. Nothing was
                asked for.
        """
        if not request.expected_boot_id:
            raise errors.bad_request("reboot: expected_boot_id is missing: a reboot is bound to it")
        return self._run(request, TaskKind.REBOOT)

    def diagnose(self, request: NodeTaskRequest) -> TaskAnswer:
        """Implements `diagnose`: DCGM's diagnostic, at a level of which 2 and above load the GPUs.

        Idempotent, and heartbeats, as `inventory`. At level 2 and above the node must be drained
        (unless the request waives it), read right before the pod is created: else `refused`.

        Raises:
            ApplicationError: as `inventory`; bad-request: the level is none.
        """
        if not 1 <= request.level <= MAX_LEVEL:
            raise errors.bad_request(f"diagnose: level {request.level}: use 1 to {MAX_LEVEL}")
        return self._run(request, TaskKind.DIAGNOSE)

    def kernel_log(self, request: NodeTaskRequest) -> TaskAnswer:
        """Implements `kernel_log`: the hardware Xids that the kernel told of in this boot.

        Idempotent, heartbeats and raises as `inventory`.
        """
        return self._run(request, TaskKind.KERNEL_LOG)

    def _run(self, request: NodeTaskRequest, kind: TaskKind) -> TaskAnswer:
        if request.kind is not kind:
            raise errors.bad_request(f"{kind}: the request is for a task of kind {request.kind}")
        return _TaskRun(self._kube, self._authority, _bounded(request)).answer()


def _bounded(request: NodeTaskRequest) -> NodeTaskRequest:
    """The request as it is; a task without a not-after time gets one that its work fits in."""
    if request.not_after is not None:
        return request
    late = datetime.now(UTC) + timedelta(seconds=request.deadline_s - request.limit_s)
    return replace(request, not_after=late)


@dataclass(frozen=True)
class _Memory:
    """What an earlier attempt told: the UID of the pod it created, and the answer it had."""

    pod_uid: str = ""
    answer: TaskAnswer | None = None

    @classmethod
    def told(cls) -> "_Memory":
        details: list[Any] = list(activity.info().heartbeat_details)
        if not details or not isinstance(details[0], dict):
            return cls()
        kept = details[0]
        answer = kept.get("answer")
        return cls(
            str(kept.get("pod_uid", "")), _ANSWER.validate_python(answer) if answer else None
        )


class _TaskRun:
    """One attempt at one task."""

    def __init__(self, kube: KubeClient, authority: Authority, request: NodeTaskRequest) -> None:
        self._kube = kube
        self._authority = authority
        self._request = request
        self._name = task_name(request)
        self._path = paths.pod(NAMESPACE, self._name)
        self._memory = _Memory.told()
        self._bell = Bell()
        self._demand = Demand(kube, authority, request)
        self._begun = monotonic()
        self._told_at = float("-inf")
        self._looked_at = monotonic()

    @property
    def _is_reboot(self) -> bool:
        return self._request.kind is TaskKind.REBOOT

    @property
    def _needs_idle(self) -> bool:
        is_load = self._request.kind is TaskKind.DIAGNOSE and self._request.level > IDLE_LEVEL
        return self._is_reboot or is_load or self._request.needs_idle

    def answer(self) -> TaskAnswer:
        """Finds or creates the pod, waits for its end, removes it, answers."""
        found = self._find()
        if self._memory.answer is not None:
            # An earlier attempt had it, and ended before it could say so.
            if found is not None:
                self._remove(read_task_pod(found))
            return self._memory.answer
        age_s = 0.0
        if found is not None:
            age_s = _age_s(found)
        else:
            answer = self._without_pod()
            if answer is not None:
                return answer
            found = self._find()
            if found is None:
                return self._booted() or _unknown("the task's pod is gone: somebody deleted it")
        pod = read_task_pod(found)
        self._tell(pod, at_once=True)
        try:
            answer = self._follow(pod, age_s)
        except ApplicationError as failure:
            if failure.non_retryable:  # the Node is gone: nobody comes back for the pod
                self._remove(pod)
            raise
        self._tell(pod, answer, at_once=True)
        self._remove(pod)
        return answer

    def _without_pod(self) -> TaskAnswer | None:
        """No pod has the name: creates it (None), or says why there will be none."""
        if self._is_reboot and self._memory.pod_uid:
            return self._booted() or _unknown(
                "an earlier attempt made the reboot pod, which is gone without a verdict"
            )
        return self._create()

    # ---- the pod

    def _find(self) -> JsonObject | None:
        try:
            body = self._kube.get(self._path)
        except NotFound:
            return None
        problem = foreign(body, self._request)
        if problem:
            raise errors.bad_request(problem)
        return body

    def _create(self) -> TaskAnswer | None:
        """Creates the pod under a fresh permit; an answer if none may or can be created."""
        image, access = self._release()
        if not image:
            return self._not_asked(
                f"ConfigMap {NAMESPACE}/{RELEASE_CONFIG_MAP} names no {IMAGE_KEY}: no task can "
                "run; whoever installs the release writes it"
            )
        refusal = self._refusal_before_work() if self._needs_idle else None
        if refusal is not None:
            return refusal
        effect = Effect.DISRUPT if self._is_reboot else Effect.MARK
        node = self._authority.demand(self._request.owner, effect)
        if self._is_reboot and node.boot_id != self._request.expected_boot_id:
            return self._judge_boot(node) or _unknown("the Node has no boot id")
        body = task_pod(self._request, self._name, image, access)
        try:
            created = self._kube.create(paths.pods(NAMESPACE), body, timeout=CREATE_TIMEOUT)
        except Conflict as error:
            if not error.is_existing:
                raise
            return None  # the caller finds it, and looks whether it is ours
        except (Forbidden, Invalid) as error:
            is_release = any(rule in str(error) for rule in RELEASE_RULES)
            if is_release and activity.info().attempt < IMAGE_TRIES:
                raise errors.try_again(
                    f"an upgrade is changing the image of node tasks, or their way to GPUs: {error}",
                    IMAGE_AGAIN_S,
                ) from error
            return self._not_asked(f"the task's pod was refused, nothing was asked for: {error}")
        self._tell(read_task_pod(created), at_once=True)
        return None

    def _not_asked(self, why: str) -> TaskAnswer:
        """A reboot that surely nobody was asked for is no attempt; of others nothing is known."""
        return TaskAnswer(Result.REFUSED, why) if self._is_reboot else _unknown(why)

    def _refusal_before_work(self) -> TaskAnswer | None:
        """Reasons, besides the permit, not to ask for a reboot, or for load, now."""
        request = self._request
        if request.not_after is not None and datetime.now(UTC) >= request.not_after:
            return TaskAnswer(Result.REFUSED, f"too late: not after {request.not_after:%H:%M:%S}")
        if request.needs_idle:
            return self._demand.before_work()
        if request.needs_drained:
            pods = list_pods_on(self._kube, request.owner.node.name)
            if not is_drained(pods):
                done = (Judgement.EXEMPT, Judgement.GONE)
                names = [
                    f"{p.namespace}/{p.name}" for p in pods if judge_pod(p).verdict not in done
                ]
                text = printable(", ".join(names[:4]), 200)
                return TaskAnswer(
                    Result.REFUSED, f"{len(names)} pods are on the node again: {text}"
                )
        return None

    def _release(self) -> tuple[str, GpuAccess]:
        """The image of node tasks ("" = none is named), and a diagnosis' way to the GPUs."""
        try:
            found = self._kube.get(paths.config_map(NAMESPACE, RELEASE_CONFIG_MAP))
        except NotFound:
            return "", GpuAccess()
        told = found.get("data") or {}
        access = GpuAccess(str(told.get(RUNTIME_KEY, "")), str(told.get(ENGINE_KEY, "")))
        return str(told.get(IMAGE_KEY, "")), access

    def _remove(self, pod: TaskPod) -> None:
        """Returns when the pod is gone or has its deletion timestamp."""
        try:
            self._kube.delete(self._path, uid=pod.uid)
        except NotFound:
            return
        except Conflict:
            found = self._find()
            if found is not None and found["metadata"]["uid"] == pod.uid:
                raise

    # ---- waiting

    def _follow(self, pod: TaskPod, age_s: float) -> TaskAnswer:
        """The answer of a pod that exists; bounded by the deadline, counted from its creation."""
        ends = self._begun + self._request.deadline_s - age_s
        room_s = self._request.deadline_s - self._request.limit_s
        starts = ends - self._request.limit_s - room_s * (1 - START_SHARE)
        with (
            follow_pod(self._kube, NAMESPACE, self._name, self._bell) as followed,
            self._demand.followed(self._bell) as demand,
        ):
            while True:
                settled = self._verdict(pod) or demand() or self._settled(pod, starts, ends)
                if settled is not None:
                    return settled
                self._tell(pod)
                self._bell.wait(LOOK_S)
                is_net = monotonic() - self._looked_at >= NET_S
                seen = self._newest(pod, followed, is_net=is_net)
                if seen is None:
                    return self._booted() or _unknown("the task's pod is gone without a verdict")
                pod = seen
                if is_net and (booted := self._judge_boot(self._node())) is not None:
                    return booted

    def _verdict(self, pod: TaskPod) -> TaskAnswer | None:
        """What the ended container said; None = it has not ended."""
        if pod.message is None:
            return None
        if pod.message == "" and pod.reason:
            answer = _unknown(f"the task ended without a verdict: {printable(pod.reason, 300)}")
        else:
            order = order_of(self._request, self._name)
            answer = read_verdict(
                pod.message, kind=order.kind, episode=order.episode, task=order.task
            )
        if answer.result is Result.UNKNOWN and self._is_reboot:
            return self._booted() or answer
        return answer

    def _settled(self, pod: TaskPod, starts: float, ends: float) -> TaskAnswer | None:
        """Why there is nothing more to wait for; None = there is."""
        late = monotonic()
        why = ""
        if pod.deleting:
            why = "the task's pod is being deleted and has given no verdict"
        elif activity.is_cancelled() and not _is_asked_to_stop():
            # Another attempt goes on with this pod: it must find it.
            raise errors.try_again(f"{self._name}: this attempt was given up, not its task")
        elif activity.is_cancelled():
            why = "the step was cancelled before the task gave a verdict"
        elif not pod.has_started and late >= starts:
            why = f"the task did not start in time: {printable(pod.reason, 300) or 'no word of it'}"
        elif late >= ends:
            why = "the task gave no verdict before its deadline"
        elif activity.is_worker_shutdown():
            self._tell(pod, at_once=True)
            raise errors.try_again(f"{self._name}: this worker is stopping; another one goes on")
        if not why:
            return None
        return self._booted() or _unknown(why)

    def _newest(self, pod: TaskPod, followed: Followed, *, is_net: bool) -> TaskPod | None:
        """The pod as it is now; None = it is gone (by a read, never by the watch alone)."""
        if not is_net:
            if not followed.has_synced:
                return pod
            for body in followed.items():
                if body["metadata"]["uid"] == pod.uid:
                    return read_task_pod(body)
        self._looked_at = monotonic()
        try:
            fresh = self._find()
        except ApiError as error:
            _log.warning("node_task_unread", task=self._name, error=str(error))
            return pod
        if fresh is None or fresh["metadata"]["uid"] != pod.uid:
            return None
        return read_task_pod(fresh)

    # ---- the boot

    def _booted(self) -> TaskAnswer | None:
        """`done`, if this is a reboot and the Node says that it has booted; else None."""
        return self._judge_boot(self._node()) if self._is_reboot else None

    def _node(self) -> NodeView | None:
        """The Node as it is now; None = it cannot be read. Raises: ApplicationError: node-gone."""
        try:
            return self._authority.look(self._request.owner.node)
        except ApiError as error:
            _log.warning("node_unread", task=self._name, error=str(error))
            return None

    def _judge_boot(self, node: NodeView | None) -> TaskAnswer | None:
        if not self._is_reboot or node is None:
            return None
        if node.boot_id in ("", self._request.expected_boot_id):
            return None
        return TaskAnswer(
            Result.DONE, f"the Node is in another boot: {node.boot_id}", boot_id=node.boot_id
        )

    # ---- heartbeats

    def _tell(
        self, pod: TaskPod, answer: TaskAnswer | None = None, *, at_once: bool = False
    ) -> None:
        if not at_once and monotonic() - self._told_at < HEARTBEAT_S:
            return
        self._told_at = monotonic()
        told: dict[str, Any] = {"pod_uid": pod.uid}
        if answer is not None:
            told["answer"] = _ANSWER.dump_python(answer, mode="json")
        activity.heartbeat(told)


def _unknown(detail: str) -> TaskAnswer:
    return TaskAnswer(Result.UNKNOWN, detail)


def _age_s(body: JsonObject) -> float:
    created = parse_instant(body["metadata"].get("creationTimestamp"))
    return max(0.0, (datetime.now(UTC) - created).total_seconds())


def _is_asked_to_stop() -> bool:
    """The workflow cancelled the step; else only this attempt is over (its heartbeats got lost)."""
    details = activity.cancellation_details()
    return details is None or details.cancel_requested
