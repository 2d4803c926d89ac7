"""Telling: how the runbook says where an episode stands.

Owns the two calls that publish a phase with its record. Called by the runbook at each phase.
"""

from workflows.contracts.machines import PhaseRecord
from workflows.episode import Episode
from workflows.runtime import Runtime, Story


async def publish(run: Runtime, episode: Episode, detail: str, doing: str) -> None:
    """Tells where the episode stands."""
    await publish_record(run, episode, episode.record(run.now(), detail), doing)


async def publish_record(
    run: Runtime, episode: Episode, record: PhaseRecord, doing: str, asks: str = ""
) -> None:
    """Tells it with a record that says more than where the episode stands."""
    await run.publish(episode.phase, Story(record, doing, episode.plan(), asks))
