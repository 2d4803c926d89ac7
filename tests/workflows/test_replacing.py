"""The rung `replace` in memory: given away once, seen off, and followed by a machine that passed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.karpenter_world import (
    CLAIM,
    NEW_CLAIM,
    NEWCOMER,
    OF_KARPENTER,
    KarpenterWorld,
    broken_for_good,
)
from tests.workflows.world import GPUS, Run, World, lost_gpu, started, word
from workflows.contracts.messages import Command
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.node_task import Health
from workflows.model.policy import Policy, Pool, Posture
from workflows.model.remediation.removal import Blocker, BlockerKind


def with_pool(world: World, **changes: Any) -> World:
    pool = world.policy.pools[0].model_copy(update=changes)
    world.policy = world.policy.model_copy(update={"pools": (pool,)})
    return world


def details(run: Run) -> list[str]:
    return [story.record.detail for _, story in run.runtime.published]


def say(run: Run, at: timedelta, command: Command) -> None:
    def action(inbox: Inbox, now: datetime) -> None:
        inbox.take_command(command, word(f"{command}-{at}"), now)

    run.say(at, action)


def test_a_gpu_missing_after_the_reboot_is_replaced_and_the_newcomer_examined() -> None:
    world = broken_for_good()
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert (world.boots, world.deletions) == (1, 1)
    assert closing.actions == ("drain: 3 pods evicted", "reboot", "replace")
    assert world.baselines == ["machine-2"]
    assert NEWCOMER.name in closing.detail
    steps = run.steps
    assert steps.index("resolve_claim") < steps.index("drain")
    assert steps.index("drain") < steps.index("reboot") < steps.index("delete_claim")
    assert steps[-1] == "release_place"
    attempts = [s.record.attempt for _, s in run.runtime.published if s.record.attempt]
    assert [(a.rung, a.result) for a in attempts] == [
        ("reboot", "done"),
        ("replace", "unknown"),
        ("replace", "done"),
    ]


@pytest.mark.parametrize("answer", [Command.RESUME, Command.APPROVE])
def test_a_machine_whose_reboot_was_refused_is_held_and_rebooted_before_it_is_given_away(
    answer: Command,
) -> None:
    """Nothing was done: a pod of somebody's, or a node on which no command can be started."""
    world = broken_for_good()
    world.refusals = ["1 pods are on the node again: default/node-debugger"]
    run = started(world)
    run.runtime.at(timedelta(hours=1), lambda: setattr(world, "pods", 1))
    say(run, timedelta(hours=2), answer)
    closing = run.finish()
    held = [story.record for _, story in run.runtime.published if story.record.held]
    assert "reboot refused: 1 pods are on the node again" in held[0].detail
    assert (closing.outcome, world.boots, world.deletions) == ("replaced", 1, 1)
    assert closing.actions == (
        "drain: 3 pods evicted",
        "drain: 1 pods evicted",
        "reboot",
        "replace",
    )


def test_the_slot_is_held_until_the_newcomer_has_passed() -> None:
    world = broken_for_good()
    run = started(world)
    run.finish()
    assert "drop_slot" not in run.steps
    assert run.steps.index("release_place") > run.steps.index("look_for_successor")


def test_a_node_that_karpenter_did_not_make_is_held_as_before() -> None:
    world = lost_gpu(gpus_after_boot=GPUS[:7])
    run = started(world)
    say(run, timedelta(hours=3), Command.RETIRE)
    assert run.finish().outcome == "retired"
    assert not OF_KARPENTER & set(run.steps)
    assert world.marker is not None
    assert world.marker.handed_over.startswith("operator:alice@host")


@pytest.mark.parametrize("posture", [Posture.EXTERNAL, Posture.RESERVED])
def test_without_a_nodeclaim_policy_may_hand_it_to_people(posture: Posture) -> None:
    world = with_pool(lost_gpu(gpus_after_boot=GPUS[:7]), posture=posture)
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.marker is not None
    assert world.marker.handed_over.startswith("external:gpu-lost: to be replaced by hand")
    assert world.unschedulable


