"""How an episode can end on a node that Karpenter made, as scenes that can be played again.

Owns the scenes of the rung `replace`: given away and followed, kept, waited for, left to Karpenter.
As in `outcomes.py`, events come hours apart or at a call; a newcomer's calls are told by its UID.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from tests.workflows.karpenter_world import CLAIM, NEWCOMER, KarpenterWorld, broken_for_good
from tests.workflows.outcomes import HELD, HOUR, Call, Play, Scene, is_step
from tests.workflows.world import GPUS, started
from workflows.contracts.kube import Owner
from workflows.contracts.messages import Command
from workflows.model.node_task import Health
from workflows.model.policy import Posture
from workflows.model.remediation.removal import Blocker, BlockerKind

Change = Callable[[KarpenterWorld], None]


def _play(**more: Any) -> Play:
    return Play(started(broken_for_good(**more)))


def _world(play: Play) -> KarpenterWorld:
    assert isinstance(play.world, KarpenterWorld)
    return play.world


def _of_newcomer(step: str) -> Call:
    def is_it(name: str, request: Any) -> bool:
        owner = getattr(request, "owner", request)
        return name == step and isinstance(owner, Owner) and owner.node.uid == NEWCOMER.uid

    return is_it


def _changed_at(step: str, change: Change, **more: Any) -> Play:
    play = _play(**more)

    def changes() -> None:
        change(_world(play))
        play.world.touch()

    play.when(is_step(step), changes)
    return play


def _told(moment: timedelta, command: Command, **more: Any) -> Play:
    play = _play(**more)
    play.tell(moment, command)
    return play


def _retired_at(step: str) -> Play:
    play = _play()
    play.when(is_step(step), lambda: play.say(Command.RETIRE, "retire"))
    return play


def _let_go() -> Play:
    stuck = (Blocker(BlockerKind.FINALIZER, "example.com/hold", "holds the Node"),)
    play = _play(removal_takes=None, blockers=stuck)

    def let_go() -> None:
        _world(play).removal_takes = timedelta()
        play.say(Command.RESUME, "let-go")

    play.at(5 * HOUR, let_go)
    return play


def _examined_again() -> Play:
    play = _play(new_health=Health.UNKNOWN)

    def mend() -> None:
        _world(play).new_health = Health.HEALTHY
        play.say(Command.RESUME, "examine")

    play.at(5 * HOUR, mend)
    return play


def _followed_at_the_second_time() -> Play:
    play = _play()

    def comes_again() -> None:
        _world(play).newcomer_is_gone = False

    def vanishes() -> None:
        _world(play).newcomer_is_gone = True
        play.when(is_step("look_for_successor"), comes_again)

    play.when(_of_newcomer("inventory"), vanishes)
    return play


def _gone_with_its_pods(**more: Any) -> Play:
    play = _play(blocked=True, **more)
    play.when(is_step("drain"), lambda: play.say(Command.RETIRE, "retire"))
    play.tell(2 * HOUR, Command.APPROVE)
    return play


def _followed_while_held() -> Play:
    play = _play(new_health=Health.UNKNOWN)

    def comes_again() -> None:
        _world(play).newcomer_is_gone, _world(play).new_health = False, Health.HEALTHY

    def vanishes() -> None:
        _world(play).newcomer_is_gone = True
        play.when(is_step("look_for_successor"), comes_again)
        play.say(Command.RESUME, "examine")

    play.at(5 * HOUR, vanishes)
    return play


def _ready_too_late() -> Play:
    play = _play(new_is_ready=False)
    play.at(5 * HOUR, lambda: setattr(play.world, "new_is_ready", True))
    return play


def _external() -> Play:
    world = broken_for_good()
    pool = world.policy.pools[0].model_copy(update={"posture": Posture.EXTERNAL})
    world.policy = world.policy.model_copy(update={"pools": (pool,)})
    return Play(started(world))


def _loses_vetoes(world: KarpenterWorld) -> None:
    world.vetoes_stand = False


def _is_tainted(world: KarpenterWorld) -> None:
    world.taints = ("karpenter.sh/disrupted:NoSchedule",)


def _is_rebooted(world: KarpenterWorld) -> None:
    world.claim = replace(CLAIM, conditions={"Rebooting": "True"})


SCENES: tuple[Scene, ...] = (
    Scene("replaced-after-a-reboot", "replaced", 1, _play),
    Scene(
        "replaced-under-vetoes-put-back",
        "replaced",
        1,
        partial(_changed_at, "prove_reboot", _loses_vetoes),
    ),
    Scene("replaced-by-retire", "replaced", 0, partial(_retired_at, "drain")),
    Scene("replaced-and-none-needed", "replaced", 1, partial(_play, comes=None, waiting=False)),
    Scene(
        "replaced-when-capacity-came",
        "replaced",
        1,
        partial(_play, comes=3 * HOUR, is_static=True),
    ),
    Scene(
        "awaiting-capacity-closed",
        "replaced",
        1,
        partial(_told, 3 * HOUR, Command.RETIRE, comes=None, is_static=True),
    ),
    Scene(
        "the-same-machine-approved",
        "replaced",
        1,
        partial(_told, 5 * HOUR, Command.APPROVE, new_gpus=GPUS),
    ),
    Scene("the-newcomer-examined-again", "replaced", 1, _examined_again),
    Scene("the-newcomer-vanished-and-came-again", "replaced", 1, _followed_at_the_second_time),
    Scene("given-away-with-its-pods", "replaced", 0, _gone_with_its_pods),
    Scene("handed-over-with-its-pods", "retired", 0, partial(_gone_with_its_pods, claim=None)),
    Scene("the-newcomer-vanished-while-held", "replaced", 1, _followed_while_held),
    Scene("the-newcomer-ready-too-late", "replaced", 1, _ready_too_late),
    Scene("the-removal-let-go", "replaced", 1, _let_go),
    Scene("held-for-the-same-machine", HELD, 1, partial(_play, new_gpus=GPUS)),
    Scene("held-for-want-of-a-claim", HELD, 1, partial(_play, claim=None)),
    Scene("handed-over-by-an-external-pool", "retired", 1, _external),
    Scene("yielded-to-karpenter", "yielded", 0, partial(_changed_at, "drain", _is_tainted)),
    Scene(
        "yielded-to-karpenter-at-the-deletion",
        "yielded",
        1,
        partial(_changed_at, "delete_claim", _is_rebooted),
    ),
)
