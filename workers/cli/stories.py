"""What an episode tells of itself: story, plan and question of the open run, or of the last one.

Owns which run of a node speaks, and what is said when none can. A closed run has no plan: nothing
comes next. Talks to `episodes.py`.
"""

import asyncio
from dataclasses import dataclass

from workers.cli.cluster import Machine
from workers.cli.episodes import Episodes, LastRun, OpenEpisode
from workflows.model.identity import NodeRef, workflow_id

NO_WORKER = "no worker answers: start one with `fleetmend worker`"


@dataclass(frozen=True)
class Tale:
    """What was told; `last_run` None = the run is open, or there was none.

    `asks` is the question in words, with what each answer does.
    """

    story: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    question: str = ""
    asks: str = ""
    last_run: LastRun | None = None


async def tale_of_open(cluster: str, found: OpenEpisode) -> Tale:
    """Of the run that is open."""
    episodes = await Episodes.open(cluster)
    story, plan, question, asks, blockers = await asyncio.gather(
        *(episodes.ask(found, query) for query in ("story", "plan", "question", "asks")),
        episodes.in_the_way(found),
    )
    if story is None:
        return Tale((NO_WORKER,))
    waits = [f"in the way of the drain: {line}" for line in blockers or ()]
    return Tale(tuple(story), (*waits, *(plan or ())), str(question or ""), str(asks or ""))


async def tale_of_last(cluster: str, node: NodeRef) -> Tale:
    """Of the node's newest run, which has closed."""
    episodes = await Episodes.open(cluster)
    last = await episodes.last(node)
    if last is None:
        return Tale()
    story = await episodes.ask(last, "story")
    return Tale((NO_WORKER,) if story is None else tuple(story), last_run=last)


def recorded_tale(cluster: str, node: NodeRef, machine: Machine | None) -> Tale:
    """Of the node's last run as its machine's record has it, without Temporal."""
    run_id = machine.run_id if machine is not None and machine.outcome else ""
    if not run_id or not cluster:
        return Tale()
    return Tale(last_run=LastRun(workflow_id(cluster, node), run_id, None))
