"""Contracts on node tasks: short-lived pods that do one node-local job.

Owns the request, how a task's verdict (hostile input) becomes an answer, and the contracts that
`activities/node_tasks` implements; the wire itself is `model/node_task.py`'s. The pod's name is made
from episode and step, so that a second run finds the first one's pod. What a verdict's health means
for the node is said by the runbook.
"""

from dataclasses import dataclass
from datetime import datetime

from workflows.contracts import Contract
from workflows.contracts.kube import Owner
from workflows.model.detection.finding import printable
from workflows.model.node_task import (
    JUDGING,
    MAX_VERDICT_BYTES,
    VERDICT_SCHEMA,
    Failure,
    Health,
    NotReadable,
    Result,
    TaskKind,
    TaskVerdict,
    read_wire,
)
from workflows.model.remediation.permit import Effect


@dataclass(frozen=True)
class NodeTaskRequest:
    """Run `kind` on the owner's node. `step` makes the pod's name; `deadline_s` bounds it.

    `expected_boot_id` and the not-after time bind a disrupting task to one boot. A reboot, and a
    diagnosis that loads the GPUs (level 2 and above), are only asked for while the node is drained,
    unless `needs_drained` is off (drain way `none`). `limit_s` is the part of the deadline that is
    the diagnostic's own; `level`, `expected_gpus` and `since` as in `TaskOrder`. A task that
    `needs_idle` is only begun while no pod uses the node's GPUs; one that `gives_way` also ends as
    soon as a pod that cannot be scheduled could use the node.
    """

    owner: Owner
    kind: TaskKind
    step: str
    deadline_s: float
    expected_boot_id: str = ""
    not_after: datetime | None = None
    needs_drained: bool = True
    refuse_if_gpu_in_use: bool = False
    level: int = 0
    expected_gpus: int = 0
    limit_s: float = 0.0
    since: datetime | None = None
    needs_idle: bool = False
    gives_way: bool = False


@dataclass(frozen=True)
class TaskAnswer:
    """The validated verdict; anything unreadable, missing or late is UNKNOWN with the reason.

    `health` is UNKNOWN unless a task that looks for faults has said another. `gave_way_to` names
    the pod for which a task that gives way was ended, or not begun.
    """

    result: Result
    detail: str
    boot_id: str = ""
    gpus: tuple[str, ...] = ()
    model: str = ""
    health: Health = Health.UNKNOWN
    failures: tuple[Failure, ...] = ()
    gave_way_to: str = ""


INVENTORY = Contract(
    "inventory", Effect.MARK, NodeTaskRequest, TaskAnswer, "count the GPUs on the node"
)
"""Effect `mark`: it disturbs nothing, but it writes a Pod, so observe mode forbids it."""
REBOOT = Contract("reboot", Effect.DISRUPT, NodeTaskRequest, TaskAnswer, "reboot the node")
DIAGNOSE = Contract(
    "diagnose", Effect.MARK, NodeTaskRequest, TaskAnswer, "run DCGM's diagnostic on the node"
)
"""Effect `mark` as well: level 1 only asks; a higher one loads the GPUs of an idle node."""
KERNEL_LOG = Contract(
    "kernel_log", Effect.MARK, NodeTaskRequest, TaskAnswer, "look for hardware Xids in its log"
)


def read_verdict(message: str, *, kind: TaskKind, episode: str, task: str) -> TaskAnswer:
    """A pod's termination message as an answer; every defect is UNKNOWN and named.

    Args:
        message: what the pod wrote; hostile.
        kind: what was asked for; a verdict about anything else is not used.
        episode: likewise.
        task: likewise.
    """
    if not message:
        return TaskAnswer(Result.UNKNOWN, "the task ended without a verdict; see its pod's log")
    raw = message.encode(errors="replace")
    if len(raw) > MAX_VERDICT_BYTES:
        return TaskAnswer(
            Result.UNKNOWN, f"the verdict is longer than {MAX_VERDICT_BYTES} bytes; not read"
        )
    try:
        verdict = read_wire(raw, TaskVerdict)
    except NotReadable as error:
        return TaskAnswer(
            Result.UNKNOWN,
            f"the verdict is not {VERDICT_SCHEMA} JSON: {printable(str(error), 200)}",
        )
    if (verdict.kind, verdict.episode, verdict.task) != (kind, episode, task):
        return TaskAnswer(
            Result.UNKNOWN,
            f"the verdict is about {printable(verdict.kind, 20)} of episode "
            f"{printable(verdict.episode, 64)}, not about this task; not used",
        )
    problem = _contradiction(verdict)
    if problem:
        return TaskAnswer(Result.UNKNOWN, f"the verdict {problem}; not used")
    judged = verdict.health if kind in JUDGING and verdict.result is Result.DONE else None
    return TaskAnswer(
        verdict.result,
        printable(verdict.detail, 500),
        printable(verdict.boot_id, 64),
        verdict.gpus,
        printable(verdict.model, 128),
        judged or Health.UNKNOWN,
        tuple(_escaped(failure) for failure in verdict.failures) if judged else (),
    )


def _contradiction(verdict: TaskVerdict) -> str:
    """What is wrong with a verdict that reads well; "" = nothing."""
    if verdict.kind not in JUDGING or verdict.result is not Result.DONE:
        return ""
    if verdict.health is None:
        return "of a finished task says no health"
    if verdict.health is Health.HEALTHY and (verdict.failures or verdict.more):
        return f"says healthy and names a failure ({printable(str(verdict.failures[:1]), 200)})"
    if verdict.health is Health.FAULTY and not verdict.failures:
        return "says faulty and names no failure"
    return ""


def _escaped(failure: Failure) -> Failure:
    return Failure(
        what=printable(failure.what, 64),
        device=printable(failure.device, 64),
        fault=printable(failure.fault, 64),
        words=printable(failure.words, 256),
    )
