"""Which faults a node shows: the first row that fits, staleness, and what an id is made of."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.model.views import HEALTHY, NOW, POLICY, condition, finding, node, policy_with, report
from workflows.model.detection.fault import Fault
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.detection.rules import RuleMatch, match_rules
from workflows.model.node import NodeView
from workflows.model.policy import Rule

SILENCE = timedelta(seconds=POLICY.timing.silence_s)
LOST = condition("GPUHealthy", "False", "GpuLost")


def matched(view: NodeView) -> list[str]:
    return [match.rule for match in match_rules(view, POLICY, NOW)]


def only(view: NodeView) -> RuleMatch:
    (match,) = match_rules(view, POLICY, NOW)
    return match


@pytest.mark.parametrize(
    ("view", "rules"),
    [
        pytest.param(HEALTHY, [], id="healthy"),
        pytest.param(node(conditions={"GPUHealthy": LOST}), ["gpu-lost"], id="lost"),
        pytest.param(
            node(conditions={"GPUHealthy": condition("GPUHealthy", "False", "Newer")}),
            ["gpu-unhealthy"],
            id="an-unknown-reason-has-a-row",
        ),
        pytest.param(
            node(conditions={"GPUHealthy": condition("GPUHealthy", "Unknown", "GpuLost")}),
            ["gpu-unknown"],
            id="unknown-with-a-grave-reason-stays-unknown",
        ),
        pytest.param(node(conditions={"GPUHealthy": None}), ["gpu-silent"], id="absent"),
        pytest.param(
            node(conditions={"GPUHealthy": condition("GPUHealthy", age=SILENCE)}),
            [],
            id="at-the-edge-of-silence",
        ),
        pytest.param(
            node(
                conditions={
                    "GPUHealthy": condition("GPUHealthy", age=SILENCE + timedelta(seconds=1))
                }
            ),
            ["gpu-silent"],
            id="silent",
        ),
        pytest.param(
            node(annotations={FINDINGS_ANNOTATION: report("boot-0")}),
            ["gpu-silent"],
            id="reported-in-an-older-boot",
        ),
        pytest.param(node(boot_id=""), ["gpu-silent"], id="node-without-boot-id"),
        pytest.param(
            node(conditions={"Ready": condition("Ready", "Unknown")}), ["unreachable"], id="away"
        ),
        pytest.param(node(conditions={"Ready": None}), [], id="kubelet-without-ready"),
        pytest.param(
            node(
                conditions={
                    "Ready": condition("Ready", "False"),
                    "NetworkHealthy": condition("NetworkHealthy", "False"),
                    "GPUHealthy": LOST,
                }
            ),
            ["gpu-lost", "network", "not-ready"],
            id="worst-first",
        ),
    ],
)
def test_the_rows_that_fit(view: NodeView, rules: list[str]) -> None:
    assert matched(view) == rules


def test_a_grave_report_of_an_older_boot_is_only_cannot_tell() -> None:
    """P6: what was true before the boot says nothing now, so it may not be immediate."""
    view = node(
        conditions={"GPUHealthy": LOST},
        annotations={FINDINGS_ANNOTATION: report("boot-0", finding())},
    )
    match = only(view)
    assert (match.fault, match.status, match.immediate) == (
        Fault.DIAGNOSTIC_UNKNOWN,
        "Stale",
        False,
    )


def test_a_second_fault_has_a_match_of_its_own_whatever_the_first_does() -> None:
    """N6: fault B's rule counts while A's stands, and stays when A heals."""
    both = node(
        conditions={
            "GPUHealthy": LOST,
            "InterconnectHealthy": condition("InterconnectHealthy", "False"),
        }
    )
    healed = node(conditions={"InterconnectHealthy": condition("InterconnectHealthy", "False")})
    assert matched(both) == ["gpu-lost", "interconnect"]
    (left,) = match_rules(healed, POLICY, NOW)
    assert left.id in {match.id for match in match_rules(both, POLICY, NOW)}


def test_a_condition_that_turned_good_again_matches_nothing() -> None:
    """D17: no latch of ours outlives the condition."""
    bad = node(conditions={"GPUHealthy": condition("GPUHealthy", "False", "DcgmError")})
    assert matched(bad) == ["gpu-unhealthy"]
    assert matched(HEALTHY) == []


def test_alternating_reasons_are_the_same_row_and_its_debounce() -> None:
    """R32b: the id changes (it is another fact), the row and how long it must last do not."""
    first = only(node(conditions={"GPUHealthy": condition("GPUHealthy", "False", "DcgmA")}))
    later = condition("GPUHealthy", "False", "DcgmB", changed=NOW)
    second = only(node(conditions={"GPUHealthy": later}))
    assert first.id != second.id
    assert (first.rule, first.fault, first.debounce_s) == (
        second.rule,
        second.fault,
        second.debounce_s,
    )


def test_the_id_stands_as_long_as_the_fact_does() -> None:
    view = node(conditions={"GPUHealthy": LOST})
    refreshed = replace(LOST, heartbeat=NOW + timedelta(minutes=5), message="other words")
    again = node(conditions={"GPUHealthy": refreshed}, resource_version="99")
    assert only(view).id == only(again).id


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(node(conditions={"GPUHealthy": LOST}, uid="uid-2"), id="another-node"),
        pytest.param(
            node(
                conditions={"GPUHealthy": LOST},
                boot_id="boot-2",
                annotations={FINDINGS_ANNOTATION: report("boot-2")},
            ),
            id="another-boot",
        ),
        pytest.param(
            node(conditions={"GPUHealthy": replace(LOST, changed=NOW)}), id="another-transition"
        ),
        pytest.param(
            node(
                conditions={"GPUHealthy": LOST},
                annotations={FINDINGS_ANNOTATION: report("boot-1", finding(device="GPU-2"))},
            ),
            id="another-device",
        ),
    ],
)
def test_the_id_changes_with_the_fact(changed: NodeView) -> None:
    assert only(changed).id != only(node(conditions={"GPUHealthy": LOST})).id


def test_devices_come_from_findings_of_the_same_fault() -> None:
    text = report("boot-1", finding(device="GPU-2"), finding(device="GPU-9", fault="thermal"))
    view = node(conditions={"GPUHealthy": LOST}, annotations={FINDINGS_ANNOTATION: text})
    assert only(view).devices == ("GPU-2",)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 9000, '{"v":1}'], ids=["none", "cut", "deep", "empty"]
)
def test_a_condition_whose_boot_nobody_can_read_is_unknown_and_never_immediate(text: str) -> None:
    for status in ("True", "False"):
        bad = replace(LOST, status=status)
        view = node(conditions={"GPUHealthy": bad}, annotations={FINDINGS_ANNOTATION: text})
        assert matched(view) == ["gpu-silent"]
        assert not only(view).immediate


def test_what_a_node_wrote_is_escaped() -> None:
    hostile = replace(LOST, reason="GpuLost", message="x\n**bold** <b>")
    assert only(node(conditions={"GPUHealthy": hostile})).text == "x bold b"


def test_only_the_agents_conditions_can_be_stale() -> None:
    rule = Rule(name="foreign", condition="NPDGpu", status="Stale", fault=Fault.THERMAL)
    assert match_rules(HEALTHY, policy_with(rule), NOW) == ()


def test_the_first_row_of_a_condition_counts() -> None:
    rows = [
        Rule(name=name, condition="Custom", status="True", fault=fault)
        for name, fault in (("a", Fault.THERMAL), ("b", Fault.GPU_LOST))
    ]
    conditions = {**HEALTHY.conditions, "Custom": condition("Custom")}
    view = replace(HEALTHY, conditions=conditions)
    assert [m.rule for m in match_rules(view, policy_with(*rows), NOW)] == ["a"]