def test_an_external_pool_is_handed_over_though_karpenter_made_the_node() -> None:
    world = with_pool(broken_for_good(), posture=Posture.EXTERNAL)
    run = started(world)
    assert run.finish().outcome == "retired"
    assert isinstance(world, KarpenterWorld)
    assert world.deletions == 0


@pytest.mark.parametrize(
    ("waiting", "words"), [(False, "no pod needed another"), (True, "Karpenter made no other")]
)
def test_an_elastic_pool_needs_no_successor_if_karpenter_makes_none(
    waiting: bool, words: str
) -> None:
    """Pods that wait may wait for another pool; the slot is not kept for them for ever."""
    world = broken_for_good(comes=None, waiting=waiting)
    run = started(world)
    closing = run.finish()
    assert (closing.outcome, closing.detail) == ("replaced", f"the machine is gone; {words}")
    assert run.runtime.now() - START < timedelta(minutes=30)


def test_r33_a_static_pool_awaits_capacity_and_says_why_until_it_comes() -> None:
    """karpenter#2905: in a full reservation nothing comes before the old machine is gone."""
    world = broken_for_good(comes=timedelta(days=3), waiting=False, is_static=True)
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "replaced"
    awaiting = [s for p, s in run.runtime.published if p.value == "awaiting-capacity"]
    assert awaiting[0].record.detail == "no NodeClaim since"
    assert "awaiting-capacity" in [phase for phase, _ in closing.phases]
    assert len(run.runtime.steps) < 300, "a wait of days is not a history of looks"


def test_a_person_closes_what_waits_for_capacity() -> None:
    world = broken_for_good(comes=None, is_static=True)
    run = started(world)
    say(run, timedelta(days=1), Command.RETIRE)
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert "closed by a person" in closing.detail


def test_a_capacity_block_near_its_end_is_not_given_away() -> None:
    ends = datetime.fromisoformat("2026-01-01T00:30:00+00:00")
    world = with_pool(broken_for_good(), posture=Posture.RESERVED, capacity_ends=ends)
    run = started(world)
    run.say(timedelta(hours=3), lambda inbox, now: setattr(world, "gone", True))
    run.say(timedelta(hours=3), lambda inbox, now: world.touch())
    assert run.finish().outcome == "vanished"
    assert any("the capacity block of pool training ends" in line for line in details(run))
    assert isinstance(world, KarpenterWorld)
    assert world.deletions == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"claim": None}, "no NodeClaim has the providerID"),
        ({"claim": replace(CLAIM, provider_id="other")}, "no NodeClaim has the providerID"),
        ({"claim": replace(CLAIM, node_name="node-9")}, "names node-9, not Node node-1"),
        ({"owner_uid": "another"}, "is owned by another NodeClaim"),
        ({"claim": replace(CLAIM, node_pool="else")}, "is of NodePool else"),
    ],
    ids=["none", "other-machine", "other-node", "recreated-claim", "other-pool"],
)
def test_r40_a_claim_that_is_not_surely_the_nodes_is_refused_and_held(
    change: dict[str, Any], why: str
) -> None:
    """karpenter#2808: providerID and nodeName of a claim pointed at different machines."""
    world = broken_for_good(**change)
    run = started(world)

    def look_at_it(inbox: Inbox, now: datetime) -> None:
        story = run.runtime.published[-1][1]
        assert story.record.held
        assert why in story.record.detail
        assert "approve" not in story.asks, "it would only meet the same refusal"

    run.say(timedelta(hours=3), look_at_it)
    say(run, timedelta(hours=4), Command.RETIRE)
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.deletions == 0
    assert world.marker is not None
    assert "not replaced" in world.marker.handed_over


