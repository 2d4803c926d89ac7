"""How a mark gets onto a Node: one guarded patch, and what its answer means.

Owns sending the patches of `workflows/model/remediation/marks.py` and the time window in which a
step that notes a place may still send. A conflict and an unclear answer are the same here: read
again and decide again. Used by `quarantine.py` and `node_marks.py`.
"""

from time import monotonic
from typing import Any, Final

from activities import errors
from activities.kube import paths
from activities.kube.client import CallTimeout, KubeClient, PatchKind
from activities.kube.errors import ApiError, Conflict
from workflows.contracts.options import NOTE_S
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView, parse_node
from workflows.model.remediation.marks import Marker, MarkerError, marker_of

ROUNDS: Final = 8
"""Times a step reads and decides anew before it leaves the rest to its retry: a busy Node changes
a few times a second."""
WRITE_TIMEOUT: Final = CallTimeout(connect_s=1.0, read_s=1.0)
"""Of the patch itself; with it a note is over, or never sent, within `NOTE_S`."""
_WRITE_S: Final = WRITE_TIMEOUT.connect_s + 2 * WRITE_TIMEOUT.read_s


def send_mark(kube: KubeClient, node: NodeView, body: dict[str, Any]) -> NodeView | None:
    """The Node after the patch; None = it may not have been applied: read and decide again.

    Raises:
        ApiError: it was certainly not applied, and reading again would not change that.
    """
    try:
        answer = kube.patch(
            paths.node(node.name), body, kind=PatchKind.MERGE, timeout=WRITE_TIMEOUT
        )
    except Conflict:
        return None
    except ApiError as error:
        if error.maybe_done:
            return None
        raise
    return parse_node(answer)


def read_mark(node: NodeView) -> Marker | None:
    """The marker on the Node; one that cannot be read has an owner unknown to us.

    Raises:
        ApplicationError: not-owner: the marker is unreadable.
    """
    try:
        return marker_of(node)
    except MarkerError as error:
        raise errors.not_owner(f"Node {node.name}: {error}") from error


def owned_mark(node: NodeView, episode: str) -> Marker:
    """The marker, if it is this episode's and nobody else's.

    Raises:
        ApplicationError: overruled (there is none), or not-owner.
    """
    marker = read_mark(node)
    if marker is None:
        raise errors.overruled(f"the marker is gone from Node {node.name}")
    if marker.episode != episode or marker.handed_over:
        owner = marker.handed_over or f"episode {marker.episode}"
        raise errors.not_owner(f"Node {node.name} belongs to {owner}")
    return marker


def demand_cordon(node: NodeView) -> None:
    """The node is still out of service.

    Raises:
        ApplicationError: overruled.
    """
    if not node.unschedulable:
        raise errors.overruled(f"somebody removed the cordon of Node {node.name}")


def ref_of(node: NodeView) -> NodeRef:
    """Name and UID of a Node that was read."""
    return NodeRef(node.name, node.uid)


def kept_changing(node: NodeRef, step: str) -> Exception:
    """The failure of a step whose Node changed under each of its rounds."""
    return errors.try_again(
        f"{step}: Node {node.name} changed or gave no clear answer {ROUNDS} times in a row"
    )


class NoteWindow:
    """The time in which one attempt may write.

    An attempt that Temporal has given up may still run. A fresh guard waits `NOTE_S` before it
    counts (design section 6), so nothing may be sent after that.
    """

    def __init__(self) -> None:
        self._closes = monotonic() + NOTE_S - _WRITE_S

    def demand_open(self, step: str) -> None:
        """Returns if a patch sent now ends in time.

        Raises:
            ApplicationError: it is too late; the step's next attempt has a window of its own.
        """
        if monotonic() > self._closes:
            raise errors.try_again(f"{step}: reads took too long; not written in this attempt")
