"""One pod on one full node, from admission until its object is gone.

Owns the decisions a kubelet makes for a pod: admit, start, restart, stop, report, remove. One task a
pod, level-triggered: each turn of its loop looks at what is and does what is due. What runs belongs
to the runtime and goes on when this task is cancelled (a dead kubelet); a later worker adopts it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import structlog

from workers.lab.kubelet.api import ApiClient, ApiError, JsonObject
from workers.lab.kubelet.container import (
    LOST_EXIT_CODE,
    BadContainer,
    Container,
    ContainerRuntime,
    ContainerSlot,
    Exit,
    Sandbox,
    now,
)
from workers.lab.kubelet.images import release_of
from workers.lab.kubelet.pod_admission import gpus_asked, refusal
from workers.lab.kubelet.pod_status import (
    PodPhase,
    Verdict,
    Waiting,
    is_terminal,
    pod_status,
    rejected_status,
)
from workers.lab.kubelet.probes import Probe, Prober, read_probes

RESTART_FIRST_S: Final = 0.5
RESTART_LAST_S: Final = 10.0
"""A kubelet waits 10 s to 5 min between restarts: too long for a lab."""
REPORT_RETRY_S: Final = 0.25
DEFAULT_GRACE_S: Final = 30.0
REFRESH_S: Final = 2.0
"""Until a changed ConfigMap or Secret is in a pod's files; a kubelet takes up to two minutes."""
KEPT_LOGS: Final = 200
"""Log folders of ended pods kept on a node, newest first."""

_log = structlog.get_logger(__name__)


class StopReason(StrEnum):
    """Why a pod's containers were told to end."""

    DELETED = "deleted"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class PodHost:
    """What a worker needs of its node."""

    client: ApiClient
    runtime: ContainerRuntime
    pods_folder: Path
    logs_folder: Path
    gpus_allocatable: Callable[[], int]
    next_ip: Callable[[], str]
    start: Callable[[JsonObject, JsonObject, Sandbox], Awaitable[Container]]
    """Start one container of a pod; raises BadContainer or ApiError."""
    refresh: Callable[[JsonObject, Sandbox], Awaitable[None]]
    """Bring the pod's volumes up to date; raises the same."""


@dataclass
class _Retry:
    """When a container may be started again."""

    at: datetime
    pause_s: float = RESTART_FIRST_S