ACTING: dict[str, Callable[[KarpenterWorld], None]] = {
    "disrupted-taint": lambda w: setattr(w, "taints", ("karpenter.sh/disrupted:NoSchedule",)),
    "rebooting-taint": lambda w: setattr(w, "taints", ("karpenter.sh/rebooting:NoSchedule",)),
    "rebooting": lambda w: setattr(w, "claim", replace(CLAIM, conditions={"Rebooting": "True"})),
    "deleting": lambda w: setattr(w, "claim", replace(CLAIM, deleting=True)),
    "timestamp": lambda w: setattr(w, "claim", replace(CLAIM, terminating_at="2026-01-01")),
}


@pytest.mark.parametrize("acts", ACTING.values(), ids=ACTING)
@pytest.mark.parametrize("step", ["note_slot", "drain", "await_reboot", "delete_claim"])
def test_karpenter_that_acts_meanwhile_has_the_node_and_nothing_of_ours_stays(
    acts: Callable[[KarpenterWorld], None], step: str
) -> None:
    if step == "delete_claim" and acts is ACTING["deleting"]:
        pytest.skip("a deletion that was sent by somebody is the one we want")
    world = broken_for_good()
    run = started(world)
    world.hooks[step] = lambda: acts(world)
    if step == "await_reboot":
        world.hooks["inventory"] = world.hooks.pop(step)
    closing = run.finish()
    assert closing.outcome == "yielded"
    assert "left to another healer" in closing.detail
    assert world.deletions == 0
    assert world.marker is None
    assert not world.unschedulable


def test_vetoes_that_karpenters_reboot_took_away_stand_again() -> None:
    world = broken_for_good()
    run = started(world)
    world.hooks["prove_reboot"] = lambda: setattr(world, "vetoes_stand", False)
    run.finish()
    steps = run.steps
    assert steps.index("assert_vetoes") > steps.index("reboot")
    assert world.vetoes_stand


def test_what_blocks_the_end_is_told_and_past_the_deadline_people_are_asked() -> None:
    stuck = (Blocker(BlockerKind.FINALIZER, "example.com/hold", "holds the Node"),)
    world = broken_for_good(removal_takes=None, blockers=stuck)
    run = started(world)

    def let_go(inbox: Inbox, now: datetime) -> None:
        told = [s.record for _, s in run.runtime.published if "waits" in s.record.detail]
        assert "example.com/hold" in told[0].detail
        assert [r.held for r in told] == [False, True]
        assert world.marker is not None
        assert world.marker.slot is None, "held: another node may be repaired"
        world.removal_takes = timedelta()
        inbox.take_command(Command.RESUME, word(), now)

    run.say(timedelta(hours=5), let_go)
    assert run.finish().outcome == "replaced"
    assert world.deletions == 1


def test_the_same_machine_that_comes_back_is_noticed() -> None:
    world = broken_for_good(new_gpus=(*GPUS[:7], "GPU-x"))
    run = started(world)
    say(run, timedelta(hours=5), Command.APPROVE)
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert any("the same machine came back" in line for line in details(run))
    assert world.baselines == []


@pytest.mark.parametrize(
    "change", [{"new_health": Health.UNKNOWN}, {"new_gpus": ("GPU-a",)}], ids=["unknown", "one-gpu"]
)
def test_a_newcomer_that_does_not_pass_is_held_until_it_does(change: dict[str, Any]) -> None:
    world = broken_for_good(**change)
    run = started(world)

    def mend(inbox: Inbox, now: datetime) -> None:
        assert run.runtime.published[-1][1].record.held
        world.new_health = Health.HEALTHY
        world.new_gpus = tuple(f"GPU-y{n}" for n in range(8))
        inbox.take_command(Command.RESUME, word(), now)

    run.say(timedelta(hours=5), mend)
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert closing.detail == f"replaced by Node {NEWCOMER.name}"


def test_retire_of_a_karpenter_node_replaces_it() -> None:
    world = broken_for_good()
    run = started(world)
    say(run, timedelta(seconds=3), Command.RETIRE)
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert (world.boots, world.deletions) == (0, 1)


