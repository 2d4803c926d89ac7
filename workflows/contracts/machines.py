"""Contracts on the machine record (GPUMachine) and the Kubernetes Events of an episode.

Owns the request and contract that `activities/machines` implements. One call for each phase
change writes the record, the Event, one log line and one metric.
"""

from dataclasses import dataclass
from datetime import datetime

from workflows.contracts import Contract
from workflows.contracts.kube import Owner, Reading
from workflows.contracts.node_tasks import TaskAnswer
from workflows.model.remediation.gate import Baseline
from workflows.model.remediation.overrule import Overrule
from workflows.model.remediation.permit import Effect


@dataclass(frozen=True)
class Attempt:
    """One rung that is about to be tried, or was."""

    rung: str
    at: datetime
    result: str
    boot_id_before: str = ""
    boot_id_after: str = ""


TAKEN_BACK = "taken-back"
"""A validation's result where a person took the node back: the schedule leaves it alone then."""


@dataclass(frozen=True)
class Validation:
    """One answer of the gate: passed, failed or unknown; `level` of its diagnosis (0 = none).

    Where a person ended the validation the result is `TAKEN_BACK`, which is no answer.
    """

    at: datetime
    result: str
    level: int
    detail: str


@dataclass(frozen=True)
class PhaseRecord:
    """One phase change.

    `sequence` numbers them within the run (it names the Event, so that a second run finds it).
    `outcome` "" = the episode is open. `overruled` is written to the record; `resumed` clears it.
    `validation` is the last answer of the gate, in this run. `passed` is the phase before, where
    that was over at once: it is recorded here, before this one.
    """

    owner: Owner
    machine_id: str
    pool: str
    workflow_id: str
    run_id: str
    sequence: int
    phase: str
    fault: str
    detail: str
    at: datetime
    held: bool = False
    outcome: str = ""
    attempt: Attempt | None = None
    overruled: Overrule | None = None
    resumed: bool = False
    validation: Validation | None = None
    passed: "PhaseRecord | None" = None

    @property
    def in_order(self) -> "tuple[PhaseRecord, ...]":
        """What passed, then this."""
        return (*self.passed.in_order, self) if self.passed else (self,)


@dataclass(frozen=True)
class Recorded:
    """The record stands, unless `refused` says why it was not written."""

    machine_id: str
    refused: str = ""


RECORD_PHASE = Contract(
    "record_phase", Effect.READ, PhaseRecord, Recorded, "write the machine record and an Event"
)
"""Effect `read`: it touches no Node and no Pod, so it is allowed in observe mode too."""


@dataclass(frozen=True)
class BaselineRequest:
    """Record this baseline for the machine of a healthy node, unless one is there.

    Refused (`Recorded.refused`) if the pool's expectation is unknown or differs.
    """

    owner: Owner
    machine_id: str
    pool: str
    provider_id: str
    baseline: Baseline
    model: str
    boot_id: str


def baseline_request(
    owner: Owner, pool: str, reading: Reading, counted: TaskAnswer, at: datetime
) -> BaselineRequest:
    """What a machine had when it was found well: counted on the node, offered by the cluster."""
    node = reading.node
    return BaselineRequest(
        owner=owner,
        machine_id=reading.machine.machine_id,
        pool=pool,
        provider_id=node.provider_id,
        baseline=Baseline(counted.gpus, tuple(sorted(node.gpus.items())), at),
        model=counted.model,
        boot_id=counted.boot_id,
    )


RECORD_BASELINE = Contract(
    "record_baseline", Effect.READ, BaselineRequest, Recorded, "record the machine's baseline"
)
