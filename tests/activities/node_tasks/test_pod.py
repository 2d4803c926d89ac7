"""The pod of a node task: its name, its shape, and reading what a node says about it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from activities.node_tasks.pod import (
    GpuAccess,
    foreign,
    order_of,
    read_task_pod,
    task_name,
    task_pod,
)
from workflows.contracts.kube import Owner
from workflows.contracts.node_tasks import NodeTaskRequest
from workflows.model.identity import NodeRef
from workflows.model.node_task import TaskKind, write_wire

REQUEST = NodeTaskRequest(Owner(NodeRef("n", "u"), "e" * 80), TaskKind.REBOOT, "reboot-0", 90, "b")


def test_the_name_is_a_dns_label_and_the_same_for_the_same_step() -> None:
    name = task_name(REQUEST)
    assert name == task_name(replace(REQUEST, deadline_s=5))
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, step="reboot-1"),
        replace(REQUEST, kind=TaskKind.INVENTORY),
        replace(REQUEST, owner=replace(REQUEST.owner, episode="f")),
        replace(REQUEST, owner=Owner(NodeRef("n", "u2"), "e" * 80)),
    ],
    ids=["step", "kind", "episode", "node"],
)
def test_another_task_has_another_name(other: NodeTaskRequest) -> None:
    assert task_name(other) != task_name(REQUEST)


@pytest.mark.parametrize("kind", TaskKind)
def test_only_a_reboot_may_write_and_only_it_and_the_kernel_logs_reader_are_privileged(
    kind: TaskKind,
) -> None:
    container = task_pod(replace(REQUEST, kind=kind), "n", "i")["spec"]["containers"][0]
    privileged = kind in (TaskKind.REBOOT, TaskKind.KERNEL_LOG)
    assert container["securityContext"]["privileged"] is privileged
    assert container["volumeMounts"][0]["readOnly"] is (kind is not TaskKind.REBOOT)


@pytest.mark.parametrize("kind", TaskKind)
def test_only_a_diagnosis_has_a_way_to_the_gpus(kind: TaskKind) -> None:
    """A runtime that wants a working driver would start no reboot where one is needed most."""
    body = task_pod(replace(REQUEST, kind=kind), "n", "i", GpuAccess("nvidia", "engine:5555"))
    env = {v["name"]: v["value"] for v in body["spec"]["containers"][0]["env"]}
    assert env.pop("FLEETMEND_TASK")
    if kind is TaskKind.DIAGNOSE:
        assert body["spec"]["runtimeClassName"] == "nvidia"
        assert env.pop("FLEETMEND_DCGM_HOST_ENGINE") == "engine:5555"
        assert env.pop("NVIDIA_VISIBLE_DEVICES") == "all"
        assert env.pop("NVIDIA_DRIVER_CAPABILITIES") == "compute,utility"
    assert env == {}
    assert ("runtimeClassName" in body["spec"]) is (kind is TaskKind.DIAGNOSE)


def test_a_diagnosis_has_only_what_the_release_names() -> None:
    request = replace(REQUEST, kind=TaskKind.DIAGNOSE)
    for access, names in (
        (GpuAccess(), {"FLEETMEND_TASK"}),
        (GpuAccess(host_engine="engine:5555"), {"FLEETMEND_TASK", "FLEETMEND_DCGM_HOST_ENGINE"}),
    ):
        spec = task_pod(request, "n", "i", access)["spec"]
        assert {v["name"] for v in spec["containers"][0]["env"]} == names
        assert "runtimeClassName" not in spec


def test_an_order_says_only_what_its_kind_needs() -> None:
    order = order_of(replace(REQUEST, kind=TaskKind.INVENTORY, expected_boot_id=""), "t")
    assert set(json.loads(write_wire(order))) == {"kind", "episode", "task", "node"}


def test_a_pod_of_the_same_name_is_only_ours_if_it_says_so() -> None:
    body = task_pod(REQUEST, task_name(REQUEST), "i")
    assert foreign(body, REQUEST) == ""
    assert "Node UID u" in foreign(body, replace(REQUEST, owner=Owner(NodeRef("n", "v"), "e")))
    assert foreign({"metadata": {"name": "n"}}, REQUEST)


@pytest.mark.parametrize(
    ("status", "message", "has_started"),
    [
        ({}, None, False),
        ({"phase": "Pending", "containerStatuses": None}, None, False),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, None, True),
        ({"containerStatuses": [{"state": {"terminated": {"message": "m"}}}]}, "m", True),
        ({"containerStatuses": [{"state": {"terminated": {}}}]}, "", True),
        ({"phase": "Failed", "reason": "OutOfpods"}, "", False),
        ({"containerStatuses": ["x"]}, None, False),
        ({"containerStatuses": {"a": 1}}, None, False),
    ],
)
def test_reading_is_total(status: Any, message: str | None, has_started: bool) -> None:
    pod = read_task_pod({"metadata": {"name": "n", "uid": "u"}, "status": status})
    assert (pod.message, pod.has_started) == (message, has_started)
