"""A world of one node for the runbook in memory: what each contract finds and does.

Owns a Node's truth (conditions, boot, marker, pods) and answers contracts as the activities do, by
the same functions of `workflows.model`. It imitates no API: those tests run on the real one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from workflows.contracts.fleet import Idleness
from workflows.contracts.guard import Asked
from workflows.contracts.kube import (
    Drained,
    MachineMemory,
    Marked,
    Opened,
    Permitted,
    Quarantined,
    Reading,
)
from workflows.contracts.machines import Recorded
from workflows.contracts.messages import Ask, ControlMessage, Grant, NodeFacts, Opening, Report
from workflows.contracts.node_tasks import NodeTaskRequest, TaskAnswer
from workflows.inbox import Inbox
from workflows.lifecycle import remediate
from workflows.memory_runtime import START, MemoryRuntime, StillWaiting
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.detection.rules import match_rules
from workflows.model.identity import NodeRef
from workflows.model.node import Condition, NodeView
from workflows.model.node_task import Failure, Health, Result
from workflows.model.policy import DrainWay, Policy, Pool, Timing
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.drain import Blocked
from workflows.model.remediation.gate import Baseline
from workflows.model.remediation.marks import (
    EPISODE,
    Marker,
    Quarantine,
    Slot,
    entry_marker,
    marker_of,
    other_healer,
)
from workflows.model.remediation.overrule import Overrule
from workflows.model.remediation.permit import Claim, Effect, Refusal, fence
from workflows.model.remediation.reboot import BootRecord, Proof, prove_reboot
from workflows.runtime import NodeGone, NotOwner, OtherHealer, Overruled

NODE = NodeRef("node-1", "uid-1")
GPUS = tuple(f"GPU-{n}" for n in range(8))
GOOD = ("GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy", "Ready")
REFUSED: dict[Refusal | None, type[Exception]] = {
    Refusal.OVERRULED: Overruled,
    Refusal.OTHER_HEALER: OtherHealer,
}
POLICY = Policy(
    pools=(Pool(name="training", selector={"pool": "training"}, expected_gpus=8),),
    timing=Timing(boot_deadline_s=600, probation_s=600),
)


@dataclass
class World:
    """One node. `boots` counts its reboots; hooks run before a named step (once each)."""

    policy: Policy = POLICY
    boots: int = 0
    boot_takes: timedelta = timedelta(seconds=90)
    heals_by_boot: bool = True
    listens: bool = True
    refusals: list[str] = field(default_factory=list)  # why the next reboots are refused
    gpus_after_boot: tuple[str, ...] = GPUS
    unschedulable: bool = False
    marker: Marker | None = None
    bad: dict[str, tuple[str, str]] = field(default_factory=dict)
    gone: bool = False
    taints: tuple[str, ...] = ()
    baseline: Baseline | None = field(
        default_factory=lambda: Baseline(GPUS, (("nvidia.com/gpu", 8),), START)
    )
    pods: int = 3
    blocked: bool = False
    closed_outcome: str = ""
    overruled: tuple[Overrule, ...] = ()
    version: int = 1
    boot_at: datetime | None = None
    gpus: tuple[str, ...] = GPUS
    diagnoses: list[TaskAnswer] = field(default_factory=list)
    """What the next diagnoses answer, in order (the last for ever); empty = healthy."""
    kernel_log_says: TaskAnswer | None = None
    """What the kernel log says of the hardware; None = it is clean."""
    why_not: str = ""
    work: str = ""
    """Both as in `Idleness`."""
    gives_way: TaskAnswer | None = None
    """What a task that gives way is ended with."""
    grants: bool = True
    """The guard has places."""
    works_on: bool = False
    """The pods do not end by themselves: only an eviction ends them."""
    issued: list[str] = field(default_factory=list)
    """Boot ids in which a reboot was asked for, one item each time it was."""
    done_before: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What a second run finds of a first one: (episode, task or step) -> what it left."""
    hooks: dict[str, Callable[[], None]] = field(default_factory=dict)
    runtime: MemoryRuntime | None = None

    # -- what happens to the node

    def fail(self, condition: str, reason: str, status: str = "False") -> None:
        """A condition turns bad."""
        self.bad[condition] = (status, reason)
        self.touch()

    def touch(self) -> None:
        """Something changed: watch tells the run."""
        self.version += 1
        if self.runtime is not None:
            self.runtime.inbox.take_facts(self.facts())

    def cool(self, now: datetime) -> None:
        """Lets a boot that is due happen."""
        if self.boot_at is not None and now >= self.boot_at:
            self.boot_at = None
            self.boots += 1
            self.gpus = self.gpus_after_boot
            if self.heals_by_boot:
                self.bad.clear()
            self.touch()

    def view(self, now: datetime) -> NodeView:
        """The Node as a read shows it."""
        self.cool(now)
        report = {"v": 1, "boot": f"boot-{self.boots}", "findings": []}
        annotations = {FINDINGS_ANNOTATION: json.dumps(report)}
        if self.marker is not None:
            annotations[EPISODE] = self.marker.encode()
        conditions = {}
        for name in GOOD:
            status, reason = self.bad.get(name, ("True", "Healthy"))
            conditions[name] = Condition(name, status, reason, reason, now, START)
        if self.boot_at is not None:
            conditions["Ready"] = Condition("Ready", "Unknown", "NodeStatusUnknown", "", now, now)
        return NodeView(
            name=NODE.name,
            uid=NODE.uid,
            resource_version=str(self.version),
            created=START,
            labels={"pool": "training"},
            annotations=annotations,
            unschedulable=self.unschedulable,
            provider_id="p",
            boot_id=f"boot-{self.boots}",
            system_uuid="s",
            machine_uuid="m",
            conditions=conditions,
            gpus={"nvidia.com/gpu": len(self.gpus)},
            capacity={"nvidia.com/gpu": len(self.gpus)},
            taints=self.taints,
        )

    def facts(self) -> NodeFacts:
        """What watch would signal."""
        now = self.runtime.now() if self.runtime else START
        view = self.view(now)
        return NodeFacts(
            uid=view.uid,
            resource_version=view.resource_version,
            ready=view.ready,
            boot_id=view.boot_id,
            unschedulable=view.unschedulable,
            marker_episode=self.marker.episode if self.marker else "",
            gpus=dict(view.gpus),
            conditions={k: c.status for k, c in view.conditions.items()},
            paused=False,
            at=now,
            gone=self.gone,
        )

    # -- contracts

    def answer(self, name: str, request: Any, now: datetime) -> Any:
        """See `memory_runtime.World`."""
        hook = self.hooks.pop(name, None)
        if hook is not None:
            hook()
        self.cool(now)
        if self.gone and name not in ("record_phase", "release_place"):
            raise NodeGone(f"Node {NODE.name} does not exist any more")
        return getattr(self, name)(request, now)

    def _fenced(self, effect: Effect, episode: str, now: datetime) -> None:
        refused = fence(effect, self.view(now), Claim(episode, NODE.uid))
        if refused is not None:
            raise REFUSED.get(refused.refusal, NotOwner)(refused.detail)

    def _memory(self) -> MachineMemory:
        return MachineMemory("machine-1", self.baseline, 0, 0, self.closed_outcome, self.overruled)

    def read_node(self, request: Any, now: datetime) -> Reading:
        view = self.view(now)
        return Reading(view, self._memory(), marker_of(view))

    def open_episode(self, request: Any, now: datetime) -> Opened:
        return Opened(self.read_node(request, now), self.policy, "training", 10)

    def quarantine(self, request: Any, now: datetime) -> Quarantined:
        view = self.view(now)
        healer = other_healer(view)
        known = (request.owner.episode, request.replace, *request.adopt)
        if self.marker and (self.marker.handed_over or self.marker.episode not in known):
            raise NotOwner("belongs to another episode")
        if healer:
            if self.marker:
                self._take_off(self.marker)
            return Quarantined(None, view.resource_version, yielded_to=healer)
        if self.marker is None:
            if request.replace:
                raise Overruled("somebody removed the mark")
            self.marker = entry_marker(view, request.marker)
            self.unschedulable = True
        elif self.marker.episode == request.replace:
            self.marker = replace(self.marker, episode=request.owner.episode)
        if not self.unschedulable:
            raise Overruled("somebody removed the cordon")
        self.touch()
        return Quarantined(self.marker, str(self.version))

    def note_slot(self, request: Any, now: datetime) -> Marked:
        self._fenced(Effect.RESTORE, request.owner.episode, now)
        assert self.marker is not None
        if not self.unschedulable:
            raise Overruled("somebody removed the cordon")
        self.marker = replace(self.marker, slot=Slot(request.epoch, now))
        self.touch()
        return Marked(self.marker, str(self.version))

    def drop_slot(self, request: Any, now: datetime) -> Marked:
        if self.marker is not None and self.marker.episode == request.owner.episode:
            self.marker = replace(self.marker, slot=None)
            self.touch()
        return Marked(self.marker, str(self.version))

    def drain(self, request: Any, now: datetime) -> Drained:
        self._fenced(Effect.DISRUPT, request.owner.episode, now)
        if self.blocked:
            return Drained(False, 0, 1, (Blocked("ns/pod", "Job/x", "PDB x"),))
        if self.works_on and self.pods and request.way is DrainWay.FINISH_WORK:
            return Drained(False, 0, self.pods)
        evicted, self.pods = self.pods, 0
        return Drained(True, evicted, 0)

    def reboot(self, request: NodeTaskRequest, now: datetime) -> TaskAnswer:
        task = (request.owner.episode, request.step)
        if task in self.done_before:
            return self.done_before[task]  # type: ignore[no-any-return]  # what stands below
        self._fenced(Effect.DISRUPT, request.owner.episode, now)
        if request.expected_boot_id != f"boot-{self.boots}":
            return TaskAnswer(Result.REFUSED, "another boot", f"boot-{self.boots}")
        if request.not_after is not None and now >= request.not_after:
            return TaskAnswer(Result.REFUSED, "too late", f"boot-{self.boots}")
        if self.refusals:
            return TaskAnswer(Result.REFUSED, self.refusals.pop(0))
        self.issued.append(request.expected_boot_id)
        if self.listens and self.boot_at is None:
            self.boot_at = now + self.boot_takes
            runtime = self.runtime
            if runtime is not None:
                runtime.at(self.boot_at - START, lambda: self.cool(runtime.now()))
            self.touch()
        answer = TaskAnswer(Result.DONE, "asked for", f"boot-{self.boots}")
        self.done_before[task] = answer
        return answer

    def prove_reboot(self, request: Any, now: datetime) -> Any:
        before: BootRecord = request.before
        return prove_reboot(before, self.view(now))

    def await_reboot(self, request: Any, now: datetime) -> Any:
        proof = self.prove_reboot(request, now)
        if proof.proof is not Proof.DONE:
            raise StillWaiting
        return proof

    def await_permit(self, request: Any, now: datetime) -> Permitted:
        return Permitted()

    def read_idleness(self, request: Any, now: datetime) -> Idleness:
        return Idleness(self.why_not, self.work)

    def inventory(self, request: NodeTaskRequest, now: datetime) -> TaskAnswer:
        if request.gives_way and self.gives_way is not None:
            return self.gives_way
        return TaskAnswer(Result.DONE, "", f"boot-{self.boots}", self.gpus, "H100")

    def diagnose(self, request: NodeTaskRequest, now: datetime) -> TaskAnswer:
        boot_id = f"boot-{self.boots}"
        if request.gives_way and self.gives_way is not None:
            return self.gives_way
        if request.expected_boot_id != boot_id:
            return TaskAnswer(Result.REFUSED, "another boot", boot_id)
        if request.level > 1 and self.pods and request.needs_drained:
            return TaskAnswer(Result.REFUSED, f"{self.pods} pods are on the node again", boot_id)
        if not self.diagnoses:
            return diagnosed(Health.HEALTHY, boot_id=boot_id)
        answer = self.diagnoses[0] if len(self.diagnoses) == 1 else self.diagnoses.pop(0)
        return replace(answer, boot_id=boot_id)

    def kernel_log(self, request: NodeTaskRequest, now: datetime) -> TaskAnswer:
        boot_id = f"boot-{self.boots}"
        return replace(self.kernel_log_says or diagnosed(Health.HEALTHY), boot_id=boot_id)

    def give_back(self, request: Any, now: datetime) -> Marked:
        step = (request.owner.episode, "give_back")
        if self.marker is None and (not self.unschedulable or self.done_before.get(step)):
            return Marked(None, str(self.version))
        self._fenced(Effect.RESTORE, request.owner.episode, now)
        assert self.marker is not None
        self.done_before[step] = self.marker.was_unschedulable
        self._take_off(self.marker)
        return Marked(None, str(self.version))

    def _take_off(self, marker: Marker) -> None:
        self.unschedulable = self.unschedulable and marker.was_unschedulable
        self.marker = None
        self.touch()

    def hand_over(self, request: Any, now: datetime) -> Marked:
        words = f"{request.to}:{request.reason}"
        if self.marker is not None and self.marker.handed_over == words:
            return Marked(self.marker, str(self.version))
        self._fenced(Effect.RESTORE, request.owner.episode, now)
        assert self.marker is not None
        if not self.unschedulable:
            raise Overruled("somebody removed the cordon")
        self.marker = replace(self.marker, slot=None, handed_over=words)
        self.touch()
        return Marked(self.marker, str(self.version))

    def ask_guard(self, request: Ask, now: datetime) -> Asked:
        assert self.runtime is not None
        if not self.grants:
            return Asked("guard")
        grant = Grant(request.budget, "epoch", request.episode, now, request.number)
        self.runtime.inbox.take_grant(grant, now)
        return Asked("guard")

    def release_place(self, request: Any, now: datetime) -> Asked:
        return Asked("guard")

    def record_phase(self, request: Any, now: datetime) -> Recorded:
        return Recorded(request.machine_id)


