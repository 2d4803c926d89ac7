"""What an agent may write, and that everything else is refused by the rule that names it.

Three callers: the agent of the node with its pod's token (RBAC and policy together), the same identity with all RBAC
rights (the policy alone), and tokens that prove no node. A refusal counts only with its rule's own words.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deploy.caller import JSON_PATCH, MERGE, STRATEGIC, Answer, Caller, Request
from tests.deploy.world import NAMESPACE, SimNode, World, node_body

OURS = ("GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy")
FINDINGS = "fleetmend.io/findings"


def condition(kind: str, **fields: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": "Ok", "message": "fine", **fields}


def report(conditions: list[Any], **annotations: str | None) -> dict[str, Any]:
    """The one PATCH of an agent; `findings` stands for its annotation."""
    named = {FINDINGS if k == "findings" else k: v for k, v in annotations.items()}
    return {"metadata": {"annotations": named}, "status": {"conditions": conditions}}


def annotations(**changed: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {k.replace("__", "/"): v for k, v in changed.items()}}}


def status(**changed: Any) -> dict[str, Any]:
    return {"status": changed}


@dataclass(frozen=True)
class Write:
    """A patch of the agent's own node, and the rule that must refuse it."""

    rule: int
    body: Any
    content_type: str = STRATEGIC


NOW = "2026-01-01T00:00:00Z"
# Through nodes/status with the agent's own token: RBAC lets all of these pass, so only the policy is left.
STATUS_WRITES: Mapping[str, Write] = {
    "label added": Write(6, {"metadata": {"labels": {"fleetmend.io/extra": "x"}}}),
    "label changed": Write(6, {"metadata": {"labels": {"fleetmend.io/pool": "other"}}}),
    "label removed": Write(6, {"metadata": {"labels": {"example.com/rack": None}}}),
    "control-plane label": Write(
        6, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}
    ),
    "finalizer added": Write(6, {"metadata": {"finalizers": ["example.com/keep"]}}),
    "owner added": Write(
        6,
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
            }
        },
    ),
    "annotation of others added": Write(7, annotations(example__new="x")),
    "annotation of others changed": Write(
        7, {"metadata": {"annotations": {"example.com/owner": "me"}}}
    ),
    "annotation of others removed": Write(
        7, {"metadata": {"annotations": {"example.com/owner": None}}}
    ),
    "all annotations removed": Write(7, {"metadata": {"annotations": None}}, MERGE),
    "episode marker": Write(7, {"metadata": {"annotations": {"fleetmend.io/episode": "{}"}}}),
    "opt-out": Write(7, {"metadata": {"annotations": {"fleetmend.io/ignore": "true"}}}),
    "a person's pause lifted": Write(
        7, {"metadata": {"annotations": {"fleetmend.io/pause": None}}}
    ),
    "Karpenter's veto": Write(
        7, {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
    ),
    "findings beside another annotation": Write(
        7, {"metadata": {"annotations": {FINDINGS: "[]", "example.com/x": "y"}}}
    ),
    "findings of 8193 bytes": Write(8, report([], findings="x" * 8193)),
    "findings of 8192 characters in 16384 bytes": Write(8, report([], findings="é" * 8192)),
    "capacity": Write(9, status(capacity={"nvidia.com/gpu": "7"})),
    "allocatable": Write(9, status(allocatable={"nvidia.com/gpu": "0"})),
    "a resource of its own": Write(9, status(capacity={"example.com/x": "1"})),
    "resource removed": Write(9, status(allocatable={"nvidia.com/gpu": None})),
    "address": Write(9, status(addresses=[{"type": "Hostname", "address": "evil"}])),
    "boot id": Write(9, status(nodeInfo={"bootID": "another"})),
    "machine id": Write(9, status(nodeInfo={"systemUUID": "another"})),
    "images": Write(9, status(images=[{"names": ["x"], "sizeBytes": 1}])),
    "volumes in use": Write(9, status(volumesInUse=["v"])),
    "kubelet endpoint": Write(9, status(daemonEndpoints={"kubeletEndpoint": {"Port": 1}})),
    "Ready false": Write(10, report([condition("Ready", status="False")])),
    "Ready's heartbeat": Write(10, report([{"type": "Ready", "lastHeartbeatTime": NOW}])),
    "Ready removed": Write(10, report([{"type": "Ready", "$patch": "delete"}])),
    "DiskPressure": Write(10, report([condition("DiskPressure")])),
    "condition of others": Write(10, report([condition("KernelDeadlock")])),
    "lower-case look-alike": Write(10, report([condition("gpuhealthy")])),
    "longer look-alike": Write(10, report([condition("GPUHealthy2")])),
    "ours beside another": Write(
        10, report([condition("GPUHealthy"), condition("MemoryPressure")])
    ),
    "whole list replaced": Write(10, status(conditions=[condition("GPUHealthy")]), MERGE),
    "all conditions removed": Write(10, status(conditions=None), MERGE),
    "Ready replaced by JSON patch": Write(
        10, [{"op": "replace", "path": "/status/conditions/0/status", "value": "False"}], JSON_PATCH
    ),
    "condition twice": Write(
        11,
        [
            {"op": "add", "path": "/status/conditions/-", "value": condition("GPUHealthy")},
            {"op": "add", "path": "/status/conditions/-", "value": condition("GPUHealthy")},
        ],
        JSON_PATCH,
    ),
    "message of 1025 bytes": Write(12, report([condition("GPUHealthy", message="x" * 1025)])),
    "reason of 129 bytes": Write(12, report([condition("HostHealthy", reason="X" * 129)])),
}

