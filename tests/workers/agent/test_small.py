"""What the agent costs, serves and loads: health, metrics, memory, modules."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.harness.processes import Running
from tests.harness.waiting import wait_until
from tests.workers.agent.stage import LIMIT_S, Stage, reading

ROOT = Path(__file__).parents[3]
HEAVY = {"kubernetes", "temporalio", "pydantic", "structlog", "rich", "typer", "urllib3", "yaml"}
MAX_PSS_MIB = 64


def test_the_agent_loads_nothing_heavy() -> None:
    code = "import sys, workers.cli.main, workers.agent.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())


def test_health_and_metrics_are_served(stage: Stage) -> None:
    agent = stage.start_healthy()
    assert _get(_base(agent) + "/healthz") == "ok\n"
    stage.polled(reading())
    stage.until({"GPUHealthy": "False"})
    text = metrics_of(agent)
    assert 'fleetmend_agent_condition{type="GPUHealthy",status="False"} 1\n' in text
    assert 'fleetmend_agent_findings{fault="gpu-lost"} 1\n' in text
    assert 'fleetmend_agent_source_up{source="nvml"} 1\n' in text
    assert "fleetmend_agent_unkillable_children 0\n" in text
    for line in text.splitlines():
        assert line.startswith(("#", "fleetmend_agent_")), line


def test_a_failing_source_is_no_reason_to_restart_the_agent(stage: Stage) -> None:
    stage.polled(do="cannot")
    agent = stage.start()
    stage.until({"GPUHealthy": "Unknown"})
    assert _get(_base(agent) + "/healthz") == "ok\n"


def test_agent_and_children_stay_small(stage: Stage) -> None:
    agent = stage.start_healthy()
    wait_until(lambda: len(family(agent.pid)) == 3, LIMIT_S, "both children run")
    assert pss_mib(agent) < MAX_PSS_MIB


def test_a_wrong_variable_ends_the_start_with_its_name(stage: Stage) -> None:
    agent = stage.start("-m", "workers.cli", "agent", NODE_NAME="")
    assert agent.process.wait(20) == 2
    assert "NODE_NAME" in agent.tail()


def test_an_unmounted_host_root_ends_the_start_with_its_name(stage: Stage) -> None:
    agent = stage.start(
        "-m", "tests.workers.agent.playing", str(stage.folder), FLEETMEND_HOST_ROOT="/nowhere"
    )
    assert agent.process.wait(20) == 2
    assert "FLEETMEND_HOST_ROOT" in agent.tail()


def metrics_of(agent: Running) -> str:
    """What it serves to Prometheus."""
    return _get(_base(agent) + "/metrics")


def _base(agent: Running) -> str:
    return f"http://127.0.0.1:{agent.logged('agent_started')[0]['port']}"


def family(pid: int) -> list[int]:
    """A process and everything below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return []
    return [pid, *(each for child in children for each in family(int(child)))]


def pss_mib(agent: Running) -> float:
    """Of the agent with all its children."""
    total = 0
    for pid in family(agent.pid):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_s(agent: Running) -> float:
    """User and system time of the agent with all its living children."""
    ticks = 0
    for pid in family(agent.pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback
        return str(answer.read().decode())
