"""What the demo shows: a live table (plain lines where no terminal is), and the summary.

Owns layout and words. Gets values, decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from workers.lab.demo.cast import Ending, Part
from workers.lab.demo.chronicle import Chronicle
from workers.lab.demo.sight import Seen
from workers.tables import plain_table

STYLES: Final = {
    "returned": "green",
    "replaced": "green",
    "dismissed": "green",
    "retired": "cyan",
    "held": "red",
}


@dataclass(frozen=True)
class Line:
    """One node as it is shown."""

    node: str
    pool: str
    phase: str
    step: str
    fault: str
    is_held: bool
    is_cordoned: bool
    elapsed_s: float | None

    @property
    def words(self) -> str:
        """The line without the time, to see whether something has changed."""
        held = " held" if self.is_held else ""
        cordon = " cordoned" if self.is_cordoned else ""
        return f"{self.phase}{held} {self.step} {self.fault}{cordon}"


def line_of(
    part: Part, seen: Seen | None, steps: Mapping[str, str], begun: datetime | None, now: datetime
) -> Line:
    """One node's line. `steps` is what runs now, by node (from Temporal)."""
    outcome = seen.outcome if seen else ""
    is_at_it = bool(part.has_episode and begun and not outcome and not (seen and seen.is_held))
    phase = outcome or (seen.phase if seen else "")
    return Line(
        node=part.node,
        pool=part.pool,
        phase=phase if part.has_episode else "-",
        step=steps.get(part.node, "") if not outcome else "",
        fault=seen.fault if seen and part.has_episode else "",
        is_held=bool(seen and seen.is_held),
        is_cordoned=bool(seen and seen.is_cordoned),
        elapsed_s=(now - begun).total_seconds() if is_at_it and begun else None,
    )


def short(node: str) -> str:
    """A node's name for a narrow table: of Karpenter's (kwok-CLAIM-...) the NodeClaim's name."""
    words = node.split("-")
    return "-".join(words[1:3]) if words[0] == "kwok" and len(words) > 3 else node


class Stage:
    """Shows lines as they change: a table that stays in place, or plain lines."""

    def __init__(self, console: Console, *, is_silent: bool) -> None:
        self._console = console
        self._is_silent = is_silent
        self._shown: dict[str, str] = {}
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True)
            if console.is_terminal and not is_silent
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line of what goes on."""
        if not self._is_silent:
            self._console.print(f"[bold]{escape(text)}[/]", soft_wrap=True)

    def show(self, lines: Sequence[Line]) -> None:
        """The nodes now."""
        if self._is_silent:
            return
        if self._live is not None:
            self._live.update(_table(lines))
            return
        for line in lines:
            if line.words.strip("- ") and self._shown.get(line.node) != line.words:
                self._shown[line.node] = line.words
                self._console.print(
                    f"  {short(line.node):13} {line.words}", markup=False, soft_wrap=True
                )


def _table(lines: Sequence[Line]) -> Table:
    table = plain_table("POOL", "NODE", "PHASE", "STEP", "FAULT", "HELD", "CORDON", "ELAPSED")
    for line in lines:
        style = "red" if line.is_held else STYLES.get(line.phase, "yellow" if line.phase else "")
        elapsed = "" if line.elapsed_s is None else f"{line.elapsed_s:.0f} s"
        cells = (
            line.pool,
            short(line.node),
            line.phase or "-",
            line.step,
            line.fault,
            "held" if line.is_held else "",
            "cordoned" if line.is_cordoned else "",
            elapsed,
        )
        table.add_row(*map(escape, cells), style="" if line.phase == "-" else style)
    return table


@dataclass(frozen=True)
class NodeReport:
    """One node at the end. `phases` are seconds since it befell, in order."""

    node: str
    pool: str
    what: str
    should_end: str
    ended: str
    wrongs: tuple[str, ...]
    detail: str
    phases: tuple[tuple[str, float], ...]
    actions: Mapping[str, int]
    boots: int
    evicted_pods: int
    history: str
    successor: str = ""
    """The Node that came in its place; "" = none did."""
    pods_on_successor: int = 0


@dataclass(frozen=True)
class Report:
    """The whole demo at the end.

    Addresses ("" = none) are those of a Temporal that is still there when the report is read.
    """

    passed: bool
    took_s: float
    temporal_ui: str
    directory: str
    nodes: tuple[NodeReport, ...]

    def as_json(self) -> dict[str, Any]:
        """As it is written by --json."""
        return asdict(self)

    def without_addresses(self) -> "Report":
        """The same for a reader who comes after the lab's end."""
        nodes = tuple(replace(node, history="") for node in self.nodes)
        return replace(self, temporal_ui="", nodes=nodes)


