"""Nodes on a real control plane: registration, heartbeat, reboot, and what a light node does."""

import json
from collections.abc import Callable
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import PatchKind
from activities.kube.errors import NotFound
from tests.harness.audit import AGENT, AuditLog, Wanted
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from tests.lab.conftest import LIMIT_S, Pods, boot_log, ended, phase_of
from workers.lab.address import Component
from workers.lab.controlplane.lab import Lab
from workers.lab.kubelet.client import FleetClient, FleetError
from workers.lab.kubelet.host_root import BootEvent
from workers.lab.kubelet.spec import NodeKind, NodeSpec, NodeTaint, TaintEffect

FINDINGS = "fleetmend.io/findings"
REBOOT = (
    "import os,subprocess,sys; sys.exit(subprocess.run("
    "['chroot', os.environ['FLEETMEND_HOST_ROOT'], '/usr/bin/systemctl', 'reboot']).returncode)"
)
HOST_ROOT = [{"name": "host", "hostPath": {"path": "/"}}]


def _raw(cluster: Cluster, node: str) -> Any:
    return cluster.kube.get(paths.node(node))


def _exists(cluster: Cluster, node: str) -> bool:
    try:
        _raw(cluster, node)
    except NotFound:
        return False
    return True


def _condition(node: Any, kind: str) -> Any:
    return next(c for c in node["status"]["conditions"] if c["type"] == kind)


def _boot_id(cluster: Cluster, node: str) -> str:
    return str(_raw(cluster, node)["status"]["nodeInfo"]["bootID"])


def _gpus(node: Any) -> str:
    return str(node["status"]["allocatable"]["nvidia.com/gpu"])


def _reboot_pod(pods: Pods, node: str, code: str = REBOOT) -> str:
    container = {
        "name": "main",
        "image": "fleetmend:lab",
        "command": ["python", "-c", code],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    return pods.make(node, container, volumes=HOST_ROOT)


def test_a_node_registers_as_its_machine_is(nodes: TestNodes, cluster: Cluster) -> None:
    name = nodes.add(
        "n", "blue", gpus=4, labels={"team": "a"}, taints=(NodeTaint(key="own", value="x"),)
    )
    node, view = _raw(cluster, name), nodes.view(name)
    root = Path(view.host_root)
    facts = node["status"]["nodeInfo"]
    assert facts["bootID"] == (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts["machineID"] == (root / "etc/machine-id").read_text().strip()
    assert facts["systemUUID"] == (root / "sys/class/dmi/id/product_uuid").read_text().strip()
    assert node["spec"]["providerID"] == view.provider_id
    assert node["metadata"]["labels"]["fleetmend.io/pool"] == "blue"
    assert node["metadata"]["labels"]["team"] == "a"
    assert {"key": "own", "value": "x", "effect": TaintEffect.NO_SCHEDULE} in node["spec"]["taints"]
    assert len(list((root / "proc/driver/nvidia/gpus").iterdir())) == 4


def test_kubelet_and_agent_write_under_their_own_names(nodes: TestNodes, witness: AuditLog) -> None:
    name = nodes.add("n", "own")
    wanted = Wanted(verb="patch", resource="nodes/status", name=name)

    def writers() -> set[str]:
        return {e.who for e in witness.events(wanted)}

    # The line of another process's write may come a moment after the write is seen.
    both = {f"system:node:{name}", AGENT}
    wait_until(lambda: writers() == both, LIMIT_S, "each has written, and nobody else", saw=writers)


def test_the_agent_refreshes_by_its_period(nodes: TestNodes, cluster: Cluster) -> None:
    name = nodes.add("n", "refresh", agent_refresh_s=0.3)
    first = json.loads(_raw(cluster, name)["metadata"]["annotations"][FINDINGS])
    wait_until(
        lambda: (
            json.loads(_raw(cluster, name)["metadata"]["annotations"][FINDINGS])["at"] > first["at"]
        ),
        LIMIT_S,
        "the findings are fresher",
    )


def test_a_ready_that_was_taken_away_is_written_again(nodes: TestNodes, cluster: Cluster) -> None:
    # Not by its period: it answers to what was done.
    name = nodes.add("n", "ready", status_period_s=300)
    gone = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": ""}
    body = {"status": {"conditions": [gone]}}
    cluster.kube.patch(paths.node_status(name), body, kind=PatchKind.STRATEGIC)
    wait_until(lambda: cluster.node(name).ready, LIMIT_S, "the kubelet has written Ready again")


def test_a_reboot_by_a_pod_changes_the_boot_and_fails_the_pod(
    nodes: TestNodes, cluster: Cluster, pods: Pods
) -> None:
    name = nodes.add("n", "reboot", boot_time_s=0.5)
    before = _raw(cluster, name)
    task = _reboot_pod(
        pods, name, REBOOT.replace("sys.exit(", "(") + "; __import__('time').sleep(60)"
    )
    wait_until(
        lambda: _boot_id(cluster, name) != before["status"]["nodeInfo"]["bootID"],
        LIMIT_S,
        "the boot id has changed",
    )
    nodes.until_healthy(name)
    pod = pods.until_phase(task, "Failed")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (255, "Unknown")
    after = _raw(cluster, name)
    same = ("machineID", "systemUUID")
    assert [after["status"]["nodeInfo"][k] for k in same] == [
        before["status"]["nodeInfo"][k] for k in same
    ]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    last = boot_log(nodes, name)[-1]
    assert last.event is BootEvent.BOOT
    assert (last.old, last.new) == (
        before["status"]["nodeInfo"]["bootID"],
        after["status"]["nodeInfo"]["bootID"],
    )
    assert f"pod default/{task} " in last.why
    assert nodes.boots(name) == 1


def test_a_reboot_kills_without_grace_and_nothing_is_told_meanwhile(
    nodes: TestNodes, cluster: Cluster, pods: Pods
) -> None:
    name = nodes.add("n", "dark", boot_time_s=8.0)
    before = _boot_id(cluster, name)
    log = Path(nodes.view(name).host_root) / "var/log/pods"
    code = (
        "import os,signal,sys; signal.signal(15, lambda *_: print('asked', flush=True));"
        "print(os.getpid(), flush=True)\nwhile True: signal.pause()"
    )
    pod = pods.run(name, code)
    wait_until(lambda: _pid(log, pod), LIMIT_S, "the process is up")
    pid = _pid(log, pod)
    nodes.client.reboot(name)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), LIMIT_S, "the process is gone")
    stays_true(
        lambda: phase_of(pods.get(pod)) == "Running" and _boot_id(cluster, name) == before,
        1.0,
        "the API server knows of nothing",
    )
    pods.until_phase(pod, "Failed")
    assert "asked" not in next(log.glob(f"*_{pod}_*/main.log")).read_text()


