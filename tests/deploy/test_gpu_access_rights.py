"""A diagnosis' way to the GPUs: the runtime class and the host engine of the release, and no other.

The policy is the chart's as these values render it, for a worker in a namespace of its own; it stands beside the
lab's, whose release names neither.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from activities.node_tasks.pod import GpuAccess, task_name, task_pod
from tests.deploy.caller import Caller, Request
from tests.deploy.rendered import ENGINE, GPU_ACCESS, NAMESPACE, Object, of_kind, render
from tests.deploy.world import SimNode, World
from workflows.contracts.kube import Owner
from workflows.contracts.node_tasks import NodeTaskRequest
from workflows.model.identity import NodeRef
from workflows.model.node_task import TaskKind

ACCESS: Final = GpuAccess("nvidia", ENGINE)
POLICY: Final = "fleetmend-worker-pods"
OURS: Final = "rights-gpu-access"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
Change = Callable[[Object], None]


@pytest.fixture(scope="module")
def worker(world: World) -> Iterator[Caller]:
    """The worker of that release, which RBAC would let do everything."""
    admin = world.admin
    admin.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for account in ("default", "fleetmend-node-task"):
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        admin.post(path, {"metadata": {"name": account}})
    made = []
    for item in of_kind(
        render(GPU_ACCESS), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
    ):
        if item["metadata"]["name"] == POLICY:
            ours = copy.deepcopy(item)
            ours["metadata"] = {"name": OURS}
            if "policyName" in ours["spec"]:
                ours["spec"]["policyName"] = OURS
            kind = "policies" if ours["kind"] == "ValidatingAdmissionPolicy" else "policybindings"
            path = f"{ADMISSION}/validatingadmission{kind}"
            admin.post(path, ours)
            made.append(f"{path}/{OURS}")
    caller = admin.impersonating(
        f"system:serviceaccount:{NAMESPACE}:fleetmend-worker", "system:masters"
    )
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    world.wait_until(
        lambda: f"'{OURS}'" in caller.send(Request("POST", PODS, probe)).message, "it is in force"
    )
    yield caller
    for path in reversed(made):
        admin.delete(path)


def pod_of(node: SimNode, kind: TaskKind, access: GpuAccess = ACCESS) -> Object:
    """The pod as the worker makes it."""
    owner = Owner(node=NodeRef(node.name, node.uid), episode="e1")
    request = NodeTaskRequest(owner=owner, kind=kind, step="rights", deadline_s=60)
    body = task_pod(request, task_name(request), "fleetmend:0.1.0", access)
    body["metadata"]["namespace"] = NAMESPACE
    return body


def env(name: str, value: str) -> Change:
    """The variable says another thing, or is there at all."""

    def change(pod: Object) -> None:
        variables = pod["spec"]["containers"][0]["env"]
        pod["spec"]["containers"][0]["env"] = [
            *(v for v in variables if v["name"] != name),
            {"name": name, "value": value},
        ]

    return change


def spec(**changed: Any) -> Change:
    return lambda pod: pod["spec"].update(changed)


@pytest.mark.parametrize("kind", TaskKind)
@pytest.mark.parametrize(
    "access",
    [ACCESS, GpuAccess("nvidia", ""), GpuAccess("", ENGINE), GpuAccess()],
    ids=["both", "runtime", "engine", "neither"],
)
def test_what_the_worker_makes_of_the_release_is_let_in(
    worker: Caller, untouched: SimNode, kind: TaskKind, access: GpuAccess
) -> None:
    answer = worker.send(Request("POST", PODS, pod_of(untouched, kind, access)))
    assert answer.code == 201, answer


@pytest.mark.parametrize(
    ("change", "kind", "rule"),
    [
        pytest.param(spec(runtimeClassName="other"), TaskKind.DIAGNOSE, 23, id="other runtime"),
        pytest.param(
            spec(runtimeClassName="nvidia"), TaskKind.REBOOT, 23, id="runtime of a reboot"
        ),
        pytest.param(
            env("FLEETMEND_DCGM_HOST_ENGINE", "evil:5555"), TaskKind.DIAGNOSE, 12, id="other engine"
        ),
        pytest.param(
            env("FLEETMEND_DCGM_HOST_ENGINE", f"{ENGINE}5"), TaskKind.DIAGNOSE, 12, id="longer"
        ),
        pytest.param(env("FLEETMEND_DCGM_HOST_ENGINE", ""), TaskKind.DIAGNOSE, 12, id="no engine"),
        pytest.param(
            env("FLEETMEND_DCGM_HOST_ENGINE", ENGINE), TaskKind.INVENTORY, 12, id="of an inventory"
        ),
        pytest.param(env("LD_PRELOAD", ENGINE), TaskKind.DIAGNOSE, 12, id="other variable"),
        pytest.param(
            env("NVIDIA_DRIVER_CAPABILITIES", "all"), TaskKind.DIAGNOSE, 12, id="capabilities"
        ),
        pytest.param(spec(hostNetwork=True), TaskKind.DIAGNOSE, 21, id="host network"),
    ],
)
def test_any_other_way_is_refused(
    worker: Caller, untouched: SimNode, change: Change, kind: TaskKind, rule: int
) -> None:
    pod = pod_of(untouched, kind)
    change(pod)
    answer = worker.send(Request("POST", PODS, pod))
    assert answer.code == 403, answer
    assert f"{POLICY}/{rule}:" in answer.message
