"""Every way in which an episode can end, as a scene that can be played again and again.

Owns the scenes: a node, what befalls it, what people say and when. A scene's events come by the
clock (hours apart, so that a delay of seconds changes no order) or at a call of the runbook.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from tests.workflows.promises import Referee
from tests.workflows.world import (
    GPUS,
    NODE,
    Run,
    World,
    diagnosed,
    lost_gpu,
    report_of,
    started,
    word,
    xid,
)
from workflows.contracts.messages import Command, Opening
from workflows.memory_runtime import START
from workflows.model.node_task import Health
from workflows.model.remediation.marks import Marker, Quarantine, entry_marker
from workflows.model.remediation.phase import Phase
from workflows.runtime import PASSING

HELD = "held"
"""Not an outcome of an episode; here: people were still asked when the scene was over."""
OVER = timedelta(hours=30)
"""When a person ends what is still open: past the first reminder, and past every scene's events."""
OTHER = "ep-other"
"""Who owns the node in the scene in which somebody else does."""
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

Call = Callable[[str, Any], bool]


@dataclass
class Play:
    """One playing of a scene: the run, its referee, and what happens at which call."""

    run: Run
    cues: list[tuple[Call, Callable[[], None]]] = field(default_factory=list)
    is_held_at_end: bool = False
    referee: Referee = field(init=False)

    def __post_init__(self) -> None:
        world = self.run.world
        self.referee = Referee(self.run, was_cordoned=world.unschedulable and not world.marker)
        self.at(OVER, self._close)
        # A machine that was given away then is closed by a second word.
        self.run.say(OVER + HOUR, lambda inbox, now: self.say(Command.RETIRE, "over-and-closed"))
        self.run.say(OVER + 2 * HOUR, lambda inbox, now: _never_ends(self.run))

    @property
    def world(self) -> World:
        return self.run.world

    def at(self, moment: timedelta, action: Callable[[], None]) -> None:
        """At that moment; counts as news to a run whose quarantine was undone before it."""
        self.referee.words.append(START + moment)
        self.run.say(moment, lambda inbox, now: action())

    def tell(self, moment: timedelta, command: Command) -> None:
        """A person's word at that moment."""
        self.at(moment, lambda: self.say(command, f"{command}-{moment}"))

    def say(self, command: Command, request_id: str) -> None:
        """A person's word, now; what it brings about is not against an uncordon of that moment."""
        self.referee.words.append(self.run.runtime.now())
        self.referee.may_keep_pods |= command is Command.APPROVE and self._is_told_of_pods()
        self.run.inbox.take_command(command, word(request_id), self.run.runtime.now())

    def _is_told_of_pods(self) -> bool:
        published = self.run.runtime.published
        return bool(published) and "though these pods have not ended" in published[-1][1].asks

    def when(self, call: Call, action: Callable[[], None]) -> None:
        """Right before the first call that is like this."""
        self.cues.append((call, action))

    def news(self, condition: str, reason: str, episode: str) -> None:
        """A fault that watch sees: its reflex marks an unmarked node first, then it reports."""
        world, now = self.world, self.run.runtime.now()
        self.referee.words.append(now)
        world.fail(condition, reason)
        if world.marker is None and not world.gone:
            view = world.view(now)
            draft = Marker(episode, NODE.uid, now, "r", "gpu-lost", Quarantine.REFLEX)
            world.marker, world.unschedulable = entry_marker(view, draft), True
            world.touch()
        known = world.marker.episode if world.marker else episode
        self.run.inbox.take_report(report_of(world, known, now), now)

    def heal(self) -> None:
        """The conditions turn good by themselves."""
        self.world.bad.clear()
        self.world.touch()

    def uncordon(self) -> None:
        """As `kubectl uncordon` does; the marker stays."""
        self.referee.undone_at = self.run.runtime.now()
        self.world.unschedulable = False
        self.world.touch()

    def _close(self) -> None:
        self.is_held_at_end = True
        self.referee.judge_open()
        self.world.blocked = False
        self.say(Command.RETIRE, "over")


@dataclass(frozen=True)
class Scene:
    """`build` makes a fresh playing; outcome, and how many reboots were asked for, undisturbed."""

    name: str
    outcome: str
    reboots: int
    build: Callable[[], Play]


def _never_ends(run: Run) -> None:
    raise AssertionError(f"no end after {OVER}: {run.inbox.story[-6:]}")


def is_step(step: str) -> Call:
    """True for the calls of this contract."""
    return lambda name, request: name == step


def _tells(phase: Phase) -> Call:
    if phase in PASSING:  # told by the runtime alone; the record comes with the next
        return lambda name, _request: name == "give_back"
    return lambda name, request: name == "record_phase" and request.phase == phase.value


