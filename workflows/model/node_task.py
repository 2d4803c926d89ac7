"""What a node task is told and what it answers: the wire between the worker and a node.

Owns the closed list of tasks, the order (env FLEETMEND_TASK) and the verdict (the pod's termination
message), both JSON. Does not own what an answer means (`contracts/node_tasks.py`, the runbook). Read
on nodes, where every program starts against a deadline: msgspec checks it, and nothing here imports
the policy or pydantic.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeVar

import msgspec

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

Wire = TypeVar("Wire", bound=msgspec.Struct)

Short = Annotated[str, msgspec.Meta(max_length=64)]
Id = Annotated[str, msgspec.Meta(max_length=128)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0)]


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


class TaskOrder(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the pod is told.

    `level`, `expected_gpus` and `limit_s` (wall clock of the diagnostic) are for `diagnose`, `since`
    for `kernel-log` (None = the whole boot). What a kind does not need is left out: a task of an
    older image refuses unknown fields.
    """

    kind: TaskKind
    episode: str
    task: str
    node: str
    expected_boot_id: str = ""
    not_after: Moment | None = None
    refuse_if_gpu_in_use: bool = False
    level: Annotated[int, msgspec.Meta(ge=0, le=MAX_LEVEL)] = 0
    expected_gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    limit_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    since: Moment | None = None


@dataclass(frozen=True)
class Failure:
    """One thing that a task found wrong.

    `what` is the failed test ("pcie") or the kernel's code ("xid-79"), `device` a GPU or a bus id
    ("" = the host), `fault` a fault class ("" = none is known), `words` the detector's own.
    """

    what: Short
    device: Short = ""
    fault: Short = ""
    words: Annotated[str, msgspec.Meta(max_length=256)] = ""

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


class TaskVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the pod answers in its termination message. `more` = failures left out for room."""

    schema: Literal["fleetmend.io/node-task/v1"] = VERDICT_SCHEMA
    kind: TaskKind
    episode: Id
    task: Annotated[str, msgspec.Meta(max_length=253)]
    boot_id: Short
    result: Result
    detail: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    gpus: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=r"^GPU-[0-9a-zA-Z-]{1,64}\Z")], ...],
        msgspec.Meta(max_length=64),
    ] = ()
    model: Id = ""
    health: Health | None = None
    failures: Annotated[tuple[Failure, ...], msgspec.Meta(max_length=MAX_FAILURES)] = ()
    more: Count = 0


class NotReadable(ValueError):
    """JSON that is no such message; says which field and what it must be."""


def read_wire(text: bytes | str, kind: type[Wire]) -> Wire:
    """A message as its type.

    Raises:
        NotReadable: it is no JSON, or breaks the type's rules.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$.").replace("[", ".").replace("]", "")
        raise NotReadable(f"{field}: {what}" if field else what) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NotReadable(f"no JSON: {error}") from error


def write_wire(message: msgspec.Struct) -> bytes:
    """A message as JSON."""
    return msgspec.json.encode(message)
