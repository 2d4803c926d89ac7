"""The words of `dcgmi health -c -j`: incidents, and what each means for the node.

Owns the shape of that JSON (dcgmi/Health.cpp of DCGM 3.3 to 4.6; no stable schema is promised) and
the table of health systems. Everything is hostile and bounded; what cannot be read cannot tell.
Pure; `dcgm.py` runs the program.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from activities.devices.reading import CannotTell
from workflows.model.detection.fault import Fault
from workflows.model.detection.verdict import (
    APPLICATION,
    INTERCONNECT,
    NONE,
    Verdict,
    cannot_tell,
    likely,
)
from workflows.model.detection.xid import classify_xid

HEALTHY, WARNING, FAILURE = "Healthy", "Warning", "Failure"
MAX_INCIDENTS: Final = 96
MAX_TEXT: Final = 512

_XID = re.compile(r"\bXID\D{0,12}(\d{1,4})\b", re.IGNORECASE)
_DBE = re.compile(r"\bDBEs?\b|double.bit", re.IGNORECASE)
_PENDING = re.compile(r"\bpending\b", re.IGNORECASE)
_IMEX = re.compile(r"\bIMEX\b", re.IGNORECASE)

_TOLD: Final = Verdict(APPLICATION, None, "likely", "warning")
"""Worth telling, and costs no node: slow, corrected, or a trend."""
_SYSTEMS: Mapping[str, tuple[str, Verdict]] = MappingProxyType(
    {
        # by a part of the system's name in lower case: the code, and what a Failure means
        "memory": ("dcgm-memory", likely(Fault.GPU_MEMORY_UNCORRECTABLE)),
        "nvlink": ("dcgm-nvlink", likely(Fault.INTERCONNECT, INTERCONNECT)),
        "nvswitch": ("dcgm-nvswitch", likely(Fault.INTERCONNECT, INTERCONNECT)),
        "pcie": ("dcgm-pcie", likely(Fault.GPU_DRIVER)),
        "thermal": ("dcgm-thermal", likely(Fault.THERMAL)),
        "power": ("dcgm-power", likely(Fault.THERMAL)),
        "driver": ("dcgm-driver", likely(Fault.GPU_DRIVER)),
        "inforom": ("dcgm-inforom", cannot_tell()),
    }
)
_OTHER: Final = ("dcgm-other", cannot_tell())


@dataclass(frozen=True)
class Incident:
    """One system of one entity that is not healthy; `gpu` is DCGM's id, "" = no GPU."""

    gpu: str
    code: str
    verdict: Verdict
    text: str


def read_health(output: str) -> tuple[Incident, ...]:
    """The incidents that matter; empty = DCGM says that all it watches is healthy.

    Raises:
        CannotTell: there is no report in the output, or it contradicts itself.
    """
    body = _report(output)
    overall = _value(body.get("Overall Health"))
    if overall not in (HEALTHY, WARNING, FAILURE):
        raise CannotTell(f"dcgmi health: no overall health in its report: {overall[:40]!r}")
    found = list(_incidents(body))
    if overall != HEALTHY and not found:
        raise CannotTell(f"dcgmi health: says {overall}, but not of what; see dcgmi health -c")
    if len(found) > MAX_INCIDENTS:
        raise CannotTell(f"dcgmi health: more than {MAX_INCIDENTS} incidents; see dcgmi health -c")
    return tuple(incident for incident in found if incident.verdict.fault != NONE)


def _report(output: str) -> dict[str, Any]:
    start = output.find("{")  # a banner may come before it
    try:
        document, _ = json.JSONDecoder().raw_decode(output, max(start, 0))
    except (ValueError, RecursionError):
        document = None
    body = document.get("body") if isinstance(document, dict) else None
    if not isinstance(body, dict):
        said = " ".join(output.split())[:120]
        raise CannotTell(f"dcgmi health: its answer is no report: {said!r}")
    return body


def _incidents(body: dict[str, Any]) -> Iterator[Incident]:
    for group, entities in body.items():
        for entity, parts in _children(entities):
            gpu = entity if group == "GPU" and re.fullmatch(r"\d{1,3}", entity) else ""
            who = f"{group} {entity}"
            errors = [
                pair
                for name, part in _children(parts)
                if name == "Errors"
                for pair in _children(part)
            ]
            if not errors and _value(parts) not in (HEALTHY, ""):
                yield Incident(gpu, *_OTHER, f"{who} is {_value(parts)[:40]}")
            for system, error in errors:
                text = f"{who}, {system}, {_value(error)}: {_words(error)}"[:MAX_TEXT]
                yield _incident(gpu, system, _value(error), text)


def _incident(gpu: str, system: str, value: str, text: str) -> Incident:
    lowered = system.lower()
    code, failure = next((row for part, row in _SYSTEMS.items() if part in lowered), _OTHER)
    return Incident(gpu, code, _verdict(code, failure, value, text), text)


def _verdict(code: str, failure: Verdict, value: str, text: str) -> Verdict:
    xids = [classify_xid(int(number)) for number in _XID.findall(text)[:8]]
    if xids:
        # DCGM counts what an application did as a memory warning; the code itself decides.
        grave = [v for v in xids if v.severity == "fatal"]
        return grave[0] if grave else Verdict(NONE, None, "certain", "info")
    if code == "dcgm-memory" and (_DBE.search(text) or _PENDING.search(text)):
        # A contained error counts as DBE too, and a pending remap waits for a reset.
        return likely(Fault.GPU_MEMORY_CONTAINED)
    if code == "dcgm-driver" and _IMEX.search(text):
        return cannot_tell(INTERCONNECT)
    if value == WARNING:
        return _TOLD
    return failure if value == FAILURE else cannot_tell()


def _children(node: Any) -> list[tuple[str, Any]]:
    children = node.get("children") if isinstance(node, dict) else None
    return [(str(k), v) for k, v in children.items()][:1024] if isinstance(children, dict) else []


def _value(node: Any) -> str:
    value = node.get("value") if isinstance(node, dict) else None
    return value.strip() if isinstance(value, str) else ""


def _words(error: Any) -> str:
    """The text, which dcgmi cuts into pieces."""
    pieces = error.get("overflow") if isinstance(error, dict) else None
    return " ".join(str(piece) for piece in pieces[:32]) if isinstance(pieces, list) else ""