def node_report(
    part: Part, chronicle: Chronicle | None, befell: datetime, found: "Findings", ui: str
) -> NodeReport:
    """One node's part of the report."""
    ended = Ending.UNTOUCHED.value
    phases: list[tuple[str, float]] = []
    if found.cordoned is not None:
        phases.append(("cordoned", round((found.cordoned - befell).total_seconds(), 2)))
    if chronicle is not None:
        ended = Ending.HELD.value if chronicle.is_held else chronicle.outcome
        for seen in chronicle.phases:
            name = f"{seen.phase}, held" if seen.held else seen.phase
            if not phases or phases[-1][0] != name:
                phases.append((name, round((seen.at - befell).total_seconds(), 1)))
    return NodeReport(
        node=part.node,
        pool=part.pool,
        what=part.what,
        should_end=part.ending.value,
        ended=ended,
        wrongs=tuple(found.wrongs),
        detail=chronicle.detail if chronicle else "",
        phases=tuple(phases),
        actions=dict(chronicle.steps) if chronicle else {},
        boots=found.boots,
        evicted_pods=found.evictions,
        history=history_url(ui, chronicle) if chronicle else "",
    )


@dataclass(frozen=True)
class Findings:
    """What the verdict found for one node."""

    wrongs: Sequence[str]
    boots: int
    evictions: int
    cordoned: datetime | None


def history_url(ui: str, chronicle: Chronicle) -> str:
    """Where the Temporal UI shows a run's history."""
    identity = quote(chronicle.workflow_id, safe="")
    return f"{ui}/namespaces/default/workflows/{identity}/{chronicle.run_id}/history"


def show_report(console: Console, report: Report) -> None:
    """The summary on a terminal."""
    table = plain_table("", "NODE", "WHAT BEFELL IT", "ENDED", "SECONDS TO EACH PHASE", "DEEDS")
    for node in report.nodes:
        if node.should_end == Ending.UNTOUCHED.value and not node.wrongs:
            continue
        mark = "[green]ok[/]" if not node.wrongs else "[red]NO[/]"
        phases = ", ".join(f"{name} {at:g}" for name, at in node.phases)
        cells = (short(node.node), node.what, node.ended, phases, _deeds(node))
        table.add_row(mark, *map(escape, cells))
    console.print(table)
    untouched = [n for n in report.nodes if n.should_end == Ending.UNTOUCHED.value]
    console.print(f"{len(untouched)} other nodes: nothing befell them")
    for node in report.nodes:
        for wrong in node.wrongs:
            console.print(f"[red]{escape(f'{node.node}: {wrong}')}[/]", soft_wrap=True)
    if report.temporal_ui:
        console.print(f"\nTemporal UI: {report.temporal_ui}", soft_wrap=True)
    for node in report.nodes:
        if node.history:
            console.print(f"  {short(node.node)}: {node.history}", markup=False, soft_wrap=True)
    verdict = "each node ended as it should" if report.passed else "NOT every node ended so"
    style = "bold green" if report.passed else "bold red"
    console.print(f"\n[{style}]{verdict}[/] ({report.took_s:.0f} s)")


def _deeds(node: NodeReport) -> str:
    deeds = []
    if node.evicted_pods:
        deeds.append(_count(node.evicted_pods, "pod") + " evicted")
    if node.boots:
        deeds.append(_count(node.boots, "reboot"))
    if node.successor:
        pods = _count(node.pods_on_successor, "pod")
        deeds.append(f"replaced by {short(node.successor)}, which has {pods} of its work")
    return ", ".join(deeds) or "none"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
