"""Findings: single facts that a detector on a node saw, and the bounded form they travel in.

Owns the annotation `fleetmend.io/findings` (hostile input: bounded, validated, escaped) and the
type `Finding`. Does not decide what a finding means (rules do). Talks to nothing.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

FINDINGS_ANNOTATION = "fleetmend.io/findings"
MAX_FINDINGS_BYTES = 8192
"""The agent's admission policy refuses a longer annotation (design section 3)."""
MAX_FINDINGS = 64
MAX_TEXT = 256

_TOKEN = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


class FindingsError(ValueError):
    """The findings annotation cannot be read; its findings count as "cannot tell"."""


@dataclass(frozen=True)
class Finding:
    """One fact: `code` seen on `device` ("" = the host) at `at`, during the boot `boot_id`."""

    id: str
    source: str
    device: str
    code: str
    fault: str
    at: datetime
    certainty: str
    boot_id: str
    text: str


def parse_findings(text: str) -> tuple[Finding, ...]:
    """The findings of an annotation, worst first as the agent wrote them.

    Raises:
        FindingsError: names the field that is wrong. Nothing of the annotation is used then.
    """
    if len(text.encode(errors="replace")) > MAX_FINDINGS_BYTES:
        raise FindingsError(
            f"{FINDINGS_ANNOTATION}: longer than {MAX_FINDINGS_BYTES} bytes; the agent must "
            "keep the worst and newest"
        )
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FindingsError(f"{FINDINGS_ANNOTATION}: not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("v") != 1:
        raise FindingsError(f'{FINDINGS_ANNOTATION}: expected an object with "v": 1')
    boot_id = _token(body, "boot")
    items = body.get("findings")
    if not isinstance(items, list) or len(items) > MAX_FINDINGS:
        raise FindingsError(
            f"{FINDINGS_ANNOTATION}.findings: a list of at most {MAX_FINDINGS} objects"
        )
    return tuple(_finding(item, boot_id) for item in items)


def _finding(item: object, boot_id: str) -> Finding:
    if not isinstance(item, dict):
        raise FindingsError(f"{FINDINGS_ANNOTATION}.findings[]: expected an object")
    return Finding(
        id=_token(item, "id"),
        source=_token(item, "source"),
        device=_token(item, "device", optional=True),
        code=_token(item, "code"),
        fault=_token(item, "fault"),
        at=_instant(item.get("at")),
        certainty=_token(item, "certainty"),
        boot_id=boot_id,
        text=_text(item.get("text")),
    )


def _token(item: dict[str, object], field: str, *, optional: bool = False) -> str:
    value = item.get(field, "")
    if optional and value in ("", None):
        return ""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise FindingsError(
            f"{FINDINGS_ANNOTATION}: field {field!r} must be 1 to 128 of A-Z a-z 0-9 . _ : / -"
        )
    return value


def _text(value: object) -> str:
    return printable(value, MAX_TEXT) if isinstance(value, str) else ""


def _instant(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError as error:
        raise FindingsError(f"{FINDINGS_ANNOTATION}: field 'at' must be RFC 3339") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def printable(text: str, limit: int) -> str:
    """`text` on one line, without control characters or Markdown markup, cut to `limit`.

    For everything that a node wrote and a person will read (Temporal UI, Events, terminals).
    """
    flat = "".join(c if c.isprintable() else " " for c in text)
    flat = flat.translate({ord(c): None for c in "`<>[]|*"})
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
