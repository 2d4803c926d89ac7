"""The agent's metrics, as Prometheus text written by hand (a client library costs memory).

Owns names, help and labels. Labels are closed sets: classes, condition types, sources, problems;
never a device, a node or a pod. Served by `health.py`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from workers.agent.conditions import Status, compose
from workers.agent.findings import Ledger
from workers.agent.node_api import Problem
from workers.agent.reporter import Reporter
from workers.agent.supervision import Supervisor

PREFIX: Final = "fleetmend_agent"


@dataclass(frozen=True)
class _Family:
    name: str
    kind: str
    about: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def text(self) -> str:
        """In the exposition format 0.0.4."""
        name = f"{PREFIX}_{self.name}"
        lines = [f"# HELP {name} {self.about}", f"# TYPE {name} {self.kind}"]
        for labels, value in self.samples:
            inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
            lines.append(f"{name}{{{inner}}} {value:g}" if inner else f"{name} {value:g}")
        return "\n".join(lines) + "\n"


def render(ledger: Ledger, sources: Sequence[Supervisor], reporter: Reporter | None) -> str:
    """Everything, now."""
    families = [*_of_ledger(ledger), *_of_sources(sources), *_of_reports(reporter)]
    return "".join(family.text() for family in families)


def _of_ledger(ledger: Ledger) -> Iterable[_Family]:
    words = compose(ledger).words.items()
    rows = [
        ({"type": kind.value, "status": status.value}, float(word.status is status))
        for kind, word in words
        for status in Status
    ]
    yield _Family("condition", "gauge", "1 for the status that a condition has", rows)
    faults = Counter(item.fault for item in ledger.standing())
    counts = [({"fault": fault}, float(count)) for fault, count in sorted(faults.items())]
    yield _Family("findings", "gauge", "findings that stand, by fault class", counts)


def _of_sources(sources: Sequence[Supervisor]) -> Iterable[_Family]:
    named = [({"source": each.source.name}, each) for each in sources]
    yield _Family(
        "source_up",
        "gauge",
        "1 while a child of the source lives",
        [(labels, float(each.is_running)) for labels, each in named],
    )
    yield _Family(
        "source_answers_total",
        "counter",
        "answers of a source",
        [(labels, float(each.counts.answers)) for labels, each in named],
    )
    yield _Family(
        "source_restarts_total",
        "counter",
        "restarts of a source's child",
        [(labels, float(each.counts.restarts)) for labels, each in named],
    )
    silences = [
        ({**labels, "why": why.value}, float(count))
        for labels, each in named
        for why, count in sorted(each.counts.silences.items())
    ]
    yield _Family(
        "source_silences_total", "counter", "times that a source could not tell", silences
    )
    undead = float(sum(each.is_unkillable for each in sources))
    yield _Family(
        "unkillable_children", "gauge", "children that SIGKILL has not ended", [({}, undead)]
    )


def _of_reports(reporter: Reporter | None) -> Iterable[_Family]:
    if reporter is None:
        return
    counts = reporter.counts
    yield _Family("reports_total", "counter", "reports written", [({}, float(counts.written))])
    failures = [({"problem": p.value}, float(counts.failed.get(p, 0))) for p in Problem]
    yield _Family(
        "report_failures_total", "counter", "reports that failed and were tried again", failures
    )
