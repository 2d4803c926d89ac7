"""The course of one episode: where it stands, what was tried, and how it is told to people.

Owns the one mutable value that the runbook carries along; it lives in the workflow and is rebuilt
by replay. Decides nothing. Talks to `model` and `contracts`.
"""

from dataclasses import dataclass, field
from datetime import datetime

from workflows.contracts.karpenter import Resolved
from workflows.contracts.kube import MachineMemory, Owner, Reading
from workflows.contracts.machines import Attempt, PhaseRecord, Validation
from workflows.contracts.messages import Closing, Opening, ValidationOrder
from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import RuleMatch
from workflows.model.node_task import Failure
from workflows.model.policy import FaultPolicy, Policy, Pool, Rung
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.gate import Judgement
from workflows.model.remediation.ladder import from_replace, rungs_for
from workflows.model.remediation.marks import Marker, Quarantine, is_on_karpenter
from workflows.model.remediation.overrule import Overrule, is_overruled
from workflows.model.remediation.phase import Outcome, Phase
from workflows.model.remediation.reboot import BootRecord
from workflows.model.remediation.replacement import ClaimRef, Horizon

HARD = frozenset(
    {
        Fault.GPU_LOST,
        Fault.GPU_MEMORY_UNCORRECTABLE,
        Fault.GPU_MEMORY_CONTAINED,
        Fault.GPU_DRIVER,
    }
)
"""Classes that are repaired even if the condition turned good again by itself."""


@dataclass(frozen=True)
class Leaving:
    """The machine was given away at `at`: what is waited for until its successor stands."""

    claim: ClaimRef
    node_pool: str
    horizon: Horizon
    must_be_refilled: bool
    at: datetime


