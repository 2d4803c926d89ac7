"""Marks: everything fleetmend writes on a Node, and the patches that put it there and take it off.

Owns the one table of annotation keys, the marker (who owns a quarantined node, since when, and
what was there before) and the bodies of the entry, slot, hand-over and exit patches: watch and
the activities send the same ones. fleetmend removes only what it put there (P4), so the marker
keeps prior values. Does not send anything. Pure.
"""

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from workflows.model.node import NodeView, parse_instant

EPISODE = "fleetmend.io/episode"
"""The marker: JSON of `Marker`. Its presence means: fleetmend took this node out of service."""
PAUSE = "fleetmend.io/pause"
"""Set by people: nothing is done to this node while it is there. The value is the reason."""
IGNORE = "fleetmend.io/ignore"
"""Set by people: this node is out of scope."""
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
DO_NOT_REPAIR = "karpenter.sh/do-not-repair"
KARPENTER_NODEPOOL_LABEL = "karpenter.sh/nodepool"
KARPENTER_TAINTS = ("karpenter.sh/disrupted", "karpenter.sh/rebooting")
"""Karpenter's own taints on a node that it has begun to remove or to reboot (Karpenter 1.15.0)."""
VETOES = (DO_NOT_DISRUPT, DO_NOT_REPAIR)
MAX_MARKER_BYTES = 4096
MAX_LINE = 1024
MAX_BOOT_ID = 128
MAX_VETO = 128
"""Of a veto's value that stood there before: Karpenter knows "true" and durations, and the marker has
to stay readable whatever a node's annotations hold."""
MARKER_VERSION = 1
_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


class MarkerError(ValueError):
    """The marker cannot be read. The node then counts as owned by somebody unknown."""


class Quarantine(StrEnum):
    """Whose budget a quarantine counts against."""

    REFLEX = "reflex"
    CONFIRMED = "confirmed"
    OPERATOR = "operator"
    VALIDATION = "validation"
    """An idle node that nothing was said against; it counts in the budget of validations."""


@dataclass(frozen=True)
class Slot:
    """A noted disruption slot: granted by the guard of `epoch` at `at`."""

    epoch: str
    at: datetime


@dataclass(frozen=True)
class Marker:
    """The owner of a quarantined node.

    `boot_id` is the boot in which it was marked ("" = the Node told none). `was_unschedulable` and `vetoes_before` are what was there before us (a veto that was absent
    is not in the mapping). `handed_over` is "" or `<to>:<reason>`.
    """

    episode: str
    node_uid: str
    since: datetime
    rule: str
    fault: str
    quarantine: Quarantine
    was_unschedulable: bool = False
    vetoes_before: tuple[tuple[str, str], ...] = ()
    slot: Slot | None = None
    handed_over: str = ""
    boot_id: str = ""

    def encode(self) -> str:
        """The annotation's value."""
        body: dict[str, Any] = {
            "v": MARKER_VERSION,
            "episode": self.episode,
            "uid": self.node_uid,
            "since": self.since.isoformat(),
            "rule": self.rule,
            "fault": self.fault,
            "quarantine": self.quarantine.value,
            "before": {
                "unschedulable": self.was_unschedulable,
                "annotations": dict(self.vetoes_before),
            },
        }
        if self.boot_id:
            body["boot"] = self.boot_id
        if self.slot:
            body["slot"] = {"epoch": self.slot.epoch, "at": self.slot.at.isoformat()}
        if self.handed_over:
            body["handed-over"] = self.handed_over
        return json.dumps(body, separators=(",", ":"))


