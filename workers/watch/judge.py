"""The judgement: what watch does about one Node as it is now.

Owns the one decision, as a pure function: which matches are reported, for which one the node is
quarantined at once, and what would have been done where fleetmend only observes. Does not count
budgets and does not know the Lease (`reflex.py` does), and sends nothing. Talks to `model`.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from workers.watch.machine import MachineRecord, Mark, is_overruled
from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import AGENT_CONDITIONS, STALE, RuleMatch, match_rules
from workflows.model.node import NodeView, PodView
from workflows.model.policy import Policy
from workflows.model.remediation.admission import is_due, is_newcomer, is_registered, waits_for
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.marks import (
    IGNORE,
    Marker,
    is_marked,
    marker_or_problem,
    other_healer,
)
from workflows.model.remediation.permit import Effect, Refusal, may_mark
from workflows.model.remediation.protection import decide_protection

MACHINE_QUARANTINED_RULE = "machine-quarantined"
"""Name of the rule, which no policy holds, that a machine's own record fits."""
AGENT_GRACE_S: Final = 30.0
"""How long an agent may take to speak before its silence is reported, if the rule's own patience
is not shorter: every Node begins, and begins each boot, without a word of its agent. An episode
for each of them would be dismissed again, and idle nodes are to cost nothing."""
NOTHING_OVERRULED: frozenset[Mark] = frozenset()


@dataclass(frozen=True)
class Sight:
    """One Node as it is now, and what is remembered about it.

    `overruled` is what people undid on it that its machine record does not say yet; `refused` are
    ids of matches for which no place in the budget was free (the guard is asked for those).
    `silent_since` is when its agent was first found silent; None = it was not at the last look.
    `pods` are those of protected namespaces on it; None = cannot tell.
    """

    node: NodeView
    machine: MachineRecord | None = None
    overruled: frozenset[Mark] = NOTHING_OVERRULED
    refused: frozenset[str] = frozenset()
    silent_since: datetime | None = None
    pods: tuple[PodView, ...] | None = ()


@dataclass(frozen=True)
class Verdict:
    """What follows.

    Attributes:
        pool: the node's pool; "" = out of scope.
        matches: what is reported, worst first.
        marker: our readable marker on the node, handed over or not.
        is_spent: the mark is handed over and a person has put the node back to work: off with it.
        has_episode: the node has, or is to have, an open episode: it is told about.
        reflex: the match to quarantine at once for; None = none, or not permitted.
        would_reflex: as `reflex`, where fleetmend only observes.
        withheld: as `reflex`, where the node is protected, or it cannot be told whether it is.
        refusal: why a quarantine at once is not permitted, if one was due.
        why: `refusal` in words, for a protected node.
        is_due: a new node is to be admitted: its run is started, whether anything matches or not.
        waits: what the admission of a new node waits for, in words.
        unreadable: what is wrong with the marker on a node that something matches; "" = nothing.
        is_silent: the agent is silent by some rule, reported or not.
        again_at: when the node must be judged again though nothing changes; None = never.
    """

    pool: str
    matches: tuple[RuleMatch, ...] = ()
    marker: Marker | None = None
    is_spent: bool = False
    has_episode: bool = False
    reflex: RuleMatch | None = None
    would_reflex: RuleMatch | None = None
    withheld: RuleMatch | None = None
    refusal: Refusal | None = None
    why: str = ""
    is_due: bool = False
    waits: str = ""
    unreadable: str = ""
    is_silent: bool = False
    again_at: datetime | None = None


