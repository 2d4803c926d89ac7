"""The pods of one light node: Running at once, gone at once.

Owns what little a light node does for a pod. Reads the timer annotations; runs nothing. Fed by the
herd's watch through `light_node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from workers.lab.faults.ailment import seconds
from workers.lab.kubelet.api import ApiClient, ApiError, Change, JsonObject, Seen
from workers.lab.kubelet.container import now
from workers.lab.kubelet.images import release_of
from workers.lab.kubelet.pod_status import is_terminal
from workers.lab.kubelet.timer import EXIT_BY_SIGTERM, read_timer_plan

RETRY_S: Final = 0.25

_log = structlog.get_logger(__name__)


class LightPods:
    """All pods of one light node."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._known: dict[str, JsonObject] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._is_paused = False

    @property
    def count(self) -> int:
        return len(self._known)

    def hear(self, seen: Seen) -> None:
        """A pod appeared, changed or went."""
        uid = seen.item["metadata"]["uid"]
        if seen.change in (Change.DELETED, Change.GONE):
            self._known.pop(uid, None)
            self._ending.discard(uid)
            self._cancel(uid)
            return
        self._known[uid] = seen.item
        if not self._is_paused:
            self._act(uid)

    def pause(self) -> None:
        """The kubelet is dead: nothing is told any more."""
        self._is_paused = True
        for uid in list(self._tasks):
            self._cancel(uid)
        self._ending.clear()

    def resume(self) -> None:
        """The kubelet is back and looks at every pod."""
        self._is_paused = False
        for uid in list(self._known):
            self._act(uid)

    def stop(self) -> None:
        self.pause()

    def _act(self, uid: str) -> None:
        pod = self._known[uid]
        if pod["metadata"].get("deletionTimestamp"):
            if uid not in self._ending:
                self._ending.add(uid)
                self._cancel(uid)
                self._begin(uid, self._end(pod))
        elif uid not in self._tasks and not is_terminal(pod):
            self._begin(uid, self._run(pod))

    def _begin(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[uid] = asyncio.create_task(work)

    def _cancel(self, uid: str) -> None:
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    async def _run(self, pod: JsonObject) -> None:
        if release_of(pod["spec"]["containers"][0]["image"]) is not None:
            text = "light nodes of the lab run no processes: use a full node"
            await self._patch(pod, {"phase": "Failed", "reason": "LightNode", "message": text})
            return
        try:
            plan = read_timer_plan(pod["metadata"].get("annotations") or {})
        except ValueError as error:
            bad = {"phase": "Failed", "reason": "BadAnnotation", "message": str(error)}
            await self._patch(pod, bad)
            return
        started = pod.get("status", {}).get("startTime") or seconds(now())
        await self._patch(pod, _running(pod, started))
        if plan.duration_s is not None:
            await asyncio.sleep(plan.duration_s)
            await self._patch(pod, _ended(pod, started, plan.exit_code))

    async def _end(self, pod: JsonObject) -> None:
        if not is_terminal(pod):
            started = pod.get("status", {}).get("startTime") or seconds(now())
            await self._patch(pod, _ended(pod, started, EXIT_BY_SIGTERM))
        path, uid = _path(pod), pod["metadata"]["uid"]
        await self._persist(lambda: self._client.delete(path, grace_s=0, uid=uid))

    async def _patch(self, pod: JsonObject, status: JsonObject) -> None:
        path = _path(pod) + "/status"
        body: JsonObject = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._persist(lambda: self._client.patch(path, body))

    async def _persist(self, send: Callable[[], Awaitable[JsonObject]]) -> None:
        """Send until it is done, or the pod is gone; then a DELETED event ends the task too."""
        while True:
            try:
                await send()
            except ApiError as error:
                if not error.is_transient:
                    if error.status not in (404, 409):
                        _log.warning("light pod request refused", error=str(error))
                    return
                await asyncio.sleep(RETRY_S)
            else:
                return


def _path(pod: JsonObject) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def _running(pod: JsonObject, started: str) -> JsonObject:
    state = {"running": {"startedAt": started}}
    return _status(pod, "Running", state, started)


def _ended(pod: JsonObject, started: str, code: int) -> JsonObject:
    at = seconds(now())
    state = {
        "terminated": {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": started,
            "finishedAt": at,
        }
    }
    return _status(pod, "Failed" if code else "Succeeded", state, at)


def _status(pod: JsonObject, phase: str, state: JsonObject, at: str) -> JsonObject:
    is_running = phase == "Running"
    ready = "True" if is_running else "False"
    return {
        "phase": phase,
        "startTime": pod.get("status", {}).get("startTime") or at,
        "hostIP": "127.0.0.1",
        "podIP": "10.65.0.1",
        "podIPs": [{"ip": "10.65.0.1"}],
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at},
            {"type": "Initialized", "status": "True", "lastTransitionTime": at},
            {"type": "ContainersReady", "status": ready, "lastTransitionTime": at},
            {"type": "Ready", "status": ready, "lastTransitionTime": at},
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "restartCount": 0,
                "ready": is_running,
                "started": is_running,
                "state": state,
                "lastState": {},
            }
            for container in pod["spec"]["containers"]
        ],
    }
