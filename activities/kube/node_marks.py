"""Changing the marks of an episode on its node: the slot, the return, the hand-over.

Owns the activities `note_slot`, `drop_slot`, `assert_vetoes`, `give_back` and `hand_over`. Each is
fenced by the episode in the marker and changes the marker it has just read, under its
resourceVersion. What the patches say is `workflows/model/remediation/marks.py`.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from temporalio import activity

from activities import errors
from activities.kube.client import KubeClient
from activities.kube.guard_epoch import GuardEpoch
from activities.kube.mark_writing import (
    ROUNDS,
    NoteWindow,
    demand_cordon,
    kept_changing,
    owned_mark,
    read_mark,
    send_mark,
)
from activities.permit import Authority
from workflows.contracts.kube import (
    GiveBackRequest,
    HandOverRequest,
    Marked,
    Owner,
    SlotRequest,
)
from workflows.model.detection.finding import printable
from workflows.model.node import NodeView
from workflows.model.remediation.marks import (
    Marker,
    Slot,
    exit_patch,
    lost_vetoes,
    marker_patch,
    veto_patch,
)
from workflows.model.remediation.permit import Effect

MAX_REASON: Final = 512
"""Of a hand-over, in characters: the whole marker stays well below its bound."""


class MarkActivities:
    """What an episode does to its own marker."""

    def __init__(self, kube: KubeClient, authority: Authority, epochs: GuardEpoch) -> None:
        self._kube = kube
        self._authority = authority
        self._epochs = epochs

    def note_slot(self, request: SlotRequest) -> Marked:
        """Implements `note_slot`: the granted slot stands in the marker, or `refused` says why not.

        The guard's epoch is read right before the patch. Idempotent: a second run finds the slot
        of the same epoch.

        Raises:
            ApplicationError: not-owner, overruled, not-permitted, node-gone; nothing is noted.
        """
        if not request.epoch:
            raise errors.bad_request("note_slot: the epoch of the guard's grant is missing")
        window = NoteWindow()
        for _ in range(ROUNDS):
            node = self._authority.demand(request.owner, Effect.MARK)
            marker = owned_mark(node, request.owner.episode)
            demand_cordon(node)
            if marker.slot is not None and marker.slot.epoch == request.epoch:
                return Marked(marker, node.resource_version)
            stale = self._epochs.stale_grant(request.epoch)
            if stale:
                return Marked(marker, node.resource_version, refused=stale)
            window.demand_open("note_slot")
            noted = replace(marker, slot=Slot(request.epoch, datetime.now(UTC)))
            written = send_mark(self._kube, node, marker_patch(node, noted))
            if written is not None:
                return Marked(read_mark(written), written.resource_version)
        raise kept_changing(request.owner.node, "note_slot")

    def drop_slot(self, request: SlotRequest) -> Marked:
        """Implements `drop_slot`: no slot of this episode stands on the node.

        Idempotent. A marker that is gone or another's holds no slot of ours: that is done too,
        and nothing is written.
        """
        window = NoteWindow()
        for _ in range(ROUNDS):
            node = self._authority.look(request.owner.node)
            marker = read_mark(node)
            is_ours = marker is not None and marker.episode == request.owner.episode
            if marker is None or not is_ours or marker.slot is None:
                return Marked(marker, node.resource_version)
            self._authority.demand_on(node, request.owner, Effect.MARK)
            window.demand_open("drop_slot")
            body = marker_patch(node, replace(marker, slot=None))
            written = send_mark(self._kube, node, body)
            if written is not None:
                return Marked(read_mark(written), written.resource_version)
        raise kept_changing(request.owner.node, "drop_slot")

    def assert_vetoes(self, owner: Owner) -> Marked:
        """Implements `assert_vetoes`: Karpenter's vetoes stand beside our marker.

        Idempotent: a second run finds them. Never marks anew what a person took off.

        Raises:
            ApplicationError: not-owner, overruled, not-permitted, node-gone; nothing is written.
        """
        for _ in range(ROUNDS):
            node = self._authority.demand(owner, Effect.MARK)
            marker = owned_mark(node, owner.episode)
            demand_cordon(node)
            if not lost_vetoes(node):
                return Marked(marker, node.resource_version)
            written = send_mark(self._kube, node, veto_patch(node))
            if written is not None:
                return Marked(marker, written.resource_version)
        raise kept_changing(owner.node, "assert_vetoes")

    def give_back(self, request: GiveBackRequest) -> Marked:
        """Implements `give_back`: nothing of ours is on the node, what was there before is again.

        Idempotent. When the marker is absent, three things may have happened: an earlier run took
        it off, or a person did before the return, or in mid episode. It counts as done if the node
        is schedulable (that is what the return is for), or if the cordon that stands is the one
        that was there before us, as this attempt or an earlier one (by its heartbeat, sent right
        before the patch) has read it in the marker. Otherwise a person took the marker off and
        left the node cordoned: overruled, and nothing is written.

        Raises:
            ApplicationError: overruled, not-owner, not-permitted, node-gone.
        """
        was_unschedulable = _was_unschedulable_before()
        for _ in range(ROUNDS):
            node = self._authority.look(request.owner.node)
            marker = read_mark(node)
            if marker is None:
                if not node.unschedulable or was_unschedulable:
                    return Marked(None, node.resource_version)
                raise errors.overruled(
                    f"the marker is gone from Node {node.name}, which is still cordoned"
                )
            self._authority.demand_on(node, request.owner, Effect.RESTORE)
            was_unschedulable = marker.was_unschedulable
            _remember(marker)
            written = send_mark(self._kube, node, exit_patch(node, marker))
            if written is not None:
                return Marked(None, written.resource_version)
        raise kept_changing(request.owner.node, "give_back")

    def hand_over(self, request: HandOverRequest) -> Marked:
        """Implements `hand_over`: the marker says who has the node now; the slot is off it.

        The cordon stays; a node that somebody has put into service again is not handed over.
        Idempotent: a second run finds the same words.

        Raises:
            ApplicationError: overruled, not-owner, not-permitted, node-gone.
        """
        words = f"{printable(request.to, 64)}:{printable(request.reason, MAX_REASON)}"
        for _ in range(ROUNDS):
            node = self._authority.look(request.owner.node)
            marker = read_mark(node)
            if marker is not None and _is_handed_over(marker, request.owner.episode, words):
                return Marked(marker, node.resource_version)
            self._authority.demand_on(node, request.owner, Effect.RESTORE)
            written = self._write_hand_over(node, request.owner.episode, words)
            if written is not None:
                return Marked(read_mark(written), written.resource_version)
        raise kept_changing(request.owner.node, "hand_over")

    def _write_hand_over(self, node: NodeView, episode: str, words: str) -> NodeView | None:
        marker = replace(owned_mark(node, episode), handed_over=words, slot=None)
        demand_cordon(node)
        return send_mark(self._kube, node, marker_patch(node, marker))


def _is_handed_over(marker: Marker, episode: str, words: str) -> bool:
    return marker.episode == episode and marker.handed_over == words


_BEFORE: Final = "was_unschedulable"


def _remember(marker: Marker) -> None:
    """Tells a later attempt what the marker said, should this one die after its patch."""
    if activity.in_activity():
        activity.heartbeat({_BEFORE: marker.was_unschedulable})


def _was_unschedulable_before() -> bool:
    if not activity.in_activity():
        return False
    told: list[Any] = list(activity.info().heartbeat_details)
    return bool(told) and isinstance(told[0], dict) and told[0].get(_BEFORE) is True
