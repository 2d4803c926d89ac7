"""Contracts on node tasks: short-lived pods that do one node-local job.

Owns the request, the wire form of a task's verdict (hostile input) and the contracts that
`activities/node_tasks` implements. The pod's name is made from episode and step, so that a second
run finds the first one's pod. What a verdict's health means for the node is said by the runbook.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workflows.contracts import Contract
from workflows.contracts.kube import Owner
from workflows.model.detection.finding import printable
from workflows.model.remediation.permit import Effect

MAX_VERDICT_BYTES = 4000
"""A kubelet keeps the last 4,096 bytes of a termination message (kubernetes, container runtime
contract); ours stays below it so that it arrives whole."""
VERDICT_SCHEMA: Final = "fleetmend.io/node-task/v1"
TASK_ENV = "FLEETMEND_TASK"
MAX_FAILURES = 16
"""Told of one verdict, worst first; how many more there were is told beside them."""
MAX_LEVEL = 4
"""Of `dcgmi diag -r` (DCGM user guide, "Run levels and tests")."""
IDLE_LEVEL = 1
"""The highest level that puts no load on the GPUs, so that work may go on beside it."""


class TaskKind(StrEnum):
    """The closed list of node-local jobs."""

    INVENTORY = "inventory"
    REBOOT = "reboot"
    DIAGNOSE = "diagnose"
    KERNEL_LOG = "kernel-log"


class Result(StrEnum):
    """What a task says: for a reboot `done` means only "asked for"."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Health(StrEnum):
    """What a task that looks for faults found; unknown is never healthy."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


JUDGING = frozenset({TaskKind.DIAGNOSE, TaskKind.KERNEL_LOG})
"""Kinds whose verdict says a health; without one it is no answer."""


class TaskOrder(BaseModel):
    """What the pod is told (env FLEETMEND_TASK, JSON).

    `level`, `expected_gpus` and `limit_s` (wall clock of the diagnostic) are for `diagnose`, `since`
    for `kernel-log` (None = the whole boot).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: TaskKind
    episode: str
    task: str
    node: str
    expected_boot_id: str = ""
    not_after: datetime | None = None
    refuse_if_gpu_in_use: bool = False
    level: Annotated[int, Field(ge=0, le=MAX_LEVEL)] = 0
    expected_gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    limit_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    since: datetime | None = None


class Failure(BaseModel):
    """One thing that a task found wrong.

    `what` is the failed test ("pcie") or the kernel's code ("xid-79"), `device` a GPU or a bus id
    ("" = the host), `fault` a fault class ("" = none is known), `words` the detector's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: Annotated[str, Field(max_length=64)]
    device: Annotated[str, Field(max_length=64)] = ""
    fault: Annotated[str, Field(max_length=64)] = ""
    words: Annotated[str, Field(max_length=256)] = ""

    def __str__(self) -> str:
        head = " on ".join(part for part in (self.what, self.device) if part)
        return f"{head}: {self.words}" if self.words else head


@dataclass(frozen=True)
class Diagnosis:
    """What one look for faults came to; `failures` worst first, `more` that were not told."""

    health: Health
    detail: str
    failures: tuple[Failure, ...] = ()
    more: int = 0


class TaskVerdict(BaseModel):
    """What the pod answers in its termination message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["fleetmend.io/node-task/v1"] = Field(alias="schema")
    kind: TaskKind
    episode: Annotated[str, Field(max_length=128)]
    task: Annotated[str, Field(max_length=253)]
    boot_id: Annotated[str, Field(max_length=64)]
    result: Result
    detail: Annotated[str, Field(max_length=1024)] = ""
    gpus: tuple[Annotated[str, Field(pattern=r"^GPU-[0-9a-zA-Z-]{1,64}$")], ...] = Field(
        default=(), max_length=64
    )
    model: Annotated[str, Field(max_length=128)] = ""
    health: Health | Literal[""] = ""
    failures: tuple[Failure, ...] = Field(default=(), max_length=MAX_FAILURES)
    more: Annotated[int, Field(ge=0)] = 0
    """Failures that were not told for want of room."""


@dataclass(frozen=True)
class NodeTaskRequest:
    """Run `kind` on the owner's node. `step` makes the pod's name; `deadline_s` bounds it.

    `expected_boot_id` and the not-after time bind a disrupting task to one boot. A reboot, and a
    diagnosis that loads the GPUs (level 2 and above), are only asked for while the node is drained,
    unless `needs_drained` is off (drain way `none`). `limit_s` is the part of the deadline that is
    the diagnostic's own; `level`, `expected_gpus` and `since` as in `TaskOrder`.
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


@dataclass(frozen=True)
class TaskAnswer:
    """The validated verdict; anything unreadable, missing or late is UNKNOWN with the reason.

    `health` is UNKNOWN unless a task that looks for faults has said another.
    """

    result: Result
    detail: str
    boot_id: str = ""
    gpus: tuple[str, ...] = ()
    model: str = ""
    health: Health = Health.UNKNOWN
    failures: tuple[Failure, ...] = ()


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
        verdict = TaskVerdict.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "verdict"
        return TaskAnswer(
            Result.UNKNOWN,
            f"the verdict is not {VERDICT_SCHEMA} JSON: {field}: {printable(first['msg'], 200)}",
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
    is_judged = kind in JUDGING and verdict.result is Result.DONE
    return TaskAnswer(
        verdict.result,
        printable(verdict.detail, 500),
        printable(verdict.boot_id, 64),
        verdict.gpus,
        printable(verdict.model, 128),
        Health(verdict.health) if is_judged else Health.UNKNOWN,
        tuple(_escaped(failure) for failure in verdict.failures) if is_judged else (),
    )


def _contradiction(verdict: TaskVerdict) -> str:
    """What is wrong with a verdict that reads well; "" = nothing."""
    if verdict.kind not in JUDGING or verdict.result is not Result.DONE:
        return ""
    if not verdict.health:
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
