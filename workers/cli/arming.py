"""`fleetmend arm|disarm POOL` and `fleetmend pause|resume --pool P | --fleet`.

Owns the preview of what arming would touch right now, the question to a person, the refusal above the policy's share, and
the writing of `fleetmend-arming`. What is armed is judged live before each request elsewhere.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import typer
from rich.markup import escape

from workers.cli.caller import Caller, caller
from workers.cli.cluster import ClusterReader, PolicyUnusable, open_cluster
from workers.cli.episodes import Episodes, read_cluster
from workers.cli.next_steps import handed_over
from workers.cli.outcome import CommandError, console, refused, write_json
from workers.tables import plain_table
from workflows.contracts.messages import PauseRequest
from workflows.model.amounts import nodes_of_share
from workflows.model.detection.rules import RuleMatch, match_rules
from workflows.model.node import NodeView, PodView
from workflows.model.policy import DrainWay, Policy, Pool
from workflows.model.remediation.arming import FLEET, Arming, Entry, scope_in_words
from workflows.model.remediation.ladder import rungs_for
from workflows.model.remediation.marks import IGNORE, PAUSE, is_on_karpenter
from workflows.model.remediation.permit import Effect, Refusal
from workflows.model.remediation.protection import decide_protection


@dataclass(frozen=True)
class Foreseen:
    """A node that matches a rule right now, and what would be done to it."""

    node: str
    rule: str
    fault: str
    text: str
    would: str


@dataclass(frozen=True)
class Protected:
    """Nodes that are left alone for the pods on them; `unknown` = why that cannot be told."""

    why: Mapping[str, str]
    unknown: str = ""


def arm(
    pool_name: str, *, reason: str, dry_run: bool, as_json: bool, is_agreed: bool = False
) -> None:
    """Arm one pool, unless more of it matches right now than the policy allows.

    At a terminal a person is asked first if anything would be done at once, but for `is_agreed`.
    """
    with open_cluster() as reader:
        policy = _policy_to_arm_by(reader, pool_name)
        pool = _pool(policy, pool_name)
        named = [n for n in reader.nodes() if _is_in_scope(n, policy, pool)]
        protected = _protected(named, reader.protected_pods(policy), policy)
        given_away = {n.name: words for n in named if (words := handed_over(n))}
        nodes = [n for n in named if n.name not in {*protected.why, *given_away}]
        foreseen = foresee(nodes, policy, datetime.now(UTC))
        limit = nodes_of_share(policy.arming_share, len(nodes))
        facts = {
            "pool": pool_name,
            "nodes": len(nodes),
            "limit": limit,
            "matches": foreseen,
            "protected": protected.why,
            "protection_unknown": protected.unknown,
            "handed_over": given_away,
            "armed": False,
        }
        if not as_json:
            _show_preview(pool_name, nodes, foreseen)
            _show_protected(protected)
            for name, words in given_away.items():
                console().print(f"left alone: {escape(f'Node {name} is {words}')}", soft_wrap=True)
        if len(foreseen) > limit:
            raise refused(
                f"pool {pool_name} is not armed: {len(foreseen)} of its {len(nodes)} nodes match "
                f"a rule right now, more than arming_share {policy.arming_share} allows ({limit}). "
                "Next: find out whether the nodes or the rules are wrong; pause a node with "
                f"{PAUSE}, or change the policy",
                **facts,
            )
        if not dry_run:
            if foreseen and not (as_json or is_agreed):
                _ask(pool_name, len(foreseen))
            by = caller(reason)
            reader.change_arming(lambda now: _with_armed(now, pool_name, by))
    if as_json:
        write_json({**facts, "armed": not dry_run})
    else:
        console().print(
            f"pool {escape(pool_name)} "
            + ("would be armed (--dry-run)" if dry_run else "is armed: fleetmend acts on its nodes")
        )


def _ask(pool: str, count: int) -> None:
    """Nothing without a yes, where somebody sits who can give it; a script has decided already."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    nodes = "this node" if count == 1 else f"these {count} nodes"
    try:
        is_agreed = typer.confirm(f"Arm pool {pool}, and begin with {nodes} now?", default=False)
    except typer.Abort:
        is_agreed = False
    if not is_agreed:
        raise refused(f"pool {pool} is not armed: it was not agreed to; nothing was changed")


def disarm(pool_name: str, *, reason: str, as_json: bool) -> None:
    """Back to observing, for one pool; what stands on its nodes stays until it is armed again."""
    by = caller(reason)
    with open_cluster() as reader:
        before = reader.arming()
        if not before.is_armed(pool_name):
            raise refused(f"pool {pool_name} is not armed; see: fleetmend status")
        reader.change_arming(
            lambda now: replace(now, armed=tuple(e for e in now.armed if e.scope != pool_name)),
            # The entry that named who armed it goes; who took it off is to be known as well.
            note=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z disarm {pool_name} by {by.by}"
            + (f": {by.reason}" if by.reason else ""),
        )
    if as_json:
        write_json({"pool": pool_name, "armed": False, "by": by.by, "reason": by.reason})
    else:
        console().print(f"pool {escape(pool_name)} is only observed now")


