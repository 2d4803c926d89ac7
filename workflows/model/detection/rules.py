"""Rules: which faults a node shows right now, by the policy's table.

Owns the match of conditions against rule rows, with staleness (absent, silent, or reported during
an earlier boot) as a status of its own. Used by watch at each change, by the gate and by the
arming preview, so that all three mean the same. Pure; talks to `model` only.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from workflows.model.detection.fault import SEVERITY, Fault
from workflows.model.detection.finding import (
    FINDINGS_ANNOTATION,
    Finding,
    FindingsError,
    parse_findings,
    printable,
)
from workflows.model.node import Condition, NodeView
from workflows.model.policy import Policy, Rule

AGENT_CONDITIONS = ("GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy")
"""The four condition types that the agent writes; for these, staleness means something."""
STALE = "Stale"
MAX_LINE = 200


@dataclass(frozen=True)
class RuleMatch:
    """One condition that fits one rule.

    `id` is the same as long as the same fact stands (it changes with status, reason, device,
    boot or transition), so that a repeated report is recognised. `since` is the condition's own
    last transition by the writer's clock.
    """

    id: str
    rule: str
    fault: Fault
    condition: str
    status: str
    reason: str
    devices: tuple[str, ...]
    text: str
    immediate: bool
    debounce_s: float
    since: datetime
    boot_id: str


def match_rules(node: NodeView, policy: Policy, now: datetime) -> tuple[RuleMatch, ...]:
    """Every condition of `node` that fits a rule, worst fault first."""
    findings, reported_boot = read_findings(node)
    silence = timedelta(seconds=policy.timing.silence_s)
    matches = []
    for condition_type in dict.fromkeys(rule.condition for rule in policy.rules):
        condition = node.conditions.get(condition_type)
        status = effective_status(condition_type, node, reported_boot, now - silence)
        rule = _first_row(policy, condition_type, status, condition)
        if rule is not None:
            matches.append(_match(rule, status, condition, node, findings))
    return tuple(sorted(matches, key=lambda m: (-SEVERITY[m.fault], not m.immediate, m.rule)))


def read_findings(node: NodeView) -> tuple[tuple[Finding, ...], str]:
    """The agent's findings and the boot they were reported in ("" = no readable report)."""
    text = node.annotations.get(FINDINGS_ANNOTATION, "")
    if not text:
        return (), ""
    try:
        findings = parse_findings(text)
    except FindingsError:
        return (), ""
    return findings, reported_boot_id(text)


def reported_boot_id(text: str) -> str:
    """The boot id that a findings annotation was written in; "" if it cannot be read."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    boot = body.get("boot", "") if isinstance(body, dict) else ""
    return boot if isinstance(boot, str) else ""


def effective_status(
    condition_type: str, node: NodeView, reported_boot: str, oldest: datetime
) -> str:
    """The status a condition has for us: its own, or `Stale`.

    An agent's condition is Stale when it is absent from a Node older than `oldest`, not refreshed
    since `oldest`, or not known to be written in the node's present boot (another boot's report, an
    unreadable one, or a node without a boot id: cannot tell). Absent from a young Node it is nothing yet: "".
    """
    condition = node.conditions.get(condition_type)
    if condition_type not in AGENT_CONDITIONS:
        return condition.status if condition else ""
    if condition is None:
        return STALE if node.created < oldest else ""
    if condition.heartbeat < oldest:
        return STALE
    if not node.boot_id or reported_boot != node.boot_id:
        return STALE
    return condition.status


def _first_row(
    policy: Policy, condition_type: str, status: str, condition: Condition | None
) -> Rule | None:
    reason = condition.reason if condition else ""
    for rule in policy.rules:
        fits = rule.condition == condition_type and rule.status == status
        if fits and (not rule.reasons or reason in rule.reasons):
            return rule
    return None


def _match(
    rule: Rule,
    status: str,
    condition: Condition | None,
    node: NodeView,
    findings: tuple[Finding, ...],
) -> RuleMatch:
    devices = tuple(sorted({f.device for f in findings if f.device and f.fault == rule.fault}))
    reason = condition.reason if condition else "Absent"
    since = condition.changed if condition else node.created
    key = "|".join((node.uid, rule.name, status, reason, node.boot_id, since.isoformat(), *devices))
    return RuleMatch(
        id=hashlib.sha256(key.encode()).hexdigest()[:16],
        rule=rule.name,
        fault=rule.fault,
        condition=rule.condition,
        status=status,
        reason=printable(reason, 64),
        devices=devices[:16],
        text=printable(condition.message if condition else "condition is absent", MAX_LINE),
        immediate=rule.immediate and status != STALE,
        debounce_s=rule.debounce_s,
        since=since,
        boot_id=node.boot_id,
    )
