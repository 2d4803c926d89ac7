"""The judgement as a table: what follows from a Node, and what never does."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.workers.watch.nodes_in_memory import BOOT, NOW, POOL, armed, node, policy
from workers.watch.judge import AGENT_GRACE_S, Sight, Verdict, judge
from workers.watch.machine import MachineRecord, OverruledFault
from workflows.model.detection.fault import Fault
from workflows.model.node import NodeView, PodView
from workflows.model.remediation.arming import Arming, Entry
from workflows.model.remediation.marks import EPISODE, IGNORE, PAUSE, Marker, Quarantine
from workflows.model.remediation.permit import Refusal

MARKER = Marker("e1", "uid-n", NOW, "gpu-lost", "gpu-lost", Quarantine.REFLEX)


def _judge(view: NodeView, arming: Arming | None = None, **sight: object) -> Verdict:
    return judge(
        Sight(view, **sight),  # type: ignore[arg-type]  # a table of fields
        policy(),
        armed() if arming is None else arming,
        NOW,
    )


def test_healthy_node_asks_for_nothing() -> None:
    verdict = _judge(node())
    assert (verdict.matches, verdict.reflex, verdict.has_episode) == ((), None, False)


def test_immediate_rule_asks_for_a_quarantine_at_once() -> None:
    verdict = _judge(node(reason="GpuLost"))
    assert verdict.reflex is not None
    assert verdict.reflex.fault is Fault.GPU_LOST
    assert verdict.has_episode


def test_rule_with_patience_is_only_reported() -> None:
    verdict = _judge(node(reason="Thermal"))
    assert (verdict.reflex, verdict.has_episode) == (None, True)
    assert [match.rule for match in verdict.matches] == ["gpu-thermal"]


@pytest.mark.parametrize(
    ("view", "refusal"),
    [
        pytest.param(node(reason="GpuLost", annotations={PAUSE: "x"}), Refusal.PAUSED_NODE),
        pytest.param(node(reason="GpuLost", annotations={IGNORE: "x"}), None),
        pytest.param(
            node(reason="GpuLost", labels={"node-role.kubernetes.io/control-plane": ""}), None
        ),
        pytest.param(node(reason="GpuLost", labels={"fleetmend.io/pool": "other"}), None),
    ],
    ids=["paused", "ignored", "control-plane", "no-pool"],
)
def test_nothing_is_written_where_it_may_not(view: NodeView, refusal: Refusal | None) -> None:
    verdict = _judge(view)
    assert verdict.reflex is None
    assert verdict.refusal is refusal
    # A paused node is reported: its episode waits in sight of people.
    assert verdict.has_episode is (refusal is not None)


def test_marker_that_nobody_can_read_is_told_where_something_matches() -> None:
    garbage = {EPISODE: "garbage"}
    verdict = _judge(node(reason="GpuLost", annotations=garbage))
    assert verdict.reflex is None
    assert "remove it with kubectl" in verdict.unreadable
    assert _judge(node(annotations=garbage)).unreadable == ""
    assert _judge(node(reason="GpuLost")).unreadable == ""


def test_observe_mode_says_what_it_would_do_and_starts_nothing() -> None:
    verdict = _judge(node(reason="GpuLost"), Arming())
    assert (verdict.reflex, verdict.has_episode) == (None, False)
    assert verdict.would_reflex is not None
    assert verdict.refusal is Refusal.OBSERVING


def test_unreadable_arming_arms_nothing() -> None:
    verdict = _judge(node(reason="GpuLost"), replace(armed(), armed=(), problem="x"))
    assert verdict.reflex is None


@pytest.mark.parametrize("scope", [POOL, "*"])
def test_pause_of_pool_or_fleet_does_not_stop_marks(scope: str) -> None:
    paused = replace(armed(), paused=(Entry(scope, "test", NOW, ""),))
    assert _judge(node(reason="GpuLost"), paused).reflex is not None


def test_marked_node_is_not_marked_again_and_keeps_its_owner_in_observe_mode() -> None:
    view = node(reason="GpuLost", annotations={EPISODE: MARKER.encode()})
    assert _judge(view).reflex is None
    observed = _judge(view, Arming())
    assert observed.has_episode
    assert observed.marker == MARKER


def test_handed_over_node_is_neither_reported_nor_marked() -> None:
    marker = replace(MARKER, handed_over="hands-on:gpu-lost")
    verdict = _judge(node(reason="GpuLost", annotations={EPISODE: marker.encode()}))
    assert (verdict.matches, verdict.reflex, verdict.has_episode) == ((), None, False)


def test_marker_that_cannot_be_read_is_somebodys() -> None:
    verdict = _judge(node(reason="GpuLost", annotations={EPISODE: "{"}))
    assert verdict.reflex is None
    assert verdict.has_episode


def test_node_that_another_healer_has_begun_on_is_not_marked() -> None:
    deleting = node(reason="GpuLost", metadata={"deletionTimestamp": "2026-11-29T00:00:00Z"})
    taken = node(
        reason="GpuLost",
        spec={"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
    )
    assert _judge(deleting).reflex is None
    assert _judge(taken).reflex is None


def test_refused_match_is_left_to_the_guard() -> None:
    first = _judge(node(reason="GpuLost"))
    again = _judge(node(reason="GpuLost"), refused=frozenset(m.id for m in first.matches))
    assert again.reflex is None
    assert again.matches == first.matches


@pytest.mark.parametrize(
    ("entry", "is_left_alone"),
    [
        (OverruledFault("gpu-lost", "", BOOT), True),
        (OverruledFault("gpu-lost", "GPU-1", BOOT), True),
        (OverruledFault("gpu-lost", "", "boot-0"), False),
        (OverruledFault("thermal", "", BOOT), False),
        (OverruledFault("unheard-of", "", BOOT), False),
    ],
    ids=["same", "a-device-of-it", "older-boot", "other-fault", "unknown-fault"],
)
def test_overruled_fault_is_left_alone_until_the_next_boot(
    entry: OverruledFault, is_left_alone: bool
) -> None:
    record = MachineRecord("machine-n", "uid-n", "closed", "e0", (entry,))
    verdict = _judge(node(reason="GpuLost"), machine=record)
    assert (verdict.reflex is None) is is_left_alone
    assert (verdict.matches == ()) is is_left_alone


@pytest.mark.parametrize(
    ("phase", "uid", "is_due"),
    [
        ("quarantined", "other", True),
        ("drained", "other", True),
        ("rebooted", "other", True),
        ("suspect", "other", False),
        ("validated", "other", False),
        ("probation", "other", False),
        ("closed", "other", False),
        ("unheard-of", "other", False),
        ("drained", "uid-n", False),
    ],
)
def test_machine_in_repair_is_quarantined_under_another_node_object(
    phase: str, uid: str, is_due: bool
) -> None:
    verdict = _judge(node(), machine=MachineRecord("machine-n", uid, phase, "e0"))
    assert (verdict.reflex is not None) is is_due
    if verdict.reflex is not None:
        assert verdict.reflex.fault is Fault.OPERATOR


def test_silence_counts_after_a_grace_and_never_marks() -> None:
    silent = node(conditions=[{"type": "Ready", "status": "True"}])
    slow = policy(rules=[{**rule, "debounce_s": 600} for rule in _rules()])
    young = judge(Sight(silent), slow, armed(), NOW)
    assert young.matches == ()
    assert young.is_silent
    assert young.again_at == NOW + timedelta(seconds=AGENT_GRACE_S)
    since = NOW - timedelta(seconds=AGENT_GRACE_S)
    old = judge(Sight(silent, silent_since=since), slow, armed(), NOW)
    assert [match.rule for match in old.matches] == ["gpu-silent"]
    assert old.reflex is None


def test_node_is_looked_at_again_when_its_agent_falls_silent() -> None:
    verdict = _judge(node())
    assert verdict.again_at == NOW - timedelta(seconds=10) + timedelta(
        seconds=policy().timing.silence_s
    )


def _rules() -> list[dict[str, object]]:
    rules: list[dict[str, object]] = policy().model_dump(mode="json")["rules"]
    return [rule for rule in rules if not rule["immediate"]]


SERVICE = PodView("fleetmend", "w", "pod-1", "Running", False, 1, False, "ReplicaSet", "w")


def _on(name: str) -> tuple[PodView, ...]:
    return (replace(SERVICE, node_name=name),)


def test_node_with_a_service_of_ours_is_reported_but_not_quarantined_at_once() -> None:
    verdict = _judge(node(reason="GpuLost"), pods=_on("n"))
    assert (verdict.reflex, verdict.refusal) == (None, Refusal.PROTECTED)
    assert verdict.withheld is not None
    assert "fleetmend/w" in verdict.why
    assert verdict.has_episode
    assert verdict.matches
    assert _judge(node(reason="GpuLost"), pods=_on("m")).reflex is not None


def test_node_of_which_it_cannot_be_told_is_reported_but_not_quarantined_at_once() -> None:
    verdict = _judge(node(reason="GpuLost"), pods=None)
    assert (verdict.reflex, verdict.refusal) == (None, Refusal.PROTECTION_UNKNOWN)
    assert verdict.has_episode


def test_observe_mode_promises_nothing_for_a_protected_node() -> None:
    verdict = _judge(node(reason="GpuLost"), Arming(), pods=_on("n"))
    assert (verdict.would_reflex, verdict.withheld) == (None, None)


UNREGISTERED = {
    "taints": [
        {"key": "fleetmend.io/unvalidated", "effect": "NoSchedule"},
        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
    ]
}
STARTUP = {"taints": [{"key": "fleetmend.io/unvalidated", "effect": "NoSchedule"}]}


def test_a_new_node_is_to_be_admitted_though_nothing_matches() -> None:
    verdict = _judge(node(spec=STARTUP))
    assert (verdict.is_due, verdict.has_episode, verdict.waits) == (True, True, "")
    assert verdict.matches == ()


@pytest.mark.parametrize(
    ("view", "arming", "words"),
    [
        pytest.param(node(spec=STARTUP), Arming(), "not armed", id="not armed"),
        pytest.param(node(spec=STARTUP, annotations={PAUSE: "x"}), None, PAUSE, id="paused"),
        pytest.param(
            node(spec=STARTUP, labels={"fleetmend.io/pool": "other"}),
            None,
            "in no pool",
            id="no pool",
        ),
        pytest.param(node(spec=STARTUP, annotations={IGNORE: "x"}), None, IGNORE, id="ignored"),
    ],
)
def test_a_new_node_that_nobody_may_admit_is_told_about(
    view: NodeView, arming: Arming | None, words: str
) -> None:
    verdict = _judge(view, arming)
    assert (verdict.is_due, verdict.has_episode) == (False, False)
    assert words in verdict.waits


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(node(spec=STARTUP, conditions=[]), id="not Ready yet"),
        pytest.param(
            node(spec=STARTUP, annotations={EPISODE: MARKER.encode()}), id="out of service"
        ),
        pytest.param(node(), id="in service"),
        pytest.param(node(spec=UNREGISTERED), id="Karpenter will put the taint on once more"),
    ],
)
def test_an_admission_begins_with_a_ready_node_that_nobody_has(view: NodeView) -> None:
    assert not _judge(view).is_due


def test_a_node_that_karpenter_has_not_registered_yet_is_not_judged() -> None:
    """Its startup taint comes with the registration: before, it would pass for one in service."""
    unregistered = {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}
    assert not _judge(node(spec=unregistered, reason="GpuLost")).has_episode
    assert _judge(node(reason="GpuLost")).has_episode
    marked = node(spec=unregistered, annotations={EPISODE: MARKER.encode()})
    assert _judge(marked).has_episode
