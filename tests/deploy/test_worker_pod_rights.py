"""What the worker may do with pods: node tasks and evictions, nothing else.

Each refused pod is a good node task with one thing changed, so that only that change can be the reason.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from activities.node_tasks.pod import task_name, task_pod
from tests.deploy.caller import MERGE, STRATEGIC, Answer, Caller, Request
from tests.deploy.world import IMAGE, JOBS, NAMESPACE, SimNode, World
from workflows.contracts.kube import Owner
from workflows.contracts.node_tasks import NodeTaskRequest
from workflows.model.identity import NodeRef
from workflows.model.node_task import TaskKind

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def node_task(node: str, kind: str) -> dict[str, Any]:
    """A pod as the release makes it."""
    return {
        "metadata": {
            "name": f"{node}-{kind}",
            "labels": {"app.kubernetes.io/part-of": "fleetmend"},
            "annotations": {"fleetmend.io/episode": "e1"},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 3600,
            "serviceAccountName": "fleetmend-node-task",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "task",
                    "image": IMAGE,
                    "command": ["fleetmend", "node-task", kind],
                    "env": [{"name": "FLEETMEND_TASK", "value": "{}"}],
                    "securityContext": {"privileged": kind == "reboot"},
                    "volumeMounts": [
                        {"name": "host", "mountPath": "/host", "readOnly": kind != "reboot"}
                    ],
                }
            ],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    }


@dataclass(frozen=True)
class Change:
    """One change of a good pod, and the rule that must refuse it."""

    rule: int
    make: Callable[[dict[str, Any]], Any]
    kind: str = "inventory"


def spec(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["spec"].update(changed)


def container(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["spec"]["containers"][0].update(changed)


def mount(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["spec"]["containers"][0]["volumeMounts"][0].update(changed)


def metadata(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["metadata"].update(changed)


def without(*keys: str) -> Callable[[dict[str, Any]], None]:
    def remove(pod: dict[str, Any]) -> None:
        for key in keys:
            pod["spec"].pop(key)

    return remove


def volume(**source: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **source})


OTHER = {"name": "other", "image": IMAGE, "command": ["fleetmend", "node-task", "inventory"]}
SHELL = ["sh", "-c", "id"]
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}

PODS_REFUSED: Mapping[str, Change] = {
    "init container": Change(2, spec(initContainers=[OTHER])),
    "second container": Change(3, lambda pod: pod["spec"]["containers"].append(OTHER)),
    "other image": Change(4, container(image="evil:1")),
    "image that begins as ours": Change(4, container(image=f"{IMAGE}-evil")),
    "other program": Change(5, container(command=SHELL)),
    "no command": Change(5, container(command=None)),
    "unknown kind": Change(5, container(command=["fleetmend", "node-task", "shell"])),
    "kind of a later release": Change(5, container(command=["fleetmend", "node-task", "reset"])),
    "other subcommand": Change(5, container(command=["fleetmend", "worker", "inventory"])),
    "absolute program": Change(
        5, container(command=["/host/bin/fleetmend", "node-task", "reboot"])
    ),
    "a word more": Change(5, container(command=["fleetmend", "node-task", "reboot", "--now"])),
    "args": Change(6, container(args=["--now"])),
    "no node": Change(7, without("nodeName")),
    "restarts on failure": Change(8, spec(restartPolicy="OnFailure")),
    "restarts always": Change(8, without("restartPolicy")),
    "no deadline": Change(9, without("activeDeadlineSeconds")),
    "deadline of 15001 s": Change(9, spec(activeDeadlineSeconds=15_001)),
    "the worker's account": Change(10, spec(serviceAccountName="fleetmend-worker")),
    "the default account": Change(10, without("serviceAccountName")),
    "token": Change(11, spec(automountServiceAccountToken=True)),
    "token by default": Change(11, without("automountServiceAccountToken")),
    "LD_PRELOAD": Change(12, container(env=[{"name": "LD_PRELOAD", "value": "/host/x.so"}])),
    "other host root": Change(
        12, container(env=[{"name": "FLEETMEND_HOST_ROOT", "value": "/host/tmp"}])
    ),
    "order of 8193 bytes": Change(
        12, container(env=[{"name": "FLEETMEND_TASK", "value": "x" * 8193}])
    ),
    "host engine": Change(
        12,
        container(env=[{"name": "FLEETMEND_DCGM_HOST_ENGINE", "value": "evil:5555"}]),
        "diagnose",
    ),
    "PATH": Change(12, container(env=[{"name": "PATH", "value": "/host/bin"}])),
    "env from a Secret": Change(
        12,
        container(
            env=[
                {
                    "name": "FLEETMEND_TASK",
                    "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}},
                }
            ]
        ),
    ),
    "all of a Secret as env": Change(13, container(envFrom=[{"secretRef": {"name": "s"}}])),
    "all of a ConfigMap as env": Change(13, container(envFrom=[{"configMapRef": {"name": "s"}}])),
    "secret volume": Change(14, volume(secret={"secretName": "s"})),
    "projected token": Change(
        14, volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]})
    ),
    "config volume": Change(14, volume(configMap={"name": "c"})),
    "empty volume": Change(14, volume(emptyDir={})),
    "container runtime's socket": Change(15, volume(hostPath={"path": "/run/containerd"})),
    "mounted over the image": Change(16, mount(mountPath="/usr/lib")),
    "part of the host": Change(16, mount(subPath="etc")),
    "mounted twice": Change(
        16,
        lambda pod: pod["spec"]["containers"][0]["volumeMounts"].append(
            {"name": "host", "mountPath": "/etc"}
        ),
    ),
    "inventory that may write": Change(17, mount(readOnly=False)),
    "kernel log that may write": Change(17, mount(readOnly=False), "kernel-log"),
    "privileged diagnosis": Change(18, container(securityContext={"privileged": True}), "diagnose"),
    "privileged inventory": Change(18, container(securityContext={"privileged": True})),
    "capability for an inventory": Change(
        18, container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})
    ),
    "sysctls": Change(
        19, spec(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), "reboot"
    ),
    "finalizer": Change(20, metadata(finalizers=["example.com/keep"])),
    "owner": Change(20, metadata(ownerReferences=[OWNER])),
    "host network": Change(21, spec(hostNetwork=True), "reboot"),
    "host processes": Change(21, spec(hostPID=True), "reboot"),
    "host IPC": Change(21, spec(hostIPC=True), "reboot"),
    "DNS of its own": Change(21, spec(dnsConfig={"nameservers": ["10.0.0.9"]})),
    "host aliases": Change(21, spec(hostAliases=[{"ip": "10.0.0.9", "hostnames": ["x"]}])),
    "shared processes": Change(21, spec(shareProcessNamespace=True)),
    "runtime class": Change(23, spec(runtimeClassName="nvidia"), "diagnose"),
    "hook before the task": Change(
        22, container(lifecycle={"postStart": {"exec": {"command": SHELL}}})
    ),
    "working folder": Change(22, container(workingDir="/host/tmp")),
    "port": Change(22, container(ports=[{"containerPort": 80}])),
    "terminal": Change(22, container(stdin=True)),
}


@pytest.fixture(scope="module")
def worker(world: World) -> Caller:
    """The worker with its own token."""
    return world.account("fleetmend-worker")


@pytest.fixture
def victim(world: World, node: SimNode) -> Iterator[Any]:
    """A job's pod on the node."""
    pod = world.new_pod(JOBS, node=node.name)
    yield pod
    world.admin.delete(pod_path(pod))