def _unknown(**more: Any) -> World:
    world = World(**more)
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    return world


def _unwell(condition: str, reason: str, **more: Any) -> World:
    world = World(**more)
    world.fail(condition, reason)
    return world


def _play(world: World) -> Play:
    return Play(started(world))


def _healed_after(moment: timedelta, **more: Any) -> Play:
    play = _play(_unknown(**more))
    play.at(moment, play.heal)
    return play


def _found_well() -> Play:
    play = _play(_unwell("InterconnectHealthy", "Interconnect"))
    play.when(is_step("quarantine"), play.heal)
    return play


def _reflex(reason: str, **more: Any) -> World:
    """Marked by watch at once."""
    world = lost_gpu(**more)
    world.bad = {"GPUHealthy": ("False", reason)}
    return world


def _repaired_by_hand() -> Play:
    play = _play(lost_gpu(gpus_after_boot=GPUS[:7]))

    def repair() -> None:
        play.world.gpus = GPUS
        play.say(Command.RESUME, "repaired")

    play.at(3 * HOUR, repair)
    return play


def _approved() -> Play:
    play = _play(lost_gpu(blocked=True))
    play.tell(2 * HOUR, Command.DENY)
    play.at(4 * HOUR, lambda: setattr(play.world, "blocked", False))
    play.tell(5 * HOUR, Command.APPROVE)
    return play


def _denied() -> Play:
    play = _play(lost_gpu(blocked=True))
    play.tell(2 * HOUR, Command.DENY)
    return play


def _climbs() -> Play:
    play = _healed_after(12 * MINUTE)
    play.when(_tells(Phase.PROBATION), lambda: play.news("GPUHealthy", "GpuLost", "ep-2"))
    return play


def _relapses() -> Play:
    play = _play(lost_gpu())
    play.when(_tells(Phase.PROBATION), lambda: play.news("GPUHealthy", "GpuLost", "ep-2"))
    return play


def _reported_at_the_close() -> Play:
    play = _play(lost_gpu())
    play.when(
        lambda name, request: name == "record_phase" and request.outcome == "returned",
        lambda: play.news("GPUHealthy", "GpuLost", "ep-2"),
    )
    return play


def _worsens() -> Play:
    play = _play(_unknown())
    play.at(10 * MINUTE, lambda: play.news("GPUHealthy", "GpuLost", "ep-1"))
    return play


def _retired_healthy() -> Play:
    opening = Opening(NODE, "test", "ep-1", "training", "alice", operator_reason="a fan")
    play = Play(Run(World(), opening))
    play.say(Command.RETIRE, "retire")
    return play


def _retired_at(step: str) -> Play:
    play = _play(lost_gpu())
    play.when(is_step(step), lambda: play.say(Command.RETIRE, "retire"))
    return play


def _retired_while_paused() -> Play:
    play = _play(lost_gpu())
    play.when(is_step("drain"), lambda: play.say(Command.PAUSE, "pause"))
    play.tell(2 * HOUR, Command.RETIRE)
    return play


def _resumed_after_a_pause() -> Play:
    play = _play(lost_gpu())
    play.when(is_step("drain"), lambda: play.say(Command.PAUSE, "pause"))
    play.tell(2 * HOUR, Command.RESUME)
    return play


def _of_another_healer() -> Play:
    world = _unwell("GPUHealthy", "GpuLost", taints=("karpenter.sh/disrupted:NoSchedule",))
    return _play(world)


def _of_another_owner() -> Play:
    play = _play(_unwell("InterconnectHealthy", "Interconnect"))
    other = Marker(OTHER, NODE.uid, START, "r", "interconnect", Quarantine.CONFIRMED)

    def taken() -> None:
        play.world.marker, play.world.unschedulable = other, True
        play.world.touch()

    play.when(is_step("quarantine"), taken)
    return play


def _out_of_a_backup() -> Play:
    play = _play(lost_gpu())

    def restored() -> None:
        world = play.world
        world.closed_outcome, world.marker, world.unschedulable = "returned", None, False

    play.when(is_step("drain"), restored)
    return play


def _vanishing_at(phase: Phase) -> Play:
    confirmed = _unwell("InterconnectHealthy", "Interconnect")
    play = _play(confirmed)

    def vanish() -> None:
        play.world.gone = True
        play.world.touch()

    play.when(_tells(phase), vanish)
    return play


def _overruled(world: World) -> Play:
    play = _play(world)
    play.at(HOUR, play.uncordon)
    return play


def _resumed_after_an_overruling() -> Play:
    play = _overruled(lost_gpu(blocked=True))
    play.at(2 * HOUR, lambda: setattr(play.world, "blocked", False))
    play.tell(3 * HOUR, Command.RESUME)
    return play


