"""What a child says to the agent: one JSON line for one answer of its source.

Owns the line's form and every check of it: a child runs native code of vendors and may say
anything. A line that fails one check counts as no answer at all. Talks to nothing.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from activities.devices.reading import APPLICATION, Certainty, ConditionType, Reading
from workflows.model.detection.fault import UNKNOWN_KIND, Fault
from workflows.model.detection.finding import MAX_TEXT, printable

MAX_LINE_BYTES: Final = 256 * 1024
"""128 readings of the longest text fit."""
MAX_READINGS: Final = 128
MAX_KEY: Final = 256

_TOKEN = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_STATUSES: Final = MappingProxyType({"False": "False", "Unknown": "Unknown"})


class BadAnswer(ValueError):
    """The line is not what a source says; the message names the field."""


@dataclass(frozen=True)
class Answer:
    """One answer: readings, or why there are none."""

    readings: tuple[Reading, ...] = ()
    cannot_tell: str | None = None


def encode_readings(readings: Iterable[Reading]) -> bytes:
    """The line of an answer."""
    rows = [
        {
            "key": reading.key,
            "device": reading.device,
            "code": reading.code,
            "fault": reading.fault,
            "condition": reading.condition,
            "status": reading.status,
            "certainty": reading.certainty,
            "at": reading.at.isoformat(),
            "text": reading.text,
            "lasting": reading.lasting,
            "count": reading.count,
        }
        for reading in readings
    ]
    return _line({"readings": rows})


def encode_cannot_tell(why: str) -> bytes:
    """The line of a source that gives no answer."""
    return _line({"cannot_tell": why[:MAX_TEXT]})


def decode_answer(line: bytes) -> Answer:
    """One line, checked.

    Raises:
        BadAnswer: nothing of it is used then.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadAnswer(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"not JSON ({str(error)[:80]})") from error
    if not isinstance(body, dict):
        raise BadAnswer("expected an object")
    why = body.get("cannot_tell")
    if isinstance(why, str):
        return Answer(cannot_tell=printable(why, MAX_TEXT))
    rows = body.get("readings")
    if not isinstance(rows, list) or len(rows) > MAX_READINGS:
        raise BadAnswer(f"readings: expected a list of at most {MAX_READINGS} objects")
    return Answer(readings=tuple(_reading(row) for row in rows))


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def _reading(row: object) -> Reading:
    if not isinstance(row, dict):
        raise BadAnswer("readings[]: expected an object")
    fault = row.get("fault")
    if fault != APPLICATION and fault not in set(Fault):
        raise BadAnswer(f"fault: {str(fault)[:80]!r} is no class")
    device = row.get("device")
    return Reading(
        key=_key(row.get("key")),
        device="" if device == "" else _token("device", device),
        code=_token("code", row.get("code")),
        fault=str(fault),
        condition=None if fault == APPLICATION else _condition(row.get("condition")),
        status=_status(row.get("status"), str(fault)),
        certainty=_certainty(row.get("certainty")),
        at=_instant(row.get("at")),
        text=printable(str(row.get("text", "")), MAX_TEXT),
        lasting=_flag(row.get("lasting")),
        count=_count(row.get("count")),
    )


def _key(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY or not value.isprintable():
        raise BadAnswer(f"key: must be 1 to {MAX_KEY} printable characters")
    return value


def _token(field: str, value: object) -> str:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise BadAnswer(f"{field}: must be 1 to 128 of A-Z a-z 0-9 . _ : / -")
    return value


def _condition(value: object) -> ConditionType | None:
    try:
        return None if value is None else ConditionType(cast("str", value))
    except ValueError as error:
        raise BadAnswer(f"condition: must be one of {', '.join(ConditionType)}") from error


def _status(value: object, fault: str) -> Literal["False", "Unknown"]:
    if value not in _STATUSES:
        raise BadAnswer('status: must be "False" or "Unknown"')
    # A class that says "cannot tell" never says "bad" (P6).
    return "Unknown" if value == "Unknown" or fault in UNKNOWN_KIND else "False"


def _certainty(value: object) -> Certainty:
    try:
        return Certainty(cast("str", value))
    except ValueError as error:
        raise BadAnswer(f"certainty: must be one of {', '.join(Certainty)}") from error


def _instant(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError as error:
        raise BadAnswer("at: must be RFC 3339") from error
    if at.tzinfo is None:
        raise BadAnswer("at: has no time zone")
    return at


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadAnswer("lasting: must be true or false")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**53:
        raise BadAnswer("count: must be a whole number from 1 on")
    return value