@dataclass
class Episode:
    """One episode. `retiring` = a person asked for the retire path, by whom and why.

    `is_opened` = a mark that stood at the first look was judged. `tried` are the rungs that were
    issued, `pending` is a reboot that was issued and not yet proven (it is proven before any other
    is), `boot_id` the last boot that was judged, `asked` the places asked of the guard, `refused` the epoch of the last grant that was an
    older guard's. `validation` is the last answer of the gate, `failures` what the last diagnosis
    found. `order` = the node is only being validated.
    `is_classed` = a report, our mark or a second source has said what `fault` is; before that, and
    in an episode that was opened again, any report does. `is_learned` = this run found out what the
    fault is; the marker says another. `doubted_level` is the level of a validation that was not
    passed: the gate asks for no less. `is_stale` = what people were told last does not hold any
    more: a person retires the node, or its fault has become a worse one. `is_newcomer` = the node
    carries the startup taint, `is_refused` = it is new and its admission has failed. `is_approved` = a person
    has approved the next rung. `given_back` = as which episode, and from which fault, the node came
    into the probation that it is in.
    """

    opening: Opening
    id: str
    policy: Policy = field(default_factory=Policy)
    pool: str = ""
    pool_size: int = 1
    fault: Fault = Fault.DIAGNOSTIC_UNKNOWN
    rule: str = ""
    match: RuleMatch | None = None
    machine: MachineMemory | None = None
    phase: Phase = Phase.SUSPECT
    marker: Marker | None = None
    recover: bool = False
    is_opened: bool = False
    retiring: str = ""
    overruled: Overrule | None = None
    undone: list[Overrule] = field(default_factory=list)
    laps: int = 0
    stuck: str = ""
    on_karpenter: bool = False
    claims: Resolved | None = None
    horizon: Horizon | None = None
    leaving: Leaving | None = None
    yielding: str = ""
    drained: bool = False
    tried: list[Rung] = field(default_factory=list)
    pending: BootRecord | None = None
    boot_id: str = ""
    asked: set[Budget] = field(default_factory=set)
    refused: dict[Budget, str] = field(default_factory=dict)
    validation: Validation | None = None
    failures: tuple[Failure, ...] = ()
    order: ValidationOrder | None = None
    is_classed: bool = False
    is_stale: bool = False
    is_learned: bool = False
    doubted_level: int = 0
    is_newcomer: bool = False
    is_refused: bool = False
    is_approved: bool = False
    given_back: tuple[str, Fault] | None = None
    questions: int = 0
    phases: list[tuple[str, datetime]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    detail: str = ""

    @property
    def owner(self) -> Owner:
        """This episode and the Node it means, as every contract wants it."""
        return Owner(self.opening.node, self.id)

    @property
    def treatment(self) -> FaultPolicy:
        """What policy says about the episode's fault."""
        return self.policy.faults[self.fault]

    @property
    def pool_policy(self) -> Pool | None:
        """What policy says about the node's pool."""
        return self.policy.pool_named(self.pool)

    @property
    def is_new(self) -> bool:
        """True if the machine was never proven: it carries the startup taint, or has failed."""
        return self.is_newcomer or self.is_refused

    @property
    def is_unproven(self) -> bool:
        """True if no gate can pass it: it is new, or was picked as new and has no baseline yet."""
        order, machine = self.opening.validation, self.machine
        was_new = order is not None and order.is_new
        return self.is_new or (was_new and machine is not None and machine.baseline is None)

    @property
    def ladder(self) -> list[Rung]:
        """The rungs of the fault's ladder that mean something on this node."""
        ladder = self.treatment.ladder
        if self.is_new:
            ladder = from_replace(ladder)
        return rungs_for(ladder, self.pool_policy, is_on_karpenter=self.on_karpenter)

    def read(self, reading: Reading) -> None:
        """Takes over what a fresh reading says about the machine and the marker."""
        self.machine = reading.machine
        self.marker = reading.marker
        self.on_karpenter = is_on_karpenter(reading.node)
        self.is_newcomer = is_newcomer(reading.node)

    @property
    def wants_admission(self) -> bool:
        """True if the node is new, nobody has taken it out of service, and nothing was found yet."""
        return self.is_newcomer and self.marker is None and not self.is_refused

    @property
    def is_interim(self) -> bool:
        """True if the next pass does not begin with the node: see `lifecycle.settle`."""
        return bool(self.stuck or self.yielding) or self.leaving is not None

    def stop(self, fact: Exception, *, is_healer: bool) -> None:
        """A step has shown that the runbook cannot go on as it is."""
        if is_healer:
            self.yielding = str(fact)
        else:
            self.stuck = str(fact)

    def owns(self, marker: Marker | None) -> bool:
        """True if the marker is this episode's."""
        return marker is not None and marker.episode == self.id and not marker.handed_over

    def new_marker(self, now: datetime, kind: Quarantine, rule: str = "") -> Marker:
        """What we write; the activity fills in what stands on the node before us."""
        return Marker(
            episode=self.id,
            node_uid=self.opening.node.uid,
            since=now,
            rule=rule or self.rule or "operator",
            fault=self.fault.value,
            quarantine=kind,
        )

    def is_undone(self, match: RuleMatch) -> bool:
        """True if a person undid our quarantine for all that the match says, during its boot.

        In this run, or in one before it that the machine record remembers.
        """
        return is_overruled(match, self.overrules)

    @property
    def overrules(self) -> tuple[Overrule, ...]:
        """What people undid on this machine: in this run, and before it."""
        return (*self.undone, *(self.machine.overruled if self.machine else ()))

    def blame(self, match: RuleMatch) -> None:
        """The episode is about this match now."""
        self.match, self.fault, self.rule = match, match.fault, match.rule
        self.is_classed = True

    def learn(self, fault: Fault, source: str) -> None:
        """A second source on the node has said which class the unknown fault is."""
        self.fault, self.rule = fault, source
        self.is_learned, self.is_classed = True, True

    def note_gate(self, now: datetime, judged: Judgement) -> None:
        """The gate has answered; what its diagnosis said of the same verdict stands."""
        if self.validation is None or self.validation.result != judged.verdict.value:
            reasons = "; ".join(judged.reasons[:4])
            self.validation = Validation(now, judged.verdict.value, 0, reasons)

    def record(self, now: datetime, detail: str, *, held: bool = False) -> PhaseRecord:
        """The record of the present phase; the runtime fills in ids and sequence."""
        self.detail = detail
        return PhaseRecord(
            owner=self.owner,
            machine_id=self.machine.machine_id if self.machine else "",
            pool=self.pool,
            workflow_id="",
            run_id="",
            sequence=0,
            phase=self.phase.value,
            fault=self.fault.value,
            detail=detail,
            at=now,
            held=held,
            validation=self.validation,
        )

    def enter(self, phase: Phase, now: datetime) -> None:
        """A phase has been reached."""
        self.phase = phase
        self.phases.append((phase.value, now))
        self.given_back = (self.id, self.fault) if phase is Phase.PROBATION else None

    def end(self, outcome: Outcome, why: str) -> Outcome:
        """An outcome with its reason for people."""
        self.detail = why
        return outcome

    def dismiss(self, why: str) -> Outcome:
        """Nothing is to be done for the report.

        If it came in a probation, that is passed: the episode that gave the node back has ended well.
        """
        if self.given_back is None:
            return self.end(Outcome.DISMISSED, why)
        self.id, self.fault = self.given_back
        return self.end(Outcome.RETURNED, f"passed its gate; reported once more, but {why}")

    def plan(self) -> tuple[str, ...]:
        """What will happen from here if nothing goes wrong, in the order of the runbook."""
        if self.phase is Phase.CLOSED:
            return ()
        if self.leaving is not None:
            return ("wait until the machine is gone", "find its successor and validate it")
        if self.retiring:
            return ("drain", "hand over to people: " + self.retiring)
        if self.given_back is not None and self.given_back[0] == self.id:  # not reported since
            return ("watch until the probation ends", "close")
        if self.order is not None:
            return (f"diagnosis at level {self.order.level}", "give back, or an episode")
        if self.wants_admission:
            return ("count and diagnose", "take the startup taint off, or an episode")
        if self.recover or not self.ladder:
            return ("wait for the node to recover", "gate", "give back, or hold")
        rungs = [rung for rung in self.ladder if rung not in self.tried]
        drain = [] if self.drained else [f"drain ({self.treatment.drain})"]
        return (*drain, *rungs, "gate", "give back, or hold")

    def closing(self, outcome: Outcome) -> Closing:
        """The result of the workflow."""
        return Closing(
            outcome=outcome.value,
            fault=self.fault.value,
            detail=self.detail,
            phases=tuple(self.phases),
            actions=tuple(self.actions),
        )


def attempt(rung: Rung, at: datetime, result: str, before: str, after: str = "") -> Attempt:
    """One rung's line in the machine record."""
    return Attempt(rung.value, at, result, before, after)