def _booted_by_a_person() -> Play:
    play = _overruled(lost_gpu(blocked=True))

    def boot() -> None:
        play.world.boots += 1
        play.heal()

    play.at(3 * HOUR, boot)
    return play


def _swept(world: World) -> Play:
    world.marker = Marker("dead", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    world.unschedulable = True
    return Play(Run(world, Opening(NODE, "test", "ep-9", "training", "sweep", recover=True)))


def _swept_too_late() -> Play:
    return Play(Run(World(), Opening(NODE, "test", "ep-9", "training", "sweep", recover=True)))


def _cordoned_before() -> Play:
    world = _unwell("InterconnectHealthy", "Interconnect")
    world.unschedulable = True
    return _play(world)


_LEARNED = diagnosed(Health.FAULTY, xid(79, "gpu-lost"))

SCENES: tuple[Scene, ...] = (
    Scene("dismissed", "dismissed", 0, partial(_healed_after, timedelta(seconds=90))),
    Scene("dismissed-by-the-sweep", "dismissed", 0, _swept_too_late),
    Scene("rebooted", "returned", 1, lambda: _play(lost_gpu())),
    Scene(
        "confirmed-and-rebooted",
        "returned",
        1,
        lambda: _play(_unwell("InterconnectHealthy", "Interconnect")),
    ),
    Scene("under-a-persons-cordon", "returned", 1, _cordoned_before),
    Scene("recovered", "returned", 0, partial(_healed_after, 12 * MINUTE)),
    Scene("found-well", "returned", 0, _found_well),
    Scene("contained", "returned", 1, lambda: _play(_reflex("GpuMemoryContained"))),
    Scene(
        "contained-and-evicted",
        "returned",
        1,
        lambda: _play(_reflex("GpuMemoryContained", works_on=True)),
    ),
    Scene(
        "unknown-until-the-kernel-spoke",
        "returned",
        1,
        lambda: _play(_unknown(kernel_log_says=_LEARNED)),
    ),
    Scene("worsened", "returned", 1, _worsens),
    Scene("repaired-by-hand-and-resumed", "returned", 1, _repaired_by_hand),
    Scene("denied-then-approved", "returned", 1, _approved),
    Scene("paused-and-resumed", "returned", 1, _resumed_after_a_pause),
    Scene("relapsed-and-climbed", "returned", 1, _climbs),
    Scene("overruled-and-resumed", "returned", 1, _resumed_after_an_overruling),
    Scene("swept-and-well", "returned", 0, lambda: _swept(World())),
    Scene("retired-healthy", "retired", 0, _retired_healthy),
    Scene("retired-at-the-drain", "retired", 0, partial(_retired_at, "drain")),
    Scene("retired-at-the-reboot", "retired", 1, partial(_retired_at, "reboot")),
    Scene("retired-in-the-gate", "retired", 1, partial(_retired_at, "diagnose")),
    Scene("retired-while-paused", "retired", 0, _retired_while_paused),
    Scene("yielded-to-another-healer", "yielded", 0, _of_another_healer),
    Scene("yielded-to-another-owner", "yielded", 0, _of_another_owner),
    Scene("yielded-out-of-a-backup", "yielded", 0, _out_of_a_backup),
    Scene("yielded-to-who-booted-it", "yielded", 0, _booted_by_a_person),
    Scene("held-for-a-lost-gpu", HELD, 1, lambda: _play(lost_gpu(gpus_after_boot=GPUS[:7]))),
    Scene("held-for-a-reboot-that-came-not", HELD, 1, lambda: _play(lost_gpu(listens=False))),
    Scene("held-for-a-blocked-drain", HELD, 0, _denied),
    Scene("held-for-want-of-a-baseline", HELD, 1, lambda: _play(lost_gpu(baseline=None))),
    Scene("held-unknown", HELD, 0, lambda: _play(_unknown())),
    Scene("held-after-a-relapse", HELD, 1, _relapses),
    Scene("held-for-a-report-at-the-close", HELD, 1, _reported_at_the_close),
    Scene("held-by-an-overruling", HELD, 0, lambda: _overruled(lost_gpu(blocked=True))),
    Scene("held-by-the-sweep", HELD, 0, lambda: _swept(lost_gpu())),
    *(
        Scene(f"vanished-{phase}", "vanished", reboots, partial(_vanishing_at, phase))
        for phase, reboots in (
            (Phase.SUSPECT, 0),
            (Phase.QUARANTINED, 0),
            (Phase.DRAINED, 0),
            (Phase.REBOOTED, 1),
            (Phase.VALIDATED, 1),
            (Phase.PROBATION, 1),
        )
    ),
)
