"""Taking a node out of service: the entry patch, its read-back, and yielding to other healers.

Owns the activity `quarantine`. What the patch says is `workflows/model/remediation/marks.py` (watch
sends the same one); how it is sent is `mark_writing.py`.
"""

from dataclasses import replace

from activities import errors
from activities.kube.client import KubeClient
from activities.kube.guard_epoch import GuardEpoch
from activities.kube.mark_writing import (
    ROUNDS,
    NoteWindow,
    demand_cordon,
    kept_changing,
    read_mark,
    ref_of,
    send_mark,
)
from activities.permit import Authority
from workflows.contracts.kube import Owner, Quarantined, QuarantineRequest
from workflows.model.node import NodeView
from workflows.model.remediation.marks import (
    Marker,
    entry_marker,
    entry_patch,
    exit_patch,
    marker_patch,
    other_healer,
)
from workflows.model.remediation.permit import Effect

_STEP = "quarantine"


class QuarantineActivity:
    """Cordons and marks nodes."""

    def __init__(self, kube: KubeClient, authority: Authority, epochs: GuardEpoch) -> None:
        self._kube = kube
        self._authority = authority
        self._epochs = epochs

    def quarantine(self, request: QuarantineRequest) -> Quarantined:
        """Implements `quarantine`: our marker and the cordon stand, or why they do not.

        Each round reads the Node and decides; a round that wrote is followed by one that reads
        back. Idempotent: a second run finds the marker of the first. A marker whose episode is in
        `adopt` is left as it is; the caller goes on under that episode's id.

        Raises:
            ApplicationError: not-owner (somebody else's marker), overruled (ours is there, the
                cordon is not), not-permitted, node-gone. The node is as it was found.
        """
        window = NoteWindow()
        for _ in range(ROUNDS):
            node = self._authority.demand(request.owner, Effect.MARK)
            answer = self._round(request, node, read_mark(node), window)
            if answer is not None:
                return answer
        raise kept_changing(request.owner.node, _STEP)

    def _round(
        self, request: QuarantineRequest, node: NodeView, found: Marker | None, window: NoteWindow
    ) -> Quarantined | None:
        """One decision on one reading; None = something was sent, read again."""
        if found is not None:
            _demand_ours(request, node, found)
        healer = other_healer(node)
        if healer:
            return self._yield_to(healer, node, found)
        if found is not None and found.episode != request.replace:
            demand_cordon(node)
            return Quarantined(found, node.resource_version)
        return self._write(request, node, found, window)

    def _write(
        self, request: QuarantineRequest, node: NodeView, found: Marker | None, window: NoteWindow
    ) -> Quarantined | None:
        if found is not None:
            # The dead run's marker says what was there before us; only its owner changes.
            body = marker_patch(node, replace(found, episode=request.owner.episode))
        elif request.replace:
            raise errors.overruled(
                f"the mark that was to be taken over is gone from Node {node.name}"
            )
        else:
            draft = replace(request.marker, episode=request.owner.episode)
            body = entry_patch(node, entry_marker(node, draft))
            if request.epoch and (stale := self._epochs.stale_grant(request.epoch)):
                return Quarantined(None, node.resource_version, refused=stale)
        window.demand_open(_STEP)
        send_mark(self._kube, node, body)
        return None

    def _yield_to(self, healer: str, node: NodeView, found: Marker | None) -> Quarantined | None:
        """Nothing of ours stays on a node that another healer has begun on."""
        if found is None:
            return Quarantined(None, node.resource_version, yielded_to=healer)
        owner = Owner(ref_of(node), found.episode)
        self._authority.demand_on(node, owner, Effect.RESTORE)
        written = send_mark(self._kube, node, exit_patch(node, found))
        if written is None:
            return None
        return Quarantined(None, written.resource_version, yielded_to=healer)


def _demand_ours(request: QuarantineRequest, node: NodeView, found: Marker) -> None:
    known = {request.owner.episode, request.replace, *request.adopt}
    if found.handed_over or found.episode not in known:
        owner = found.handed_over or f"episode {found.episode}"
        raise errors.not_owner(f"Node {node.name} belongs to {owner}")
