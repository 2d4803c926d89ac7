"""The witness reads whole lines only, wherever it starts."""

import json
from pathlib import Path

from tests.harness.audit import AuditLog


def line(name: str) -> bytes:
    event = {"stage": "ResponseComplete", "verb": "patch", "objectRef": {"name": name}}
    return json.dumps(event).encode() + b"\n"


def test_a_witness_that_starts_in_the_middle_of_a_line_begins_with_the_next(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    first, second = line("before"), line("after")
    log.write_bytes(first + second)
    assert [e.name for e in AuditLog(log, offset=len(first) // 2).events()] == ["after"]
    assert [e.name for e in AuditLog(log, offset=len(first)).events()] == ["after"]
    assert [e.name for e in AuditLog(log).events()] == ["before", "after"]


def test_a_line_that_is_still_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    whole = line("one")
    log.write_bytes(whole + whole[:10])
    assert [e.name for e in AuditLog(log).events()] == ["one"]