def pod_path(pod: Any) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def eviction(pod: Any, uid: str | None) -> Request:
    body: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]},
    }
    if uid is not None:
        body["deleteOptions"] = {"preconditions": {"uid": uid}}
    return Request("POST", f"{pod_path(pod)}/eviction", body)


def assert_refused(answer: Answer, words: str) -> None:
    assert answer.code == 403, answer
    assert words in answer.message


@pytest.mark.parametrize("change", PODS_REFUSED.values(), ids=PODS_REFUSED.keys())
def test_worker_creates_no_pod_with(worker: Caller, untouched: SimNode, change: Change) -> None:
    pod = copy.deepcopy(node_task(untouched.name, change.kind))
    change.make(pod)
    assert_refused(worker.send(Request("POST", PODS, pod)), f"fleetmend-worker-pods/{change.rule}:")


@pytest.mark.parametrize("kind", ["inventory", "reboot", "diagnose", "kernel-log"])
def test_worker_creates_reads_and_deletes_a_node_task(
    worker: Caller, node: SimNode, kind: str
) -> None:
    pod = node_task(node.name, kind)
    created = worker.send(Request("POST", PODS, pod))
    assert created.code == 201, created
    path = pod_path(created.body)
    assert worker.get(path)["spec"]["nodeName"] == node.name
    # No kubelet serves this node, so the log can't be had; the right to it can.
    assert worker.send(Request("GET", f"{path}/log")).code != 403
    worker.delete(path)


