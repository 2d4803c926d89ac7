"""Whether each node of the demo ended as it should, judged from outside.

Owns the checks, one list for each ending. Their witnesses are the histories in Temporal, the API
server's state and its audit log, and the machines' own count of boots; never a log of fleetmend.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from workers.lab.demo.cast import JOBS, Ending, Part
from workers.lab.demo.chronicle import OPEN, Chronicle
from workers.lab.demo.sight import Seen

FLEETMEND: Final = frozenset(
    f"system:serviceaccount:fleetmend:fleetmend-{name}" for name in ("watch", "worker")
)
SUCCESSOR: Final = "replaced by Node "
"""How a closed episode tells it (workflows/replacing.py)."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known of one node at the end."""

    part: Part
    seen: Seen | None
    chronicle: Chronicle | None
    boots: int
    writes: int
    """Successful writes of watch and worker to the Node object."""
    evictions: int
    successor: Seen | None = None
    """Who came in its place; None = nobody, or nobody knows."""
    work_on_successor: int = 0
    """Training pods that are Ready there."""


def wrongs(evidence: Evidence) -> list[str]:
    """What is not as it should be; empty = all is."""
    if evidence.part.ending is Ending.REPLACED:
        claims = _claims_of_replaced(evidence)
    elif evidence.seen is None:
        return ["the Node is gone"]
    else:
        claims = _claims(evidence, evidence.seen)
    found_wrong = [
        f"{what} is {found!r}, and should be {wanted!r}"
        for what, found, wanted in claims
        if found != wanted
    ]
    if found_wrong and evidence.chronicle and evidence.chronicle.detail:
        found_wrong.append(f"the episode says: {evidence.chronicle.detail}")
    return found_wrong


def _claims_of_replaced(evidence: Evidence) -> Iterator[tuple[str, object, object]]:
    chronicle, successor = evidence.chronicle, evidence.successor
    yield "the outcome", chronicle.outcome if chronicle else "no episode", "replaced"
    yield "the old Node", "there" if evidence.seen else "gone", "gone"
    yield "the node's boots", evidence.boots, evidence.part.reboots
    yield "the successor", "there" if successor else "missing", "there"
    if successor is not None:
        yield "the successor's Ready", successor.is_ready, True
        yield "the successor's baseline", successor.has_baseline, True
        yield "the successor's cordon", successor.is_cordoned, False
        yield "the successor's marker", successor.has_marker, False
        work = JOBS[evidence.part.pool].replicas
        yield "training pods on the successor", evidence.work_on_successor, work


def _claims(evidence: Evidence, seen: Seen) -> Iterator[tuple[str, object, object]]:
    ending, chronicle = evidence.part.ending, evidence.chronicle
    outcome = chronicle.outcome if chronicle else "no episode"
    yield "the node's boots", evidence.boots, evidence.part.reboots
    yield "Ready", seen.is_ready, True
    if ending is Ending.UNTOUCHED:
        yield "the episode", outcome, "no episode"
        yield "writes to the Node", evidence.writes, 0
        return
    reboots = chronicle.steps.get("reboot", 0) if chronicle else 0
    yield "reboots that were asked for", reboots, evidence.part.reboots
    match ending:
        case Ending.RETURNED:
            yield "the outcome", outcome, "returned"
            yield "the cordon", seen.is_cordoned, False
            yield "the marker", seen.has_marker, False
        case Ending.HELD:
            yield "the outcome", outcome, OPEN
            yield "held", bool(chronicle and chronicle.is_held), True
            yield "the cordon", seen.is_cordoned, True
            yield "the marker", bool(seen.episode) and not seen.handed_over, True
        case Ending.RETIRED:
            yield "the outcome", outcome, "retired"
            yield "the cordon", seen.is_cordoned, True
            yield "handed over", bool(seen.handed_over), True


def successor_of(chronicle: Chronicle | None) -> str:
    """Name of the Node that took a replaced one's place; "" = none is told."""
    told = "" if chronicle is None else chronicle.detail
    return told.removeprefix(SUCCESSOR).strip() if told.startswith(SUCCESSOR) else ""


def is_over(part: Part, seen: Seen | None, chronicle: Chronicle | None) -> bool:
    """True once nothing more is to come for this node."""
    if not part.has_episode:
        return True
    if chronicle is None or (seen is None and part.ending is not Ending.REPLACED):
        return False
    return chronicle.is_held or chronicle.outcome != OPEN


def read_audit(path: Path, offset: int) -> "AuditCounts":
    """What watch and worker did to each node since `offset` of the audit log."""
    writes: dict[str, int] = {}
    evictions: dict[str, int] = {}
    cordoned: dict[str, datetime] = {}
    with path.open("rb") as log:
        log.seek(offset)
        for line in log:
            if not line.endswith(b"\n"):
                break  # still being written
            event = json.loads(line)
            ref = event.get("objectRef") or {}
            if not _is_deed(event):
                continue
            if ref.get("resource") == "nodes":
                name = str(ref.get("name", ""))
                writes[name] = writes.get(name, 0) + 1
                if ((event.get("requestObject") or {}).get("spec") or {}).get("unschedulable"):
                    cordoned.setdefault(name, datetime.fromisoformat(event["stageTimestamp"]))
            elif ref.get("subresource") == "eviction":
                pod = str(ref.get("name", ""))
                evictions[pod] = evictions.get(pod, 0) + 1
    return AuditCounts(writes, evictions, cordoned)


@dataclass(frozen=True)
class AuditCounts:
    """Successful writes and the first cordon by Node name, and evictions by pod name."""

    writes: Mapping[str, int]
    evictions: Mapping[str, int]
    cordoned: Mapping[str, datetime]


def _is_deed(event: Mapping[str, Any]) -> bool:
    code = int((event.get("responseStatus") or {}).get("code", 0))
    return (
        event.get("stage") == "ResponseComplete"
        and (event.get("user") or {}).get("username") in FLEETMEND
        and 200 <= code < 300
    )
