"""What an agent stand-in says: four conditions and a bounded annotation, composed purely."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from activities.devices.reading import ConditionType
from workers.lab.faults.ailment import (
    FINDINGS_ANNOTATION,
    FINDINGS_BYTES,
    Ailment,
    ConditionStatus,
    Finding,
    Report,
    compose_patch,
    conditions_of,
    findings_annotation,
)

NOW = datetime(2026, 11, 29, 18, 30, 15, 250_000, tzinfo=UTC)


def _finding(number: int, text: str = "gone") -> Finding:
    return Finding(f"id-{number}", f"GPU-{number}", "xid-79", "gpu-lost", text, NOW)


def _ailment(status: ConditionStatus, reason: str, *findings: Finding) -> Ailment:
    return Ailment(ConditionType.GPU, status, reason, "a line", findings)


BAD = _ailment(ConditionStatus.FALSE, "GpuLost", _finding(1))
UNSURE = _ailment(ConditionStatus.UNKNOWN, "DiagnosticUnknown")


def test_a_healthy_machine_has_all_four_conditions_true() -> None:
    conditions = conditions_of([])
    assert [c.type for c in conditions] == list(ConditionType)
    assert {(c.status, c.reason) for c in conditions} == {(ConditionStatus.TRUE, "Healthy")}


@pytest.mark.parametrize(
    "order", [(BAD, UNSURE), (UNSURE, BAD)], ids=["bad first", "unknown first"]
)
def test_of_several_ailments_the_worst_speaks(order: tuple[Ailment, ...]) -> None:
    gpu = conditions_of(order)[0]
    assert (gpu.status, gpu.reason) == (ConditionStatus.FALSE, "GpuLost")


def test_a_transition_time_moves_only_with_the_status() -> None:
    report = Report("boot", NOW, (BAD,))
    standing = {
        "GPUHealthy": {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        "HostHealthy": {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    }
    rows = {row["type"]: row for row in compose_patch(report, standing)["status"]["conditions"]}
    assert rows["GPUHealthy"]["lastTransitionTime"] == "2026-11-29T18:30:15Z"
    assert rows["HostHealthy"]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert {row["lastHeartbeatTime"] for row in rows.values()} == {"2026-11-29T18:30:15Z"}


def test_another_reason_alone_does_not_move_the_transition_time() -> None:
    before = {"status": "False", "reason": "Other", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    rows = compose_patch(Report("boot", NOW, (BAD,)), {"GPUHealthy": before})
    assert rows["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_findings_carry_their_ids_and_the_boot_over_refreshes() -> None:
    first = json.loads(findings_annotation(Report("boot-1", NOW, (BAD,))))
    later = json.loads(findings_annotation(Report("boot-1", NOW + timedelta(minutes=5), (BAD,))))
    assert first["findings"] == later["findings"]
    assert (first["v"], first["boot"], first["more"]) == (1, "boot-1", 0)
    assert first["at"] == "2026-11-29T18:30:15.250000Z"
    assert first["findings"][0]["device"] == "GPU-1"


def test_the_annotation_stays_within_its_bound_and_counts_what_it_left_out() -> None:
    findings = tuple(_finding(n, "x" * 300) for n in range(60))
    ailment = _ailment(ConditionStatus.FALSE, "GpuLost", *findings)
    patch = compose_patch(Report("boot", NOW, (ailment,)), {})
    text = patch["metadata"]["annotations"][FINDINGS_ANNOTATION]
    told = json.loads(text)
    assert len(text.encode()) <= FINDINGS_BYTES
    assert told["findings"]
    assert len(told["findings"]) + told["more"] == 60
