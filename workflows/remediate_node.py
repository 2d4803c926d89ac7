"""RemediateNode: one episode on one node as a durable workflow.

Owns the wiring of the runbook to Temporal: signals are recorded in the inbox, queries answer from
it, and the runbook runs over the TemporalRuntime. Decides nothing.
"""

from temporalio import workflow

from workflows.contracts.messages import (
    Closing,
    Command,
    ControlMessage,
    Grant,
    NodeFacts,
    Opening,
    Report,
)
from workflows.inbox import Inbox
from workflows.lifecycle import remediate
from workflows.runtime import TemporalRuntime


@workflow.defn(name="RemediateNode")
class RemediateNode:
    """Suspect, quarantine, drain, repair, prove, give back: see `lifecycle.py`."""

    @workflow.init
    def __init__(self, opening: Opening) -> None:
        """Handlers may run before `run`, so the inbox is made here."""
        self._inbox = Inbox(episodes=[opening.episode], node_uid=opening.node.uid)
        self._run = TemporalRuntime(self._inbox)

    @workflow.run
    async def run(self, opening: Opening) -> Closing:
        """Lives the episode; the result says how it ended."""
        return await remediate(self._run, opening)

    @workflow.signal(description="watch saw rules match on the node")
    def report(self, report: Report) -> None:
        """Recorded; known match ids change nothing."""
        self._inbox.take_report(report, workflow.now())

    @workflow.signal(description="something the episode may wait for has changed on the node")
    def node_changed(self, facts: NodeFacts) -> None:
        """Recorded; ends waits."""
        self._inbox.take_facts(facts)
        self._run.show()

    @workflow.signal(description="the guard granted a place in a budget")
    def grant(self, grant: Grant) -> None:
        """Recorded."""
        self._inbox.take_grant(grant, workflow.now())

    @workflow.signal(description="stop before the next step until resume")
    def pause(self, message: ControlMessage) -> None:
        """Recorded; a running step ends first."""
        self._inbox.take_command(Command.PAUSE, message, workflow.now())
        self._run.show()

    @workflow.signal(description="lift a pause, or let a held node try its gate again")
    def resume(self, message: ControlMessage) -> None:
        """Recorded."""
        self._inbox.take_command(Command.RESUME, message, workflow.now())
        self._run.show()

    @workflow.signal(description="drain the node and hand it over to people")
    def retire(self, message: ControlMessage) -> None:
        """Recorded; stops the running step, and lifts a pause given by signal."""
        self._inbox.take_command(Command.RETIRE, message, workflow.now())

    @workflow.signal(description="allow the next rung of the ladder")
    def approve(self, message: ControlMessage) -> None:
        """Recorded, if a question is open."""
        self._inbox.take_command(Command.APPROVE, message, workflow.now())

    @workflow.signal(description="stay held")
    def deny(self, message: ControlMessage) -> None:
        """Recorded, if a question is open."""
        self._inbox.take_command(Command.DENY, message, workflow.now())

    @workflow.query(description="what happened so far, one line each")
    def story(self) -> list[str]:
        """Oldest first."""
        return list(self._inbox.story)

    @workflow.query(description="what comes next if nothing goes wrong")
    def plan(self) -> list[str]:
        """In order; a pause stands before all."""
        pause = self._inbox.pause()
        return [f"{pause}: nothing is done until it is lifted"] * bool(pause) + [*self._run.plan]

    @workflow.query(description="the id of the episode, as it stands in the node's marker")
    def episode(self) -> str:
        """The newest id of this run."""
        return self._inbox.current

    @workflow.query(description="the open question of a held episode; empty = none")
    def question(self) -> str:
        """Its id, to be named in an answer."""
        return self._inbox.question

    @workflow.query(
        description="what is asked of people, with what each answer does; empty = nothing"
    )
    def asks(self) -> str:
        """As it stands in the current details."""
        return self._run.asks
