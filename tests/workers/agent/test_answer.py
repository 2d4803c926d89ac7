"""What a child may say, and that everything else counts as no answer."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from activities.devices.reading import Certainty, ConditionType, Reading
from workers.agent.answer import (
    MAX_LINE_BYTES,
    MAX_READINGS,
    BadAnswer,
    decode_answer,
    encode_cannot_tell,
    encode_readings,
)

READING = Reading(
    key="GPU-1/xid-79",
    device="GPU-1",
    code="xid-79",
    fault="gpu-lost",
    condition=ConditionType.GPU,
    status="False",
    certainty=Certainty.CERTAIN,
    at=datetime(2026, 1, 1, tzinfo=UTC),
    text="GPU has fallen off the bus",
    lasting=True,
    count=3,
)
ROW = json.loads(encode_readings([READING]))["readings"][0]


def line(**changes: Any) -> bytes:
    return json.dumps({"readings": [{**ROW, **changes}]}).encode()


def test_readings_cross_the_pipe_unchanged() -> None:
    assert decode_answer(encode_readings([READING])).readings == (READING,)
    assert decode_answer(encode_readings([])).readings == ()


def test_cannot_tell_crosses_the_pipe() -> None:
    assert (
        decode_answer(encode_cannot_tell("no driver; load it")).cannot_tell == "no driver; load it"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", ""),
        ("key", "x" * 257),
        ("key", "a\nb"),
        ("device", None),
        ("device", "GPU 1"),
        ("device", "x" * 129),
        ("code", ""),
        ("code", 79),
        ("fault", "gpu-haunted"),
        ("fault", None),
        ("condition", "Ready"),
        ("condition", ["GPUHealthy"]),
        ("status", "True"),
        ("status", None),
        ("certainty", "sure"),
        ("at", "yesterday"),
        ("at", "2026-01-01T00:00:00"),
        ("at", 5),
        ("lasting", 1),
        ("count", 0),
        ("count", -1),
        ("count", True),
        ("count", 2**60),
    ],
)
def test_one_bad_field_spoils_the_answer_and_is_named(field: str, value: object) -> None:
    with pytest.raises(BadAnswer, match=f"^{field}:"):
        decode_answer(line(**{field: value}))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b"5",
        b"{}",
        b'{"readings": 5}',
        b'{"readings": [5]}',
        b"[" * 100_000,
        b'{"readings": "' + b"x" * MAX_LINE_BYTES + b'"}',
        json.dumps({"readings": [ROW] * (MAX_READINGS + 1)}).encode(),
    ],
    ids=range(10),
)
def test_what_is_no_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(BadAnswer):
        decode_answer(raw)


def test_texts_are_made_printable_and_cut() -> None:
    (found,) = decode_answer(line(text="a\n\x1b[31mb`" + "x" * 999)).readings
    assert found.text.isprintable()
    assert "`" not in found.text
    assert len(found.text) == 256


@pytest.mark.parametrize("fault", ["diagnostic-unknown", "host-unreachable"])
def test_a_class_that_cannot_tell_never_says_bad(fault: str) -> None:
    (found,) = decode_answer(line(fault=fault, status="False")).readings
    assert found.status == "Unknown"


def test_an_applications_fault_makes_no_condition_bad() -> None:
    (found,) = decode_answer(line(fault="application")).readings
    assert found.condition is None