@pytest.mark.parametrize("same_machine", [False, True], ids=["new machine", "same machine"])
def test_a_recreated_node_runs_again_what_its_disk_does_not_remember(
    nodes: TestNodes, pods: Pods, same_machine: bool
) -> None:
    name = nodes.add("n", "again", boot_time_s=0.2)
    log = Path(nodes.view(name).host_root) / "var/log/pods"
    pod = pods.run(name, "import os,signal; print(os.getpid(), flush=True); signal.pause()")
    wait_until(lambda: _pid(log, pod), LIMIT_S, "the process is up")
    nodes.inject(name, "node-recreated-same-name", same_machine=same_machine)
    if same_machine:
        assert ended(pods.until_phase(pod, "Failed"))["exitCode"] == 255
    else:
        wait_until(lambda: _starts(log, pod) == 2, LIMIT_S, "the new machine has started it")


def _starts(log: Path, pod: str) -> int:
    return sum(len(path.read_text().split()) for path in log.glob(f"*_{pod}_*/main.log"))


def test_after_a_boot_the_agents_conditions_are_fresh(nodes: TestNodes, cluster: Cluster) -> None:
    name = nodes.add("n", "fresh", boot_time_s=0.2)
    before = json.loads(_raw(cluster, name)["metadata"]["annotations"][FINDINGS])
    transition = _condition(_raw(cluster, name), "GPUHealthy")["lastTransitionTime"]
    nodes.client.reboot(name)
    wait_until(
        lambda: (
            json.loads(_raw(cluster, name)["metadata"]["annotations"][FINDINGS])["boot"]
            != before["boot"]
        ),
        LIMIT_S,
        "the findings are of the new boot",
    )
    node = _raw(cluster, name)
    booted = boot_log(nodes, name)[-1].at
    heard = _condition(node, "GPUHealthy")
    assert datetime.fromisoformat(heard["lastHeartbeatTime"]) >= booted.replace(microsecond=0)
    assert heard["lastTransitionTime"] == transition


