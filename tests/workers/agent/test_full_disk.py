"""A full disk under the agent: it needs none, and what it cannot log it still reports.

No byte goes to any file (RLIMIT_FSIZE 0 for the agent and its children), and its own log lies on
/dev/full, which answers every write as a full disk does.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.harness.processes import Running
from tests.workers.agent.stage import LIMIT_S, ROOT, Stage
from tests.workers.agent.test_real_sources import START_S, XID_79, devices_of
from workers.lab.controlplane.tether import tether

FULL = Path("/dev/full")


def start_on_a_full_disk(stage: Stage) -> Running:
    """The real agent, with nowhere to write."""
    bound = tether(os.getpid())

    def fill() -> None:
        bound()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with FULL.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "agent"],
            cwd=ROOT,
            env={**stage.environment, **devices_of(stage)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=fill,  # noqa: PLW1509 - this test has one thread
        )
    running = Running("agent-on-a-full-disk", process, stage.folder / "nothing.log")
    running.log.touch()
    stage.agents.append(running)
    return running


def test_a_full_disk_hides_no_finding_and_ends_no_agent(stage: Stage) -> None:
    """DCGM's tool, which writes, dies of it: cannot tell. What the kernel says is still told."""
    agent = start_on_a_full_disk(stage)
    told = {"GPUHealthy": "Unknown", "NetworkHealthy": "True", "HostHealthy": "True"}
    stage.until(told, START_S)
    assert {finding.source for finding in stage.findings()} == {"dcgm"}
    assert "True" not in stage.said("GPUHealthy")
    stage.nodes.inject(stage.node, "kernel-line", text=XID_79)
    stage.until_reason("GPUHealthy", "GpuLost", LIMIT_S)
    assert "xid-79" in stage.codes()
    assert stage.statuses()["HostHealthy"] == "True"
    assert agent.is_alive()
