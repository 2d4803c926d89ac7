"""What is wrong with a simulated machine, in the words its agent will report.

Owns findings, ailments and the four conditions, and composes them, purely, into the one PATCH of
nodes/status by which an agent speaks. Knows neither nodes nor the API server; the agent stand-in
and the light nodes send what is composed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from activities.devices.reading import Certainty, ConditionType

FINDINGS_ANNOTATION: Final = "fleetmend.io/findings"
FINDINGS_BYTES: Final = 8192
"""The bound of the agent's admission policy."""
FINDINGS_FORMAT: Final = 1

HEALTHY_REASON: Final = "Healthy"
HEALTHY_MESSAGE: Final = "no finding"


class ConditionStatus(StrEnum):
    """As in Kubernetes; False = bad, Unknown = cannot tell."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class Finding:
    """One fact that a detector of the simulated node saw."""

    id: str
    device: str
    """GPU UUID; '' = the whole node."""
    code: str
    fault: str
    text: str
    at: datetime
    certainty: Certainty = Certainty.CERTAIN


@dataclass(frozen=True)
class Ailment:
    """One thing that is wrong, and how a condition shows it."""

    condition: ConditionType
    status: ConditionStatus
    reason: str
    message: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Condition:
    """One condition as it is to be written."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """All that an agent says at one moment."""

    boot_id: str
    at: datetime
    ailments: tuple[Ailment, ...] = field(default=())


def conditions_of(ailments: Iterable[Ailment]) -> tuple[Condition, ...]:
    """All four conditions, in the order of `ConditionType`; of several ailments the worst speaks."""
    worst: dict[ConditionType, Ailment] = {}
    for ailment in ailments:
        known = worst.get(ailment.condition)
        is_worse = known is None or (
            known.status is ConditionStatus.UNKNOWN and ailment.status is ConditionStatus.FALSE
        )
        if is_worse:
            worst[ailment.condition] = ailment
    return tuple(_condition(type_, worst.get(type_)) for type_ in ConditionType)


def _condition(type_: ConditionType, ailment: Ailment | None) -> Condition:
    if ailment is None:
        return Condition(type_, ConditionStatus.TRUE, HEALTHY_REASON, HEALTHY_MESSAGE)
    return Condition(type_, ailment.status, ailment.reason, ailment.message)


def findings_annotation(report: Report) -> str:
    """The annotation's JSON, within its bound: findings that don't fit are counted in `more`."""
    findings = [finding for ailment in report.ailments for finding in ailment.findings]
    shown = len(findings)
    while True:
        text = json.dumps(
            {
                "v": FINDINGS_FORMAT,
                "boot": report.boot_id,
                "at": _micros(report.at),
                "findings": [_wire(finding) for finding in findings[:shown]],
                "more": len(findings) - shown,
            },
            separators=(",", ":"),
        )
        if len(text.encode()) <= FINDINGS_BYTES or shown == 0:
            return text
        shown -= 1


def compose_patch(report: Report, standing: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The strategic-merge patch of nodes/status for this report.

    Args:
        report: what to say.
        standing: the Node's conditions as last seen, by type. A transition time is new only where
            the status is.
    """
    at = seconds(report.at)
    rows = []
    for condition in conditions_of(report.ailments):
        before = standing.get(condition.type) or {}
        is_same = before.get("status") == condition.status
        rows.append(
            {
                "type": condition.type.value,
                "status": condition.status.value,
                "reason": condition.reason,
                "message": condition.message,
                "lastHeartbeatTime": at,
                "lastTransitionTime": before.get("lastTransitionTime", at) if is_same else at,
            }
        )
    return {
        "metadata": {"annotations": {FINDINGS_ANNOTATION: findings_annotation(report)}},
        "status": {"conditions": rows},
    }


def seconds(at: datetime) -> str:
    """RFC 3339 in whole seconds: metav1.Time keeps no more."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micros(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _wire(finding: Finding) -> dict[str, str]:
    return {
        "id": finding.id,
        "source": "lab",
        "device": finding.device,
        "code": finding.code,
        "fault": finding.fault,
        "at": _micros(finding.at),
        "certainty": finding.certainty.value,
        "text": finding.text,
    }
