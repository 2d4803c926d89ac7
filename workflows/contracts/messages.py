"""What is signalled to an episode and to the guard.

Owns the payloads. Machines use signals only; people use the control messages, which carry a
request id, the episode they mean, for answers the question, and an expiry: what does not match is
recorded and ignored. Handlers only record them (`workflows/inbox.py`).
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from workflows.model.detection.rules import RuleMatch
from workflows.model.identity import NodeRef
from workflows.model.remediation.budget import Budget


@dataclass(frozen=True)
class NodeFacts:
    """What an episode may be waiting for, as watch sees it.

    `gone` = the Node was deleted, `newcomer` = it carries the startup taint.
    """

    uid: str
    resource_version: str
    ready: bool
    boot_id: str
    unschedulable: bool
    marker_episode: str
    gpus: dict[str, int]
    conditions: dict[str, str]
    paused: bool
    at: datetime
    gone: bool = False
    newcomer: bool = False


@dataclass(frozen=True)
class Report:
    """What watch saw on a node: every rule that matches it now, worst first (empty = none).

    `episode` is the id in the marker that watch wrote, or the one it minted for a start;
    `marked_at` is the resourceVersion at which that marker stood on the node ("" = no marker);
    `facts` is what the node looks like then, if that too is news. `newcomer` = it is new and to be
    admitted, whether anything matches or not.
    """

    node: NodeRef
    episode: str
    pool: str
    matches: tuple[RuleMatch, ...]
    boot_id: str
    at: datetime
    marked_at: str = ""
    facts: NodeFacts | None = None
    newcomer: bool = False


class Command(StrEnum):
    """What a person may tell an episode."""

    PAUSE = "pause"
    RESUME = "resume"
    RETIRE = "retire"
    APPROVE = "approve"
    DENY = "deny"


@dataclass(frozen=True)
class ControlMessage:
    """A person's word. `episode` and `question` may be "" when sent to one run by hand."""

    request_id: str
    by: str
    reason: str = ""
    episode: str = ""
    question: str = ""
    expires: datetime | None = None


@dataclass(frozen=True)
class Ask:
    """An episode asks the guard for a place in a pool's budget; repeated while it waits.

    `number` counts the run's wants: a place that was given up and is wanted again has another.
    `refused` is the epoch of its last grant that was refused as an older guard's.
    """

    budget: Budget
    pool: str
    cap: int
    node: NodeRef
    episode: str
    workflow_id: str
    run_id: str
    number: int = 0
    refused: str = ""


@dataclass(frozen=True)
class Grant:
    """The guard's answer to the ask with this `number`. `epoch` is the guard's own.

    A grant of an older epoch or number is refused: its place may be another's by now.
    """

    budget: Budget
    epoch: str
    episode: str
    at: datetime
    number: int = 0


@dataclass(frozen=True)
class Release:
    """A place is free again: its mark is off the node."""

    budget: Budget
    pool: str
    node_uid: str
    episode: str


@dataclass(frozen=True)
class PauseRequest:
    """Fleet (`*`) or one pool; the ConfigMap is the truth, this tells the guard at once."""

    scope: str
    paused: bool
    by: str
    reason: str


@dataclass(frozen=True)
class HeldMarks:
    """What the sweep saw: who holds a noted place on a node right now, and what is paused.

    `paused` None = it was not read.
    """

    noted: tuple[tuple[str, str], ...] = field(default=())
    """(budget, node UID)."""
    at: datetime | None = None
    paused: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ValidationOrder:
    """Validate the node while it is idle: nothing is said against it.

    `level` is DCGM's, 1 to 4. It is not begun after `not_after`, nor without a place in the
    budget of validations within `place_within_s`. `is_new` = its machine was never proven: it is
    examined as one that is to be admitted.
    """

    level: int
    place_within_s: float
    not_after: datetime
    is_new: bool = False


@dataclass(frozen=True)
class Opening:
    """What starts an episode. `recover` = only diagnose and gate (opened by the sweep).

    `validation` = the node is idle and well, as far as is known, and is to be validated.
    """

    node: NodeRef
    cluster: str
    episode: str
    pool: str
    opened_by: str
    recover: bool = False
    operator_reason: str = ""
    report: Report | None = None
    validation: ValidationOrder | None = None


@dataclass(frozen=True)
class Closing:
    """How an episode ended: the result of the workflow."""

    outcome: str
    fault: str
    detail: str
    phases: tuple[tuple[str, datetime], ...]
    actions: tuple[str, ...]
