"""How the chart brings diagnoses and agents to the GPUs: what they are told, and what they may reach for it.

What the policy lets in of it is `test_gpu_access_rights.py`.
"""

from typing import Any

import pytest

from activities.node_tasks.pod import TASK_LABEL, GpuAccess
from activities.node_tasks.runner import ENGINE_KEY, RUNTIME_KEY
from tests.deploy.rendered import ENGINE, GPU_ACCESS, Object, of_kind, render
from tests.deploy.test_chart import pod, variables
from workflows.model.host_engine import host_engine
from workflows.model.node_task import TaskKind


@pytest.mark.parametrize(
    ("values", "wanted"),
    [({}, GpuAccess()), (GPU_ACCESS, GpuAccess("nvidia", ENGINE))],
    ids=["neither", "both"],
)
def test_node_tasks_and_agents_reach_the_gpus_as_the_values_say(
    values: Object, wanted: GpuAccess
) -> None:
    (release,) = (m for m in of_kind(render(values), "ConfigMap") if "image" in m["data"])
    told = release["data"]
    assert GpuAccess(told[RUNTIME_KEY], told[ENGINE_KEY]) == wanted
    agent = variables(pod("agent", values))
    assert host_engine(agent) == wanted.host_engine


def test_a_host_engine_with_a_port_is_reached_by_agents_and_diagnoses_alone() -> None:
    def reached(values: Object) -> dict[str, Any]:
        return {
            p["metadata"]["name"]: rule
            for p in of_kind(render(values), "NetworkPolicy")
            for rule in p["spec"].get("egress", [])
            if 5555 in [port["port"] for port in rule["ports"]]
        }

    rule = {"ports": [{"port": 5555, "protocol": "TCP"}]}
    assert reached(GPU_ACCESS) == {"fleetmend-agent": rule, "fleetmend-diagnosis": rule}
    narrow = {**GPU_ACCESS, "networkPolicy": {"hostEngineCIDRs": ["10.0.0.0/8"]}}
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], **rule}
    assert reached(narrow) == {"fleetmend-agent": rule, "fleetmend-diagnosis": rule}
    (diagnosis,) = (
        p["spec"]
        for p in of_kind(render(GPU_ACCESS), "NetworkPolicy")
        if p["metadata"]["name"] == "fleetmend-diagnosis"
    )
    assert diagnosis["podSelector"] == {"matchLabels": {TASK_LABEL: TaskKind.DIAGNOSE.value}}
    assert diagnosis["policyTypes"] == ["Egress"]
    assert reached({"dcgm": {"hostEngine": "unix:///host/run/dcgm-5555"}}) == {}
