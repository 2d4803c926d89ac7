"""The cluster objects that the tests of the rights act on.

Owns the making of nodes, pods and tokens of its own, by the admin, and the wait until the admission policies are in
force. Each test takes fresh nodes, so that none depends on what another left. Talks to the API server through
`caller.py`.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.deploy.caller import Caller, Request

NAMESPACE: Final = "fleetmend"
JOBS: Final = "rights-jobs"
IMAGE: Final = "fleetmend:lab"
RUNTIMES: Final = ("nvidia", "other")
ACCOUNT: Final = "system:serviceaccount:fleetmend:"
# A new policy is in force after about a second; ten times that says something is wrong.
IN_FORCE_DEADLINE_S: Final = 15.0

_serial = itertools.count(1)
_run = secrets.token_hex(3)

# One write per policy that it must refuse, sent with all rights so that RBAC doesn't answer first.
PROBES: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "fleetmend-agent": ("fleetmend-agent", "/api/v1/nodes", {"kind": "Node"}),
    "fleetmend-node-marks": ("fleetmend-watch", "/api/v1/nodes", {"kind": "Node"}),
    "fleetmend-worker-pods": (
        "fleetmend-worker",
        "/api/v1/namespaces/fleetmend/pods",
        {"kind": "Pod", "spec": {"containers": [{"name": "probe", "image": "probe"}]}},
    ),
    "fleetmend-worker-pod-ends": (
        "fleetmend-worker",
        "/api/v1/namespaces/fleetmend/pods/probe/eviction",
        {"kind": "Eviction", "apiVersion": "policy/v1"},
    ),
    "fleetmend-names": (
        "fleetmend-worker",
        "/api/v1/namespaces/fleetmend/configmaps",
        {"kind": "ConfigMap"},
    ),
}


@dataclass(frozen=True)
class SimNode:
    """A node of the test's own with an agent's pod on it."""

    name: str
    uid: str
    agent_pod: str

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    @property
    def status_path(self) -> str:
        return f"{self.path}/status"


@dataclass(frozen=True)
class World:
    """What a test of the rights may use."""

    admin: Caller

    def new_node(self, **labels: str) -> SimNode:
        """A Ready GPU node with foreign marks, and an agent's pod bound to it."""
        name = _name("node")
        node = self.admin.post("/api/v1/nodes", node_body(name, labels))
        agent = self.new_pod(NAMESPACE, node=name, account="fleetmend-agent")
        return SimNode(name, node["metadata"]["uid"], agent["metadata"]["name"])

    def new_pod(self, namespace: str, *, node: str, account: str = "default") -> Any:
        """A pod that the admin puts on a node."""
        body = {
            "metadata": {"name": _name("pod")},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "example:1"}],
            },
        }
        return self.admin.post(f"/api/v1/namespaces/{namespace}/pods", body)

    def token(self, account: str, **bound: str) -> str:
        """A token of an account in fleetmend's namespace, bound to `kind`, `name`, `uid` if given."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if bound:
            spec["boundObjectRef"] = {"apiVersion": "v1", **bound}
        answer = self.admin.post(
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
            {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec},
        )
        return str(answer["status"]["token"])

    def account(self, name: str) -> Caller:
        """A process with its ServiceAccount's own token."""
        return self.admin.with_token(self.token(name))

    def agent(self, node: SimNode) -> Caller:
        """The agent on that node, with its pod's token."""
        return self.admin.with_token(self.token("fleetmend-agent", kind="Pod", name=node.agent_pod))

    def unleashed(self, account: str, node: SimNode | None = None) -> Caller:
        """An account that RBAC would let do everything: only the admission policies are left."""
        extra = {}
        if node is not None:
            extra = {
                "authentication.kubernetes.io/node-name": node.name,
                "authentication.kubernetes.io/node-uid": node.uid,
                "authentication.kubernetes.io/pod-name": node.agent_pod,
            }
        return self.admin.impersonating(ACCOUNT + account, "system:masters", extra=extra)

    def prepare(self) -> None:
        """Make what all tests share and wait until every policy refuses."""
        self.admin.post("/api/v1/namespaces", {"metadata": {"name": JOBS}})
        for namespace in (NAMESPACE, JOBS):
            self.admin.post(
                f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}}
            )
        self.admin.post(
            f"/api/v1/namespaces/{NAMESPACE}/configmaps",
            {"metadata": {"name": "fleetmend-release"}, "data": {"image": IMAGE}},
        )
        for (
            name
        ) in RUNTIMES:  # else the API server refuses a pod with it before any policy is asked
            self.admin.post(
                "/apis/node.k8s.io/v1/runtimeclasses",
                {"metadata": {"name": name}, "handler": name},
            )
        for policy in PROBES:
            self.wait_in_force(policy)

    def wait_in_force(self, policy: str) -> None:
        """Until that policy refuses its probe."""
        account, path, body = PROBES[policy]
        probe = Request("POST", f"{path}?dryRun=All", {"metadata": {"name": "probe"}, **body})
        caller = self.unleashed(account)
        self.wait_until(
            lambda: f"'{policy}'" in caller.send(probe).message, f"{policy} is in force"
        )

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Until that holds; fails the test when it doesn't within the time that policies need."""
        until = time.monotonic() + IN_FORCE_DEADLINE_S
        while not holds():
            assert time.monotonic() < until, f"not within {IN_FORCE_DEADLINE_S} s: {what}"
            time.sleep(0.1)


def node_body(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """A GPU node as its kubelet would have reported it, with marks of other owners."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "metadata": {
            "name": name,
            "labels": {"fleetmend.io/pool": "train", "example.com/rack": "r1", **labels},
            "annotations": {"example.com/owner": "crew", "fleetmend.io/pause": "by hand"},
        },
        "spec": {
            "providerID": f"lab://{name}",
            "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
        },
        "status": {
            "capacity": {"cpu": "8", "nvidia.com/gpu": "8"},
            "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": _node_info(),
            "conditions": [
                {"type": kind, "status": status, "reason": "Lab", "lastHeartbeatTime": now}
                for kind, status in (("Ready", "True"), ("DiskPressure", "False"))
            ],
        },
    }


def _node_info() -> dict[str, str]:
    keys = (
        "architecture bootID containerRuntimeVersion kernelVersion kubeProxyVersion kubeletVersion"
        " machineID operatingSystem osImage systemUUID"
    )
    return dict.fromkeys(keys.split(), "lab")


def _name(kind: str) -> str:
    return f"rights-{kind}-{_run}-{next(_serial)}"
