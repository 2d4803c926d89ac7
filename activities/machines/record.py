"""The machine record as values: reading a GPUMachine, and the changes that are merged into it.

Owns the shape of `deploy/chart/templates/gpumachines.yaml` on our side: what an episode remembers of a machine,
and how one phase change alters the status (lists keyed, so that a second run alters nothing, and
bounded, the oldest dropped). Pure; used by `records.py` and `memory.py`.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from workflows.contracts.kube import MachineMemory
from workflows.contracts.machines import TAKEN_BACK, BaselineRequest, PhaseRecord
from workflows.model.detection.fault import Fault
from workflows.model.detection.finding import printable
from workflows.model.node import parse_instant
from workflows.model.policy import Rung
from workflows.model.remediation.gate import Baseline, Verdict
from workflows.model.remediation.overrule import Overrule
from workflows.model.remediation.phase import Outcome

MAX_ENTRIES: Final = 50
"""Of attempts, strikes and overruled faults; the CRD refuses more."""
MAX_DETAIL: Final = 1_000
STRIKING: Final = frozenset({Outcome.RETURNED, Outcome.REPLACED, Outcome.RETIRED})
"""Outcomes of episodes in which the machine was out of service."""

_NOT_A_WORD = re.compile(r"[^a-z0-9-]+")


def memory_of(machine_id: str, body: Mapping[str, Any] | None, episode: str) -> MachineMemory:
    """What a record says to one episode; total: what cannot be read is as if it were not there."""
    status = _mapping((body or {}).get("status"))
    attempts = [a for a in _objects(status.get("attempts")) if a.get("episode") == episode]
    count = status.get("strikeCount")
    return MachineMemory(
        machine_id=machine_id,
        baseline=baseline_of(status),
        strikes=count if isinstance(count, int) else 0,
        reboots_in_episode=sum(1 for a in attempts if a.get("rung") == Rung.REBOOT),
        closed_outcome=_closed_outcome(status, episode),
        overruled=tuple(
            Overrule(
                fault=str(entry.get("fault", "")),
                devices=(str(entry["device"]),) if entry.get("device") else (),
                boot_id=str(entry.get("bootID") or ""),
                at=parse_instant(entry.get("at")),
            )
            for entry in _objects(status.get("overruled"))[:MAX_ENTRIES]
        ),
    )


def _closed_outcome(status: Mapping[str, Any], episode: str) -> str:
    """The outcome that an episode was closed with; "" = it was not, as far as is known."""
    if status.get("episode") == episode and status.get("outcome"):
        return str(status["outcome"])
    strikes = [s for s in _objects(status.get("strikes")) if s.get("episode") == episode]
    return str(strikes[-1].get("outcome", "")) if strikes else ""


def baseline_of(status: Mapping[str, Any]) -> Baseline | None:
    """The recorded baseline; None if there is none that can be read."""
    found = status.get("baseline")
    if not isinstance(found, dict) or not isinstance(found.get("gpus"), list):
        return None
    allocatable = _mapping(found.get("allocatable"))
    return Baseline(
        gpus=tuple(str(gpu) for gpu in found["gpus"]),
        allocatable=tuple(
            (str(name), count)
            for name, count in sorted(allocatable.items())
            if isinstance(count, int)
        ),
        recorded_at=parse_instant(found.get("recordedAt")),
    )


def validated_at(status: Mapping[str, Any], level: int) -> datetime | None:
    """When the machine last passed a validation of at least `level`; None = never, as is known.

    A time that cannot be read is very long ago.
    """
    last = _mapping(status.get("lastValidation"))
    found = last.get("level")
    is_enough = isinstance(found, int) and found >= level
    if last.get("result") != Verdict.PASSED or not is_enough:
        return None
    return parse_instant(last.get("at"))


def taken_back_at(status: Mapping[str, Any]) -> datetime | None:
    """When a person ended the machine's last validation; None = that one ended otherwise."""
    last = _mapping(status.get("lastValidation"))
    return parse_instant(last.get("at")) if last.get("result") == TAKEN_BACK else None


