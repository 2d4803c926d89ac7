"""Devices on a real control plane: what a pod with the host root meets on its node."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from tests.lab.conftest import IMAGE, LIMIT_S, Pods, ended

LOOK = """
import json, os, subprocess, sys
import pynvml
pynvml.nvmlInit()
fd = os.open(os.environ["FLEETMEND_KMSG"], os.O_RDONLY | os.O_NONBLOCK)
lines = []
while True:
    try:
        lines.append(os.read(fd, 8192).decode())
    except BlockingIOError:
        break
lost = 0
for i in range(pynvml.nvmlDeviceGetCount()):
    try:
        pynvml.nvmlDeviceGetHandleByIndex(i)
    except pynvml.NVMLError_GpuIsLost:
        lost += 1
done = subprocess.run(["dcgmi", "diag", "-r", "1", "-j"], capture_output=True, text=True)
xids = [line for line in lines if "Xid" in line]
with open(os.environ["FLEETMEND_TERMINATION_LOG"], "w") as out:
    json.dump({"gpus": pynvml.nvmlDeviceGetCount(), "lost": lost, "xids": xids,
               "lines": len(lines), "diag": done.returncode}, out)
"""
STAY = """
import os, select
fd = os.open(os.environ["FLEETMEND_KMSG"], os.O_RDONLY | os.O_NONBLOCK)
while True:
    select.select([fd], [], [])
    print(os.read(fd, 8192).decode(), end="", flush=True)
"""


@pytest.fixture
def node(nodes: TestNodes) -> str:
    return nodes.add("n", "devices", boot_time_s=0.3)


def _run(pods: Pods, node: str, code: str) -> str:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["python", "-c", code],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    return pods.make(node, container, volumes=volumes)


def _look(pods: Pods, node: str) -> Any:
    pod = pods.until_phase(_run(pods, node, LOOK), "Succeeded", "Failed")
    assert ended(pod)["exitCode"] == 0
    return json.loads(ended(pod)["message"])


def test_a_pod_meets_its_nodes_devices_and_each_pod_the_whole_kernel_log(
    nodes: TestNodes, node: str, pods: Pods
) -> None:
    seen = _look(pods, node)
    assert (seen["gpus"], seen["lost"], seen["xids"], seen["diag"]) == (8, 0, [], 0)
    receipt = nodes.inject(node, "xid-79", gpu=2)
    assert receipt.written_at is not None
    for _ in range(2):
        seen = _look(pods, node)
        assert (seen["gpus"], seen["lost"], seen["diag"]) == (8, 1, 238)
        assert [line.split("): ")[1][:3] for line in seen["xids"]] == ["79,", "154"]
    nodes.client.reboot(node)
    wait_until(lambda: nodes.boots(node) == 1, LIMIT_S, "it has booted")
    nodes.until_healthy(node)
    seen = _look(pods, node)
    assert (seen["lost"], seen["xids"], seen["diag"]) == (0, [], 0)
    assert nodes.view(node).faults == ()


def test_a_pod_that_stays_hears_each_line_once_whoever_else_reads(
    nodes: TestNodes, node: str, pods: Pods
) -> None:
    pods.until_phase(name := _run(pods, node, STAY), "Running")
    nodes.inject(node, "kernel-line", text="NVRM: before")
    _look(pods, node)
    nodes.inject(node, "kernel-line", text="NVRM: after")
    logs = Path(nodes.view(node).host_root) / "var/log/pods"

    def heard() -> list[str]:
        (log,) = logs.glob(f"*_{name}_*/main.log")
        return [line for line in log.read_text().splitlines() if "NVRM: " in line]

    wait_until(
        lambda: any("NVRM: after" in line for line in heard()), LIMIT_S, "the last line is heard"
    )
    said = [line.partition(";")[2] for line in heard()]
    assert said[-2:] == ["NVRM: before", "NVRM: after"]
    assert len(set(heard())) == len(heard())


def test_a_flood_of_100000_lines_leaves_the_fleet_answering(
    nodes: TestNodes, node: str, pods: Pods
) -> None:
    pods.until_phase(name := _run(pods, node, STAY), "Running")
    nodes.inject(node, "kernel-line", text="a line of a flood", count=100_000)
    nodes.inject(node, "kernel-line", text="NVRM: the last")
    log = next((Path(nodes.view(node).host_root) / "var/log/pods").glob(f"*_{name}_*/main.log"))
    # The pod's kept log ends at 1 MiB; the devices' own count is what tells.
    wait_until(lambda: log.stat().st_size > 0, LIMIT_S, "the pod hears the flood")
    assert _look(pods, node)["lines"] == 256
    assert nodes.view(node).is_kubelet_running
