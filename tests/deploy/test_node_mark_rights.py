"""What watch and the worker may change on a Node: the quarantine's marks, and nothing else.

RBAC gives both `patch nodes`; the policy is what stands between a stolen or buggy token and the rest of the Node. Doors
that RBAC keeps shut are tried with its rights given, so that the policy is seen to hold by itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.deploy.caller import APPLY, MERGE, STRATEGIC, Answer, Caller, Request
from tests.deploy.world import SimNode, World, node_body

MARKER = "fleetmend.io/episode"
VETOES = ("karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-repair")
ENTRY = {
    "metadata": {"annotations": {MARKER: '{"id":"e1"}', **dict.fromkeys(VETOES, "true")}},
    "spec": {"unschedulable": True},
}
EXIT = {
    "metadata": {"annotations": dict.fromkeys((MARKER, *VETOES))},
    "spec": {"unschedulable": None},
}


def annotations(**changed: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": changed}}


# Rule and patch.
WRITES: Mapping[str, tuple[int, Any]] = {
    "own taint": (10, {"spec": {"taints": [{"key": "fleetmend.io/x", "effect": "NoExecute"}]}}),
    "taints removed": (10, {"spec": {"taints": None}}),
    "cordon and taint": (
        10,
        {**ENTRY, "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]}},
    ),
    "pod range": (4, {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
    "label added": (5, {"metadata": {"labels": {"fleetmend.io/x": "y"}}}),
    "pool changed": (5, {"metadata": {"labels": {"fleetmend.io/pool": "other"}}}),
    "label removed": (5, {"metadata": {"labels": {"example.com/rack": None}}}),
    "finalizer": (5, {"metadata": {"finalizers": ["example.com/keep"]}}),
    "owner": (
        5,
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
            }
        },
    ),
    "annotation of others added": (6, annotations(**{"example.com/x": "y"})),
    "annotation of others changed": (6, annotations(**{"example.com/owner": "me"})),
    "annotation of others removed": (6, annotations(**{"example.com/owner": None})),
    "all annotations removed": (6, {"metadata": {"annotations": None}}),
    "a person's pause lifted": (6, annotations(**{"fleetmend.io/pause": None})),
    "opt-out lifted or set": (6, annotations(**{"fleetmend.io/ignore": "true"})),
    "the agent's findings": (6, annotations(**{"fleetmend.io/findings": "[]"})),
    "marker and another annotation": (6, annotations(**{MARKER: "{}", "example.com/x": "y"})),
    "marker of 8193 bytes": (7, annotations(**{MARKER: "x" * 8193})),
    "cordon without marker": (8, {"spec": {"unschedulable": True}}),
    "cordon with a veto only": (
        8,
        {"metadata": {"annotations": {VETOES[0]: "true"}}, "spec": {"unschedulable": True}},
    ),
}

STARTUP = {"key": "fleetmend.io/unvalidated", "effect": "NoSchedule", "value": "new"}
OTHER = {"key": "example.com/burn-in", "effect": "NoSchedule"}


@pytest.fixture(scope="module", params=["fleetmend-watch", "fleetmend-worker"])
def account(request: pytest.FixtureRequest) -> str:
    """Both processes that mark nodes."""
    return str(request.param)


@pytest.fixture(scope="module")
def process(world: World, account: str) -> Caller:
    """That process with its own token."""
    return world.account(account)


@pytest.fixture
def control_plane_node(world: World) -> Iterator[SimNode]:
    """A node that hosts the control plane."""
    made = world.new_node(**{"node-role.kubernetes.io/control-plane": ""})
    yield made
    world.admin.delete(made.path)


def assert_refused(answer: Answer, rule: int) -> None:
    assert answer.code == 403, answer
    assert f"fleetmend-node-marks/{rule}:" in answer.message


@pytest.mark.parametrize(("rule", "body"), WRITES.values(), ids=WRITES.keys())
def test_process_is_refused(process: Caller, untouched: SimNode, rule: int, body: Any) -> None:
    assert_refused(process.send(Request("PATCH", untouched.path, body, MERGE)), rule)


def test_process_does_not_touch_a_control_plane_node(
    process: Caller, control_plane_node: SimNode
) -> None:
    assert_refused(process.send(Request("PATCH", control_plane_node.path, ENTRY, MERGE)), 3)


def test_process_does_not_undo_a_cordon_without_our_marker(
    world: World, process: Caller, node: SimNode
) -> None:
    world.admin.patch(node.path, {"spec": {"unschedulable": True}})
    assert_refused(process.send(Request("PATCH", node.path, EXIT, MERGE)), 9)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param(
            "PATCH",
            "/api/v1/nodes/{node}/status",
            {"status": {"conditions": [{"type": "GPUHealthy", "status": "True"}]}},
            id="patch its status",
        ),
        pytest.param("DELETE", "/api/v1/nodes/{node}", None, id="delete it"),
        pytest.param("POST", "/api/v1/nodes", node_body("rights-created", {}), id="create one"),
        pytest.param("GET", "/api/v1/nodes/{node}/proxy/pods", None, id="reach its kubelet"),
    ],
)
def test_process_has_neither_the_right_nor_the_policy_s_leave_to(
    world: World, account: str, node: SimNode, method: str, path: str, body: Any
) -> None:
    content_type = STRATEGIC if method == "PATCH" else "application/json"
    request = Request(method, path.format(node=node.name), body, content_type)
    refused = world.account(account).send(request)
    assert refused.code == 403, refused
    assert f'{account}" cannot' in refused.message
    assert_refused(world.unleashed(account).send(request), 1 if "status" not in path else 2)


def test_apply_creates_no_node(process: Caller) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "rights-applied"}}
    path = "/api/v1/nodes/rights-applied?fieldManager=rights"
    answer = process.send(Request("PATCH", path, body, APPLY))
    assert answer.code == 403, answer
    assert "cannot create" in answer.message or "cannot patch" in answer.message


def test_process_quarantines_and_gives_back(process: Caller, node: SimNode) -> None:
    before = process.get(node.path)
    entered = process.patch(node.path, ENTRY)
    assert entered["spec"]["unschedulable"] is True
    left = process.patch(node.path, EXIT)
    assert "unschedulable" not in left["spec"]
    assert left["metadata"]["annotations"] == before["metadata"]["annotations"]


def test_process_marks_a_node_that_a_person_had_cordoned(
    world: World, process: Caller, node: SimNode
) -> None:
    world.admin.patch(node.path, {"spec": {"unschedulable": True}})
    process.patch(node.path, ENTRY)
    left = process.patch(node.path, {"metadata": EXIT["metadata"]})
    assert left["spec"]["unschedulable"] is True


def test_process_works_beside_marks_of_others(world: World, process: Caller, node: SimNode) -> None:
    others = {
        "metadata": {"labels": {"x": "y"}, "annotations": {"fleetmend.io/findings": "[]"}},
        "spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
    }
    world.admin.patch(node.path, others)
    process.patch(node.path, ENTRY, STRATEGIC)
    process.patch(node.path, EXIT, STRATEGIC)


def tainted(world: World, node: SimNode, *taints: dict[str, str]) -> None:
    world.admin.patch(node.path, {"spec": {"taints": list(taints)}})


def untaint(*left: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"taints": list(left) or None}}


@pytest.mark.parametrize("others", [(), (OTHER,)], ids=["alone", "beside another"])
def test_worker_takes_the_startup_taint_off(
    world: World, node: SimNode, others: tuple[dict[str, str], ...]
) -> None:
    tainted(world, node, *others, STARTUP)
    left = world.account("fleetmend-worker").patch(node.path, untaint(*others))
    assert left["spec"].get("taints", []) == list(others)


def test_watch_does_not_take_the_startup_taint_off(world: World, node: SimNode) -> None:
    tainted(world, node, STARTUP)
    request = Request("PATCH", node.path, untaint(), MERGE)
    assert_refused(world.account("fleetmend-watch").send(request), 10)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((STARTUP, OTHER), (), id="another with it"),
        pytest.param((STARTUP, OTHER), (STARTUP,), id="another in its place"),
        pytest.param((OTHER,), (), id="another"),
        pytest.param((), (STARTUP,), id="put on"),
        pytest.param((STARTUP,), (OTHER,), id="exchanged"),
        pytest.param(
            ({**STARTUP, "effect": "NoExecute"},), (), id="of the same key with another effect"
        ),
        pytest.param((STARTUP,), ({**STARTUP, "value": "old"},), id="its value changed"),
    ],
)
def test_worker_changes_no_other_taint(
    world: World,
    node: SimNode,
    before: tuple[dict[str, str], ...],
    after: tuple[dict[str, str], ...],
) -> None:
    tainted(world, node, *before)
    request = Request("PATCH", node.path, untaint(*after), MERGE)
    assert_refused(world.account("fleetmend-worker").send(request), 10)


def test_worker_leaves_the_startup_taint_of_a_marked_node(world: World, node: SimNode) -> None:
    tainted(world, node, STARTUP)
    worker = world.account("fleetmend-worker")
    worker.patch(node.path, ENTRY)
    for _ in range(8):  # a controller adds the cordon's own taint meanwhile
        body = world.admin.get(node.path)
        left = [taint for taint in body["spec"]["taints"] if taint["key"] != STARTUP["key"]]
        version = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}}
        answer = worker.send(Request("PATCH", node.path, {**untaint(*left), **version}, MERGE))
        if answer.code != 409:
            break
    assert_refused(answer, 11)