def new_record(machine_id: str, pool: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a record that does not exist yet."""
    return {
        "apiVersion": "fleetmend.io/v1alpha1",
        "kind": "GPUMachine",
        "metadata": {"name": machine_id},
        "spec": {"machineID": machine_id, "pool": pool, "node": dict(node)},
    }


def spec_change(body: Mapping[str, Any], pool: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that says where the machine is now; empty = it says so already."""
    spec = _mapping(body.get("spec"))
    known = _mapping(spec.get("node"))
    change: dict[str, Any] = {}
    if any(known.get(key) != value for key, value in node.items()):
        moved = known.get("uid") != node.get("uid")
        change["node"] = {**({"providerID": None} if moved else {}), **node}
    if pool and spec.get("pool") != pool:
        change["pool"] = pool
    return {"spec": change} if change else {}


def phase_change(body: Mapping[str, Any], record: PhaseRecord) -> dict[str, Any]:
    """The status of the record after this phase change, as a merge patch.

    A phase that is older than the one that stands (a late attempt of an earlier step), or of an
    episode that was closed before (a run out of a restored backup), adds only to the lists.
    """
    status = _mapping(body.get("status"))
    lists = _lists(status, record)
    is_late = parse_instant(status.get("lastTransition")) > record.at
    if is_late or _closed_outcome(status, record.owner.episode):
        return {"status": lists} if lists else {}
    change = {
        "phase": _word(record.phase),
        "fault": _word(record.fault),
        "workflowID": "" if record.outcome else record.workflow_id,
        "runID": record.run_id,
        "episode": record.owner.episode,
        "outcome": _word(record.outcome),
        "held": record.held,
        "heldReason": printable(record.detail, MAX_DETAIL) if record.held else "",
        "lastTransition": record.at.isoformat(),
        **lists,
    }
    if record.validation is not None:
        change["lastValidation"] = {
            "at": record.validation.at.isoformat(),
            "result": _word(record.validation.result),
            "level": record.validation.level,
            "detail": printable(record.validation.detail, MAX_DETAIL),
        }
    return {"status": change}


def _lists(status: Mapping[str, Any], record: PhaseRecord) -> dict[str, Any]:
    """The lists that this phase change alters."""
    change: dict[str, Any] = {}
    if record.attempt is not None:
        change["attempts"] = _merged(status.get("attempts"), _attempt(record), ("episode", "at"))
    if _is_strike(record):
        strikes = _objects(status.get("strikes"))
        if all(s.get("episode") != record.owner.episode for s in strikes):
            count = status.get("strikeCount")
            change["strikeCount"] = (count if isinstance(count, int) else 0) + 1
        change["strikes"] = _merged(strikes, _strike(record), ("episode",))
    if record.resumed:
        change["overruled"] = []
    elif record.overruled is not None:
        overruled = _objects(status.get("overruled"))
        for entry in _overruled(record):
            overruled = _merged(overruled, entry, ("fault", "device"))
        change["overruled"] = overruled
    return change


def _is_strike(record: PhaseRecord) -> bool:
    return record.outcome in STRIKING and record.fault != Fault.OPERATOR


def _merged(found: Any, entry: dict[str, Any], key: tuple[str, ...]) -> list[dict[str, Any]]:
    """The list with `entry` in the place of one with the same key, else at its end."""
    kept = _objects(found)
    for index, known in enumerate(kept):
        if all(known.get(part) == entry.get(part) for part in key):
            return [*kept[:index], entry, *kept[index + 1 :]]
    return [*kept, entry][-MAX_ENTRIES:]


def _attempt(record: PhaseRecord) -> dict[str, Any]:
    assert record.attempt is not None
    return {
        "rung": _word(record.attempt.rung),
        "at": record.attempt.at.isoformat(),
        "episode": record.owner.episode,
        "result": _word(record.attempt.result) or "unknown",
        "bootIDBefore": record.attempt.boot_id_before[:128],
        "bootIDAfter": record.attempt.boot_id_after[:128],
    }


def _strike(record: PhaseRecord) -> dict[str, Any]:
    return {
        "episode": record.owner.episode,
        "fault": _word(record.fault),
        "outcome": _word(record.outcome),
        "at": record.at.isoformat(),
    }


def _overruled(record: PhaseRecord) -> list[dict[str, Any]]:
    assert record.overruled is not None
    return [
        {
            "fault": _word(record.overruled.fault),
            "device": device[:128],
            "bootID": record.overruled.boot_id[:128],
            "at": record.overruled.at.isoformat(),
            "episode": record.owner.episode,
        }
        for device in record.overruled.devices[:MAX_ENTRIES] or ("",)
    ]


def baseline_change(request: BaselineRequest) -> dict[str, Any]:
    """The merge patch that records a baseline."""
    gpus = sorted(request.baseline.gpus)
    return {
        "status": {
            "baseline": {
                "gpus": gpus,
                "gpuCount": len(gpus),
                "model": printable(request.model, 128),
                "bootID": request.boot_id[:128],
                "recordedAt": request.baseline.recorded_at.isoformat(),
                "allocatable": dict(request.baseline.allocatable),
            }
        }
    }


def _word(text: str) -> str:
    """`text` as the CRD's pattern takes it: a newer release may know words with other letters."""
    return _NOT_A_WORD.sub("-", text.lower())[:63]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