@dataclass
class PodWorker:
    """The kubelet's work on one pod."""

    host: PodHost
    pod: JsonObject
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _is_gone: bool = False
    _rejected: Verdict | None = None
    _stop: StopReason | None = None
    _retries: dict[str, _Retry] = field(default_factory=dict)
    _waiting: dict[str, Waiting] = field(default_factory=dict)
    _reported: JsonObject | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Beside the loop: the volumes' refreshing, and the probes by the container's name."""
    _probed: dict[str, Container] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def name(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    def observe(self, pod: JsonObject) -> None:
        """The API server has a newer version of the pod."""
        self.pod = pod
        self._changed.set()

    def abandon(self) -> None:
        """The API server has the pod no more: whatever runs is killed."""
        self._is_gone = True
        self._changed.set()

    async def run(self) -> None:
        """Until the object is gone."""
        known = self.host.runtime.sandboxes.get(self.uid)
        if known is None and is_terminal(self.pod):
            await self._until_deleted()
        else:
            try:
                await self._live(known)
            finally:
                for task in self._tasks.values():
                    task.cancel()
        await self._tidy()

    async def _live(self, known: Sandbox | None) -> None:
        sandbox = known or self._make_sandbox()
        if self._is_to_be_admitted(sandbox, is_new=known is None):
            self._rejected = refusal(sandbox, self.host.runtime, self.host.gpus_allocatable)
        self.host.runtime.sandboxes[self.uid] = sandbox
        self._tasks["volumes"] = asyncio.create_task(self._keep_volumes(sandbox))
        while not self._is_gone:
            self._changed.clear()
            self._collect(sandbox)
            self._stop_if_due(sandbox)
            if self._stop is None and self._rejected is None and not is_terminal(self.pod):
                await self._start_due(sandbox)
                self._probe_due(sandbox)
            verdict = self._verdict(sandbox)
            is_told = await self._report(sandbox, verdict)
            if verdict is not None and is_told and self._is_deleted():
                await self._remove()
                return
            await self._next_change(sandbox, is_told=is_told)

    def _make_sandbox(self) -> Sandbox:
        folder = self.host.pods_folder / self.uid
        folder.mkdir(parents=True, exist_ok=True)
        sandbox = Sandbox(
            uid=self.uid,
            pod_name=self.name,
            folder=folder,
            # The API server refuses a second address of a family.
            ip=self.pod.get("status", {}).get("podIP") or self.host.next_ip(),
            started_at=now(),
            gpus=gpus_asked(self.pod),
        )
        for item in self.pod["spec"].get("initContainers") or []:
            sandbox.inits[item["name"]] = ContainerSlot(item["name"], item["image"])
        for item in self.pod["spec"]["containers"]:
            sandbox.slots[item["name"]] = ContainerSlot(item["name"], item["image"])
        if self.host.runtime.has_forgotten and self.pod.get("status", {}).get("startTime"):
            for slot in sandbox.slots.values():
                slot.last = Exit(LOST_EXIT_CODE, "Unknown", "", now(), now())
        return sandbox

    def _is_to_be_admitted(self, sandbox: Sandbox, *, is_new: bool) -> bool:
        if sandbox.running() or is_terminal(self.pod) or self._is_deleted():
            return False
        return is_new or any(self._may_restart(slot) for slot in sandbox.slots.values())

    def _collect(self, sandbox: Sandbox) -> None:
        for slot in (*sandbox.inits.values(), *sandbox.slots.values()):
            if slot.running is not None and slot.running.done.done():
                slot.last, slot.running = slot.running.done.result(), None
                self._back_off(slot.name)

    def _stop_if_due(self, sandbox: Sandbox) -> None:
        meta = self.pod["metadata"]
        if self._is_deleted() and self._stop is not StopReason.DELETED:
            self._stop = StopReason.DELETED
            grace_s = float(meta.get("deletionGracePeriodSeconds") or 0)
        elif self._stop is None and self._seconds_left(sandbox) == 0:
            self._stop = StopReason.DEADLINE
            grace_s = self._grace_s
        else:
            return
        # A container that is told to end may stop answering.
        for name in self._probed:
            self._tasks[name].cancel()
        for container in sandbox.running():
            container.stop(grace_s)

    async def _start_due(self, sandbox: Sandbox) -> None:
        for item, slot in self._next_containers(sandbox):
            if slot.running is not None or not self._may_restart(slot) or self._pause(slot) > 0:
                continue
            try:
                self._probes(item, sandbox)
                slot.running = await self.host.start(self.pod, item, sandbox)
            except BadContainer as error:
                self._waiting[slot.name] = Waiting(error.reason, str(error)[:500])
            except ApiError as error:
                self._waiting[slot.name] = Waiting("ContainerCreating", str(error)[:500])
            else:
                slot.restarts += slot.last is not None
                continue
            _log.warning("container not started", pod=self.name, container=slot.name)
            self._back_off(slot.name)

    def _next_containers(self, sandbox: Sandbox) -> list[tuple[JsonObject, ContainerSlot]]:
        """The init container whose turn it is, else all others."""
        init, spec = self._turn(sandbox), self.pod["spec"]
        if init is None:
            return [(item, sandbox.slots[item["name"]]) for item in spec["containers"]]
        return [(item, init) for item in spec["initContainers"] if item["name"] == init.name]

    def _turn(self, sandbox: Sandbox) -> ContainerSlot | None:
        """The init container that must succeed next; None = the others may run, or may no more."""
        is_worth_it = any(self._may_restart(slot) for slot in sandbox.slots.values())
        return sandbox.next_init if is_worth_it else None

    def _probes(self, item: JsonObject, sandbox: Sandbox) -> Mapping[str, Probe]:
        """A process's; a timer answers nothing, so it isn't asked."""
        return {} if release_of(item["image"]) is None else read_probes(item, sandbox.ip)

    def _probe_due(self, sandbox: Sandbox) -> None:
        """Every run with probes is probed, also one that an earlier kubelet started."""
        for item in self.pod["spec"]["containers"]:
            slot = sandbox.slots[item["name"]]
            running = slot.running
            if running is None or running is self._probed.get(slot.name):
                continue
            prober = Prober(
                slot, running, self._probes(item, sandbox), self._grace_s, self._changed.set
            )
            if slot.probed is not running:
                slot.probed = running
                prober.begin()
            self._probed[slot.name] = running
            self._tasks[slot.name] = asyncio.create_task(prober.run())

    async def _keep_volumes(self, sandbox: Sandbox) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if not sandbox.running():
                continue  # each start refreshes by itself
            try:
                await self.host.refresh(self.pod, sandbox)
            except (BadContainer, ApiError) as error:
                _log.warning("volumes not refreshed", pod=self.name, error=str(error))

    @property
    def _grace_s(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))

    def _may_restart(self, slot: ContainerSlot) -> bool:
        if slot.last is None:
            return True
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return policy == "Always" or (policy == "OnFailure" and slot.last.code != 0)

    def _back_off(self, name: str) -> None:
        before = self._retries.get(name)
        pause_s = RESTART_FIRST_S if before is None else min(2 * before.pause_s, RESTART_LAST_S)
        self._retries[name] = _Retry(now() + timedelta(seconds=pause_s), pause_s)

    def _pause(self, slot: ContainerSlot) -> float:
        retry = self._retries.get(slot.name)
        return 0.0 if retry is None else max(0.0, (retry.at - now()).total_seconds())

    def _verdict(self, sandbox: Sandbox) -> Verdict | None:
        """How it ended, or None while something runs or will run again."""
        if self._rejected is not None:
            return self._rejected
        if sandbox.running():
            return None
        slots = list(sandbox.slots.values())
        init = self._turn(sandbox)
        is_over = self._stop is not None or is_terminal(self.pod)
        due = slots if init is None else [init]
        if not is_over and any(self._may_restart(slot) for slot in due):
            return None
        if self._stop is StopReason.DEADLINE:
            return Verdict(
                PodPhase.FAILED,
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
            )
        is_good = init is None and all(slot.last and slot.last.code == 0 for slot in slots)
        return Verdict(PodPhase.SUCCEEDED if is_good else PodPhase.FAILED)

    async def _report(self, sandbox: Sandbox, verdict: Verdict | None) -> bool:
        """Write the status where it changed; False: not written, to be tried again."""
        if is_terminal(self.pod):
            # What has ended stays as it ended.
            return True
        if self._rejected is not None:
            status = rejected_status(self._rejected, sandbox.started_at)
        else:
            status = pod_status(self.pod, sandbox, self._waiting, verdict)
        if status == self._reported:
            return True
        body: JsonObject = {"metadata": {"uid": self.uid}, "status": status}
        try:
            await self.host.client.patch(self._path() + "/status", body)
        except ApiError as error:
            if error.status == 404:
                self.abandon()
            else:
                _log.warning("pod status not written", pod=self.name, error=str(error))
            return False
        self._reported = status
        return True

    async def _next_change(self, sandbox: Sandbox, *, is_told: bool) -> None:
        """Wait until the pod changes, a container ends, or something is due by the clock."""
        due = [] if is_told else [REPORT_RETRY_S]
        if self._stop is None and self._rejected is None and not is_terminal(self.pod):
            slots = (*sandbox.inits.values(), *sandbox.slots.values())
            due += [pause for slot in slots if (pause := self._pause(slot)) > 0]
            left = self._seconds_left(sandbox)
            due += [] if left is None else [left]
        changed = asyncio.create_task(self._changed.wait())
        waits: list[asyncio.Future[Any]] = [changed]
        waits += [container.done for container in sandbox.running()]
        try:
            await asyncio.wait(
                waits,
                timeout=min(due, default=None),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()

    def _seconds_left(self, sandbox: Sandbox) -> float | None:
        deadline_s = self.pod["spec"].get("activeDeadlineSeconds")
        if deadline_s is None:
            return None
        age_s = (now() - sandbox.started_at).total_seconds()
        return max(0.0, float(deadline_s) - age_s)

    def _is_deleted(self) -> bool:
        return bool(self.pod["metadata"].get("deletionTimestamp"))

    async def _until_deleted(self) -> None:
        while not self._is_gone and not self._is_deleted():
            self._changed.clear()
            await self._changed.wait()
        if not self._is_gone:
            await self._remove()

    async def _remove(self) -> None:
        """The kubelet's last word: the object goes, if it still is this pod."""
        while not self._is_gone:
            try:
                await self.host.client.delete(self._path(), grace_s=0, uid=self.uid)
            except ApiError as error:
                if error.status in (404, 409):
                    return
                _log.warning("pod not removed", pod=self.name, error=str(error))
                await asyncio.sleep(REPORT_RETRY_S)
            else:
                return

    async def _tidy(self) -> None:
        """Nothing of the pod stays but its log."""
        sandbox = self.host.runtime.sandboxes.pop(self.uid, None)
        if sandbox is None:
            return
        ends = [container.done for container in sandbox.running()]
        for container in sandbox.running():
            container.kill()
        if ends:
            await asyncio.wait(ends)
        shutil.rmtree(sandbox.folder, ignore_errors=True)
        prune_logs(self.host.logs_folder)

    def _path(self) -> str:
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def prune_logs(folder: Path) -> None:
    """Keep the newest KEPT_LOGS pod log folders."""
    try:
        pods = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except FileNotFoundError:
        return
    for old in pods[KEPT_LOGS:]:
        shutil.rmtree(old, ignore_errors=True)