def judge(sight: Sight, policy: Policy, arming: Arming, now: datetime) -> Verdict:
    """What watch does about this node now."""
    node = sight.node
    pool = policy.pool_of(node.labels)
    marker, unreadable = marker_or_problem(node)
    if marker is not None and marker.handed_over:
        is_back = not node.unschedulable and may_mark(node, arming, policy).refusal is None
        return Verdict(pool.name if pool else "", marker=marker, is_spent=is_back)
    is_ours = marker is not None
    waits = waits_for(node, policy, arming) if is_newcomer(node) else ""
    if pool is None or node.is_control_plane or IGNORE in node.annotations:
        # Out of scope by now; an episode that is open all the same is told, so that it sees it.
        return Verdict("", marker=marker, has_episode=is_ours, waits=waits)
    if not is_registered(node) and not is_ours:
        # Not in service: Karpenter's own taint keeps work off, and ends it if it takes too long.
        return Verdict(pool.name, waits=waits)
    found = match_rules(node, policy, now)
    is_silent = any(match.status == STALE for match in found)
    heard, graced_until = _after_grace(found, sight.silent_since or now, now)
    again_at = _earlier(graced_until, _next_silence(node, policy, now))
    matches = _standing(sight, marker, heard)
    may_be_admitted = is_due(node, waits)
    if not is_ours and not matches:
        return Verdict(
            pool.name,
            has_episode=may_be_admitted,
            is_due=may_be_admitted,
            waits=waits,
            is_silent=is_silent,
            again_at=again_at,
        )
    due = _due(sight, matches)
    permit = may_mark(node, arming, policy)
    is_observing = permit.refusal is Refusal.OBSERVING
    protection = decide_protection(Effect.MARK, node, sight.pods, policy)
    is_free = protection.refusal is None
    return Verdict(
        pool=pool.name,
        matches=matches,
        marker=marker,
        # In observe mode nothing is started; a node that carries our marker keeps its owner.
        has_episode=is_ours or not is_observing,
        reflex=due if permit.refusal is None and is_free and not unreadable else None,
        would_reflex=due if is_observing and is_free else None,
        withheld=due if permit.refusal is None and not is_free else None,
        refusal=(permit.refusal or protection.refusal) if due else None,
        why=protection.detail,
        is_due=may_be_admitted,
        waits=waits,
        unreadable=unreadable if matches else "",
        is_silent=is_silent,
        again_at=again_at,
    )


def _after_grace(
    matches: tuple[RuleMatch, ...], silent_since: datetime, now: datetime
) -> tuple[tuple[RuleMatch, ...], datetime | None]:
    """The matches without silences that are too young, and when the first of those counts."""
    heard: list[RuleMatch] = []
    counts_at: datetime | None = None
    for match in matches:
        at = silent_since + timedelta(seconds=min(AGENT_GRACE_S, match.debounce_s))
        if match.status != STALE or at <= now:
            heard.append(match)
        else:
            counts_at = _earlier(counts_at, at)
    return tuple(heard), counts_at


def _standing(
    sight: Sight, marker: Marker | None, matches: tuple[RuleMatch, ...]
) -> tuple[RuleMatch, ...]:
    """The matches that no person has overruled, and what the machine's record adds to them."""
    node, machine = sight.node, sight.machine
    if machine is None:
        return matches
    marks = machine.overruled_marks(node.boot_id)
    standing = tuple(match for match in matches if not is_overruled(match, marks))
    is_ours_for_it = marker is not None and marker.rule == MACHINE_QUARANTINED_RULE
    if machine.is_quarantined_elsewhere(node) and (is_ours_for_it or not is_marked(node)):
        own = _machine_match(node, machine)
        if not is_overruled(own, marks | sight.overruled):
            standing = (*standing, own)
    return standing


def _machine_match(node: NodeView, machine: MachineRecord) -> RuleMatch:
    """What a machine in mid repair says about its new Node object.

    Its fault is `operator`: whatever ailed the machine, this Node has shown nothing yet, so it is
    drained and must pass the gate, and nothing of a ladder is due.
    """
    key = f"{node.uid}|{MACHINE_QUARANTINED_RULE}|{machine.name}|{machine.episode}"
    return RuleMatch(
        id=hashlib.sha256(key.encode()).hexdigest()[:16],
        rule=MACHINE_QUARANTINED_RULE,
        fault=Fault.OPERATOR,
        condition="",
        status="",
        reason="MachineQuarantined",
        devices=(),
        text=f"machine {machine.name} was {machine.phase} under another Node object",
        immediate=True,
        debounce_s=0,
        since=node.created,
        boot_id=node.boot_id,
    )


def _due(sight: Sight, matches: tuple[RuleMatch, ...]) -> RuleMatch | None:
    """The worst match that asks for a quarantine at once, if the node can still take one."""
    if is_marked(sight.node) or other_healer(sight.node):
        return None
    candidates = (m for m in matches if m.immediate and m.id not in sight.refused)
    return next((m for m in candidates if not is_overruled(m, sight.overruled)), None)


def _next_silence(node: NodeView, policy: Policy, now: datetime) -> datetime | None:
    """When the next of the agent's conditions falls silent unless it is refreshed; None = never."""
    ruled = {rule.condition for rule in policy.rules}
    silence = timedelta(seconds=policy.timing.silence_s)
    falls_silent = (
        condition.heartbeat + silence
        for name in AGENT_CONDITIONS
        if name in ruled and (condition := node.conditions.get(name)) is not None
    )
    return min((at for at in falls_silent if at > now), default=None)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)