def steps_of_a_replacement() -> list[str]:
    run = started(broken_for_good())
    run.finish()
    return run.steps


REPLACING = steps_of_a_replacement()
DELETED = REPLACING.index("delete_claim")


def at_step(run: Run, index: int, action: Callable[[], None]) -> None:
    """Runs `action` right before the `index`-th step is answered."""
    answer, count = run.world.answer, [0]

    def counted(name: str, request: Any, now: datetime) -> Any:
        waits = ("record_phase", "await_reboot", "await_claim_gone", "find_successor")
        if name not in waits:
            if count[0] == index:
                action()
            count[0] += 1
        return answer(name, request, now)

    run.world.answer = counted  # type: ignore[method-assign]  # the test's own world


@pytest.mark.parametrize("index", range(len(REPLACING)), ids=lambda i: f"{i}-{REPLACING[i]}")
def test_a_node_deleted_at_any_step_vanishes_before_our_deletion_and_is_followed_after_it(
    index: int,
) -> None:
    if REPLACING[index] == "release_place":
        pytest.skip("asks nothing of the node")
    world = broken_for_good()
    run = started(world)

    def delete() -> None:
        world.gone, world.claim, world.deleted_at = True, None, run.runtime.now()
        world.touch()

    at_step(run, index, delete)
    closing = run.finish()
    # A deletion that finds the claim gone is done: whoever sent it.
    assert closing.outcome == ("vanished" if index < DELETED else "replaced")
    assert world.deletions <= 1


@pytest.mark.parametrize("index", range(len(REPLACING)), ids=lambda i: f"{i}-{REPLACING[i]}")
def test_retire_at_any_step_gives_the_machine_away_at_most_once(index: int) -> None:
    world = broken_for_good()
    run = started(world)
    at_step(run, index, lambda: run.inbox.take_command(Command.RETIRE, word(), run.runtime.now()))
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert world.deletions == 1
    assert run.steps.count("reboot") <= 1


@pytest.mark.parametrize("index", range(DELETED + 1), ids=lambda i: f"{i}-{REPLACING[i]}")
def test_a_cordon_removed_before_the_deletion_keeps_the_machine(index: int) -> None:
    world = broken_for_good()
    run = started(world)

    def overrule() -> None:
        world.unschedulable, world.marker = False, None
        world.touch()

    at_step(run, index, overrule)
    run.say(timedelta(days=2), lambda inbox, now: setattr(world, "boots", 9))
    run.say(timedelta(days=2), lambda inbox, now: world.touch())
    closing = run.finish()
    assert closing.outcome == "yielded"
    assert world.deletions == 0


def test_unknown_health_never_replaces() -> None:
    world = KarpenterWorld()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)
    say(run, timedelta(hours=1), Command.APPROVE)
    run.say(timedelta(hours=2), lambda inbox, now: setattr(world, "gone", True))
    run.say(timedelta(hours=2), lambda inbox, now: world.touch())
    assert run.finish().outcome == "vanished"
    assert world.deletions == 0


def test_a_successor_that_vanishes_is_followed_by_another_look() -> None:
    world = broken_for_good(newcomer_is_gone=True)
    run = started(world)
    looks = []

    def come_back() -> None:
        looks.append(1)
        world.newcomer_is_gone = len(looks) < 3
        world.hooks["look_for_successor"] = come_back

    world.hooks["look_for_successor"] = come_back
    assert run.finish().outcome == "replaced"
    assert world.baselines == ["machine-2"]
    assert NEW_CLAIM.name not in "".join(details(run))


def test_the_built_in_ladder_ends_in_replace_where_there_is_a_claim() -> None:
    policy = Policy(pools=(Pool(name="training", selector={"pool": "training"}),))
    assert policy.pools[0].posture is None
    run = started(broken_for_good())
    run.finish()
    assert any("replace" in story.plan for _, story in run.runtime.published)
