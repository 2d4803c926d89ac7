"""The promises, judged on the world of one node: what may happen to it, and when.

Owns the looks before and after each call of the runbook. Knows the world's truth and what the
runbook was told, never what it wanted: a lapse of the runbook and one of a fence are seen alike.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.workflows.karpenter_world import CLAIM, KarpenterWorld
from tests.workflows.world import GPUS, NODE, Run
from workflows.contracts.kube import Owner
from workflows.model.detection.fault import UNKNOWN_KIND
from workflows.model.detection.rules import match_rules
from workflows.model.node_task import Health, Result
from workflows.model.remediation.admission import STARTUP_TAINT
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.marks import Marker, Quarantine, other_healer
from workflows.model.remediation.phase import Phase
from workflows.model.remediation.replacement import acts_on


@dataclass(frozen=True)
class Seen:
    """The node at one moment."""

    marker: Marker | None
    is_cordoned: bool
    pods: int
    issued: tuple[str, ...]
    is_gone: bool
    deletions: int
    is_new: bool = False
    """It carries the startup taint: no work can come."""

    @property
    def is_out(self) -> bool:
        """True if fleetmend holds it out of service."""
        return self.marker is not None and not self.marker.handed_over and self.is_cordoned


@dataclass
class Gate:
    """What the runbook was told since the last disruptive action, or the last bad word."""

    is_quiet: bool = False
    is_whole: bool = False
    is_diagnosed: bool = False

    @property
    def is_passed(self) -> bool:
        return self.is_quiet and self.is_whole and self.is_diagnosed


@dataclass
class Referee:
    """Judges one run.

    `undone_at` = when a person took the quarantine off; `words` are the moments of what may bring
    it back: a person's word, or a fault that they did not see.
    """

    run: Run
    places: set[Budget] = field(default_factory=set)
    gate: Gate = field(default_factory=Gate)
    undone_at: datetime | None = None
    words: list[datetime] = field(default_factory=list)
    was_cordoned: bool = False
    """A person's cordon stood before us."""
    newcomers: dict[str, Gate] = field(default_factory=dict)
    """By UID: what the runbook was told of a node that came after ours."""
    admitted: set[str] = field(default_factory=set)
    may_keep_pods: bool = False
    """A person was told which pods do not end, and has said that it goes."""
    is_accused: bool = False
    """Something was said against the node: a rule, a diagnosis, a person. Unknown is nothing."""

    def look(self) -> Seen:
        """The node as it is now."""
        world = self.run.world
        issued = tuple(world.issued)
        deletions = world.deletions if isinstance(world, KarpenterWorld) else 0
        is_new = STARTUP_TAINT in world.taints
        is_out = (world.marker, world.unschedulable)
        return Seen(*is_out, world.pods, issued, world.gone, deletions, is_new)

    def hear(self, name: str, request: Any, answer: Any) -> None:
        """What a call has told the runbook."""
        owner = getattr(request, "owner", request)
        if isinstance(owner, Owner) and owner.node.uid != NODE.uid:
            self._hear_of_newcomer(owner.node.uid, name, answer)
        elif name in ("read_node", "open_episode"):
            reading = answer if name == "read_node" else answer.reading
            matches = match_rules(reading.node, self.run.world.policy, self.run.runtime.now())
            self.gate = Gate() if matches else Gate(True, *self._counts())
            self.is_accused |= any(match.fault not in UNKNOWN_KIND for match in matches)
        elif name == "inventory":
            is_booting = self.run.world.boot_at is not None
            is_counted = (answer.result, answer.gpus) == (Result.DONE, GPUS)
            self.gate.is_whole = is_counted and not is_booting
        elif name == "diagnose":
            is_healthy = (answer.result, answer.health) == (Result.DONE, Health.HEALTHY)
            self.gate.is_diagnosed = is_healthy
        if name in ("diagnose", "kernel_log"):
            self.is_accused |= answer.health is Health.FAULTY

    def _hear_of_newcomer(self, uid: str, name: str, answer: Any) -> None:
        """What a call has told the runbook of a node that came after ours."""
        gate = self.newcomers.setdefault(uid, Gate())
        if name == "read_node":
            policy, now = self.run.world.policy, self.run.runtime.now()
            gate.is_quiet = not match_rules(answer.node, policy, now)
        elif name == "inventory":
            found = set(answer.gpus)
            gate.is_whole = answer.result is Result.DONE and len(found) == len(GPUS)
            gate.is_whole &= not found & set(GPUS)
        elif name == "diagnose":
            is_healthy = (answer.result, answer.health) == (Result.DONE, Health.HEALTHY)
            gate.is_diagnosed = is_healthy

    def _counts(self) -> tuple[bool, bool]:
        return self.gate.is_whole, self.gate.is_diagnosed

    def judge(self, name: str, request: Any, before: Seen, after: Seen) -> None:
        """One call: what it did to the node was allowed."""
        if name == "ask_guard":
            self.places.add(request.budget)
        elif name == "release_place":
            self.places.discard(request.budget)
        elif name == "record_baseline":
            self._admitted(request.owner.node.uid, before)
        elif name == "record_phase" and before.deletions:
            is_validated = any(r.phase == Phase.VALIDATED.value for r in request.in_order)
            assert not is_validated or self.admitted, "told of a successor that nobody admitted"
        if after.deletions > before.deletions:
            self._given_away(name, request, before)
        is_issued = len(after.issued) > len(before.issued)
        if is_issued:
            assert before.pods == 0, "rebooted with pods on it"
            assert after.issued[-1] not in before.issued, "a second reboot of one boot"
        if is_issued or after.pods < before.pods:
            self._disrupted(before)
            self.gate = Gate()
        if not before.is_cordoned and after.is_cordoned:
            assert not self._is_undone(), "a cordon that a person removed came back"
        self._judge_mark(name, before, after)

    def _given_away(self, name: str, request: Any, before: Seen) -> None:
        """The claim is being deleted, which nothing takes back."""
        self._disrupted(before)
        assert name == "delete_claim", f"a claim deleted by {name}"
        assert before.deletions == 0, "a second deletion"
        assert request.claim.uid == CLAIM.uid, "another claim's UID"
        assert self.may_keep_pods or before.pods == 0, "given away with pods on it"
        assert not before.is_gone, "deleted the claim of a Node that was gone"
        assert not self._is_undone(), "given away after a person took it back"

    def _admitted(self, uid: str, before: Seen) -> None:
        """A newcomer counts as the successor; our own node is new, and proven."""
        if uid == NODE.uid:
            assert all(self._counts()), "a baseline of a node that was not proven"
            return
        assert before.is_gone, "a successor admitted while the machine was there"
        assert self.newcomers.get(uid, Gate()).is_passed, "a successor admitted untested"
        self.admitted.add(uid)
        assert len(self.admitted) == 1, f"two successors admitted: {self.admitted}"

    def _disrupted(self, before: Seen) -> None:
        is_validation = self.run.opening.validation is not None
        assert self.is_accused or not is_validation, "disrupted by a validation"
        marker = before.marker
        assert marker is not None, "disrupted without a mark"
        assert marker.episode in self.run.inbox.episodes, "disrupted another's node"
        assert not marker.handed_over, "disrupted a node that people have"
        assert before.is_cordoned, "disrupted a node in service"
        assert marker.slot is not None, "disrupted without a noted slot"
        assert Budget.DISRUPTION in self.places, "disrupted without a place of the guard"

    def _judge_mark(self, name: str, before: Seen, after: Seen) -> None:
        if before.is_new and not after.is_new and name == "admit_node":
            assert before.marker is None, "let in while it is out of service"
            assert self.gate.is_passed, f"let in untested: {self.gate}"
        if before.marker is None:
            if after.marker is not None and after.marker.quarantine is Quarantine.CONFIRMED:
                assert Budget.QUARANTINE in self.places, "quarantined without a place"
            if after.marker is not None and after.marker.quarantine is Quarantine.VALIDATION:
                assert Budget.VALIDATION in self.places, "validated without a place"
            return
        if after.marker is None:
            marker = before.marker
            assert marker.episode in self.run.inbox.episodes, "took another's mark off"
            assert not marker.handed_over, "took the mark off a node that people have"
            if before.is_cordoned:
                assert after.is_cordoned == marker.was_unschedulable, "the cordon is not as before"
                is_free = name == "quarantine" or self._gives_way(marker) or self._is_healed()
                is_free |= after.is_new  # its taint keeps work off, until it is let in
                assert is_free or self.gate.is_passed, f"given back untested: {self.gate}"
        elif after.marker.handed_over and not before.marker.handed_over:
            assert self.may_keep_pods or after.pods == 0, "handed over with pods on it"
            assert after.is_cordoned, "handed over in service"

    def _gives_way(self, marker: Marker) -> bool:
        """A pod needs a node that was taken out for a validation, and against which nothing is."""
        is_needed = bool(self.run.world.work or self.run.world.gives_way)
        return marker.quarantine is Quarantine.VALIDATION and is_needed and not self.is_accused

    def _is_healed(self) -> bool:
        """Karpenter acts on the node: the node is its."""
        world = self.run.world
        claim = world.claim if isinstance(world, KarpenterWorld) else None
        acts = claim is not None and acts_on(claim)
        return bool(other_healer(world.view(self.run.runtime.now())) or acts)

    def _is_undone(self) -> bool:
        undone, now = self.undone_at, self.run.runtime.now()
        return undone is not None and not any(undone <= word <= now for word in self.words)

    def judge_open(self) -> None:
        """A run that waits for people says so, and holds no place meanwhile."""
        inbox = self.run.inbox
        phase, _ = self.run.runtime.published[-1]
        if phase is Phase.AWAITING_CAPACITY and self.look().is_gone and not inbox.question:
            return  # for a machine, not for people; it keeps its place until then
        assert inbox.question or inbox.paused, "it waits for nobody"
        if not inbox.paused:
            assert Budget.DISRUPTION not in self.places, "held with a place"
            record = self.run.runtime.published[-1][1].record
            assert record.held, "held, and not told"

    def judge_closed(self, outcome: str) -> None:
        """After the end nothing of ours is left that nobody owns."""
        node, world = self.look(), self.run.world
        assert not self.places, f"an ended run holds {self.places}"
        if outcome in ("vanished", "replaced"):
            assert node.is_gone, f"{outcome}, and still there"
        assert outcome == "replaced" or not node.deletions, f"given away, and {outcome}"
        if node.is_gone:
            return
        if outcome == "retired":
            assert node.marker is not None
            assert node.marker.handed_over, "retired, and nobody has it"
            assert node.is_cordoned, "retired, and in service"
            return
        is_ours = node.marker is not None and node.marker.episode in self.run.inbox.episodes
        assert not is_ours or node.marker.handed_over, "quarantined, and nobody owns it"  # type: ignore[union-attr]
        if node.marker is None:
            theirs = self.was_cordoned and self.undone_at is None
            assert node.is_cordoned == theirs, "our cordon is left without a mark"
        if outcome in ("returned", "dismissed") and self.undone_at is None and not world.overruled:
            now = self.run.runtime.now()
            faults = match_rules(world.view(now), world.policy, now)
            assert not faults, f"{outcome} with {faults[0].text}"
            assert not node.is_new, f"{outcome}, and nobody lets it in"
