"""`fleetmend pause|resume|retire|approve|deny NODE`: a person's word to one node's episode.

Owns what each word needs (an open episode, or none for retire), and what is said when it was not
heeded, or when a pause keeps it from being done. The word itself is judged by the workflow. Pauses of a pool or the fleet are `arming.py`'s.
"""

import asyncio
import uuid

from rich.markup import escape

from workers.cli.caller import caller
from workers.cli.cluster import ClusterReader, PolicyUnusable, open_cluster
from workers.cli.episodes import Episodes, OpenEpisode, Told, message_for, read_cluster
from workers.cli.next_steps import after_hand_over, answers_of, handed_over, paused_by
from workers.cli.outcome import console, refused, write_json
from workflows.contracts.messages import Command, Opening
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView
from workflows.model.remediation.marks import PAUSE, marker_or_problem


def say(
    command: Command, node_name: str, *, reason: str, question: str = "", as_json: bool
) -> None:
    """Send one word, and tell what became of it."""
    cluster = read_cluster()
    with open_cluster() as reader:
        node = reader.node(node_name)
        pool: str | PolicyUnusable = ""
        if command is Command.RETIRE:
            _refuse_unreadable(node)
            pool = _pool_of(reader, node)
        recorded = _recorded_episode(reader, node)
        waits = paused_by(pool, reader.arming()) if pool and isinstance(pool, str) else ""
    word = _Word(command, node, cluster, reason, question, recorded, pool)
    told = asyncio.run(_send(word))
    _tell(command, node_name, told, waits, as_json=as_json)


def _refuse_unreadable(node: NodeView) -> None:
    """An episode could not mark the node as its own, and would yield at once."""
    _, problem = marker_or_problem(node)
    if problem:
        raise refused(
            f"Node {node.name} may be somebody else's: {problem}. Then again: fleetmend retire "
            f"{node.name}"
        )


def _pool_of(reader: ClusterReader, node: NodeView) -> str | PolicyUnusable:
    """The pool that a node is in; an episode that is open already needs none."""
    try:
        pool = reader.policy().pool_of(node.labels)
    except PolicyUnusable as error:
        return error
    if pool is None:
        raise refused(
            f"Node {node.name} is in no pool of the policy, so fleetmend never touches it; add "
            "its labels to a pool's selector, or drain it with kubectl"
        )
    return pool.name


class _Word:
    """Everything that is needed to send one word."""

    def __init__(
        self,
        command: Command,
        node: NodeView,
        cluster: str,
        reason: str,
        question: str,
        recorded: str,
        pool: str | PolicyUnusable,
    ) -> None:
        self.command, self.cluster, self.question = command, cluster, question
        self.node = NodeRef(node.name, node.uid)
        self.by = caller(reason)
        self.recorded = recorded
        self.pool = pool
        self.handed_over, self.after_hand_over = handed_over(node), after_hand_over(node)


async def _send(word: _Word) -> Told:
    episodes = await Episodes.open(word.cluster)
    found = await episodes.find(word.node)
    if found is not None:
        return await _tell_open(episodes, found, word)
    if word.handed_over and word.command is not Command.PAUSE:
        raise refused(f"Node {word.node.name} is {word.handed_over}. Next: {word.after_hand_over}")
    if word.command is Command.RETIRE:
        return await _open_and_retire(episodes, word)
    remedy = (
        f"kubectl annotate node {word.node.name} {PAUSE}='why' keeps fleetmend off it"
        if word.command is Command.PAUSE
        else "see: fleetmend status"
    )
    raise refused(f"no episode is open on Node {word.node.name}; {remedy}")


async def _tell_open(episodes: Episodes, found: OpenEpisode, word: _Word) -> Told:
    episode = await episodes.ask(found, "episode")
    question = word.question
    if word.command in (Command.APPROVE, Command.DENY) and not question:
        question = str(await episodes.ask(found, "question") or "")
        if episode is not None and not question:
            raise refused(
                f"Node {word.node.name}: nothing is asked right now; see: "
                f"fleetmend node {word.node.name}"
            )
        answers = answers_of(str(await episodes.ask(found, "asks") or ""), word.node.name)
        if answers and word.command not in answers:
            raise refused(
                f"Node {word.node.name}: {word.command} would do nothing here; it takes "
                f"{', '.join(each for each in answers if each in set(Command))}; see: "
                f"fleetmend node {word.node.name}"
            )
    # Without a worker to ask, the cluster's own record names the episode that the person saw.
    message = message_for(word.by, episode=str(episode or word.recorded), question=question)
    return await episodes.tell(found, word.command, message)


async def _open_and_retire(episodes: Episodes, word: _Word) -> Told:
    if isinstance(word.pool, PolicyUnusable):
        raise refused(f"no episode is open on Node {word.node.name}, and {word.pool}")
    episode = uuid.uuid4().hex[:16]
    opening = Opening(
        node=word.node,
        cluster=word.cluster,
        episode=episode,
        pool=word.pool,
        opened_by=word.by.by,
        operator_reason=word.by.reason or "retire",
    )
    message = message_for(word.by, episode=episode)
    return await episodes.open_with(opening, Command.RETIRE, message)


def _recorded_episode(reader: ClusterReader, node: NodeView) -> str:
    marker, problem = marker_or_problem(node)
    if problem:
        return ""
    if marker is not None and not marker.handed_over:
        return marker.episode
    machine = reader.machine_of(node)
    return machine.episode if machine and machine.is_open else ""


def _tell(command: Command, node: str, told: Told, waits: str, *, as_json: bool) -> None:
    facts = {
        "node": node,
        "episode": told.episode,
        "command": command.value,
        "workflow_id": told.workflow_id,
        "run_id": told.run_id,
        "request_id": told.request_id,
        "heeded": told.heeded,
        "story": told.line,
        "waits": waits,
    }
    whom = f"Node {node}, episode {told.episode}" if told.episode else f"Node {node}"
    if told.heeded is False:
        raise refused(f"{whom}: {command} was not taken: {told.line}", **facts)
    if as_json:
        write_json(facts)
        return
    if told.heeded:
        console().print(escape(f"{whom}: {told.line}"), soft_wrap=True)
    else:
        console().print(
            f"{escape(whom)}: {command} was sent to {escape(told.workflow_id)}; no worker has answered yet, so it "
            "is not known whether it was taken",
            soft_wrap=True,
        )
    if waits:
        console().print(f"waits: {escape(waits)}", soft_wrap=True)
    if command is Command.PAUSE:
        console().print(
            f"it stops this episode only; kubectl annotate node {escape(node)} {PAUSE}='why' keeps "
            "fleetmend off the node until you remove it",
            soft_wrap=True,
        )
