"""The demo's verdict: each way in which a node can end wrongly is seen."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from workers.lab.demo.cast import BOUGHT, PARTS, Ending, Part, own_cast
from workers.lab.demo.chronicle import OPEN, Chronicle
from workers.lab.demo.sight import Seen
from workers.lab.demo.verdict import (
    FLEETMEND,
    Evidence,
    is_over,
    read_audit,
    successor_of,
    wrongs,
)

AT = datetime(2026, 11, 29, tzinfo=UTC)


def part_of(ending: Ending) -> Part:
    return next(part for part in (*own_cast(), BOUGHT) if part.ending is ending)


def seen(**changes: object) -> Seen:
    calm = Seen(
        node="n",
        pool="p",
        is_ready=True,
        is_cordoned=False,
        episode="",
        handed_over="",
        phase="",
        fault="",
        outcome="",
        is_held=False,
        held_reason="",
        has_baseline=True,
    )
    return replace(calm, **changes)  # type: ignore[arg-type]  # the test's own table


def chronicle(outcome: str, *, reboots: int = 0, is_held: bool = False) -> Chronicle:
    return Chronicle(
        workflow_id="w",
        run_id="r",
        outcome=outcome,
        is_held=is_held,
        detail="",
        started=AT,
        phases=(),
        steps={"reboot": reboots} if reboots else {},
        events=0,
        actions=0,
        retries=0,
        step_seconds={},
    )


def good(ending: Ending) -> Evidence:
    """A node that ended as it should."""
    stood = {"is_cordoned": True, "episode": "e"}
    sights = {
        Ending.RETURNED: seen(),
        Ending.HELD: seen(**stood, is_held=True),
        Ending.RETIRED: seen(**stood, handed_over="operator:why"),
        Ending.UNTOUCHED: seen(),
        Ending.REPLACED: None,
    }
    histories = {
        Ending.RETURNED: chronicle("returned", reboots=1),
        Ending.HELD: chronicle(OPEN, reboots=1, is_held=True),
        Ending.RETIRED: chronicle("retired"),
        Ending.UNTOUCHED: None,
        Ending.REPLACED: replace(chronicle("replaced"), detail="replaced by Node m"),
    }
    part = part_of(ending)
    return Evidence(
        part,
        sights[ending],
        histories[ending],
        part.reboots,
        writes=0,
        evictions=0,
        successor=seen(node="m") if ending is Ending.REPLACED else None,
        work_on_successor=2 if ending is Ending.REPLACED else 0,
    )


@pytest.mark.parametrize("ending", list(Ending))
def test_a_node_that_ended_as_it_should_is_passed(ending: Ending) -> None:
    assert wrongs(good(ending)) == []


@pytest.mark.parametrize("ending", [e for e in Ending if e is not Ending.REPLACED])
def test_a_node_that_is_gone_is_wrong(ending: Ending) -> None:
    assert wrongs(replace(good(ending), seen=None)) == ["the Node is gone"]


WRONG = {
    "returned, still cordoned": (Ending.RETURNED, {"seen": seen(is_cordoned=True)}),
    "returned, still marked": (Ending.RETURNED, {"seen": seen(episode="e")}),
    "returned without a boot": (Ending.RETURNED, {"boots": 0}),
    "returned after two boots": (Ending.RETURNED, {"boots": 2}),
    "held instead of returned": (Ending.RETURNED, {"chronicle": chronicle(OPEN, reboots=1)}),
    "held node uncordoned": (Ending.HELD, {"seen": seen(episode="e")}),
    "open, not held": (Ending.HELD, {"chronicle": chronicle(OPEN, reboots=1)}),
    "never reported": (Ending.RETURNED, {"chronicle": None}),
    "retired, nobody has it": (Ending.RETIRED, {"seen": seen(is_cordoned=True, episode="e")}),
    "retired and rebooted": (Ending.RETIRED, {"boots": 1}),
    "replaced, still there": (Ending.REPLACED, {"seen": seen()}),
    "replaced without trying a boot": (Ending.REPLACED, {"boots": 0}),
    "replaced by nobody": (Ending.REPLACED, {"successor": None}),
    "replaced by one never examined": (Ending.REPLACED, {"successor": seen(has_baseline=False)}),
    "replaced by one out of service": (Ending.REPLACED, {"successor": seen(is_cordoned=True)}),
    "its work runs elsewhere or not at all": (Ending.REPLACED, {"work_on_successor": 1}),
    "held in place of replaced": (Ending.REPLACED, {"chronicle": chronicle(OPEN, is_held=True)}),
    "an untouched node touched": (Ending.UNTOUCHED, {"writes": 1}),
    "an untouched node not Ready": (Ending.UNTOUCHED, {"seen": seen(is_ready=False)}),
}


@pytest.mark.parametrize(("ending", "change"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_ending_is_seen(ending: Ending, change: dict[str, object]) -> None:
    assert wrongs(replace(good(ending), **change))  # type: ignore[arg-type]  # as above


def test_it_is_over_when_held_or_closed() -> None:
    part = PARTS[0]
    assert not is_over(part, seen(), None)
    assert not is_over(part, seen(), chronicle(OPEN))
    assert is_over(part, seen(), chronicle(OPEN, is_held=True))
    assert is_over(part, seen(), chronicle("returned"))
    assert not is_over(BOUGHT, None, chronicle(OPEN))
    assert is_over(BOUGHT, None, chronicle("replaced"))


@pytest.mark.parametrize(
    ("detail", "name"),
    [("replaced by Node m-1", "m-1"), ("replaced by Node ", ""), ("retired", ""), ("", "")],
)
def test_the_successor_is_named_by_the_history(detail: str, name: str) -> None:
    assert successor_of(replace(chronicle("replaced"), detail=detail)) == name


def test_a_line_of_the_audit_log_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    line = json.dumps(
        {
            "stage": "ResponseComplete",
            "user": {"username": min(FLEETMEND)},
            "responseStatus": {"code": 200},
            "objectRef": {"resource": "nodes", "name": "n"},
        }
    )
    log = tmp_path / "audit.log"
    log.write_text(f"{line}\n{line[:40]}")
    assert read_audit(log, 0).writes == {"n": 1}
