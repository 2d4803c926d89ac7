"""Runs every measurement, prints a table, and writes build/bench.json.

Owns the list of measurements, the targets they are shown against, and the form of the file:
`{machine, commit, figures}`. A figure above its target is shown as such and fails nothing: other
work on the machine would decide. Later measurements are added to MEASUREMENTS.
"""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import bench_agent, bench_demo, bench_episode, bench_line, bench_reflex
from tests.bench.figure import Figure
from workers.lab.address import LabAddress

Measurement = Callable[[LabAddress], list[Figure]]

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "bench.json"
# First those that need a lab without a worker.
MEASUREMENTS: Sequence[Measurement] = (
    bench_agent.measure,
    bench_reflex.measure,
    bench_line.measure,
    bench_episode.measure,
    bench_demo.measure,
)
TARGETS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "agent_pss_mib": (64, 64),
        "agent_cpu_percent": (0.5, 0.5),
        "twelve_nodes_cpu_percent": (40, 40),
        "condition_to_unschedulable_ms": (10, 60),
        "line_to_unschedulable_ms": (15, 100),
        "reboot_ready_to_proof_ms": (1000, 1000),
        "actions_per_episode_returned": (40, 40),
        "events_per_episode_returned": (160, 160),
        "retries_and_heartbeats_per_long_boot": (60, 60),
        "demo_s": (150, 150),
    }
)
"""p50 and p99 at most, from the project's own promises."""
FLOOR_FACTOR = 2.5
"""p50 of a figure with a floor, at most this many times the floor's."""


def run(lab: LabAddress) -> None:
    """Measure everything on this lab."""
    figures = [figure for measure in MEASUREMENTS for figure in measure(lab)]
    show(figures)
    write(figures)


def show(figures: Sequence[Figure]) -> None:
    """The table for people."""
    table = Table(box=None, pad_edge=False)
    for column in ("FIGURE", "N", "P50", "P99", "MAX", "FLOOR P50/P99", "PEER P50/P99", "TARGET"):
        table.add_column(column, justify="left" if column == "FIGURE" else "right")
    for figure in figures:
        floor = f"{figure.floor.p50:g} / {figure.floor.p99:g}" if figure.floor else ""
        peer = f"{figure.peer.p50:g} / {figure.peer.p99:g}" if figure.peer else ""
        numbers = (f"{value:g}" for value in (figure.p50, figure.p99, figure.max))
        table.add_row(figure.name, str(figure.n), *numbers, floor, peer, _verdict(figure))
    Console(width=160).print(table)


def write(figures: Sequence[Figure]) -> None:
    """build/bench.json."""
    OUTPUT.parent.mkdir(exist_ok=True)
    content = {
        "machine": machine(),
        "commit": commit(),
        "figures": [figure.as_json() for figure in figures],
    }
    OUTPUT.write_text(json.dumps(content, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit that was measured, with `+` if the tree has changes; "" without git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _verdict(figure: Figure) -> str:
    target = TARGETS.get(figure.name)
    if target is None:
        return ""
    is_met = figure.p50 <= target[0] and figure.p99 <= target[1]
    if figure.floor is not None:
        is_met = is_met and figure.p50 <= FLOOR_FACTOR * figure.floor.p50
    return f"<= {target[0]:g} / {target[1]:g} {'met' if is_met else 'MISSED'}"
