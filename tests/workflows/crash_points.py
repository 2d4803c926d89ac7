"""Crash points: every call of the runbook to the world, and every way in which it can go wrong there.

Owns what a crash is (a worker that dies before or after the effect, a word or a finding that comes
meanwhile, a node that vanishes, a person's hand), where it may be put in a scene, and the playing
of a scene with one crash in it. What must hold is `promises.py`'s, the scenes are `outcomes.py`'s.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from tests.workflows.outcomes import HELD, OTHER, Play, Scene
from tests.workflows.promises import Seen
from workflows.contracts.messages import Command
from workflows.contracts.options import options_of
from workflows.runtime import Interrupted

DEAD_FOR = timedelta(seconds=16)
"""From the death of a worker to the next attempt: the longest heartbeat, and a poll."""
_NOT_OURS = frozenset({"yielded", "vanished"})
LAPS = 2
"""How often the same call, after the same call, on a node that is the same, is crashed."""
CLOSING = ("record_phase", "release_place", "read_node")
"""What a run that has its outcome still calls; the last, if it was told of a new node meanwhile."""


class Crash(StrEnum):
    """What happens at one call."""

    DIES_BEFORE = "dies-before-the-effect"
    DIES_AFTER = "dies-after-the-effect"
    RETIRED = "is-retired-meanwhile"
    DIES_AND_RETIRED = "dies-after-the-effect-and-is-retired"
    VANISHES = "node-vanishes"
    VANISHES_UNTOLD = "node-vanishes-and-nobody-says-so"
    UNCORDONED = "a-person-uncordons"
    UNMARKED = "a-person-takes-mark-and-cordon-off"
    WORSE = "a-worse-fault-is-reported"


UNHEARD = frozenset({Crash.DIES_AFTER, Crash.DIES_AND_RETIRED})
"""The step is carried out, and nobody hears of it."""
DEATHS = frozenset({Crash.DIES_BEFORE, *UNHEARD})
HEALED = frozenset({Crash.DIES_BEFORE, Crash.DIES_AFTER})
"""After these everything must end as if nothing had been."""
HANDS = frozenset({Crash.UNCORDONED, Crash.UNMARKED})
"""These need a quarantine that can be undone."""


@dataclass(frozen=True)
class Ending:
    """How a playing ended, as far as anybody may care."""

    outcome: str
    boots: int
    issued: tuple[str, ...]
    pods: int
    is_out: bool
    is_handed_over: bool
    deletions: int


@dataclass(frozen=True)
class Called:
    """One call of the runbook, and the node right before it.

    `is_over` = the scene is over: a person has ended what was left open.
    """

    name: str
    before: Seen
    is_over: bool

    def may_meet(self, crash: Crash) -> bool:
        """True if this crash can happen here, and changes anything."""
        if self.is_over:
            return False
        if self.before.is_gone:
            return crash in DEATHS or crash is Crash.RETIRED
        marker = self.before.marker
        is_ours = self.before.is_out and marker is not None and marker.episode != OTHER
        return is_ours or crash not in HANDS


@dataclass
class Calls:
    """Stands between the runbook and the world: counts the calls, crashes at one of them."""

    play: Play
    crash: Crash | None = None
    number: int = -1
    seen: list[Called] = field(default_factory=list)
    has_crashed: bool = False

    def answer(self, name: str, request: Any, now: datetime) -> Any:
        """See `memory_runtime.World`."""
        self._play_cues(name, request)
        number = len(self.seen)
        is_over = self.play.is_held_at_end
        self.seen.append(Called(name, self.play.referee.look(), is_over))
        if number == self.number and self.crash is not None:
            self.has_crashed = True
            return self._crash(self.crash, name, request)
        return self._carry_out(name, request)

    def _play_cues(self, name: str, request: Any) -> None:
        for cue in [cue for cue in self.play.cues if cue[0](name, request)]:
            self.play.cues.remove(cue)
            cue[1]()

    def _carry_out(self, name: str, request: Any, *, is_heard: bool = True) -> Any:
        play = self.play
        now = play.run.runtime.now()
        play.world.cool(now)
        before = play.referee.look()
        try:
            answer = type(play.world).answer(play.world, name, request, now)
        finally:
            play.referee.judge(name, request, before, play.referee.look())
        if is_heard:
            play.referee.hear(name, request, answer)
        return answer

    def _crash(self, crash: Crash, name: str, request: Any) -> Any:
        play = self.play
        if crash in UNHEARD:
            self._carry_out_unheard(name, request)
        if crash in DEATHS:
            play.run.runtime.let_pass(DEAD_FOR)
        self._strike(crash)
        reason = play.run.inbox.interruption()
        if crash is Crash.DIES_AND_RETIRED and reason and options_of(name).heartbeat is not None:
            raise Interrupted(reason, name)  # between two attempts a long step ends at once
        return self._carry_out(name, request)

    def _carry_out_unheard(self, name: str, request: Any) -> None:
        try:
            self._carry_out(name, request, is_heard=False)
        except AssertionError:
            raise
        except Exception:  # noqa: BLE001, S110 - whatever it came to, nobody hears of it
            pass

    def _strike(self, crash: Crash) -> None:
        """What comes from outside, if this crash is of that kind."""
        play = self.play
        if crash in (Crash.RETIRED, Crash.DIES_AND_RETIRED):
            play.say(Command.RETIRE, "crash")
        elif crash in (Crash.VANISHES, Crash.VANISHES_UNTOLD):
            play.world.gone = True
            if crash is Crash.VANISHES:
                play.world.touch()
        elif crash in HANDS:
            if crash is Crash.UNMARKED:
                play.world.marker = None
            play.uncordon()
        elif crash is Crash.WORSE:
            is_lost = play.world.bad.get("GPUHealthy", ("", ""))[1] == "GpuLost"
            other, worse = ("InterconnectHealthy", "Interconnect"), ("GPUHealthy", "GpuLost")
            play.news(*(other if is_lost else worse), "ep-worse")


@dataclass(frozen=True)
class Played:
    """A scene that was played to its end."""

    ending: Ending
    calls: tuple[Called, ...]
    was_blocked: bool
    story: tuple[str, ...]


def play(scene: Scene, crash: Crash | None = None, number: int = -1) -> Played:
    """Plays the scene, with a crash at the call of that number.

    Raises:
        AssertionError: a promise was broken; the message names call and story.
    """
    playing = scene.build()
    calls = Calls(playing, crash, number)
    was_blocked = playing.world.blocked
    playing.world.answer = calls.answer  # type: ignore[method-assign]
    try:
        closing = playing.run.finish()
        playing.referee.judge_closed(closing.outcome)
        assert crash is None or calls.has_crashed, "there was no such call"
    except Exception as error:
        name = calls.seen[number].name if 0 <= number < len(calls.seen) else "?"
        story = "\n  ".join(playing.run.inbox.story[-15:])
        raise AssertionError(
            f"{scene.name}, {crash} at call {number} ({name}): {error!r}\n  {story}"
        ) from error
    node = playing.referee.look()
    ending = Ending(
        outcome=HELD if playing.is_held_at_end else closing.outcome,
        boots=playing.world.boots,
        issued=node.issued,
        pods=node.pods,
        is_out=node.is_cordoned,
        is_handed_over=node.marker is not None and bool(node.marker.handed_over),
        deletions=node.deletions,
    )
    return Played(ending, tuple(calls.seen), was_blocked, tuple(playing.run.inbox.story))


def points_of(undisturbed: Played, crash: Crash) -> tuple[int, ...]:
    """The numbers of the calls at which this crash can happen.

    A loop that asks the same again (a gate for half an hour) is met in its first laps only.
    """
    laps: Counter[tuple[str, str, Seen]] = Counter()
    points, last = [], ""
    for number, call in enumerate(undisturbed.calls):
        lap = (last, call.name, call.before)
        laps[lap] += 1
        last = call.name
        if laps[lap] <= LAPS and call.may_meet(crash):
            points.append(number)
    return tuple(points)


def judge(scene: Scene, undisturbed: Played, crash: Crash, number: int, played: Played) -> None:
    """What the crash may have changed of the scene's end."""
    ending, base = played.ending, undisturbed.ending
    where = f"{scene.name}, {crash} at call {number} ({undisturbed.calls[number].name})"
    tail = {call.name for call in played.calls[number + 1 :]}
    is_closing = tail <= set(CLOSING) and ending.outcome == base.outcome
    if crash in HEALED:
        assert ending == base, where
    elif crash in (Crash.RETIRED, Crash.DIES_AND_RETIRED):
        # Another may have the node, and what blocks the drain of a repair blocks that one too.
        allowed = {"retired", HELD if played.was_blocked else "", *(_NOT_OURS & {base.outcome})}
        if ending.deletions:
            allowed |= {"replaced", base.outcome}
        assert ending.outcome in allowed or is_closing, f"{where}: {ending}"
    elif crash in (Crash.VANISHES, Crash.VANISHES_UNTOLD):
        # A run that waits for people reads nothing until they speak.
        allowed = {"vanished", HELD if crash is Crash.VANISHES_UNTOLD else ""}
        if ending.deletions:
            allowed = {base.outcome, "replaced"}
        assert ending.outcome in allowed or is_closing, f"{where}: {ending}"
        assert len(ending.issued) <= len(base.issued), where
        assert ending.deletions <= base.deletions, where
    elif crash in HANDS:
        assert len(ending.issued) <= len(base.issued), where
        assert ending.deletions <= base.deletions, where
