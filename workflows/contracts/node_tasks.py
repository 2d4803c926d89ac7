"""Contracts on node tasks: short-lived pods that do one node-local job.

Owns the request, the wire form of a task's verdict (hostile input) and the contracts that
`activities/node_tasks` implements. The pod's name is made from episode and step, so that a second
run finds the first one's pod.
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


class TaskKind(StrEnum):
    """The closed list of node-local jobs."""

    INVENTORY = "inventory"
    REBOOT = "reboot"


class Result(StrEnum):
    """What a task says: for a reboot `done` means only "asked for"."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class TaskOrder(BaseModel):
    """What the pod is told (env FLEETMEND_TASK, JSON)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: TaskKind
    episode: str
    task: str
    node: str
    expected_boot_id: str = ""
    not_after: datetime | None = None
    refuse_if_gpu_in_use: bool = False


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


@dataclass(frozen=True)
class NodeTaskRequest:
    """Run `kind` on the owner's node. `step` makes the pod's name; `deadline_s` bounds it.

    `expected_boot_id` and the not-after time bind a disrupting task to one boot. A reboot is only
    asked for while the node is drained, unless `needs_drained` is off (drain way `none`).
    """

    owner: Owner
    kind: TaskKind
    step: str
    deadline_s: float
    expected_boot_id: str = ""
    not_after: datetime | None = None
    needs_drained: bool = True
    refuse_if_gpu_in_use: bool = False


@dataclass(frozen=True)
class TaskAnswer:
    """The validated verdict; anything unreadable, missing or late is UNKNOWN with the reason."""

    result: Result
    detail: str
    boot_id: str = ""
    gpus: tuple[str, ...] = ()
    model: str = ""


INVENTORY = Contract(
    "inventory", Effect.MARK, NodeTaskRequest, TaskAnswer, "count the GPUs on the node"
)
"""Effect `mark`: it disturbs nothing, but it writes a Pod, so observe mode forbids it."""
REBOOT = Contract("reboot", Effect.DISRUPT, NodeTaskRequest, TaskAnswer, "reboot the node")


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
    return TaskAnswer(
        verdict.result,
        printable(verdict.detail, 500),
        verdict.boot_id,
        verdict.gpus,
        printable(verdict.model, 128),
    )
