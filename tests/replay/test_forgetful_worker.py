"""A worker that forgets every run after each workflow task, as if it crashed there each time.

Each task then starts from the history: what a run holds in memory and did not get from history
would show as another order of steps, or as another end.
"""

import pytest

from tests.harness.temporal_server import dev_server
from tests.replay.record import play
from tests.replay.scenes import SCENES

FORGOTTEN = frozenset(
    {
        "returned",
        "overruled-then-resumed",
        "relapse-in-probation",
        "retire-in-reboot",
    }
)


@pytest.mark.long
async def test_episodes_end_the_same_when_the_worker_remembers_nothing() -> None:
    scenes = [scene for scene in SCENES if scene.name in FORGOTTEN]
    assert len(scenes) == len(FORGOTTEN)
    async with dev_server() as client:
        histories = await play(scenes, client, cached=0)
    assert set(histories) == FORGOTTEN
