"""The ledger alone: what stands, under which id, and for how long."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.devices.reading import APPLICATION, Certainty, ConditionType, Reading
from workers.agent.conditions import Status, annotation, compose, forerunners, is_said
from workers.agent.findings import FADE_S, MAX_STANDING, STALE_S, Ledger, Moment
from workflows.model.detection.fault import Fault
from workflows.model.detection.finding import MAX_FINDINGS_BYTES, parse_findings

BOOT = "11111111-2222-4333-8444-555555555555"
AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW = Moment(AT, 1000.0)
ANSWERING = [
    ("nvml", frozenset({ConditionType.GPU, ConditionType.INTERCONNECT})),
    ("kernel-log", frozenset(ConditionType)),
]


def later(seconds: float) -> Moment:
    return Moment(AT + timedelta(seconds=seconds), 1000.0 + seconds)


def reading(code: str = "xid-79", **changes: Any) -> Reading:
    made = Reading(
        key=f"GPU-1/{code}",
        device="GPU-1",
        code=code,
        fault=Fault.GPU_LOST,
        condition=ConditionType.GPU,
        status="False",
        certainty=Certainty.CERTAIN,
        at=AT,
        text=f"{code} was seen",
        lasting=False,
    )
    changed = replace(made, **changes)
    return changed if "key" in changes else replace(changed, key=f"{changed.device}/{code}")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(BOOT, ANSWERING)


def healthy(ledger: Ledger) -> Ledger:
    ledger.polled("nvml", ())
    ledger.news("kernel-log", (), NOW)
    return ledger


def statuses(ledger: Ledger) -> dict[ConditionType, Status]:
    return {kind: word.status for kind, word in compose(ledger).words.items()}


def test_nothing_is_said_of_a_condition_before_all_its_sources_have_answered(
    ledger: Ledger,
) -> None:
    assert statuses(ledger) == {}
    ledger.news("kernel-log", (), NOW)
    assert set(statuses(ledger)) == {ConditionType.NETWORK, ConditionType.HOST}
    ledger.polled("nvml", ())
    assert statuses(ledger) == dict.fromkeys(ConditionType, Status.TRUE)


def test_a_fault_is_said_before_the_other_sources_have_answered(ledger: Ledger) -> None:
    ledger.polled("nvml", (reading(),))
    assert statuses(ledger) == {ConditionType.GPU: Status.FALSE}


def test_a_condition_no_source_answers_for_is_left_out() -> None:
    ledger = Ledger(BOOT, ANSWERING[:1])
    ledger.polled("nvml", ())
    report = compose(ledger)
    assert set(report.words) == {ConditionType.GPU, ConditionType.INTERCONNECT}
    assert report.is_complete


@pytest.mark.parametrize("gone", ["nvml", "kernel-log"])
def test_one_silent_source_makes_its_conditions_unknown_beside_healthy_ones(
    ledger: Ledger, gone: str
) -> None:
    healthy(ledger).silent(gone, "no-answer", "no answer within 5 s", NOW)
    unknown = {kind for kind, status in statuses(ledger).items() if status is Status.UNKNOWN}
    assert unknown == dict(ANSWERING)[gone]


def test_a_silence_keeps_its_first_id_until_the_source_answers(ledger: Ledger) -> None:
    healthy(ledger).silent("nvml", "no-answer", "no answer", NOW)
    before = ledger.standing()
    ledger.silent("nvml", "crashed", "killed by SIGSEGV", later(30))
    assert ledger.standing() == before
    ledger.polled("nvml", ())
    assert ledger.standing() == []


def test_what_a_silent_source_had_said_stands_for_a_bounded_time(ledger: Ledger) -> None:
    healthy(ledger).polled("nvml", (reading(), reading("xid-48", lasting=True)))
    ledger.silent("nvml", "crashed", "killed", NOW)
    ledger.expire(later(STALE_S - 1))
    assert len(ledger.standing()) == 4
    ledger.expire(later(STALE_S + 1))
    codes = {item.code for item in ledger.standing()}
    assert codes == {"xid-48", "crashed"}
    assert statuses(ledger)[ConditionType.INTERCONNECT] is Status.UNKNOWN


def test_a_step_of_the_wall_clock_lets_nothing_expire(ledger: Ledger) -> None:
    healthy(ledger).polled("nvml", (reading(),))
    ledger.silent("nvml", "crashed", "killed", NOW)
    ledger.news("kernel-log", (reading("xid-1"),), NOW)
    for step_s in (600, -600, 86_400):
        ledger.expire(Moment(AT + timedelta(seconds=step_s), NOW.mono + 60))
    assert {item.code for item in ledger.standing()} == {"xid-79", "xid-1", "crashed"}


def test_an_event_that_is_not_lasting_fades(ledger: Ledger) -> None:
    healthy(ledger).news("kernel-log", (reading(),), NOW)
    ledger.expire(later(FADE_S + 1))
    assert ledger.standing() == []


def test_the_same_event_again_is_the_same_finding(ledger: Ledger) -> None:
    ledger.news("kernel-log", (reading(lasting=True),), NOW)
    (before,) = ledger.standing()
    again = reading(lasting=True, count=900, at=AT + timedelta(hours=2))
    ledger.news("kernel-log", (again,), NOW)
    (after,) = ledger.standing()
    assert (after.id, after.at, after.count) == (before.id, AT, 900)


def test_a_new_burst_of_an_applications_fault_is_a_new_finding(ledger: Ledger) -> None:
    event = reading("xid-13", fault=APPLICATION, condition=None, lasting=True)
    ledger.news("kernel-log", (event,), NOW)
    (before,) = ledger.standing()
    ledger.news("kernel-log", (replace(event, at=AT + timedelta(minutes=5)),), NOW)
    assert ledger.standing() == [before]
    ledger.news("kernel-log", (replace(event, at=AT + timedelta(minutes=11)),), NOW)
    (after,) = ledger.standing()
    assert after.id != before.id


def test_the_ledger_is_bounded_and_keeps_the_worst(ledger: Ledger) -> None:
    healthy(ledger)
    event = reading(fault=APPLICATION, condition=None, lasting=True)
    for number in range(2 * MAX_STANDING):
        ledger.news("kernel-log", (replace(event, key=f"k/{number}"),), NOW)
        if number == 10:
            ledger.news("kernel-log", (reading("xid-79", lasting=True),), NOW)
    assert len(ledger.standing()) == MAX_STANDING
    assert ledger.standing()[0].code == "xid-79"
    assert ledger.forgotten == MAX_STANDING + 1
    report = compose(ledger)
    assert len(report.shown) + report.more == 2 * MAX_STANDING + 1


def test_silence_is_unknown_even_if_its_finding_found_no_place(ledger: Ledger) -> None:
    healthy(ledger)
    for number in range(MAX_STANDING):
        ledger.news("kernel-log", (reading(f"xid-{number}", lasting=True),), NOW)
    ledger.silent("nvml", "crashed", "killed", NOW)
    assert "crashed" not in {item.code for item in ledger.standing()}
    assert statuses(ledger)[ConditionType.INTERCONNECT] is Status.UNKNOWN


@pytest.mark.parametrize(
    "text", ["x" * 256, "é" * 256, '"\\' * 128], ids=["ascii", "wide", "quotes"]
)
def test_the_annotation_never_exceeds_its_bound(ledger: Ledger, text: str) -> None:
    for number in range(MAX_STANDING):
        long = reading("c" * 100, key=f"{number}", device="d" * 128, text=text, lasting=True)
        ledger.news("kernel-log", (long,), NOW)
    report = compose(ledger)
    written = annotation(report, AT)
    assert len(written.encode()) <= MAX_FINDINGS_BYTES
    assert len(parse_findings(written)) == len(report.shown) > 3
    assert report.more == MAX_STANDING - len(report.shown)
    for word in report.words.values():
        assert len(word.message.encode()) <= 1024


def test_the_worst_of_each_condition_is_shown_before_all_others(ledger: Ledger) -> None:
    for number in range(MAX_STANDING - 1):
        ledger.news("kernel-log", (reading(f"xid-{number}", text="x" * 256, lasting=True),), NOW)
    network = reading(
        "ib-link-down", fault=Fault.NETWORK, condition=ConditionType.NETWORK, lasting=True
    )
    ledger.news("kernel-log", (network,), NOW)
    shown = compose(ledger).shown
    assert shown[-1].code == "ib-link-down"
    assert len(shown) > 10


def test_the_next_agent_takes_over_what_stands(ledger: Ledger) -> None:
    healthy(ledger)
    ledger.polled("nvml", (reading("nvml-hot", fault=Fault.THERMAL),))
    ledger.news("kernel-log", (reading(lasting=True, count=12),), NOW)
    ledger.news(
        "kernel-log", (reading("xid-13", fault=APPLICATION, condition=None, lasting=True),), NOW
    )
    ledger.silent("kernel-log", "crashed", "killed", NOW)
    text = annotation(compose(ledger), AT)
    heir = Ledger(BOOT, ANSWERING)
    heir.take_over(forerunners(text, BOOT), NOW)
    assert heir.standing() == ledger.standing()
    assert statuses(heir)[ConditionType.GPU] is Status.FALSE
    healthy(heir)
    assert {item.code for item in heir.standing()} == {"xid-79", "xid-13"}


def test_a_reading_from_before_the_takeover_gets_its_forerunners_id(ledger: Ledger) -> None:
    ledger.polled("nvml", (reading(),))
    text = annotation(compose(ledger), AT)
    heir = Ledger(BOOT, ANSWERING)
    heir.polled("nvml", (reading(at=AT + timedelta(minutes=3)),))
    assert heir.standing() != ledger.standing()
    heir.take_over(forerunners(text, BOOT), NOW)
    assert heir.standing() == ledger.standing()


def test_nothing_is_taken_over_from_another_boot(ledger: Ledger) -> None:
    ledger.news("kernel-log", (reading(lasting=True),), NOW)
    text = annotation(compose(ledger), AT)
    assert forerunners(text, BOOT) != ()
    assert forerunners(text, "99999999-2222-4333-8444-555555555555") == ()


def test_counts_and_texts_are_no_news_but_classes_are(ledger: Ledger) -> None:
    healthy(ledger).polled("nvml", (reading(),))
    report = compose(ledger)
    text = annotation(report, AT)
    rows = {
        str(kind): {"status": word.status, "reason": word.reason}
        for kind, word in report.words.items()
    }
    assert is_said(report, rows, text)
    ledger.polled("nvml", (reading(text="another", count=7),))
    assert is_said(compose(ledger), rows, text)
    ledger.polled("nvml", (reading(fault=Fault.INTERCONNECT),))
    assert not is_said(compose(ledger), rows, text)
