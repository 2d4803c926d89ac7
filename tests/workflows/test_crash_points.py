"""The sweep of crash points: every call of every outcome, with everything that can happen there."""

import sys
from collections.abc import Callable
from functools import cache

import pytest

from tests.workflows import (
    outcomes,
    outcomes_of_admissions,
    outcomes_of_karpenter,
    outcomes_of_validations,
)
from tests.workflows.crash_points import Crash, Played, judge, play, points_of
from tests.workflows.outcomes import HELD, Scene
from workflows.contracts import Contract, fleet, karpenter, kube, machines, node_tasks
from workflows.model.remediation.phase import Outcome

SCENES = (
    *outcomes.SCENES,
    *outcomes_of_karpenter.SCENES,
    *outcomes_of_validations.SCENES,
    *outcomes_of_admissions.SCENES,
)
NOT_OF_AN_EPISODE = {"pick_idle"}
"""Called by the dispatcher of validations only."""
NOT_IN_MEMORY = {"await_permit"}
"""Called by the Temporal runtime itself when a step is refused; the world here refuses none."""
AT_LEAST = 9_000
"""Points: fewer means that scenes or kinds of crashes were lost."""


@cache
def undisturbed(scene: Scene) -> Played:
    return play(scene)


PAIRS = [(s, crash) for s in SCENES for crash in Crash if points_of(undisturbed(s), crash)]
RARER = frozenset(
    {Crash.DIES_BEFORE, Crash.VANISHES_UNTOLD, Crash.UNMARKED, Crash.DIES_AND_RETIRED}
)
"""Each has a sister that every run of the tests meets; these are left to the long ones."""


def _marked(scene: Scene, crash: Crash) -> object:
    marks = [pytest.mark.long] if crash in RARER else []
    return pytest.param(scene, crash, marks=marks, id=f"{scene.name}-{crash}")


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.name)
def test_an_undisturbed_scene_ends_as_it_says(scene: Scene) -> None:
    ending = undisturbed(scene).ending
    found = (ending.outcome, len(ending.issued))
    assert found == (scene.outcome, scene.reboots), undisturbed(scene).story


@pytest.mark.parametrize(("scene", "crash"), [_marked(*pair) for pair in PAIRS])
def test_a_crash_at_any_call_breaks_no_promise(scene: Scene, crash: Crash) -> None:
    base = undisturbed(scene)
    points = points_of(base, crash)
    for number in points:
        judge(scene, base, crash, number, play(scene, crash, number))


def test_every_step_of_every_outcome_is_covered_and_here_is_how_many(
    record_property: Callable[[str, object], None],
) -> None:
    assert {scene.outcome for scene in SCENES} == {*Outcome, HELD}
    called = {call.name for scene in SCENES for call in undisturbed(scene).calls}
    contracts = {
        one.name
        for module in (kube, node_tasks, machines, karpenter, fleet)
        for one in vars(module).values()
        if isinstance(one, Contract)
    }
    assert contracts - called == NOT_OF_AN_EPISODE | NOT_IN_MEMORY
    count = sum(len(points_of(undisturbed(scene), crash)) for scene, crash in PAIRS)
    calls = sum(len(undisturbed(scene).calls) for scene in SCENES)
    said = f"{count} crash points: {calls} calls of {len(SCENES)} scenes, {len(Crash)} kinds"
    record_property("crash_points", said)
    sys.stdout.write(said + "\n")
    assert count >= AT_LEAST
