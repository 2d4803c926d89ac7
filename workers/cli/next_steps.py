"""What only a person can do next about a node, in words: after a hand-over, and under a pause.

Owns those sentences, so that `status`, `node` and the words of `words.py` say the same. Reads
nothing: marks and arming come from the caller. Sends nothing.
"""

import re

from workflows.model.detection.finding import printable
from workflows.model.node import NodeView
from workflows.model.remediation.arming import FLEET, Arming, Entry
from workflows.model.remediation.marks import Marker, marker_or_problem

MAX_WORDS = 400


def handed_over(node: NodeView) -> str:
    """To whom a node that is out of service was given and why; "" = it was not, or is back.

    One that people uncordoned is theirs no more: its mark is only left over.
    """
    marker, _ = marker_or_problem(node)
    if marker is None or not marker.handed_over or not node.unschedulable:
        return ""
    to, _, why = printable(marker.handed_over, MAX_WORDS).partition(":")
    since = f"out of service since {marker.since:%Y-%m-%d %H:%M:%S}Z"
    return f"handed over to {to}, {since}" + (f": {why.strip()}" if why else "")


def after_hand_over(node: NodeView) -> str:
    """What brings such a node back; "" = it was not handed over, or is back."""
    if not handed_over(node):
        return ""
    return (
        f"when it is well, kubectl uncordon {node.name}; fleetmend then takes its mark off and "
        "watches it again"
    )


def paused_by(pool: str, arming: Arming) -> str:
    """Each pause that keeps a pool's nodes from being drained or rebooted, and what lifts it."""
    return "; ".join(map(_pause, arming.pauses_of(pool)))


def _pause(entry: Entry) -> str:
    option = "--fleet" if entry.scope == FLEET else f"--pool {entry.scope}"
    why = f": {printable(entry.reason, MAX_WORDS)}" if entry.reason else ""
    return (
        f"{entry.what} is paused by {printable(entry.by, MAX_WORDS)}{why}; next: fleetmend resume "
        f"{option}"
    )


def is_in_care(marker: Marker | None) -> bool:
    """True while an episode has the node out of service."""
    return marker is not None and not marker.handed_over


def answers_of(asks: str, node: str) -> dict[str, str]:
    """What each word of a person does, by the question's text ("word = what it does; ...").

    Other ways out (`kubectl ...`, no answer) stand there too, under what they say.
    """
    text = re.sub(r"^Question \S+ ", "", asks).replace("NAME", node)
    pairs = (item.rpartition(" = ") for item in text.split("; "))
    return {word: does for word, sign, does in pairs if sign}