def test_a_reboot_passes_through_not_ready_and_the_gpus_come_last(
    nodes: TestNodes, witness: AuditLog
) -> None:
    name = nodes.add("n", "gpus", boot_time_s=0.2, not_ready_after_boot_s=1.0, device_plugin_s=1.0)
    nodes.client.reboot(name)
    wanted = Wanted(who=f"system:node:{name}", verb="patch", resource="nodes/status")
    down, ready, whole = ("False", "0"), ("True", "0"), ("True", "8")

    def told() -> list[tuple[str, str]]:
        """Ready and the GPUs as the kubelet wrote them since it came up: no look misses a state."""
        every = [
            (_condition(e.body, "Ready")["status"], _gpus(e.body)) for e in witness.events(wanted)
        ]
        changes = [pair for pair, _ in groupby(every)]
        return changes[changes.index(down) :] if down in changes else []

    wait_until(lambda: told()[-1:] == [whole], LIMIT_S, "the GPUs are back", saw=told)
    assert told() == [down, ready, whole]


def test_a_fast_reboot_may_show_in_the_boot_id_only(
    nodes: TestNodes, cluster: Cluster, witness: AuditLog
) -> None:
    name = nodes.add("n", "quick", boot_time_s=0.0, not_ready_after_boot_s=0.0)
    before = _boot_id(cluster, name)
    nodes.client.reboot(name)
    wait_until(lambda: _boot_id(cluster, name) != before, LIMIT_S, "the boot id has changed")
    nodes.until_healthy(name)
    patches = witness.events(Wanted(verb="patch", resource="nodes/status", name=name))
    told = [c for e in patches for c in e.body["status"]["conditions"] if c["type"] == "Ready"]
    assert {c["status"] for c in told} == {"True"}


def test_what_ran_is_started_again_after_a_boot_if_its_policy_says_so(
    nodes: TestNodes, pods: Pods
) -> None:
    name = nodes.add("n", "again", boot_time_s=0.2)
    again, once = pods.timer(name, restartPolicy="Always"), pods.timer(name)
    for pod in (again, once):
        pods.until_phase(pod, "Running")
    nodes.client.reboot(name)
    pods.until_phase(once, "Failed")
    wait_until(
        lambda: (
            pods.get(again)["status"]["containerStatuses"][0]["restartCount"] == 1
            and phase_of(pods.get(again)) == "Running"
        ),
        LIMIT_S,
        "the pod runs again",
    )


def test_a_gpu_pod_is_refused_after_a_boot_before_the_device_plugin(
    nodes: TestNodes, pods: Pods
) -> None:
    # The kubelet must look at the pod while the plugin is away, on a slow machine too.
    name = nodes.add("n", "plugin", boot_time_s=0.2, device_plugin_s=5.0)
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "busybox", "resources": limits}
    pod = pods.make(name, container, restartPolicy="Always")
    pods.until_phase(pod, "Running")
    nodes.client.reboot(name)
    assert pods.until_phase(pod, "Failed")["status"]["reason"] == "UnexpectedAdmissionError"


def test_a_deleted_node_stays_gone_until_its_machine_reboots(
    nodes: TestNodes, cluster: Cluster
) -> None:
    name = nodes.add("n", "deleted", boot_time_s=0.2)
    uid = _raw(cluster, name)["metadata"]["uid"]
    cluster.kube.delete(paths.node(name), uid=uid)
    stays_true(lambda: not _exists(cluster, name), 3.0, "the Node is gone")
    nodes.client.reboot(name)
    wait_until(lambda: _exists(cluster, name), LIMIT_S, "it has registered again")
    assert _raw(cluster, name)["metadata"]["uid"] != uid


def test_a_removed_node_takes_its_object_along(nodes: TestNodes, cluster: Cluster) -> None:
    name = nodes.add("n", "removed")
    nodes.client.remove_node(name)
    assert not _exists(cluster, name)
    with pytest.raises(FleetError, match="no simulated node"):
        nodes.client.reboot(name)


def test_a_second_node_of_a_name_is_refused(nodes: TestNodes) -> None:
    name = nodes.add("n", "twice")
    with pytest.raises(FleetError, match=f"node {name} is there already"):
        nodes.client.add_node(NodeSpec(name=name))


@pytest.mark.parametrize("name", ["", "UPPER", "a_b", "-a", "a" * 64])
def test_a_bad_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="is no node name: use 1 to 63 of a-z"):
        NodeSpec(name=name)


def test_a_bad_pool_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"(?s)pool\n.*should match pattern"):
        NodeSpec(name="n", pool="not a label")