def change_pause(scope: str, *, paused: bool, reason: str, as_json: bool) -> None:
    """Pause or resume a pool, or with `*` the fleet: disruption stops, giving back does not."""
    cluster = read_cluster()
    by = caller(reason)
    with open_cluster() as reader:
        doubt = _doubt_of_pool(reader, scope) if scope != FLEET and paused else ""
        _refuse_needless(reader, scope, paused=paused)
        reader.change_arming(lambda now: _with_pause(now, scope, by, paused=paused))
    problem = asyncio.run(_tell_guard(cluster, PauseRequest(scope, paused, by.by, by.reason)))
    if as_json:
        facts = {"scope": scope, "paused": paused, "guard_told": not problem}
        write_json({**facts, "doubt": doubt})
        return
    what = scope_in_words(scope)
    state = (
        "is paused: nothing new is drained or rebooted; marks and giving back go on"
        if paused
        else "goes on"
    )
    console().print(f"{escape(what)} {state}")
    if doubt:
        console().print(f"[yellow]{escape(doubt)}[/]", soft_wrap=True)
    if problem:
        console().print(
            f"[yellow]the guard could not be told at once ({escape(problem)}); activities read "
            "the ConfigMap themselves, so it holds all the same[/]"
        )


def foresee(nodes: Sequence[NodeView], policy: Policy, now: datetime) -> list[Foreseen]:
    """The nodes that match a rule at `now`, with the worst match of each."""
    found = []
    for node in nodes:
        matches = match_rules(node, policy, now)
        if matches:
            worst = matches[0]
            would = _would(worst, policy, node)
            found.append(Foreseen(node.name, worst.rule, worst.fault.value, worst.text, would))
    return found


def _would(match: RuleMatch, policy: Policy, node: NodeView) -> str:
    row = policy.faults[match.fault]
    steps = ["cordon at once" if match.immediate else f"cordon after {match.debounce_s:g} s"]
    if row.drain is not DrainWay.NONE:
        steps.append(f"drain ({row.drain})")
    pool = policy.pool_of(node.labels)
    rungs = rungs_for(row.ladder, pool, is_on_karpenter=is_on_karpenter(node))
    steps += [str(rung) for rung in rungs] or ["wait for recovery"]
    return ", ".join([*steps, "gate, give back or hold"])


def _policy_to_arm_by(reader: ClusterReader, pool: str) -> Policy:
    try:
        return reader.policy()
    except PolicyUnusable as error:
        raise refused(f"pool {pool} is not armed: {error}", pool=pool, armed=False) from error


def _doubt_of_pool(reader: ClusterReader, name: str) -> str:
    """Why it cannot be told that there is such a pool; "" = there is. A pause never waits for it.

    Raises:
        CommandError: the policy has no such pool.
    """
    try:
        _pool(reader.policy(), name)
    except PolicyUnusable as error:
        return f"whether there is a pool {name} cannot be told: {error}"
    return ""


def _pool(policy: Policy, name: str) -> Pool:
    pool = policy.pool_named(name)
    if pool is None:
        known = ", ".join(p.name for p in policy.pools)
        raise refused(f"the policy has no pool {name!r}; its pools: {known}")
    return pool


def _is_in_scope(node: NodeView, policy: Policy, pool: Pool) -> bool:
    left_alone = node.is_control_plane or IGNORE in node.annotations or PAUSE in node.annotations
    return policy.pool_of(node.labels) == pool and not left_alone


def _protected(
    nodes: Sequence[NodeView], pods: Sequence[PodView] | None, policy: Policy
) -> Protected:
    why = {}
    for node in nodes:
        permit = decide_protection(Effect.MARK, node, pods, policy)
        if permit.refusal is Refusal.PROTECTION_UNKNOWN:
            return Protected({}, permit.detail)
        if permit.refusal is not None:
            why[node.name] = permit.detail
    return Protected(why)


def _with_armed(now: Arming, pool: str, by: Caller) -> Arming:
    if now.problem:
        raise refused(
            f"{now.problem}. Pauses in it would be lost, so: fleetmend pause --fleet, then arm, "
            "then fleetmend resume --fleet"
        )
    entry = Entry(pool, by.by, datetime.now(UTC), by.reason)
    others = tuple(e for e in now.armed if e.scope != pool)
    return Arming(armed=(*others, entry), paused=now.paused)


def _with_pause(now: Arming, scope: str, by: Caller, *, paused: bool) -> Arming:
    # Of an unreadable ConfigMap nothing counts as armed: writing the pause alone says the same.
    others = tuple(e for e in now.paused if e.scope != scope)
    entry = Entry(scope, by.by, datetime.now(UTC), by.reason)
    return replace(now, paused=(*others, entry) if paused else others)


def _refuse_needless(reader: ClusterReader, scope: str, *, paused: bool) -> None:
    if not paused and all(entry.scope != scope for entry in reader.arming().paused):
        what = scope_in_words(scope)
        raise refused(f"{what} is not paused; see: fleetmend status")


async def _tell_guard(cluster: str, request: PauseRequest) -> str:
    """Why the guard could not be told; "" = it was."""
    try:
        await (await Episodes.open(cluster)).tell_guard(request)
    except CommandError as error:
        return str(error)
    return ""


def _show_preview(pool: str, nodes: Sequence[NodeView], foreseen: Sequence[Foreseen]) -> None:
    console().print(
        f"pool {escape(pool)}: {len(nodes)} nodes, {len(foreseen)} match a rule right now"
    )
    if not foreseen:
        return
    table = plain_table("NODE", "FAULT", "RULE", "WHAT IS SEEN", "WHAT WOULD BE DONE")
    for item in foreseen:
        table.add_row(*map(escape, (item.node, item.fault, item.rule, item.text, item.would)))
    console().print(table)


def _show_protected(protected: Protected) -> None:
    for detail in protected.why.values():
        console().print(f"left alone: {escape(detail)}")
    if protected.unknown:
        console().print(f"[yellow]{escape(protected.unknown)}; the worker asks before it acts[/]")
