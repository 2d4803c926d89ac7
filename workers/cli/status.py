"""`fleetmend status` and `fleetmend node NAME`: what stands on each node, and why.

Owns the one look at cluster and Temporal, and the tables of what it says (the rows are `rows.py`'s).
Without Temporal, or under a policy that cannot be used, it still tells what the cluster knows.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from rich.markup import escape
from rich.table import Table

from workers.cli.cluster import (
    ClusterReader,
    Machine,
    PolicyUnusable,
    cluster_errors,
    open_cluster,
)
from workers.cli.episodes import Episodes, LastRun, OpenEpisode, read_cluster
from workers.cli.next_steps import answers_of
from workers.cli.outcome import CommandError, ExitCode, console, write_json
from workers.cli.polling import Polling
from workers.cli.rows import HEALTHY, Row, Sight, protection_unknown, row_of, rows_of
from workers.cli.stories import Tale, recorded_tale, tale_of_last, tale_of_open
from workers.cli.writer import Writer, read_writer
from workers.tables import plain_table
from workflows.contracts.messages import Command
from workflows.model.detection.rules import match_rules
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView, PodView
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.marks import marker_or_problem

MAX_NAMED = 5
"""Of the nodes in no pool: enough to see what they are."""


def show_status(*, as_json: bool) -> ExitCode:
    """`fleetmend status`; without Temporal too, and then it ends as unreachable."""
    with open_cluster() as reader:
        sight, writer = asyncio.run(_look_around(reader))
    rows = rows_of(sight)
    if as_json:
        write_json(
            {
                "cluster": sight.cluster,
                "temporal": sight.problem or "reached",
                "policy": sight.policy_problem or "usable",
                "armed": [entry.scope for entry in sight.arming.armed],
                "paused": [entry.scope for entry in sight.arming.paused],
                "arming_problem": sight.arming.problem,
                "writer": writer,
                "worker": sight.polling,
                "protection_unknown": protection_unknown(sight, rows),
                "nodes": rows,
            }
        )
        return _end_of(sight)
    _show_rows(rows)
    _show_outside(sight, rows)
    _show_arming(sight.arming)
    _show_writer(writer)
    unknown = protection_unknown(sight, rows)
    if unknown:
        console().print(f"[yellow]{escape(unknown)}[/]", soft_wrap=True)
    _show_policy_problem(sight, "pools are as last recorded:")
    if sight.problem:
        console().print(f"[yellow]steps and open episodes are missing:[/] {escape(sight.problem)}")
    if sight.polling.problem:
        console().print(f"[red]{escape(sight.polling.problem)}[/]", soft_wrap=True)
    return _end_of(sight)


def show_node(name: str, *, as_json: bool) -> ExitCode:
    """`fleetmend node NAME`; without Temporal as `show_status`."""
    with open_cluster() as reader:
        node = reader.node(name)
        sight = asyncio.run(_look(reader, node))
        row = row_of(node, sight, {m.node_uid: m for m in sight.machines})
    machine = next((m for m in sight.machines if m.node_uid == node.uid), None)
    matches = match_rules(node, sight.policy, datetime.now(UTC)) if sight.policy else []
    tale = asyncio.run(_tell(sight, row, machine))
    _, marker_problem = marker_or_problem(node)
    if as_json:
        write_json(
            {
                "node": row,
                "temporal": sight.problem or "reached",
                "policy": sight.policy_problem or "usable",
                "boot_id": node.boot_id,
                "gpus": node.gpus,
                "matches": [{"rule": m.rule, "fault": m.fault, "text": m.text} for m in matches],
                "marker_problem": marker_problem,
                "question": tale.question,
                "asks": tale.asks,
                "answers": answers_of(tale.asks, name),
                "story": tale.story,
                "plan": tale.plan,
                "last_run": tale.last_run,
                "machine": machine.raw if machine else None,
            }
        )
        return _end_of(sight)
    seen = [f"{m.fault} (rule {m.rule}): {m.text}" for m in matches]
    _show_facts(row, sight, machine, seen if sight.policy else ["cannot be told without a policy"])
    if marker_problem:
        console().print(f"[red]left alone:[/] {escape(marker_problem)}", soft_wrap=True)
    _show_last_run(tale.last_run)
    for title, lines in (("story", tale.story), ("what comes next", tale.plan)):
        if lines:
            console().print(f"\n[bold]{title}[/]")
            for line in lines:
                console().print(f"  {line}", markup=False, soft_wrap=True)
    _show_question(tale, row)
    _show_policy_problem(sight, "the rules and the pool's name are missing or as last recorded:")
    if sight.problem:
        console().print(f"\n[yellow]its story is missing:[/] {escape(sight.problem)}")
    return _end_of(sight)


def _show_question(tale: Tale, row: Row) -> None:
    if not (tale.question or row.held):
        return
    about = f" (question {tale.question})" if tale.question else ""
    why = f": {row.detail}" if row.detail else ""
    console().print(f"\n[bold]it waits for a person[/]{escape(about + why)}", soft_wrap=True)
    answers = answers_of(tale.asks, row.node)
    if not answers:  # no worker tells them
        console().print(f"  fleetmend resume|approve|deny|retire {row.node}", markup=False)
    for word, does in answers.items():
        command = f"fleetmend {word} {row.node}" if word in set(Command) else word
        console().print(f"  {command} = {does}", markup=False, soft_wrap=True)


def _end_of(sight: Sight) -> ExitCode:
    return ExitCode.UNREACHABLE if sight.problem else ExitCode.OK


async def _look_around(reader: ClusterReader) -> tuple[Sight, Writer]:
    def read() -> Writer:
        with cluster_errors(reader.kube):
            return read_writer(reader.kube)

    return await asyncio.gather(_look(reader), asyncio.to_thread(read))


async def _look(reader: ClusterReader, node: NodeView | None = None) -> Sight:
    """The cluster in a thread while Temporal is asked."""

    def read() -> Sight:
        policy, policy_problem = None, ""
        try:
            policy = reader.policy()
        except PolicyUnusable as error:
            policy_problem = str(error)
        protecting: tuple[PodView, ...] | None = ()
        if policy is not None:
            with contextlib.suppress(CommandError):  # one of them cannot be read: cannot tell
                protecting = None
                protecting = reader.protected_pods(policy)
        return Sight(
            nodes=reader.nodes() if node is None else (node,),
            machines=reader.machines(),
            arming=reader.arming(),
            policy=policy,
            episodes=None,
            cluster="",
            policy_problem=policy_problem,
            protecting=protecting,
        )

    sight, told = await asyncio.gather(asyncio.to_thread(read), _ask_temporal())
    return replace(
        sight,
        cluster=told.cluster,
        episodes=told.episodes,
        polling=told.polling,
        problem=told.problem,
    )


@dataclass(frozen=True)
class _Told:
    """What Temporal says; `episodes` None = it was not reached, `problem` says why."""

    cluster: str
    episodes: Mapping[str, OpenEpisode] | None = None
    polling: Polling = field(default_factory=Polling)
    problem: str = ""


async def _ask_temporal() -> _Told:
    cluster = read_cluster()
    try:
        episodes = await Episodes.open(cluster)
        found, polling = await asyncio.gather(episodes.all_open(), episodes.polling())
    except CommandError as error:
        if error.code is ExitCode.USAGE:
            raise
        return _Told(cluster, problem=str(error))
    return _Told(cluster, found, polling)


async def _tell(sight: Sight, row: Row, machine: Machine | None) -> Tale:
    node = NodeRef(row.node, row.uid)
    found = (sight.episodes or {}).get(row.workflow_id)
    if found is not None:
        return await tale_of_open(sight.cluster, found)
    if sight.episodes is None:
        return recorded_tale(sight.cluster, node, machine)
    return await tale_of_last(sight.cluster, node)


def _show_last_run(last: LastRun | None) -> None:
    if last is not None:
        closed = f", closed {last.closed:%Y-%m-%d %H:%M:%S}Z" if last.closed else ""
        console().print(f"\n[bold]last run[/]{closed}; its history: {escape(last.how_to_read)}")


def _show_rows(rows: Sequence[Row]) -> None:
    table = plain_table("POOL", "NODE", "READY", "PHASE", "FAULT", "STEP", "HELD", "MARKS")
    for row in rows:
        style = "red" if row.held else "yellow" if row.phase != HEALTHY else ""
        cells = (
            row.pool or "-",
            row.node,
            "yes" if row.ready else "no",
            row.phase,
            row.fault,
            row.step,
            row.standing,
            ", ".join((*row.marks, *(["protected"] if row.protected else []))),
        )
        table.add_row(*map(escape, cells), style=style)
    console().print(table)
    for row in rows:
        if row.held:
            console().print(f"[red]held:[/] {escape(f'{row.node}: {row.detail}')}")
        if row.protected:
            console().print(f"protected: {escape(row.protected)}", soft_wrap=True)
        if row.waits:
            told = escape(f"{row.node}: {row.waits}")
            console().print(f"[yellow]{row.waits_title}:[/] {told}", soft_wrap=True)
        if row.next:
            console().print(f"handed over: {escape(f'{row.node}: {row.next}')}", soft_wrap=True)


def _show_outside(sight: Sight, rows: Sequence[Row]) -> None:
    """Nodes without a row; a new one among them is often one whose label was forgotten."""
    shown = {row.node for row in rows}
    outside = [node.name for node in sight.nodes if node.name not in shown]
    if not outside:
        return
    names = ", ".join(outside[:MAX_NAMED]) + (", ..." if len(outside) > MAX_NAMED else "")
    is_one = len(outside) == 1
    why = f"{'has' if is_one else 'have'} no record yet"
    if sight.policy:
        why = f"{'is' if is_one else 'are'} in no pool of the policy: out of scope"
    what = f"{len(outside)} other node{'' if is_one else 's'}"
    console().print(f"{what} {why}: {escape(names)}", soft_wrap=True)


def _show_arming(arming: Arming) -> None:
    armed = ", ".join(entry.scope for entry in arming.armed) or "nothing (observing only)"
    console().print(f"armed: {escape(armed)}")
    for entry in arming.paused:
        why = f": {entry.reason}" if entry.reason else ""
        console().print(f"paused: {escape(f'{entry.what}, by {entry.by}{why}')}")
    if arming.problem:
        console().print(f"[red]{escape(arming.problem)}[/]")


def _show_writer(writer: Writer) -> None:
    if writer.problem:
        style = "yellow" if writer.is_writing is None else "red"
        console().print(f"[{style}]{escape(writer.problem)}[/]", soft_wrap=True)
    else:
        ago = f", renewed {writer.renewed_s_ago:g} s ago" if writer.renewed_s_ago else ""
        console().print(f"watch: {escape(writer.holder)}{ago}", soft_wrap=True)


def _show_policy_problem(sight: Sight, what: str) -> None:
    if sight.policy_problem:
        console().print(f"[red]{what}[/] {escape(sight.policy_problem)}", soft_wrap=True)


def _show_facts(row: Row, sight: Sight, machine: Machine | None, matches: list[str]) -> None:
    (node,) = sight.nodes
    table = Table.grid(padding=(0, 2))
    facts = [
        ("node", f"{row.node} ({row.uid})"),
        ("pool", f"{row.pool or '-'} ({'armed' if row.armed else 'observing'})"),
        ("ready", "yes" if row.ready else "no"),
        ("boot", node.boot_id or "the Node has none"),
        ("GPUs", ", ".join(f"{name}: {count}" for name, count in node.gpus.items()) or "none"),
        ("marks", ", ".join(row.marks) or "none"),
        ("matches", "; ".join(matches) or "no rule"),
        ("phase", row.phase + (f", {row.step}" if row.step else "")),
        ("fault", row.fault),
        ("held", row.detail if row.held else ""),
        ("protected", row.protected or protection_unknown(sight, [row])),
        (row.waits_title, row.waits),
        ("next", row.next),
        ("workflow", row.workflow_id),
    ]
    if machine is not None:
        baseline = "none" if machine.baseline_gpus is None else f"{machine.baseline_gpus} GPUs"
        facts += [
            ("machine", machine.name),
            ("baseline", baseline),
            ("strikes", str(machine.strikes)),
            ("last outcome", machine.outcome),
        ]
    for name, value in facts:
        if value:
            table.add_row(f"[bold]{name}[/]", escape(value))
    console().print(table)
