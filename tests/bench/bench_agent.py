"""What agents cost a node that is at rest: memory and time of the processor.

Owns `agent_pss_mib` and `agent_cpu_percent` of one agent with all its children and 8 GPUs, and
`twelve_nodes_cpu_percent` of 12 full nodes: their agents and the process that simulates them.
The programs that an agent asks are the lab's stand-ins, so DCGM's own cost is not in it.
"""

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from tests.bench.figure import Figure, figure_of
from tests.harness.cluster import cluster_of
from tests.harness.nodes import test_nodes
from workers.lab.address import LabAddress

NODES = 12
POOL = "bench-agent"
AGENT = ["workers.cli", "agent"]
REST_S = 60.0
SETTLE_S = 20.0
"""What starting cost is not what resting costs."""


def measure(lab: LabAddress) -> list[Figure]:
    """Three figures of this lab; one value for each agent."""
    cluster = cluster_of(lab)
    with test_nodes(lab, cluster, lambda name: f"{POOL}-{name}") as nodes:
        nodes.add_many([str(number) for number in range(NODES)], POOL, agent="real")
        time.sleep(SETTLE_S)
        agents = _agents(lab)
        assert len(agents) == NODES, f"{len(agents)} agents for {NODES} nodes"
        simulator = _simulator(lab)
        before = [_cpu_s(_family(agent)) for agent in agents]
        fleet_before = _cpu_s([simulator])
        time.sleep(REST_S)
        after = [_cpu_s(_family(agent)) for agent in agents]
        fleet = _cpu_s([simulator]) - fleet_before
        each = [100 * (new - old) / REST_S for new, old in zip(after, before, strict=True)]
        memory = [_alone_mib(_family(agent)) for agent in agents]
    cluster.kube.close()
    return [
        figure_of("agent_pss_mib", "MiB", memory),
        figure_of("agent_cpu_percent", "% of a core", each),
        figure_of("twelve_nodes_cpu_percent", "% of a core", [sum(each) + 100 * fleet / REST_S]),
    ]


def _agents(lab: LabAddress) -> list[psutil.Process]:
    """The agents themselves: a child has the same command line, and an agent for parent."""
    every = [process for process in _of_lab(lab) if _command(process)[-2:] == AGENT]
    return [agent for agent in every if _command(agent.parent())[-2:] != AGENT]


def _simulator(lab: LabAddress) -> psutil.Process:
    return next(p for p in _of_lab(lab) if "workers.lab.kubelet" in _command(p))


def _of_lab(lab: LabAddress) -> Iterator[psutil.Process]:
    """Processes of this lab, not of another one on the machine."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        place = environment.get("FLEETMEND_HOST_ROOT") or environment.get("FLEETMEND_LAB", "")
        if place.startswith(str(lab.directory)):
            yield process


def _command(process: psutil.Process | None) -> list[str]:
    try:
        return [] if process is None else process.cmdline()
    except psutil.Error:
        return []


def _family(agent: psutil.Process) -> list[psutil.Process]:
    return [agent, *agent.children(recursive=True)]


def _cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Their own time and that of their ended children."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _alone_mib(processes: Iterable[psutil.Process]) -> float:
    """PSS of these processes as if nothing else ran on the machine.

    The kernel's own PSS shares the pages of Python's files among everything here that is Python:
    file pages are counted whole and once, anonymous ones as the kernel shares them (by fork, so
    within the family only).
    """
    anonymous_kib = 0
    files_kib: dict[tuple[str, str], int] = {}
    for process in processes:
        place = Path(f"/proc/{process.pid}")
        rollup = _fields((place / "smaps_rollup").read_text())
        anonymous_kib += rollup["Pss_Anon"]
        for mapping in _MAPPING.split((place / "smaps").read_text())[1:]:
            head, _, rest = mapping.partition("\n")
            words = head.split()
            offset, inode = words[2], words[4]
            fields = _fields(rest)
            key = (inode, offset)
            if inode != "0":
                file_kib = fields["Rss"] - fields["Anonymous"]
                files_kib[key] = max(files_kib.get(key, 0), file_kib)
    return (anonymous_kib + sum(files_kib.values())) / 1024


def _fields(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}


_MAPPING = re.compile(r"^(?=[0-9a-f]+-[0-9a-f]+ )", re.MULTILINE)