def diagnosed(health: Health, *failures: Failure, boot_id: str = "") -> TaskAnswer:
    """What a task that looks for faults answers."""
    detail = "; ".join(map(str, failures)) or health.value
    return TaskAnswer(Result.DONE, detail, boot_id, health=health, failures=failures)


def xid(code: int, fault: str) -> Failure:
    """A line that the kernel log holds."""
    return Failure(what=f"xid-{code}", device="0000:1b:00", fault=fault, words="from the kernel")


def report_of(world: World, episode: str, now: datetime = START) -> Report:
    """What watch would report about the node now."""
    matches = match_rules(world.view(now), world.policy, now)
    marked_at = str(world.version) if world.marker and world.unschedulable else ""
    boot_id, is_new = f"boot-{world.boots}", is_newcomer(world.view(now))
    return Report(NODE, episode, "training", matches, boot_id, now, marked_at, newcomer=is_new)


def word(request_id: str = "r1", **more: Any) -> ControlMessage:
    """A person's message."""
    return ControlMessage(request_id=request_id, by="alice@host", reason="why", **more)


@dataclass
class Run:
    """One episode in memory: `start` then `finish`."""

    world: World
    opening: Opening = field(
        default_factory=lambda: Opening(NODE, "test", "ep-1", "training", "watch")
    )
    step_takes: timedelta = timedelta(seconds=1)
    runtime: MemoryRuntime = field(init=False)

    def __post_init__(self) -> None:
        inbox = Inbox(episodes=[self.opening.episode], node_uid=NODE.uid)
        self.runtime = MemoryRuntime(inbox, self.world, step_takes=self.step_takes)
        self.world.runtime = self.runtime

    @property
    def inbox(self) -> Inbox:
        return self.runtime.inbox

    @property
    def steps(self) -> list[str]:
        """The names of the steps, without the records."""
        return [name for name, _ in self.runtime.steps if name != "record_phase"]

    def finish(self) -> Any:
        """Drives the runbook to its Closing."""
        return self.runtime.run(remediate(self.runtime, self.opening))

    def say(self, moment: timedelta, action: Callable[[Inbox, datetime], None]) -> None:
        """Something reaches the inbox at that moment."""
        self.runtime.at(moment, lambda: action(self.inbox, self.runtime.now()))


def lost_gpu(**more: object) -> World:
    """A node that lost a GPU, quarantined by watch's reflex as ep-1."""
    world = World(**more)  # type: ignore[arg-type]  # keyword tables of tests
    world.fail("GPUHealthy", "GpuLost")
    world.marker = Marker("ep-1", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    world.unschedulable = True
    return world


def started(world: World, opening: Opening | None = None) -> Run:
    """A run that watch has reported the node to."""
    run = Run(world) if opening is None else Run(world, opening)
    run.inbox.take_report(report_of(world, run.opening.episode), START)
    return run
