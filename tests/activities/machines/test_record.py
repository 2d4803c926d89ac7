"""The machine record as values: keyed lists, bounds, and reading what anybody wrote."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.machines.record import MAX_ENTRIES, memory_of, phase_change, spec_change
from workflows.contracts.kube import Owner
from workflows.contracts.machines import Attempt, PhaseRecord, Validation
from workflows.model.identity import NodeRef
from workflows.model.remediation.overrule import Overrule

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
RECORD = PhaseRecord(
    owner=Owner(NodeRef("n", "u"), "ep"),
    machine_id="m",
    pool="p",
    workflow_id="node/c/n/u",
    run_id="r",
    sequence=1,
    phase="rebooted",
    fault="gpu-lost",
    detail="why",
    at=AT,
)
ATTEMPT = Attempt("reboot", AT, "unknown", "b1")


def after(*records: PhaseRecord, status: dict[str, Any] | None = None) -> dict[str, Any]:
    """The status after these records, as the API server would merge them."""
    body: dict[str, Any] = {"status": dict(status or {})}
    for record in records:
        body["status"] |= phase_change(body, record).get("status", {})
    return dict(body["status"])


def test_the_result_of_an_attempt_takes_the_place_of_its_issue() -> None:
    issued = replace(RECORD, attempt=ATTEMPT)
    done = replace(RECORD, attempt=replace(ATTEMPT, result="done", boot_id_after="b2"))
    attempts = after(issued, issued, done, done)["attempts"]
    assert [(a["rung"], a["result"], a["bootIDAfter"]) for a in attempts] == [
        ("reboot", "done", "b2")
    ]


def test_two_attempts_are_two() -> None:
    second = replace(ATTEMPT, at=AT + timedelta(minutes=5))
    records = [replace(RECORD, attempt=a) for a in (ATTEMPT, second)]
    assert len(after(*records)["attempts"]) == 2


@pytest.mark.parametrize(
    ("outcome", "fault", "strikes"),
    [
        ("returned", "gpu-lost", 1),
        ("retired", "gpu-lost", 1),
        ("dismissed", "gpu-lost", 0),
        ("yielded", "gpu-lost", 0),
        ("returned", "operator", 0),
        ("", "gpu-lost", 0),
    ],
)
def test_a_closed_episode_is_one_strike(outcome: str, fault: str, strikes: int) -> None:
    record = replace(RECORD, outcome=outcome, fault=fault)
    status = after(record, record)
    assert status.get("strikeCount", 0) == len(status.get("strikes", [])) == strikes


@pytest.mark.parametrize("outcome", ["returned", "dismissed"])
def test_a_phase_of_an_episode_that_was_closed_does_not_open_it_again(outcome: str) -> None:
    late = replace(RECORD, at=AT + timedelta(minutes=5), attempt=ATTEMPT)
    status = after(replace(RECORD, outcome=outcome), late)
    assert (status["outcome"], status["workflowID"]) == (outcome, "")
    assert memory_of("m", {"status": status}, "ep").closed_outcome == outcome
    assert len(status["attempts"]) == 1, "what it tried is true all the same"


def test_the_oldest_strikes_are_dropped_and_the_count_goes_on() -> None:
    records = [
        replace(RECORD, outcome="returned", owner=Owner(NodeRef("n", "u"), f"ep{n}"))
        for n in range(MAX_ENTRIES + 5)
    ]
    status = after(*records)
    assert (status["strikeCount"], len(status["strikes"])) == (MAX_ENTRIES + 5, MAX_ENTRIES)
    assert status["strikes"][-1]["episode"] == f"ep{MAX_ENTRIES + 4}"


def test_what_was_overruled_stands_until_it_is_resumed() -> None:
    overruled = replace(RECORD, overruled=Overrule("gpu-lost", ("GPU-1", "GPU-2"), "b1", AT))
    status = after(overruled, overruled)
    assert [(o["fault"], o["device"], o["bootID"]) for o in status["overruled"]] == [
        ("gpu-lost", "GPU-1", "b1"),
        ("gpu-lost", "GPU-2", "b1"),
    ]
    assert after(replace(RECORD, resumed=True), status=status)["overruled"] == []


def test_a_late_attempt_of_an_earlier_step_does_not_turn_the_phase_back() -> None:
    later = replace(RECORD, phase="validated", at=AT + timedelta(seconds=5))
    status = after(later, replace(RECORD, attempt=ATTEMPT))
    assert status["phase"] == "validated"
    assert len(status["attempts"]) == 1


def test_a_closed_episode_has_no_open_workflow() -> None:
    assert after(RECORD)["workflowID"] == "node/c/n/u"
    assert after(replace(RECORD, outcome="returned"))["workflowID"] == ""


def test_words_fit_the_crds_pattern_and_texts_their_bounds() -> None:
    wild = replace(RECORD, phase="Émoji 🙂 Phase", detail="\x1b[31m" + "y" * 9000, held=True)
    status = after(wild)
    assert status["phase"] == "-moji-phase"
    assert len(status["heldReason"]) <= 1024
    assert "\x1b" not in status["heldReason"]


def test_validation_is_its_result_and_its_words() -> None:
    at = RECORD.at - timedelta(minutes=1)
    status = after(replace(RECORD, validation=Validation(at, "failed", 2, "GPU x is `missing`")))
    assert status["lastValidation"] == {
        "at": at.isoformat(),
        "result": "failed",
        "level": 2,
        "detail": "GPU x is missing",
    }
    assert "lastValidation" not in after(RECORD)


@pytest.mark.parametrize(
    "status",
    [None, [], {"attempts": 3, "strikes": "x", "strikeCount": "many", "baseline": []}, {"x": 1}],
    ids=["none", "list", "mistyped", "foreign"],
)
def test_reading_is_total(status: Any) -> None:
    memory = memory_of("m", {"status": status}, "ep")
    assert (memory.baseline, memory.strikes, memory.reboots_in_episode) == (None, 0, 0)


def test_memory_is_this_episodes() -> None:
    other = replace(RECORD, owner=Owner(NodeRef("n", "u"), "other"), attempt=ATTEMPT)
    closed = replace(RECORD, outcome="returned")
    status = after(replace(RECORD, attempt=ATTEMPT), other, closed, replace(other, outcome=""))
    memory = memory_of("m", {"status": status}, "ep")
    assert memory.reboots_in_episode == 1
    assert memory.closed_outcome == "returned"
    assert memory_of("m", {"status": status}, "other").closed_outcome == ""


def test_a_machine_that_moved_to_another_node_loses_the_old_provider_id() -> None:
    body = {"spec": {"pool": "p", "node": {"name": "n", "uid": "u", "providerID": "x"}}}
    assert spec_change(body, "p", {"name": "n", "uid": "u"}) == {}
    moved = spec_change(body, "p", {"name": "n", "uid": "u2"})
    assert moved == {"spec": {"node": {"providerID": None, "name": "n", "uid": "u2"}}}
