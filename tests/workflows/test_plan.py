"""What an episode says comes next."""

from datetime import UTC, datetime

from workflows.contracts.messages import Opening
from workflows.episode import Episode
from workflows.model.detection.fault import Fault
from workflows.model.identity import NodeRef
from workflows.model.remediation.phase import Phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_in_its_probation_nothing_comes_that_is_done_already() -> None:
    """Seen: "gate; give back, or hold" for a node that was given back."""
    opening = Opening(NodeRef("gpu-0", "uid-0"), "lab", "ep-1", pool="p", opened_by="watch")
    episode = Episode(opening, "ep-1", fault=Fault.GPU_LOST)
    before = episode.plan()
    assert before[-2:] == ("gate", "give back, or hold")
    episode.enter(Phase.PROBATION, NOW)
    assert episode.plan() == ("watch until the probation ends", "close")
    episode.id = "ep-1-1"  # reported again: from the top
    assert episode.plan() == before
    episode.retiring = "ada: fan"
    assert episode.plan()[0] == "drain"
