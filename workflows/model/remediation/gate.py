"""The gate: what a node must pass to return; passed, failed or unknown, with every reason.

Owns the judgement over a fresh read of the Node, its baseline and its inventory. Unknown never
certifies a node; a missing baseline is unknown. Pure; talks to `model` only.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from workflows.model.detection.fault import UNKNOWN_KIND
from workflows.model.detection.rules import (
    STALE,
    RuleMatch,
    effective_status,
    match_rules,
    read_findings,
)
from workflows.model.node import NodeView
from workflows.model.policy import Policy

CANNOT_TELL = frozenset({STALE, "Unknown"})
"""Statuses that neither pass nor fail."""


NO_BASELINE = (
    "no baseline is recorded for this machine: if it is well, uncordon it, "
    "and the sweep records one of a healthy node"
)


class Verdict(StrEnum):
    """The gate's answer; the worst of its checks."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Baseline:
    """What a healthy machine had: GPU UUIDs, and allocatable by resource name."""

    gpus: tuple[str, ...]
    allocatable: tuple[tuple[str, int], ...]
    recorded_at: datetime


@dataclass(frozen=True)
class Inventory:
    """What a node task counted on the node, during which boot."""

    gpus: tuple[str, ...]
    model: str
    boot_id: str


@dataclass(frozen=True)
class Judgement:
    """The verdict and one line for each reason (empty when passed)."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


def judge_conditions(node: NodeView, policy: Policy, now: datetime) -> Judgement:
    """No rule matches, and every condition the gate asks for is True and of this boot."""
    matches = match_rules(node, policy, now)
    failed = [f"rule {m.rule}: {m.text}" for m in matches if _says_bad(m)]
    if failed:
        return Judgement(Verdict.FAILED, tuple(failed))
    _, boot = read_findings(node)
    oldest = now - timedelta(seconds=policy.timing.silence_s)
    unknown = [
        f"condition {name} is {status or 'absent'}"
        for name in policy.gate.conditions
        if (status := effective_status(name, node, boot, oldest)) != "True"
    ]
    unknown += [f"rule {m.rule}: {m.text}" for m in matches]
    if not node.ready:
        unknown.append("the node is not Ready")
    return Judgement(Verdict.UNKNOWN if unknown else Verdict.PASSED, tuple(unknown))


def _says_bad(match: RuleMatch) -> bool:
    return match.status not in CANNOT_TELL and match.fault not in UNKNOWN_KIND


def judge_allocatable(
    node: NodeView, baseline: Baseline | None, waited_s: float, settle_s: float
) -> Judgement:
    """Allocatable GPUs are the baseline's; below it is unknown until `settle_s` has passed."""
    if baseline is None:
        return Judgement(Verdict.UNKNOWN, (NO_BASELINE,))
    reasons = tuple(
        f"allocatable {name} is {node.gpus.get(name, 0)}, the baseline is {count}"
        for name, count in baseline.allocatable
        if node.gpus.get(name, 0) < count
    )
    if not reasons:
        return Judgement(Verdict.PASSED)
    return Judgement(Verdict.FAILED if waited_s >= settle_s else Verdict.UNKNOWN, reasons)


def judge_inventory(
    inventory: Inventory | None, baseline: Baseline | None, boot_id: str
) -> Judgement:
    """The GPUs that the node counts are the baseline's, counted during the present boot."""
    if baseline is None:
        return Judgement(Verdict.UNKNOWN, (NO_BASELINE,))
    if inventory is None:
        return Judgement(Verdict.UNKNOWN, ("the inventory gave no answer",))
    if not boot_id or inventory.boot_id != boot_id:
        return Judgement(Verdict.UNKNOWN, ("the inventory was taken in another boot",))
    missing = sorted(set(baseline.gpus) - set(inventory.gpus))
    foreign = sorted(set(inventory.gpus) - set(baseline.gpus))
    reasons = [f"GPU {gpu} is missing" for gpu in missing[:8]]
    reasons += [f"GPU {gpu} is not in the baseline" for gpu in foreign[:8]]
    return Judgement(Verdict.FAILED if reasons else Verdict.PASSED, tuple(reasons))


def worst(*judgements: Judgement) -> Judgement:
    """All reasons; FAILED before UNKNOWN before PASSED."""
    order = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.PASSED)
    verdict = min((j.verdict for j in judgements), key=order.index)
    return Judgement(verdict, tuple(r for j in judgements for r in j.reasons))
