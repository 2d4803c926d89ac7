"""The agent over its own sources, on a node whose devices the lab plays."""

import json
import os

import pytest

from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Hang
from tests.harness.waiting import wait_until
from tests.workers.agent.stage import ALL, LIMIT_S, Stage
from workers.lab.kubelet.client import FleetError

XID_79 = "NVRM: Xid (PCI:{pci0}): 79, GPU has fallen off the bus."
START_S = 60.0
"""All sources have answered by then, on a machine that has other things to do as well."""


def devices_of(stage: Stage) -> dict[str, str]:
    """The variables by which a program on the node meets its devices, as its kubelet sets them."""
    root = stage.host_root
    return {
        "PATH": f"{root}/opt/lab/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{root}/opt/lab/lib",
        "FLEETMEND_LAB_NVML": f"{root}/opt/lab/nvml.state",
        "FLEETMEND_KMSG": f"{root}/dev/kmsg",
    }


def start_all(stage: Stage, **changes: str) -> None:
    stage.start("-m", "workers.cli", "agent", **{**devices_of(stage), **changes})


def test_a_healthy_node_is_healthy_by_all_four_sources(stage: Stage) -> None:
    start_all(stage)
    stage.until(dict.fromkeys(ALL, "True"), START_S)
    assert stage.findings() == ()
    assert {"True"} == {status for kind in ALL for status in stage.said(kind)}


@pytest.mark.parametrize(
    ("changes", "unknown", "source"),
    [
        ({"FLEETMEND_KMSG": "/nowhere/kmsg"}, {"GPUHealthy", "InterconnectHealthy"}, "kernel-log"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, {"GPUHealthy", "InterconnectHealthy"}, "nvml"),
        ({"PATH": "/usr/bin:/bin"}, {"GPUHealthy", "InterconnectHealthy"}, "dcgm"),
    ],
    ids=["no kmsg", "no driver", "no dcgmi"],
)
def test_what_is_absent_is_unknown_within_the_deadline(
    stage: Stage, changes: dict[str, str], unknown: set[str], source: str
) -> None:
    start_all(stage, **changes)
    wanted = {kind: "Unknown" if kind in unknown else "True" for kind in ALL}
    stage.until(wanted, START_S)
    assert {finding.source for finding in stage.findings()} == {source}
    assert all(status != "True" for kind in unknown for status in stage.said(kind))


def test_a_hundred_thousand_lines_hide_no_xid_silently(stage: Stage) -> None:
    """Lines that nobody wants, as fast as a kernel can say them (D12).

    A reader that gets no time may lose the Xid among them: the log is a ring. Then it says so.
    """
    start_all(stage)
    stage.until(dict.fromkeys(ALL, "True"), START_S)
    agent = stage.agents[-1]
    stage.nodes.inject(stage.node, "kernel-line", text="audit: a line of no interest", count=50_000)
    stage.nodes.inject(stage.node, "kernel-line", text=XID_79)
    stage.nodes.inject(stage.node, "kernel-line", text="audit: a line of no interest", count=50_000)
    wait_until(
        lambda: stage.codes() & {"xid-79", "kernel-log-overrun"},
        START_S,
        "the Xid or its loss is told",
        saw=lambda: (stage.conditions(), agent.tail(15)),
    )
    stage.nodes.inject(stage.node, "kernel-line", text=XID_79)
    stage.until_reason("GPUHealthy", "GpuLost", LIMIT_S)
    assert "xid-79" in stage.codes()
    assert not agent.logged("source_cannot_tell")


def test_an_xid_is_told_once_whatever_reads_the_log_again(stage: Stage) -> None:
    """The next agent reads the whole log of the boot again: the same findings, not new ones."""
    start_all(stage)
    stage.until(dict.fromkeys(ALL, "True"), START_S)
    stage.nodes.inject(stage.node, "kernel-line", text=XID_79)
    stage.nodes.inject(stage.node, "xid-13", gpu=1)
    wait_until(
        lambda: {"xid-79", "xid-13"} <= stage.codes(),
        LIMIT_S,
        "both are reported",
        saw=lambda: (stage.annotation(), stage.agents[-1].tail()),
    )
    before = {row["code"]: (row["id"], row["at"]) for row in stage.annotation()["findings"]}
    reports = len(stage.reports())
    stage.agents[-1].kill()
    start_all(stage)
    wait_until(lambda: len(stage.reports()) > reports, START_S, "the new agent reports")
    stage.until({"NetworkHealthy": "True"})
    after = {row["code"]: (row["id"], row["at"]) for row in stage.annotation()["findings"]}
    assert after == before
    later = [e.body["status"]["conditions"] for e in stage.reports()[reports:]]
    assert {r["status"] for rows in later for r in rows if r["type"] == "GPUHealthy"} == {"False"}


@pytest.mark.parametrize("is_written", [False, True], ids=["not written", "written"])
def test_an_agent_killed_between_line_and_answer_loses_and_repeats_nothing(
    stage: Stage, proxy: FaultProxy, *, is_written: bool
) -> None:
    start_all(stage)
    stage.until(dict.fromkeys(ALL, "True"), START_S)
    rule = proxy.add(Hang(forwarded=is_written), method="PATCH", path="/status")
    stage.nodes.inject(stage.node, "kernel-line", text=XID_79)
    assert rule.wait_fired(LIMIT_S)
    if is_written:
        stage.until_reason("GPUHealthy", "GpuLost")
    before = [(f.id, f.at) for f in stage.findings()]
    assert len(before) == is_written
    stage.agents[-1].kill()
    reports = len(stage.reports())
    start_all(stage)
    wait_until(lambda: len(stage.reports()) > reports, START_S, "the new agent reports")
    stage.until_reason("GPUHealthy", "GpuLost", START_S)
    after = [(f.id, f.at) for f in stage.findings() if f.code == "xid-79"]
    assert len(after) == 1
    assert after == before or not is_written


def test_a_library_that_dies_reading_a_lost_gpu_ends_nothing(stage: Stage) -> None:
    """NVML kills whoever reads this GPU (D43): the kernel's line still arrives."""
    start_all(stage)
    stage.until(dict.fromkeys(ALL, "True"), START_S)
    stage.nodes.inject(stage.node, "nvml-segfault")
    stage.until({"GPUHealthy": "Unknown"}, START_S)
    assert "crashed" in json.dumps(stage.annotation()["findings"])
    stage.nodes.inject(stage.node, "kernel-line", text=XID_79)
    stage.until_reason("GPUHealthy", "GpuLost")
    assert stage.agents[-1].is_alive()


def test_a_daemon_set_runs_the_real_agent_and_a_boot_heals(stage: Stage) -> None:
    node = stage.nodes.add("real", "agent", agent="real")
    stage.node = node
    stage.nodes.inject(node, "xid-79")
    stage.until_reason("GPUHealthy", "GpuLost", START_S)
    stage.nodes.client.reboot(node, "test")
    stage.until(dict.fromkeys(ALL, "True"), 2 * START_S)
    assert stage.annotation()["boot"] == stage.nodes.view(node).boot_id
    assert stage.nodes.view(node).is_agent_running
    with pytest.raises(FleetError, match="runs the real agent"):
        stage.nodes.inject(node, "gpu-lost")
