"""Pods on a full node of a real control plane: processes, timers, and what the kubelet reports."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import PatchKind
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from tests.lab.conftest import LIMIT_S, Pods, ended

WAIT_FOR_SIGTERM = (
    "import signal,sys; signal.signal(15, lambda *_: sys.exit({code})); {say}; signal.pause()"
)
SAY = "open(__import__('os').environ['FLEETMEND_TERMINATION_LOG'],'w').write({expression})"
DURATION = "lab.fleetmend.io/duration"
EXIT_CODE = "lab.fleetmend.io/exit-code"
TERMINATION = "lab.fleetmend.io/termination-seconds"


@pytest.fixture
def node(nodes: TestNodes) -> str:
    return nodes.add("n", "pods")


def _condition(pod: Any, kind: str) -> Any:
    return next(c["status"] for c in pod["status"]["conditions"] if c["type"] == kind)


def _log(nodes: TestNodes, node: str, name: str) -> str:
    logs = Path(nodes.view(node).host_root) / "var/log/pods"
    return next(logs.glob(f"*_{name}_*/main.log")).read_text()


def test_a_process_that_ends_well_succeeds_with_its_message(node: str, pods: Pods) -> None:
    pod = pods.until_phase(pods.run(node, SAY.format(expression="'all good'")), "Succeeded")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (0, "Completed")
    assert ended(pod)["message"] == "all good"
    assert ended(pod)["startedAt"] <= ended(pod)["finishedAt"]
    assert pod["status"]["startTime"]


def test_a_process_that_fails_keeps_its_exit_code_and_the_messages_end(
    node: str, pods: Pods
) -> None:
    code = SAY.format(expression="'head' + 'x' * 9000 + 'tail'") + "; raise SystemExit(42)"
    pod = pods.until_phase(pods.run(node, code), "Failed")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (42, "Error")
    assert len(ended(pod)["message"]) == 4096
    assert ended(pod)["message"].endswith("tail")


def test_a_running_process_is_ready_and_keeps_its_output(
    node: str, nodes: TestNodes, pods: Pods
) -> None:
    name = pods.run(node, "print('hello'); import signal; signal.pause()")
    pod = pods.until_phase(name, "Running")
    assert _condition(pod, "Ready") == "True"
    assert "running" in pod["status"]["containerStatuses"][0]["state"]
    wait_until(lambda: "hello" in _log(nodes, node, name), LIMIT_S, "the output is in the log")


def test_the_pods_environment_names_it_and_the_host_root(
    node: str, nodes: TestNodes, pods: Pods
) -> None:
    expression = (
        "__import__('json').dumps([os.environ.get(k) for k in"
        " ('NAME','UID','NODE','FLEETMEND_HOST_ROOT','KUBECONFIG')])"
    )
    container = {
        "name": "main",
        "image": "fleetmend:lab",
        "command": ["python", "-c", "import os; " + SAY.format(expression=expression)],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        "env": [
            {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for key, path in (
                ("NAME", "metadata.name"),
                ("UID", "metadata.uid"),
                ("NODE", "spec.nodeName"),
            )
        ],
    }
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    pod = pods.until_phase(pods.make(node, container, volumes=volumes), "Succeeded")
    meta = pod["metadata"]
    told = json.loads(ended(pod)["message"])
    assert told == [meta["name"], meta["uid"], node, nodes.view(node).host_root, None]


def test_a_token_is_bound_to_the_pod_and_the_node(node: str, nodes: TestNodes, pods: Pods) -> None:
    code = "import os; " + SAY.format(
        expression="open(os.environ['FLEETMEND_SERVICEACCOUNT'] + '/token').read().split('.')[1]"
    )
    pod = pods.until_phase(pods.run(node, code, automountServiceAccountToken=True), "Succeeded")
    payload = ended(pod)["message"]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    bound = claims["kubernetes.io"]
    assert bound["pod"] == {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    assert bound["node"] == {"name": node, "uid": nodes.view(node).uid}
    assert bound["serviceaccount"]["name"] == "default"


def test_the_kubeconfig_made_of_the_token_is_good(node: str, pods: Pods) -> None:
    code = (
        "from activities.kube.client import KubeClient\n"
        "from activities.kube import errors, paths\n"
        "kube = KubeClient.from_environment()\n"
        "try:\n    kube.list(paths.nodes())\n"
        "except errors.Forbidden as refused:\n    text = str(refused)\n"
        + SAY.format(expression="text")
    )
    pod = pods.until_phase(pods.run(node, code, automountServiceAccountToken=True), "Succeeded")
    assert 'User "system:serviceaccount:default:default"' in ended(pod)["message"]


def test_the_deadline_ends_a_process(node: str, pods: Pods) -> None:
    code = WAIT_FOR_SIGTERM.format(code=5, say="print('up')")
    pod = pods.until_phase(pods.run(node, code, activeDeadlineSeconds=1), "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert ended(pod)["exitCode"] in (5, 143)


def test_a_deleted_process_has_its_grace_then_the_object_goes(
    node: str, nodes: TestNodes, pods: Pods
) -> None:
    code = WAIT_FOR_SIGTERM.format(code=0, say="print('up', flush=True)").replace(
        "sys.exit(0)", "(print('asked', flush=True), sys.exit(0))"
    )
    name = pods.run(node, code)
    pods.until_phase(name, "Running")
    wait_until(lambda: "up" in _log(nodes, node, name), LIMIT_S, "the process is up")
    pods.delete(name, grace_s=20)
    pods.until_gone(name)
    assert "asked" in _log(nodes, node, name)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(
    node: str, nodes: TestNodes, pods: Pods
) -> None:
    code = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('up')\nwhile True: signal.pause()"
    )
    name = pods.run(node, code)
    wait_until(lambda: _has_log(nodes, node, name, "up"), LIMIT_S, "the process is up")
    pods.delete(name, grace_s=1)
    pods.until_gone(name)


def _has_log(nodes: TestNodes, node: str, name: str, text: str) -> bool:
    try:
        return text in _log(nodes, node, name)
    except StopIteration:
        return False


def test_what_cannot_be_run_waits_with_its_reason(node: str, pods: Pods) -> None:
    name = pods.make(node, {"name": "main", "image": "fleetmend:lab", "command": ["no-such"]})
    wait_until(lambda: _waiting(pods.get(name)), LIMIT_S, "the container waits with a reason")
    assert "cannot run no-such" in _waiting(pods.get(name))
    assert pods.get(name)["status"]["phase"] == "Pending"


def _waiting(pod: Any) -> str:
    statuses = pod["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("state", {}).get("waiting", {}).get("message", ""))


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
def test_a_timer_ends_by_its_annotations(node: str, pods: Pods, code: str, phase: str) -> None:
    pod = pods.until_phase(pods.timer(node, {DURATION: "0.2", EXIT_CODE: code}), phase)
    assert ended(pod)["exitCode"] == int(code)


def test_a_timer_that_stops_slowly_holds_its_object_as_long(node: str, pods: Pods) -> None:
    name = pods.timer(node, {TERMINATION: "1.5"})
    pods.until_phase(name, "Running")
    pods.delete(name, grace_s=30)
    pod = pods.get(name)
    assert pod is not None
    assert pod["status"]["phase"] == "Running"
    pods.until_gone(name)


def test_a_timer_with_restart_policy_always_starts_again(node: str, pods: Pods) -> None:
    # A second, because how it ended before is told only while it runs.
    name = pods.timer(node, {DURATION: "1"}, restartPolicy="Always")

    def container() -> Any:
        return (pods.get(name)["status"].get("containerStatuses") or [{}])[0]

    def ended_and_started_twice() -> bool:
        now = container()
        return now.get("restartCount", 0) >= 2 and "terminated" in now["lastState"]

    wait_until(ended_and_started_twice, LIMIT_S, "it has started twice again", saw=container)


def _with_gpus(count: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(count)}
    return {"name": "main", "image": "busybox", "resources": {"limits": limits}}


def test_more_gpus_than_are_free_are_refused_as_a_kubelet_does(node: str, pods: Pods) -> None:
    pods.until_phase(pods.make(node, _with_gpus(6)), "Running")
    pod = pods.until_phase(pods.make(node, _with_gpus(3)), "Failed")
    assert pod["status"]["reason"] == "OutOfnvidia.com/gpu"


def test_pods_of_the_scheduler_run_and_their_gpus_are_counted(
    node: str, cluster: Cluster, pods: Pods
) -> None:
    name = pods.make(
        node, _with_gpus(8), nodeName=None, nodeSelector={"kubernetes.io/hostname": node}
    )
    assert pods.until_phase(name, "Running")["spec"]["nodeName"] == node
    other = pods.make(
        node, _with_gpus(1), nodeName=None, nodeSelector={"kubernetes.io/hostname": node}
    )
    wait_until(
        lambda: "Insufficient nvidia.com/gpu" in json.dumps(pods.get(other)["status"]),
        LIMIT_S,
        "the scheduler finds no GPU for the second",
    )
    cluster.kube.patch(paths.node(node), {"spec": {"unschedulable": True}}, kind=PatchKind.MERGE)
    assert pods.get(name)["status"]["phase"] == "Running"


def test_a_forced_deletion_kills_what_runs(node: str, nodes: TestNodes, pods: Pods) -> None:
    name = pods.run(node, "import os,signal; print('pid', os.getpid()); signal.pause()")
    wait_until(lambda: _has_log(nodes, node, name, "\n"), LIMIT_S, "the process is up")
    pid = int(_log(nodes, node, name).split()[1])
    pods.delete(name, grace_s=0)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), LIMIT_S, "the process is gone")