# To the main resource, with all RBAC rights.
MAIN_WRITES: Mapping[str, Write] = {
    "cordon": Write(5, {"spec": {"unschedulable": True}}),
    "taint": Write(5, {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}),
    "taints removed": Write(5, {"spec": {"taints": None}}, MERGE),
    "pod range": Write(5, {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
    "label": Write(6, {"metadata": {"labels": {"x": "y"}}}),
    "annotation": Write(7, {"metadata": {"annotations": {"x": "y"}}}),
}

# Doors that RBAC keeps shut: method, path, body.
CLOSED: Mapping[str, tuple[str, str, Any]] = {
    "patch the node itself": ("PATCH", "/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}),
    "replace the status": ("PUT", "/api/v1/nodes/{node}/status", {}),
    "create a node": ("POST", "/api/v1/nodes", {"metadata": {"name": "rights-new"}}),
    "delete the node": ("DELETE", "/api/v1/nodes/{node}", None),
    "the kubelet behind the node": ("GET", "/api/v1/nodes/{node}/proxy/pods", None),
    "list nodes": ("GET", "/api/v1/nodes", None),
    "watch nodes": ("GET", "/api/v1/nodes?watch=true&timeoutSeconds=1", None),
    "list pods": ("GET", "/api/v1/pods", None),
    "its own pod": ("GET", "/api/v1/namespaces/fleetmend/pods/{pod}", None),
    "its own pod's status": ("PATCH", "/api/v1/namespaces/fleetmend/pods/{pod}/status", {}),
    "evict": ("POST", "/api/v1/namespaces/fleetmend/pods/{pod}/eviction", {}),
    "the kubelet's Lease": (
        "PATCH",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}",
        {"spec": {"holderIdentity": "me"}},
    ),
    "secrets": ("GET", "/api/v1/namespaces/fleetmend/secrets", None),
    "arming": ("GET", "/api/v1/namespaces/fleetmend/configmaps/fleetmend-arming", None),
    "the machine record": ("GET", "/apis/fleetmend.io/v1alpha1/gpumachines/x", None),
    "an Event": ("POST", "/api/v1/namespaces/default/events", {"metadata": {"name": "x"}}),
    "a token of the worker": (
        "POST",
        "/api/v1/namespaces/fleetmend/serviceaccounts/fleetmend-worker/token",
        {},
    ),
    "a wider role": ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", None),
}


def assert_refused(answer: Answer, rule: int) -> None:
    assert answer.code == 403, answer
    assert f"fleetmend-agent/{rule}:" in answer.message


@pytest.mark.parametrize("write", STATUS_WRITES.values(), ids=STATUS_WRITES.keys())
def test_agent_is_refused_through_status(
    its_agent: Caller, untouched: SimNode, write: Write
) -> None:
    request = Request("PATCH", untouched.status_path, write.body, write.content_type)
    assert_refused(its_agent.send(request), write.rule)


@pytest.mark.parametrize("write", MAIN_WRITES.values(), ids=MAIN_WRITES.keys())
def test_policy_alone_refuses_writes_to_the_node(
    world: World, untouched: SimNode, write: Write
) -> None:
    request = Request("PATCH", untouched.path, write.body, write.content_type)
    assert_refused(world.unleashed("fleetmend-agent", untouched).send(request), write.rule)


@pytest.mark.parametrize(("method", "path", "body"), CLOSED.values(), ids=CLOSED.keys())
def test_agent_has_no_right_to(
    its_agent: Caller, untouched: SimNode, method: str, path: str, body: Any
) -> None:
    content_type = MERGE if method == "PATCH" else "application/json"
    path = path.format(node=untouched.name, pod=untouched.agent_pod)
    answer = its_agent.send(Request(method, path, body, content_type))
    assert answer.code == 403, answer
    assert 'User "system:serviceaccount:fleetmend:fleetmend-agent" cannot' in answer.message


def test_policy_alone_refuses_create_delete_and_connect(world: World, node: SimNode) -> None:
    unleashed = world.unleashed("fleetmend-agent", node)
    created = unleashed.send(Request("POST", "/api/v1/nodes", node_body("rights-created", {})))
    assert_refused(created, 3)
    assert_refused(unleashed.send(Request("DELETE", node.path)), 3)
    assert_refused(unleashed.send(Request("GET", f"{node.path}/proxy/pods")), 2)


def test_agent_is_refused_on_another_node(world: World, node: SimNode, agent: Caller) -> None:
    other = world.new_node()
    body = report([condition("GPUHealthy")], findings="[]")
    assert_refused(agent.send(Request("PATCH", other.status_path, body, STRATEGIC)), 4)


def test_agent_of_a_recreated_node_is_refused_on_the_new_one(world: World, node: SimNode) -> None:
    forerunner = world.unleashed("fleetmend-agent", node)
    world.admin.delete(node.path)
    world.admin.post("/api/v1/nodes", node_body(node.name, {}))
    body = report([condition("GPUHealthy")], findings="[]")
    assert_refused(forerunner.send(Request("PATCH", node.status_path, body, STRATEGIC)), 4)


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(lambda node: {}, id="to nothing"),
        pytest.param(
            lambda node: {"kind": "Node", "name": node.name, "uid": node.uid}, id="to a node"
        ),
    ],
)
def test_token_not_bound_to_a_pod_is_refused(
    world: World, node: SimNode, bound: Callable[[SimNode], dict[str, str]]
) -> None:
    caller = world.admin.with_token(world.token("fleetmend-agent", **bound(node)))
    body = report([condition("GPUHealthy")])
    assert_refused(caller.send(Request("PATCH", node.status_path, body, STRATEGIC)), 1)


