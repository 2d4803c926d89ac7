"""Karpenter and fleetmend on one node: whoever began first acts, the other leaves it alone.

Owns the interleavings: what Karpenter can do to a node begins right before each single call of the
runbook in turn, from the first look to the end of the claim. The same with the real Karpenter, at
a few of the points, is tests/scenarios/test_one_of_both.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.karpenter_world import CLAIM, KarpenterWorld, broken_for_good
from tests.workflows.world import GPUS, Run, started
from workflows.memory_runtime import START

ITS_TIME = timedelta(seconds=40)
"""From the begin of Karpenter's act to its end; the runbook's steps take a second each."""

AT_ONCE = timedelta(seconds=0.5)
"""From a claim's deletion timestamp to its Node's taint."""
DISRUPTED = ("karpenter.sh/disrupted:NoSchedule",)


@dataclass
class Watched(KarpenterWorld):
    """Counts the calls that the runbook makes; right before one of them Karpenter begins."""

    called: list[str] = field(default_factory=list)
    begins_before: int = -1
    begin: Callable[["Watched"], None] = lambda _: None
    is_acting: bool = False
    had_given_away: bool = False
    both: list[str] = field(default_factory=list)
    """What we began while Karpenter acted."""

    def answer(self, name: str, request: Any, now: datetime) -> Any:
        if name != "record_phase":
            if len(self.called) == self.begins_before:
                self.is_acting, self.had_given_away = True, self.deletions > 0
                self.begin(self)
                self.touch()
            self.called.append(name)
        before = self.ours
        try:
            return super().answer(name, request, now)
        finally:
            if self.is_acting and self.ours != before:
                self.both.append(name)

    @property
    def ours(self) -> tuple[int, int]:
        """Our reboots and deletions so far."""
        return len(self.issued), self.deletions

    def later(self, action: Callable[[], None], after: timedelta = ITS_TIME) -> None:
        """When Karpenter's act has gone on for so long; by default, when it has ended."""
        assert self.runtime is not None

        def happen() -> None:
            action()
            self.touch()

        self.runtime.at(self.runtime.now() - START + after, happen)


def reboots(world: Watched) -> None:
    """Committed: the condition, its taint, then another boot without either."""
    world.taints = ("karpenter.sh/rebooting:NoSchedule",)
    if world.claim is not None:
        world.claim = replace(world.claim, conditions={"Rebooting": "True"})

    def ends() -> None:
        world.boots, world.taints, world.is_acting = world.boots + 1, (), False
        if world.claim is not None:
            world.claim = replace(world.claim, conditions={"Rebooting": "False"})

    world.later(ends)


def replaces(world: Watched) -> None:
    """The taint, the deletion of the claim, and the end of both objects."""
    world.taints = DISRUPTED
    is_deleted(world)


def is_deleted(world: Watched) -> None:
    """The claim first (expiry, a person, the cloud); the Node says so before our next step."""
    if world.claim is not None:
        world.claim = replace(world.claim, deleting=True)
    world.later(lambda: setattr(world, "taints", DISRUPTED), AT_ONCE)

    def ends() -> None:
        world.claim, world.gone = None, True

    world.later(ends)


def world_of(*, is_marked: bool) -> Watched:
    """A GPU is gone and a reboot does not help; with watch's mark, or before any."""
    plain = broken_for_good()
    world = Watched(gpus_after_boot=GPUS[:7], bad=plain.bad, version=plain.version)
    if is_marked:
        world.marker, world.unschedulable = plain.marker, True
    return world


def calls_of(*, is_marked: bool) -> list[str]:
    """What the runbook calls if Karpenter does nothing."""
    world = world_of(is_marked=is_marked)
    assert started(world).finish().outcome == "replaced"
    assert world.ours == (1, 1)
    return world.called


POINTS = [
    pytest.param(is_marked, number, id=f"{'marked' if is_marked else 'unmarked'}-{number}-{name}")
    for is_marked in (True, False)
    for number, name in enumerate(calls_of(is_marked=is_marked))
]


def has_rebooted(world: Watched) -> None:
    """Begun and ended between two calls of ours, and that was the repair."""
    world.boots, world.gpus, world.is_acting = world.boots + 1, GPUS, False
    world.bad.clear()
    world.boot_at = None


ACTS = {"reboots": reboots, "replaces": replaces, "is-deleted": is_deleted}


@pytest.mark.parametrize("begin", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize(("is_marked", "number"), POINTS)
def test_while_karpenter_acts_nothing_of_ours_begins_or_stays(
    is_marked: bool, number: int, begin: Callable[[Watched], None]
) -> None:
    """R31 (karpenter#3185): a veto loses races, so what Karpenter has begun is read, not assumed."""
    world = world_of(is_marked=is_marked)
    if begin is is_deleted and calls_of(is_marked=is_marked)[number] == "reboot":
        pytest.skip("both at one instant: nothing on the Node says it yet")
    world.begins_before, world.begin = number, begin
    run: Run = started(world)
    closing = run.finish()
    assert number < len(world.called), "Karpenter began"
    assert world.both == []
    if world.had_given_away:
        assert closing.outcome == "replaced", "it carries out what we asked it for"
    elif world.called[number] == "delete_claim" and begin is not reboots:
        assert closing.outcome == "replaced", "a deletion that somebody sent is the one we want"
    elif world.is_acting:
        assert closing.outcome in ("yielded", "vanished")
    if not world.gone:
        assert (world.marker, world.unschedulable) == (None, False)


def test_the_points_cover_every_stage_of_the_runbook() -> None:
    """Before entry, after the veto, in the drain, in the reboot, in the gate, at the deletion."""
    called = calls_of(is_marked=False)
    stages = ("open_episode", "quarantine", "note_slot", "drain", "reboot", "inventory")
    assert [name for name in stages if name not in called] == []
    assert called.index("delete_claim") < called.index("await_claim_gone")
    assert CLAIM.uid


@pytest.mark.parametrize(("is_marked", "number"), POINTS)
def test_after_a_reboot_of_karpenters_that_was_the_repair_nothing_of_ours_begins(
    is_marked: bool, number: int
) -> None:
    """Its whole reboot may lie between two looks of ours: seen with the real one, on a busy machine."""
    world = world_of(is_marked=is_marked)
    if calls_of(is_marked=is_marked)[number] in ("reboot", "delete_claim"):
        pytest.skip("both at one instant: nothing was read since")
    ours_before: list[tuple[int, int]] = []

    def begin(played: Watched) -> None:
        ours_before.append(played.ours)
        has_rebooted(played)

    world.begins_before, world.begin, world.gpus_after_boot = number, begin, GPUS
    closing = started(world).finish()
    if not ours_before or world.had_given_away:
        return  # it was returned, or given away, before
    assert world.ours == ours_before[0], closing
    assert closing.outcome in ("returned", "dismissed")
