"""The machine record as watch reads it: what was overruled, and whether it says quarantined.

Owns the reading of a GPUMachine into a small value (the records of a large fleet are all in
memory) and the question whether a match was overruled by a person. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import RuleMatch
from workflows.model.node import BadObject, NodeView
from workflows.model.remediation.overrule import covers
from workflows.model.remediation.phase import Phase

QUARANTINED_PHASES = frozenset(
    {Phase.QUARANTINED, Phase.DRAINED, Phase.REBOOTED, Phase.AWAITING_CAPACITY}
)
"""Phases in which the machine is out of service, and has not passed its gate. A machine that was
given away and comes back under another Node while its place is empty is one of them."""
MAX_OVERRULED = 50
"""As many as the GPUMachine's schema admits."""

Mark = tuple[Fault, str]
"""A fault on a device ("" = no device named)."""


@dataclass(frozen=True)
class OverruledFault:
    """A person undid the quarantine for this fault on this device, during this boot."""

    fault: str
    device: str
    boot_id: str


@dataclass(frozen=True)
class MachineRecord:
    """What watch needs of one GPUMachine."""

    name: str
    node_uid: str
    phase: str
    episode: str
    overruled: tuple[OverruledFault, ...] = ()

    def is_quarantined_elsewhere(self, node: NodeView) -> bool:
        """True if the record says quarantined, of another Node object than this one."""
        return self.phase in QUARANTINED_PHASES and self.node_uid != node.uid

    def has_open_episode(self, node: NodeView) -> bool:
        """True if the record says that an episode of this Node object is under way."""
        return self.node_uid == node.uid and self.phase not in ("", Phase.CLOSED)

    def overruled_marks(self, boot_id: str) -> frozenset[Mark]:
        """What was overruled during this boot. Records without a boot count for every boot."""
        return frozenset(
            (Fault(item.fault), item.device)
            for item in self.overruled
            if item.boot_id in ("", boot_id) and item.fault in _FAULTS
        )


_FAULTS = frozenset(fault.value for fault in Fault)


def parse_machine(body: Any) -> MachineRecord:
    """A GPUMachine of the API.

    Raises:
        BadObject: it has no name, or a field of another type than its schema says.
    """
    try:
        spec, status = body.get("spec") or {}, body.get("status") or {}
        return MachineRecord(
            name=str(body["metadata"]["name"]),
            node_uid=str((spec.get("node") or {}).get("uid") or ""),
            phase=str(status.get("phase") or ""),
            episode=str(status.get("episode") or ""),
            overruled=tuple(_overruled(item) for item in (status.get("overruled") or ()))[
                :MAX_OVERRULED
            ],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise BadObject(f"a GPUMachine cannot be read: {error}; look at it with kubectl") from error


def _overruled(item: Mapping[str, Any]) -> OverruledFault:
    return OverruledFault(
        fault=str(item["fault"]),
        device=str(item.get("device") or ""),
        boot_id=str(item.get("bootID") or ""),
    )


def marks_of(matches: Iterable[RuleMatch]) -> frozenset[Mark]:
    """The (fault, device) pairs that matches speak of."""
    return frozenset(
        (match.fault, device) for match in matches for device in match.devices or ("",)
    )


def is_overruled(match: RuleMatch, marks: frozenset[Mark]) -> bool:
    """True if a person has undone our quarantine for all that `match` says."""
    return covers(marks, match.fault, match.devices)
