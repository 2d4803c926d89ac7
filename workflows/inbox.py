"""The inbox of one episode: everything that was signalled to it, recorded and not yet acted on.

Owns recording (handlers call it; it never awaits) and the answer to "is there a reason to stop
what is running". What does not match the episode, its question or the clock is recorded in the
story and ignored. Does not act: the runtime looks at it at each of its methods.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from workflows.contracts.messages import Command, ControlMessage, Grant, NodeFacts, Report
from workflows.model.detection.fault import Fault, is_worse
from workflows.model.detection.finding import printable
from workflows.model.detection.rules import RuleMatch
from workflows.model.remediation.budget import Budget

MAX_SEEN = 512
MAX_STORY = 400
MAX_ANSWERS = 16


class Interruption(StrEnum):
    """Why a running step is to be stopped."""

    RETIRE = "retire"
    WORSE = "worse finding"
    OVERRULED = "overruled"
    GONE = "node gone"


@dataclass(frozen=True)
class Expectation:
    """What the node must look like for this episode to go on: our marker, at least this new."""

    marker_episode: str
    resource_version: str


@dataclass
class Inbox:
    """All messages of one run. `heeding` = interruptions count (off while closing).

    `newcomer` = the node was reported as new, and has not been looked at since.
    """

    episodes: list[str]
    node_uid: str
    fault: Fault = Fault.DIAGNOSTIC_UNKNOWN
    heeding: bool = True
    may_worsen: bool = True
    expectation: Expectation | None = None
    question: str = ""
    report: Report | None = None
    told_at: dict[str, datetime] = field(default_factory=dict)
    fresh: list[RuleMatch] = field(default_factory=list)
    facts: NodeFacts | None = None
    newcomer: bool = False
    news: int = 0
    wants: int = 0
    wanted: dict[Budget, int] = field(default_factory=dict)
    grants: dict[Budget, Grant] = field(default_factory=dict)
    paused: ControlMessage | None = None
    retire: ControlMessage | None = None
    answers: list[tuple[Command, ControlMessage]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    _seen: dict[str, None] = field(default_factory=dict)

    @property
    def current(self) -> str:
        """The id that this run's marker carries now, or will carry."""
        return self.expectation.marker_episode if self.expectation else self.episodes[-1]

    def tell(self, at: datetime, line: str) -> None:
        """One more line of the story (the oldest beyond the bound are dropped)."""
        self.story.append(f"{at:%Y-%m-%d %H:%M:%S} {line}")
        del self.story[:-MAX_STORY]

    def take_report(self, report: Report, now: datetime) -> None:
        """A report of watch: matches whose ids are known already change nothing."""
        if report.node.uid != self.node_uid:
            self.tell(now, f"ignored a report about another Node UID {report.node.uid}")
            return
        if report.episode and report.episode not in self.episodes:
            self.episodes.append(report.episode)
        self.told_at.setdefault(report.episode, report.at)
        if report.marked_at and f"marked/{report.episode}" not in self._seen:
            self.expect(report.episode, report.marked_at)
        self.report = report
        self.newcomer |= report.newcomer
        if report.facts is not None:
            self.take_facts(report.facts)
        for match in report.matches:
            if self._is_new(match.id):
                self.fresh.append(match)
                self.news += 1
                self.tell(now, f"reported: {match.fault} by rule {match.rule}: {match.text}")

    def expect(self, marker_episode: str, resource_version: str) -> None:
        """From now on our marker with this id is to stand; a report can't say so once more.

        It may be late: the marker was given back, or a person took it off.
        """
        self._is_new(f"marked/{marker_episode}")
        self.expectation = Expectation(marker_episode, resource_version)

    def take_facts(self, facts: NodeFacts) -> None:
        """What the node looks like now; an older one than the last is dropped."""
        last = self.facts
        if facts.uid != self.node_uid:
            return
        if last and not facts.gone and _version(facts) < _version(last):
            return
        self.facts = facts
        self.news += 1

    def want(self, budget: Budget) -> int:
        """A place is wanted from now on; the number that its grant must carry."""
        if budget not in self.wanted:
            self.wants += 1
            self.wanted[budget] = self.wants
        return self.wanted[budget]

    def give_up(self, budget: Budget) -> None:
        """The place is not wanted any more; a grant of it that is still on its way is refused."""
        self.wanted.pop(budget, None)
        self.grants.pop(budget, None)

    def take_grant(self, grant: Grant, now: datetime) -> None:
        """A place the guard granted to this episode."""
        if grant.episode not in self.episodes:
            self.tell(now, f"ignored a grant for episode {grant.episode}")
            return
        if self.wanted.get(grant.budget) != grant.number:
            self.tell(now, f"ignored a grant of {grant.budget}: that place was given up")
            return
        self.grants[grant.budget] = grant
        self.news += 1

    def take_command(self, command: Command, message: ControlMessage, now: datetime) -> None:
        """A person's word, if it is meant for this episode and still valid."""
        by = printable(message.by, 64) or "somebody"
        why = f": {printable(message.reason, 200)}" if message.reason else ""
        refusal = self._refusal(command, message, now)
        if refusal:
            self.tell(now, f"ignored {command} by {by}{why} ({refusal})")
            return
        self.tell(now, f"{command} by {by}{why}")
        self.news += 1
        if command is Command.PAUSE:
            self.paused = message
        elif command is Command.RETIRE:
            self.retire = message
            self.paused = None
        elif command is Command.RESUME and self.paused:
            self.paused = None
        else:
            self.answers.append((command, message))
            del self.answers[:-MAX_ANSWERS]

    def _refusal(self, command: Command, message: ControlMessage, now: datetime) -> str:
        if message.request_id and not self._is_new(f"request/{message.request_id}"):
            return "it was received before"
        if message.expires and message.expires < now:
            return f"it expired at {message.expires:%H:%M:%S}"
        if message.episode and message.episode not in self.episodes:
            return f"it is for episode {printable(message.episode, 64)}"
        if command in (Command.APPROVE, Command.DENY) and not self.question:
            return "nothing is asked right now"
        if message.question and message.question != self.question:
            return f"it answers question {printable(message.question, 64)}"
        return ""

    def _is_new(self, key: str) -> bool:
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def pause(self) -> str:
        """Who keeps this run from acting, in words; "" = nobody, as far as it was told."""
        if self.paused is not None:
            by = printable(self.paused.by, 64) or "somebody"
            why = f": {printable(self.paused.reason, 200)}" if self.paused.reason else ""
            return f"paused by {by}{why}"
        if self.facts is not None and self.facts.paused:
            return "the node is paused"
        return ""

    def interruption(self) -> Interruption | None:
        """The most urgent reason to stop what is running; None = go on."""
        if not self.heeding:
            return None
        if self.facts and self.facts.gone:
            return Interruption.GONE
        if self.is_overruled():
            return Interruption.OVERRULED
        if self.retire:
            return Interruption.RETIRE
        if self.may_worsen and any(is_worse(match.fault, self.fault) for match in self.fresh):
            return Interruption.WORSE
        return None

    def is_overruled(self) -> bool:
        """True if our marker or the cordon was there and is not any more."""
        want, facts = self.expectation, self.facts
        if want is None or facts is None or facts.gone:
            return False
        if _version(facts) <= int(want.resource_version or 0):
            return False
        return facts.marker_episode != want.marker_episode or not facts.unschedulable

    def has_unheard(self) -> bool:
        """True if something came that nobody has acted on and that opens the episode again."""
        return bool(self.fresh) or self.retire is not None

    def take_fresh(self) -> tuple[RuleMatch, ...]:
        """The matches that nobody has looked at yet, worst first; they count as looked at."""
        fresh = tuple(self.fresh)
        self.fresh.clear()
        return fresh

    def take_answer(self) -> Command | None:
        """The oldest answer to the open question."""
        return self.answers.pop(0)[0] if self.answers else None


def _version(facts: NodeFacts) -> int:
    text = facts.resource_version
    return int(text) if text.isdigit() else 0
