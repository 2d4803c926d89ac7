"""Asking people: a question of its own, told with what each answer does, and repeated until one fits.

Owns the question's id (an answer to another question does not count), the reminders, and that it is
closed however the waiting ends. What is asked, and which answer goes on, is the caller's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from workflows.contracts.messages import Command
from workflows.episode import Episode
from workflows.inbox import Inbox
from workflows.runtime import Runtime, Until
from workflows.telling import publish_record


@dataclass(frozen=True)
class Question:
    """An open question; `text` names it for people."""

    run: Runtime
    episode: Episode
    text: str

    async def answer(
        self, why: str, answers: str, until: Until, is_taken: Callable[[Command | None], bool]
    ) -> Command | None:
        """Held: says why and what each answer does, reminds; the first answer that is taken.

        None = `until` held without an answer, and that was taken.
        """
        run, episode = self.run, self.episode
        reminder = timedelta(seconds=episode.policy.timing.reminder_s)
        while True:
            held = episode.record(run.now(), why, held=True)
            await publish_record(run, episode, held, "held", f"{self.text} {answers}")
            while await run.wait(until, reminder):
                command = run.inbox.take_answer()
                if is_taken(command):
                    return command
                run.inbox.tell(run.now(), f"{command}: stays held")


@contextmanager
def question(run: Runtime, episode: Episode) -> Iterator[Question]:
    """A question that is open meanwhile."""
    episode.questions += 1
    run.inbox.question = f"{episode.id}-q{episode.questions}"
    try:
        yield Question(run, episode, f"Question {run.inbox.question}.")
    finally:
        run.inbox.question = ""


def is_answered(inbox: Inbox) -> bool:
    """A person has answered."""
    return bool(inbox.answers)


def has_answer(inbox: Inbox) -> bool:
    """A person has answered, or retires the node where that interrupts nothing."""
    return is_answered(inbox) or inbox.retire is not None
