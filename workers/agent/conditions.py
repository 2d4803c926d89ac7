"""The agent's words: four conditions and one annotation, made of what stands in the ledger.

Owns which finding speaks for a condition, the bounds of every text, and the annotation's JSON with
what a later agent needs (its reader for everybody else is `workflows.model.detection.finding`).
Pure; writes nothing: `reporter.py` does.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from activities.devices.reading import Certainty, ConditionType
from workers.agent.findings import Ledger, Moment, Standing, Voice
from workflows.model.detection.finding import (
    FINDINGS_ANNOTATION,
    MAX_FINDINGS,
    MAX_FINDINGS_BYTES,
    Finding,
    parse_findings,
    printable,
)

FORMAT: Final = 1
MAX_MESSAGE: Final = 320
MAX_MESSAGE_BYTES: Final = 1024
"""The agent's admission policy refuses a longer message (deploy/chart)."""
HEALTHY: Final = "Healthy"
UNKNOWN: Final = "DiagnosticUnknown"
MAX_KEY: Final = 256


class Status(StrEnum):
    """As in Kubernetes; False = bad, Unknown = cannot tell."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class Word:
    """One condition as it is to be said."""

    status: Status
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """Everything that the agent says at one moment.

    A condition that is missing in `words` cannot be told yet: its sources have time left.
    """

    boot_id: str
    words: Mapping[ConditionType, Word]
    shown: tuple[Standing, ...]
    more: int
    expected: frozenset[ConditionType] = frozenset()
    """Those that any source answers for."""

    @property
    def is_complete(self) -> bool:
        """True if nothing has to be waited for."""
        return set(self.words) >= self.expected


def compose(ledger: Ledger) -> Report:
    """What is to be said now."""
    standing = ledger.standing()
    words = {}
    for condition in ConditionType:
        word = _word(condition, ledger, [i for i in standing if i.condition is condition])
        if word is not None:
            words[condition] = word
    shown = _shown(standing, ledger.boot_id)
    return Report(
        boot_id=ledger.boot_id,
        words=words,
        shown=shown,
        more=len(standing) - len(shown) + ledger.forgotten,
        expected=frozenset(c for c in ConditionType if ledger.voices(c)),
    )


def annotation(report: Report, at: datetime) -> str:
    """The annotation's text; never over its bound."""
    return _encode(report.boot_id, report.shown, report.more, at)


def body(report: Report, stands: Mapping[str, Mapping[str, Any]], uid: str, now: Moment) -> Any:
    """The strategic-merge patch of nodes/status.

    Args:
        report: what to say.
        stands: the Node's conditions as last seen, by type. A transition time is new only where
            the status is. What stands there and cannot be told yet is left as it is.
        uid: of the Node; the API server refuses the patch for another one of the same name.
        now: for the heartbeats.
    """
    at = seconds(now.wall)
    rows = []
    for kind, word in report.words.items():
        before = stands.get(kind) or {}
        is_same = before.get("status") == word.status
        rows.append(
            {
                "type": kind,
                "status": word.status,
                "reason": word.reason,
                "message": word.message,
                "lastHeartbeatTime": at,
                "lastTransitionTime": (before.get("lastTransitionTime") or at) if is_same else at,
            }
        )
    return {
        "metadata": {
            "uid": uid,
            "annotations": {FINDINGS_ANNOTATION: annotation(report, now.wall)},
        },
        "status": {"conditions": rows},
    }


def forerunners(text: str, boot_id: str) -> tuple[Standing, ...]:
    """The findings that an agent of the same boot had written; () if there are none.

    Raises:
        workflows.model.detection.finding.FindingsError: it cannot be read; nothing of it is used.
    """
    if not text:
        return ()
    findings = parse_findings(text)
    raw = json.loads(text)
    if raw.get("boot") != boot_id:
        return ()
    rows = zip(findings, raw["findings"], strict=True)
    return tuple(found for pair in rows if (found := _standing(*pair)) is not None)


def reported_boot(text: str) -> str:
    """The boot that an annotation was written in; "" = none that can be read."""
    boot = _raw(text).get("boot")
    return boot if isinstance(boot, str) else ""