def test_what_the_api_server_refuses_is_told(
    nodes: TestNodes, unique: Callable[[str], str]
) -> None:
    name = unique("n")
    nodes.added.append(name)
    with pytest.raises(FleetError, match=f"node {name} is refused by the API server") as refused:
        nodes.client.add_node(NodeSpec(name=name, labels={"not/a/key": "x"}))
    assert "metadata.labels" in str(refused.value)


def test_the_fleet_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="start the lab with `fleetmend lab up`"):
        FleetClient(tmp_path).nodes()


def test_light_nodes_come_by_the_dozen_and_run_pods_at_once(
    nodes: TestNodes, cluster: Cluster, pods: Pods
) -> None:
    names = nodes.add_many([f"l{i}" for i in range(40)], "light", kind=NodeKind.LIGHT)
    # Not one look: a Lease that comes late on a loaded machine makes a node Unknown for a moment.
    wait_until(
        lambda: all(cluster.node(name).ready for name in names), LIMIT_S, "all nodes are Ready"
    )
    assert _condition(_raw(cluster, names[7]), "GPUHealthy")["status"] == "True"
    pod = pods.timer(names[7])
    pods.until_phase(pod, "Running")
    pods.delete(pod)
    pods.until_gone(pod)
    done = pods.timer(names[8], {"lab.fleetmend.io/duration": "0.1"})
    assert ended(pods.until_phase(done, "Succeeded"))["exitCode"] == 0


def test_a_light_node_runs_no_processes_and_says_so(nodes: TestNodes, pods: Pods) -> None:
    name = nodes.add("l", "light", kind=NodeKind.LIGHT)
    pod = pods.until_phase(pods.run(name, "print(1)"), "Failed")
    assert "use a full node" in pod["status"]["message"]
    with pytest.raises(FleetError, match=f"node {name} is light"):
        nodes.client.reboot(name)


def test_light_nodes_have_their_own_identity(
    nodes: TestNodes, witness: AuditLog, unique: Callable[[str], str]
) -> None:
    name = nodes.add("l", "light", kind=NodeKind.LIGHT)
    nodes.inject(name, "gpu-lost")
    ours = [
        e
        for e in witness.writes()
        if e.name == name and e.raw["userAgent"] == "fleetmend-lab-kubelet"
    ]
    assert {(e.verb, e.resource) for e in ours} >= {("create", "nodes"), ("patch", "nodes/status")}
    assert {e.raw["impersonatedUser"]["username"] for e in ours} == {f"system:node:{name}"}


def test_a_killed_fleet_is_a_power_cut_and_its_nodes_come_back(
    nodes: TestNodes, cluster: Cluster, pods: Pods, lab_hands: Lab
) -> None:
    name = nodes.add("n", "cut")
    light = nodes.add("l", "cut", kind=NodeKind.LIGHT)
    before = nodes.view(name)
    log = Path(before.host_root) / "var/log/pods"
    pod = pods.run(name, "import os,signal; print(os.getpid(), flush=True); signal.pause()")
    wait_until(lambda: _pid(log, pod), LIMIT_S, "the process is up")
    pid = _pid(log, pod)
    lab_hands.kill(Component.FLEET)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), LIMIT_S, "the process is gone")
    lab_hands.start(Component.FLEET)
    wait_until(lambda: _boot_id(cluster, name) != before.boot_id, LIMIT_S, "the machine has booted")
    nodes.until_healthy(name)
    after = nodes.view(name)
    assert (after.uid, after.provider_id) == (before.uid, before.provider_id)
    assert after.boot_id != before.boot_id
    assert ended(pods.until_phase(pod, "Failed"))["exitCode"] == 255
    wait_until(lambda: cluster.node(light).ready, LIMIT_S, "the light node is Ready")
    assert [r.event for r in boot_log(nodes, name)] == [BootEvent.FIRST, BootEvent.BOOT]


def _pid(log: Path, pod: str) -> int:
    texts = [path.read_text().strip() for path in log.glob(f"*_{pod}_*/main.log")]
    return int(texts[0]) if texts and texts[0] else 0


def test_nodes_stand_an_api_server_that_was_away(
    nodes: TestNodes, cluster: Cluster, pods: Pods, lab_hands: Lab
) -> None:
    name = nodes.add("n", "away")
    pod = pods.run(name, "import time; time.sleep(0.5)")
    pods.until_phase(pod, "Running", "Succeeded")
    lab_hands.restart(Component.API_SERVER)
    pods.until_phase(pod, "Succeeded")
    later = pods.timer(name)
    pods.until_phase(later, "Running")
    assert nodes.boots(name) == 0
    wait_until(lambda: cluster.node(name).ready, LIMIT_S, "the node is Ready")
