"""A world of one new node: the startup taint, its end, and no baseline before it.

Owns what `world.py` and `karpenter_world.py` leave out, for nodes that are not in service yet. It
imitates no API: those tests run on the real one.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tests.workflows.karpenter_world import KarpenterWorld
from tests.workflows.world import World
from workflows.contracts.guard import Asked
from workflows.contracts.kube import AdmitRequest, Admitted
from workflows.contracts.machines import Recorded
from workflows.contracts.messages import Ask, NodeFacts
from workflows.model.node import NodeView
from workflows.model.remediation.admission import STARTUP_TAINT
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.gate import Verdict, judge_conditions


class Newcomer:
    """What a new node adds to a world: the taint, its end, and no baseline before it."""

    taints: tuple[str, ...]
    baseline: Any
    recorded: int = 0
    offered: int | None = None
    gated: tuple[Budget, ...] = ()

    def admit_node(self: Any, request: AdmitRequest, now: datetime) -> Admitted:
        if STARTUP_TAINT in self.taints:
            if self.marker is not None:
                return Admitted(str(self.version), "the node was taken out of service meanwhile")
            judged = judge_conditions(self.view(now), self.policy, now)
            if judged.verdict is not Verdict.PASSED:
                return Admitted(str(self.version), "; ".join(judged.reasons))
            self.taints = tuple(t for t in self.taints if t != STARTUP_TAINT)
            self.touch()
        return Admitted(str(self.version))

    def record_baseline(self: Any, request: Any, now: datetime) -> Recorded:
        self.recorded += 1
        assert STARTUP_TAINT in self.taints, "recorded before work is let in"
        return Recorded(request.machine_id)

    def ask_guard(self: Any, request: Ask, now: datetime) -> Any:
        if request.budget in self.gated:
            return Asked("guard")
        return super().ask_guard(request, now)  # type: ignore[misc]  # of the world beside it

    def facts(self: Any) -> NodeFacts:
        facts: NodeFacts = super().facts()  # type: ignore[misc]  # of the world beside it
        return replace(facts, newcomer=STARTUP_TAINT in self.taints)

    def view(self: Any, now: datetime) -> NodeView:
        view: NodeView = super().view(now)  # type: ignore[misc]  # of the world beside it
        gpus = view.gpus if self.offered is None else {"nvidia.com/gpu": self.offered}
        return replace(view, gpus=gpus)


@dataclass
class PlainNewcomer(Newcomer, World):
    """Nobody else replaces it."""


@dataclass
class KarpenterNewcomer(Newcomer, KarpenterWorld):
    """Karpenter made it."""


def plain(**more: Any) -> PlainNewcomer:
    return PlainNewcomer(taints=(STARTUP_TAINT,), baseline=None, pods=0, **more)


def bought(offered: int | None = None, **more: Any) -> KarpenterNewcomer:
    world = KarpenterNewcomer(taints=(STARTUP_TAINT,), baseline=None, pods=0, **more)
    world.offered = offered
    return world


@dataclass
class Unproven(KarpenterWorld):
    """One without the startup taint: in service, never counted."""

    recorded: int = 0

    def record_baseline(self, request: Any, now: datetime) -> Recorded:
        self.recorded += 1
        assert self.marker is not None, "recorded while no work can come"
        return Recorded(request.machine_id)


def untainted(**more: Any) -> Unproven:
    return Unproven(baseline=None, pods=0, **more)