def parse_marker(text: str) -> Marker:
    """The marker in an annotation's value.

    Raises:
        MarkerError: names what is wrong; the remedy is a person's look at the node.
    """
    if len(text) > MAX_MARKER_BYTES:
        raise MarkerError(
            f"{EPISODE}: longer than {MAX_MARKER_BYTES} bytes; see who wrote it and remove it with "
            "kubectl if nobody needs it"
        )
    try:
        body = json.loads(text)
        if body.get("v") != MARKER_VERSION:
            raise ValueError(f"version {body.get('v')!r:.20} is not {MARKER_VERSION}")
        # A lone surrogate passes JSON's escapes and breaks every later encoding.
        json.dumps(body, ensure_ascii=False).encode()
        before = body.get("before") or {}
        slot = body.get("slot")
        return Marker(
            episode=_word(body["episode"]),
            node_uid=_word(body["uid"]),
            since=parse_instant(body.get("since")),
            rule=_line(body.get("rule", "")),
            fault=_line(body.get("fault", "")),
            quarantine=Quarantine(body.get("quarantine", "confirmed")),
            was_unschedulable=before.get("unschedulable") is True,
            vetoes_before=tuple(
                (key, _line(value))
                for key, value in sorted((before.get("annotations") or {}).items())
                if key in VETOES
            ),
            slot=Slot(_word(slot["epoch"]), parse_instant(slot.get("at"))) if slot else None,
            handed_over=_line(body.get("handed-over", "")),
            boot_id=_line(body.get("boot", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MarkerError(
            f"{EPISODE}: cannot be read ({error}); see who wrote it and remove it with "
            "kubectl if nobody needs it"
        ) from error


def _word(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError("an id must be 1 to 128 of A-Z a-z 0-9 . _ : / -")
    return value


def _line(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_LINE:
        raise ValueError(f"a text of at most {MAX_LINE} characters was expected")
    return value


def marker_of(node: NodeView) -> Marker | None:
    """The marker on a node; None = no mark of ours.

    Raises:
        MarkerError: there is one, and it cannot be read.
    """
    text = node.annotations.get(EPISODE)
    return parse_marker(text) if text else None


def marker_or_problem(node: NodeView) -> tuple[Marker | None, str]:
    """The marker on a node, and why what stands there cannot be read; "" = it can, or is none."""
    try:
        return marker_of(node), ""
    except MarkerError as error:
        return None, str(error)


def is_marked(node: NodeView) -> bool:
    """True if any marker is there, readable or not."""
    return bool(node.annotations.get(EPISODE))


def is_on_karpenter(node: NodeView) -> bool:
    """True if Karpenter made the node."""
    return KARPENTER_NODEPOOL_LABEL in node.labels


def other_healer(node: NodeView) -> str:
    """Who else has begun to act on the node; "" = nobody."""
    if node.deleting:
        return "the Node is being deleted"
    found = [taint for taint in node.taints if taint.split(":", 1)[0] in KARPENTER_TAINTS]
    return f"Karpenter has begun on it (taint {found[0][:80]})" if found else ""


def entry_marker(node: NodeView, draft: Marker) -> Marker:
    """`draft` with what stands on the node before us filled in."""
    found = ((key, node.annotations[key][:MAX_VETO]) for key in VETOES if key in node.annotations)
    return replace(
        draft,
        node_uid=node.uid,
        was_unschedulable=node.unschedulable,
        vetoes_before=tuple(found) if is_on_karpenter(node) else (),
        boot_id=node.boot_id[:MAX_BOOT_ID],
    )


def entry_patch(node: NodeView, marker: Marker) -> dict[str, Any]:
    """The merge patch that quarantines: cordon, marker, vetoes; guarded by resourceVersion."""
    annotations: dict[str, str | None] = {EPISODE: marker.encode()}
    if is_on_karpenter(node):
        annotations |= dict.fromkeys(VETOES, "true")
    return {**_guarded(node, annotations), "spec": {"unschedulable": True}}


def marker_patch(node: NodeView, marker: Marker) -> dict[str, Any]:
    """The merge patch that replaces the marker alone (slot noted or dropped, handed over)."""
    return _guarded(node, {EPISODE: marker.encode()})


def lost_vetoes(node: NodeView) -> tuple[str, ...]:
    """Vetoes that the entry patch set and that do not stand any more (Karpenter writes Nodes too)."""
    if not is_on_karpenter(node):
        return ()
    return tuple(key for key in VETOES if node.annotations.get(key) != "true")


def veto_patch(node: NodeView) -> dict[str, Any]:
    """The merge patch that sets the vetoes again; the marker knows what was there before."""
    annotations: dict[str, str | None] = dict.fromkeys(lost_vetoes(node), "true")
    return _guarded(node, annotations)


def exit_patch(node: NodeView, marker: Marker) -> dict[str, Any]:
    """The merge patch that takes off everything of ours and restores what was there before.

    What a person changed meanwhile is theirs: a cordon that is gone does not come back, and a veto
    that no longer has our value stays as it is.
    """
    annotations: dict[str, str | None] = {EPISODE: None}
    if is_on_karpenter(node):
        before = dict(marker.vetoes_before)
        ours = [key for key in VETOES if node.annotations.get(key) == "true"]
        annotations |= {key: before.get(key) for key in ours}
    cordon = True if marker.was_unschedulable and node.unschedulable else None
    return {**_guarded(node, annotations), "spec": {"unschedulable": cordon}}


def _guarded(node: NodeView, annotations: dict[str, str | None]) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": node.uid,
            "resourceVersion": node.resource_version,
            "annotations": annotations,
        }
    }