def is_said(report: Report, stands: Mapping[str, Mapping[str, Any]], text: str) -> bool:
    """True if the Node says the same already: times, texts and counts aside."""
    raw = _raw(text)
    rows = raw.get("findings")
    said = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    keys = ("id", "fault", "certainty", "status")
    facts = {tuple(str(row.get(key, "")) for key in keys) for row in said}
    wire = {tuple(str(_wire(i).get(key, "")) for key in keys) for i in report.shown}
    return (
        raw.get("boot") == report.boot_id
        and facts == wire
        and all(
            (stands.get(kind) or {}).get("status") == word.status
            and (stands.get(kind) or {}).get("reason") == word.reason
            for kind, word in report.words.items()
        )
    )


def _raw(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def seconds(at: datetime) -> str:
    """RFC 3339 in whole seconds: metav1.Time keeps no more."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _word(condition: ConditionType, ledger: Ledger, own: Sequence[Standing]) -> Word | None:
    """None = not yet."""
    bad = [item for item in own if item.status == "False"]
    if bad:
        return Word(Status.FALSE, reason_of(bad[0].fault), _line(bad))
    voices = ledger.voices(condition)
    unknown = [item for item in own if item.status == "Unknown"]
    if unknown:
        return Word(Status.UNKNOWN, UNKNOWN, _line(unknown))
    silent = [name for name, voice in voices.items() if voice is Voice.SILENT]
    if silent:
        return Word(Status.UNKNOWN, UNKNOWN, f"cannot tell: no answer from {', '.join(silent)}")
    if not voices or Voice.PENDING in voices.values():
        return None
    return Word(Status.TRUE, HEALTHY, f"nothing found by {', '.join(sorted(voices))}"[:MAX_MESSAGE])


def reason_of(fault: str) -> str:
    """A class as a condition's reason: gpu-lost is GpuLost."""
    return "".join(part.capitalize() for part in fault.split("-"))


def _line(items: Sequence[Standing]) -> str:
    worst = items[0]
    where = f" on {worst.device}" if worst.device and worst.device not in worst.text else ""
    rest = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    line = printable(f"{worst.text} ({worst.code}){where}", MAX_MESSAGE - len(rest)) + rest
    return line.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")


def _shown(standing: Sequence[Standing], boot_id: str) -> tuple[Standing, ...]:
    """The worst and newest that fit, and the worst of each condition before all others."""
    leaders: dict[ConditionType | None, Standing] = {}
    for item in standing:
        leaders.setdefault(item.condition, item)
    first = list(leaders.values())
    ordered = first + [item for item in standing if item not in first]
    room = MAX_FINDINGS_BYTES - len(_encode(boot_id, (), 10**9, datetime.now(UTC)).encode())
    chosen = set()
    for item in ordered[:MAX_FINDINGS]:
        room -= len(json.dumps(_wire(item), separators=(",", ":"), ensure_ascii=False).encode()) + 1
        if room < 0:
            break
        chosen.add((item.source, item.key))
    return tuple(item for item in standing if (item.source, item.key) in chosen)


def _encode(boot_id: str, shown: Sequence[Standing], more: int, at: datetime) -> str:
    content = {
        "v": FORMAT,
        "boot": boot_id,
        "at": _micros(at),
        "findings": [_wire(item) for item in shown],
        "more": more,
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _wire(item: Standing) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": item.id,
        "source": item.source,
        "device": item.device,
        "code": item.code,
        "fault": item.fault,
        "at": _micros(item.at),
        "certainty": item.certainty,
        "text": item.text,
    }
    # For the next agent of this boot.
    if item.condition is not None:
        row |= {"condition": item.condition, "status": item.status}
    if item.key != f"{item.device}/{item.code}":
        row["key"] = item.key
    if item.lasting:
        row["lasting"] = True
    if item.count != 1:
        row["count"] = item.count
    return row


def _standing(found: Finding, row: Mapping[str, Any]) -> Standing | None:
    """None = it is not of this agent's form (another writer's)."""
    condition, status, count = row.get("condition"), row.get("status"), row.get("count", 1)
    key = row.get("key", f"{found.device}/{found.code}")
    is_ours = (
        (condition is None or condition in set(ConditionType))
        and (status in ("False", "Unknown") or (condition is None and status is None))
        and (isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.isprintable())
        and (isinstance(count, int) and count > 0)
        and found.certainty in set(Certainty)
    )
    if not is_ours:
        return None
    return Standing(
        id=found.id,
        source=found.source,
        key=key,
        device=found.device,
        code=found.code,
        fault=found.fault,
        condition=None if condition is None else ConditionType(condition),
        status="Unknown" if status == "Unknown" else "False",
        certainty=Certainty(found.certainty),
        at=found.at,
        text=found.text,
        lasting=row.get("lasting") is True,
        count=count,
    )


def _micros(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
