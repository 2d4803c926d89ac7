"""A world of one node that Karpenter made: its NodeClaim, its end, and the newcomer after it.

Owns what `world.py` leaves out: the claim's truth and the contracts of Karpenter, answered by the
same functions of `workflows.model`. It imitates no controller: those tests run on the real one.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tests.workflows.world import GOOD, GPUS, NODE, World, diagnosed
from workflows.contracts.karpenter import ClaimDeleted, ClaimEnd, Resolved, Succession
from workflows.contracts.kube import MachineMemory, Marked, Owner, Reading
from workflows.contracts.machines import Recorded
from workflows.contracts.node_tasks import TaskAnswer
from workflows.memory_runtime import START, StillWaiting
from workflows.model.identity import NodeRef
from workflows.model.node import Condition, NodeView
from workflows.model.node_task import Health, Result
from workflows.model.remediation.marks import (
    EPISODE,
    KARPENTER_NODEPOOL_LABEL,
    VETOES,
    Marker,
    other_healer,
)
from workflows.model.remediation.permit import Effect
from workflows.model.remediation.removal import Blocker
from workflows.model.remediation.replacement import (
    ClaimView,
    Successor,
    acts_on,
    horizon_of,
    mismatch,
    newcomers_of,
    resolve,
)
from workflows.runtime import NodeGone, StepFailed

POOL = "pool-1"
CLAIM = ClaimView("claim-1", "claim-uid-1", START, POOL, "p", NODE.name, gpus=8)
NEWCOMER = NodeRef("node-2", "uid-2")
NEW_CLAIM = ClaimView(
    "claim-2",
    "claim-uid-2",
    START + timedelta(minutes=5),
    POOL,
    "p2",
    NEWCOMER.name,
    {"Launched": "True", "Registered": "True"},
    gpus=8,
)
NEW_GPUS = tuple(f"GPU-new-{n}" for n in range(8))
OF_KARPENTER = frozenset(
    {
        "resolve_claim",
        "delete_claim",
        "read_claim_end",
        "await_claim_gone",
        "look_for_successor",
        "find_successor",
    }
)


@dataclass
class KarpenterWorld(World):
    """`removal_takes` None = the deletion never ends; `comes` None = no successor ever.

    `comes` counts from the deletion. `waiting` = pods that request GPUs wait for a node.
    """

    claim: ClaimView | None = CLAIM
    owner_uid: str = CLAIM.uid
    is_static: bool = False
    removal_takes: timedelta | None = timedelta(seconds=5)
    comes: timedelta | None = timedelta(seconds=2)
    waiting: bool = True
    blockers: tuple[Blocker, ...] = ()
    new_gpus: tuple[str, ...] = NEW_GPUS
    new_health: Health = Health.HEALTHY
    new_is_ready: bool = True
    newcomer: NodeRef = NEWCOMER
    newcomer_is_gone: bool = False
    new_taints: tuple[str, ...] = ()
    new_marker: Marker | None = None
    deleted_at: datetime | None = None
    deletions: int = 0
    lost_new: int = 0
    baselines: list[str] = field(default_factory=list)
    vetoes_stand: bool = True

    def answer(self, name: str, request: Any, now: datetime) -> Any:
        """See `memory_runtime.World`."""
        owner = getattr(request, "owner", request)
        is_about_newcomer = isinstance(owner, Owner) and owner.node.uid != NODE.uid
        if name not in OF_KARPENTER and not is_about_newcomer:
            return super().answer(name, request, now)
        hook = self.hooks.pop(name, None)
        if hook is not None:
            hook()
        self.pass_away(now)
        if is_about_newcomer:
            if self.newcomer_is_gone or owner.node.uid != self.newcomer.uid:
                raise NodeGone(f"Node {owner.node.name} does not exist any more")
            return getattr(self, f"new_{name}")(request, now)
        return getattr(self, name)(request, now)

    def view(self, now: datetime) -> NodeView:
        view = super().view(now)
        vetoes = dict.fromkeys(VETOES, "true") if self.marker and self.vetoes_stand else {}
        return replace(
            view,
            labels={**view.labels, KARPENTER_NODEPOOL_LABEL: POOL},
            annotations={**view.annotations, **vetoes},
        )

    def assert_vetoes(self, request: Any, now: datetime) -> Marked:
        self._fenced(Effect.DISRUPT, request.episode, now)
        self.vetoes_stand = True
        return Marked(self.marker, str(self.version))

    def pass_away(self, now: datetime) -> None:
        """Lets a deletion that is due be done."""
        if self.deleted_at is None or self.removal_takes is None or self.gone:
            return
        if now >= self.deleted_at + self.removal_takes:
            self.claim, self.gone = None, True
            self.touch()

    # -- contracts

    def resolve_claim(self, request: Any, now: datetime) -> Resolved:
        if self.gone:
            raise NodeGone("gone")
        claims = [self.claim] if self.claim else []
        found = resolve(self.view(now), self.owner_uid, claims)
        if found.claim is None:
            return Resolved(found.standing, found.detail, node_pool=POOL)
        ref, horizon = found.claim.ref, horizon_of(claims)
        counts = (found.claim.gpus, self.lost_new, f"boot-{self.boots}")
        return Resolved(found.standing, found.detail, ref, POOL, self.is_static, horizon, *counts)

    def delete_claim(self, request: Any, now: datetime) -> ClaimDeleted:
        if self.claim is None or self.claim.deleting:
            return ClaimDeleted("is being deleted")
        if self.gone:
            raise NodeGone("gone")
        healer = other_healer(self.view(now)) or acts_on(self.claim)
        if healer:
            return ClaimDeleted("was left", yielded_to=healer)
        problem = mismatch(self.view(now), self.claim, self.owner_uid)
        if problem:
            raise StepFailed(problem)
        self._fenced(Effect.DISRUPT, request.owner.episode, now)
        self.claim = replace(self.claim, deleting=True)
        self.deleted_at = now
        self.deletions += 1
        runtime = self.runtime
        if runtime is not None and self.removal_takes is not None:
            moment = now + self.removal_takes - START
            runtime.at(moment, lambda: self.pass_away(runtime.now()))
        return ClaimDeleted("is being deleted")

    def read_claim_end(self, request: Any, now: datetime) -> ClaimEnd:
        return ClaimEnd(gone=True) if self.gone else ClaimEnd(gone=False, blockers=self.blockers)

    def await_claim_gone(self, request: Any, now: datetime) -> ClaimEnd:
        if not self.gone:
            raise StillWaiting
        return ClaimEnd(gone=True)

    def look_for_successor(self, request: Any, now: datetime) -> Succession:
        has_come = (
            self.comes is not None and self.deleted_at and now >= self.deleted_at + self.comes
        )
        claims = [NEW_CLAIM] if has_come else []
        found = next(iter(newcomers_of(claims, request.horizon)), None)
        if found is None:
            return Succession(None, "no NodeClaim since", is_coming=False, waiting=3 * self.waiting)
        if not self.new_is_ready:
            return Succession(None, f"{found.name}; Node {self.newcomer.name} is not Ready")
        return Succession(Successor(found.ref, self.newcomer, found.gpus))

    def find_successor(self, request: Any, now: datetime) -> Succession:
        found = self.look_for_successor(request, now)
        if found.successor is None:
            raise StillWaiting
        return found

    # -- the newcomer

    def new_read_node(self, request: Any, now: datetime) -> Reading:
        view = super().view(now)
        conditions = {
            name: Condition(name, "True", "Healthy", "Healthy", now, START) for name in GOOD
        }
        count = {"nvidia.com/gpu": len(self.new_gpus)}
        node = replace(
            view,
            name=self.newcomer.name,
            uid=self.newcomer.uid,
            provider_id=NEW_CLAIM.provider_id,
            conditions=conditions,
            gpus=count,
            capacity=count,
            unschedulable=False,
            taints=self.new_taints,
        )
        own = {key: text for key, text in view.annotations.items() if key not in (EPISODE, *VETOES)}
        mark = {EPISODE: self.new_marker.encode()} if self.new_marker else {}
        node = replace(node, annotations={**own, **mark})
        return Reading(node, MachineMemory("machine-2", None, 0, 0, ""), self.new_marker)

    def new_inventory(self, request: Any, now: datetime) -> TaskAnswer:
        return TaskAnswer(Result.DONE, "", f"boot-{self.boots}", self.new_gpus, "H100")

    def new_diagnose(self, request: Any, now: datetime) -> TaskAnswer:
        return diagnosed(self.new_health, boot_id=f"boot-{self.boots}")

    def new_record_baseline(self, request: Any, now: datetime) -> Recorded:
        self.baselines.append(request.machine_id)
        return Recorded(request.machine_id)


def broken_for_good(**more: Any) -> KarpenterWorld:
    """A node that lost a GPU, quarantined by watch's reflex as ep-1; a reboot does not help."""
    from tests.workflows.world import lost_gpu  # noqa: PLC0415 - shares its marker

    plain = lost_gpu()
    world = KarpenterWorld(gpus_after_boot=GPUS[:7], **more)
    world.bad, world.version = plain.bad, plain.version
    world.marker, world.unschedulable = plain.marker, True
    return world
