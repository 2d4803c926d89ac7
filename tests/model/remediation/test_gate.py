"""The gate: passed only on fresh, complete and matching evidence."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import HEALTHY, NOW, POLICY, condition, node, report
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.policy import Rule
from workflows.model.remediation.gate import (
    Baseline,
    Inventory,
    Judgement,
    Verdict,
    judge_allocatable,
    judge_conditions,
    judge_inventory,
    worst,
)

GPUS = tuple(f"GPU-{n}" for n in range(8))
BASELINE = Baseline(GPUS, (("nvidia.com/gpu", 8),), NOW)
LONG_AGO = timedelta(seconds=POLICY.timing.silence_s + 1)
PASSED, FAILED, UNKNOWN = Verdict.PASSED, Verdict.FAILED, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, PASSED, id="fresh-and-good"),
        pytest.param(
            {"conditions": {"GPUHealthy": condition("GPUHealthy", "False", "GpuLost")}},
            FAILED,
            id="still-bad",
        ),
        pytest.param({"conditions": {"NetworkHealthy": None}}, UNKNOWN, id="absent"),
        pytest.param(
            {"conditions": {"HostHealthy": condition("HostHealthy", "Unknown")}},
            UNKNOWN,
            id="cannot-tell",
        ),
        pytest.param(
            {"conditions": {"GPUHealthy": condition("GPUHealthy", age=LONG_AGO)}},
            UNKNOWN,
            id="silent",
        ),
        pytest.param(
            {"annotations": {FINDINGS_ANNOTATION: report("boot-0")}},
            UNKNOWN,
            id="good-but-before-the-boot",
        ),
        pytest.param({"boot_id": ""}, UNKNOWN, id="no-boot-id"),
        pytest.param({"conditions": {"Ready": None}}, UNKNOWN, id="without-ready"),
        pytest.param(
            {"conditions": {"Ready": condition("Ready", "False")}}, UNKNOWN, id="not-ready"
        ),
        pytest.param(
            {"conditions": {"GPUHealthy": condition("GPUHealthy", "False", "Newer")}},
            UNKNOWN,
            id="bad-for-an-unknown-reason",
        ),
    ],
)
def test_conditions(changes: dict[str, Any], verdict: Verdict) -> None:
    judged = judge_conditions(node(**changes), POLICY, NOW)
    assert judged.verdict is verdict
    assert bool(judged.reasons) is (verdict is not PASSED)


def test_a_condition_the_gate_asks_for_counts_without_any_rule() -> None:
    rules = POLICY.model_copy(update={"rules": ()})
    bad = node(conditions={"GPUHealthy": condition("GPUHealthy", "False")})
    assert judge_conditions(bad, rules, NOW).verdict is UNKNOWN
    assert judge_conditions(HEALTHY, rules, NOW).verdict is PASSED


def test_a_foreign_rule_that_matches_fails_the_gate() -> None:
    rule = Rule(name="npd", condition="KernelDeadlock", status="True", fault="thermal")  # type: ignore[arg-type]  # as YAML says it
    policy = POLICY.model_copy(update={"rules": (rule,)})
    view = node()
    object.__setattr__(
        view, "conditions", {**view.conditions, "KernelDeadlock": condition("KernelDeadlock")}
    )
    assert judge_conditions(view, policy, NOW).verdict is FAILED


@pytest.mark.parametrize(
    ("inventory", "baseline", "boot_id", "verdict", "says"),
    [
        pytest.param(Inventory(GPUS, "H100", "b"), BASELINE, "b", PASSED, "", id="all-there"),
        pytest.param(Inventory(GPUS[::-1], "H100", "b"), BASELINE, "b", PASSED, "", id="any-order"),
        pytest.param(
            Inventory(GPUS[:7], "H100", "b"),
            BASELINE,
            "b",
            FAILED,
            "GPU-7 is missing",
            id="missing",
        ),
        pytest.param(
            Inventory((*GPUS[:7], "GPU-9"), "H100", "b"),
            BASELINE,
            "b",
            FAILED,
            "GPU-9 is not in the baseline",
            id="foreign",
        ),
        pytest.param(
            Inventory(GPUS, "H100", "b"), None, "b", UNKNOWN, "baseline", id="no-baseline"
        ),
        pytest.param(None, BASELINE, "b", UNKNOWN, "no answer", id="no-inventory"),
        pytest.param(
            Inventory(GPUS, "H100", "a"), BASELINE, "b", UNKNOWN, "another boot", id="older-boot"
        ),
        pytest.param(
            Inventory(GPUS, "H100", ""), BASELINE, "", UNKNOWN, "another boot", id="no-boot-id"
        ),
    ],
)
def test_inventory(
    inventory: Inventory | None,
    baseline: Baseline | None,
    boot_id: str,
    verdict: Verdict,
    says: str,
) -> None:
    judged = judge_inventory(inventory, baseline, boot_id)
    assert judged.verdict is verdict
    assert says in " ".join(judged.reasons)


@pytest.mark.parametrize(
    ("gpus", "waited_s", "verdict"),
    [
        ({"nvidia.com/gpu": 8}, 0, PASSED),
        ({"nvidia.com/gpu": 9}, 0, PASSED),
        ({"nvidia.com/gpu": 7}, 0, UNKNOWN),
        ({"nvidia.com/gpu": 7}, 299.9, UNKNOWN),
        ({"nvidia.com/gpu": 7}, 300, FAILED),
        ({}, 300, FAILED),
    ],
    ids=["all", "more", "settling", "still-settling", "settled-below", "plugin-gone"],
)
def test_allocatable_may_settle_for_a_while(
    gpus: dict[str, int], waited_s: float, verdict: Verdict
) -> None:
    assert judge_allocatable(node(gpus=gpus), BASELINE, waited_s, 300).verdict is verdict


def test_without_a_baseline_allocatable_is_unknown_for_ever() -> None:
    assert judge_allocatable(HEALTHY, None, 1e9, 0).verdict is UNKNOWN


@given(st.lists(st.sampled_from(Verdict), min_size=1, max_size=4))
def test_the_worst_counts_and_every_reason_is_kept(verdicts: list[Verdict]) -> None:
    judged = worst(*(Judgement(v, (f"reason {i}",)) for i, v in enumerate(verdicts)))
    assert len(judged.reasons) == len(verdicts)
    expected = next(v for v in (FAILED, UNKNOWN, PASSED) if v in verdicts)
    assert judged.verdict is expected