@pytest.mark.parametrize("kind", TaskKind)
def test_pod_that_the_release_makes_is_let_in(
    worker: Caller, node: SimNode, kind: TaskKind
) -> None:
    owner = Owner(node=NodeRef(node.name, node.uid), episode="e1")
    request = NodeTaskRequest(owner=owner, kind=kind, step="rights", deadline_s=60)
    pod = task_pod(request, task_name(request), IMAGE)
    answer = worker.send(Request("POST", f"{PODS}?dryRun=All", pod))
    assert answer.code == 201, answer


def test_worker_creates_no_pod_outside_its_namespace(
    world: World, worker: Caller, node: SimNode
) -> None:
    pod = node_task(node.name, "inventory")
    pod["spec"]["serviceAccountName"] = "default"  # the only account there is in that namespace
    request = Request("POST", f"/api/v1/namespaces/{JOBS}/pods", pod)
    assert_refused(worker.send(request), 'cannot create resource "pods"')
    unleashed = world.unleashed("fleetmend-worker").send(request)
    assert_refused(unleashed, "fleetmend-worker-pods/1:")


def test_worker_evicts_a_pod_by_its_uid(worker: Caller, victim: Any) -> None:
    answer = worker.send(eviction(victim, victim["metadata"]["uid"]))
    assert answer.code == 201, answer


def test_worker_evicts_no_pod_without_its_uid(worker: Caller, victim: Any) -> None:
    assert_refused(worker.send(eviction(victim, None)), "fleetmend-worker-pod-ends/5:")


def test_worker_deletes_no_pod_of_a_job(world: World, worker: Caller, victim: Any) -> None:
    request = Request("DELETE", pod_path(victim))
    assert_refused(worker.send(request), 'cannot delete resource "pods"')
    unleashed = world.unleashed("fleetmend-worker").send(request)
    assert_refused(unleashed, "fleetmend-worker-pod-ends/3:")


def test_worker_deletes_no_other_pod_of_fleetmend(worker: Caller, untouched: SimNode) -> None:
    request = Request("DELETE", f"{PODS}/{untouched.agent_pod}")
    assert_refused(worker.send(request), "fleetmend-worker-pod-ends/4:")


@pytest.mark.parametrize(
    ("method", "door", "body", "rule"),
    [
        pytest.param("PATCH", "", {"metadata": {"labels": {"a": "b"}}}, 2, id="label"),
        pytest.param("PATCH", "/status", {"status": {"phase": "Failed"}}, 1, id="status"),
        pytest.param(
            "PATCH",
            "/ephemeralcontainers",
            {"spec": {"ephemeralContainers": [{"name": "x", "image": "evil:1"}]}},
            1,
            id="ephemeral container",
        ),
        pytest.param("GET", "/exec?command=id&stdout=true", None, 1, id="exec"),
        pytest.param("GET", "/attach?stdout=true", None, 1, id="attach"),
        pytest.param("GET", "/portforward", None, 1, id="port forward"),
        pytest.param("GET", "/proxy/", None, 1, id="proxy"),
    ],
)
def test_worker_never_changes_or_enters_a_pod(
    world: World, worker: Caller, untouched: SimNode, method: str, door: str, body: Any, rule: int
) -> None:
    content_type = STRATEGIC if door == "/ephemeralcontainers" else MERGE
    request = Request(method, f"{PODS}/{untouched.agent_pod}{door}", body, content_type)
    assert_refused(worker.send(request), 'fleetmend-worker" cannot')
    unleashed = world.unleashed("fleetmend-worker").send(request)
    assert_refused(unleashed, f"fleetmend-worker-pod-ends/{rule}:")