def test_token_of_a_pod_without_node_is_refused(world: World, node: SimNode) -> None:
    pod = world.new_pod(NAMESPACE, node="", account="fleetmend-agent")
    name = pod["metadata"]["name"]
    caller = world.admin.with_token(world.token("fleetmend-agent", kind="Pod", name=name))
    body = report([condition("GPUHealthy")])
    assert_refused(caller.send(Request("PATCH", node.status_path, body, STRATEGIC)), 1)


def test_token_of_an_old_secret_is_refused(world: World, node: SimNode) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    secret = {
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": f"{node.name}-token",
            "annotations": {"kubernetes.io/service-account.name": "fleetmend-agent"},
        },
    }
    world.admin.post(path, secret)
    path += f"/{node.name}-token"
    world.wait_until(lambda: "token" in world.admin.get(path).get("data", {}), "the token is made")
    token = base64.b64decode(world.admin.get(path)["data"]["token"]).decode()
    body = report([condition("GPUHealthy")])
    request = Request("PATCH", node.status_path, body, STRATEGIC)
    assert_refused(world.admin.with_token(token).send(request), 1)
    world.admin.delete(path)


def test_spec_sent_through_status_changes_nothing(agent: Caller, node: SimNode) -> None:
    def spec() -> Any:
        """Without the taints that the node controller sets and removes by itself meanwhile."""
        found = agent.get(node.path)["spec"]
        own = [t for t in found["taints"] if not t["key"].startswith("node.kubernetes.io/")]
        return {**found, "taints": own}

    before = spec()
    assert before["taints"]
    agent.patch(node.status_path, {"spec": {"unschedulable": True, "taints": []}})
    assert spec() == before


def test_agent_reports_four_conditions_and_findings_in_one_patch(
    agent: Caller, node: SimNode
) -> None:
    sent = report([condition(kind, status="False") for kind in OURS], findings='{"v":1}')
    after = agent.patch(node.status_path, sent, STRATEGIC)
    assert after["metadata"]["annotations"][FINDINGS] == '{"v":1}'
    stands = {c["type"]: c["status"] for c in after["status"]["conditions"]}
    assert stands == dict.fromkeys(OURS, "False") | {"Ready": "True", "DiskPressure": "False"}


def test_agent_may_write_findings_of_8192_bytes(agent: Caller, node: SimNode) -> None:
    agent.patch(node.status_path, report([], findings="x" * 8192), STRATEGIC)


def test_agent_may_change_and_remove_what_is_its_own(agent: Caller, node: SimNode) -> None:
    agent.patch(node.status_path, report([condition("GPUHealthy")], findings="[]"), STRATEGIC)
    changed = report([condition("GPUHealthy", status="Unknown")], findings="[1]")
    agent.patch(node.status_path, changed, STRATEGIC)
    removed = report([{"type": "GPUHealthy", "$patch": "delete"}], findings=None)
    after = agent.patch(node.status_path, removed, STRATEGIC)
    assert FINDINGS not in after["metadata"]["annotations"]
    assert [c["type"] for c in after["status"]["conditions"]] == ["Ready", "DiskPressure"]


def test_agent_may_report_on_a_quarantined_node(world: World, agent: Caller, node: SimNode) -> None:
    marked = {
        "metadata": {"annotations": {"fleetmend.io/episode": "{}"}},
        "spec": {"unschedulable": True},
    }
    world.admin.patch(node.path, marked)
    agent.patch(node.status_path, report([condition("GPUHealthy")], findings="[]"), STRATEGIC)


def test_agent_may_report_on_a_node_with_eight_hundred_conditions(
    world: World, agent: Caller, node: SimNode
) -> None:
    many = report([condition(f"Other{n}") for n in range(800)])
    world.admin.patch(node.status_path, many, STRATEGIC)
    agent.patch(node.status_path, report([condition("GPUHealthy")], findings="[]"), STRATEGIC)
