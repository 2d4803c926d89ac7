"""Paths reach exactly the object they name, or are refused."""

import pytest

from activities.kube import paths

BAD_NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "../pods",
    "a?x=1",
    "a#b",
    "a%2fb",
    "a b",
    "a\n",
    "-a",
    "a.",
    "ä",
]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a" * 254])
@pytest.mark.parametrize(
    "build",
    [paths.node, paths.node_status, paths.gpu_machine, paths.field_on_node, paths.field_named],
)
def test_refuses_names_that_would_reach_another_path(build: object, name: str) -> None:
    assert callable(build)
    with pytest.raises(paths.BadName, match="use only what was read from the cluster"):
        build(name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_refuses_namespaces_that_would_reach_another_path(name: str) -> None:
    with pytest.raises(paths.BadName, match="namespace"):
        paths.pod(name, "a")


@pytest.mark.parametrize(
    ("path", "expected", "described"),
    [
        (paths.node("gpu-1.example"), "/api/v1/nodes/gpu-1.example", "nodes/gpu-1.example"),
        (paths.node_status("n"), "/api/v1/nodes/n/status", "nodes/n/status"),
        (
            paths.pod_eviction("x", "y"),
            "/api/v1/namespaces/x/pods/y/eviction",
            "namespaces/x/pods/y/eviction",
        ),
        (paths.pods(), "/api/v1/pods", "pods"),
        (
            paths.lease("kube-node-lease", "n"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
            "namespaces/kube-node-lease/leases/n",
        ),
        (
            paths.gpu_machine_status("4c4c-1"),
            "/apis/fleetmend.io/v1alpha1/gpumachines/4c4c-1/status",
            "gpumachines/4c4c-1/status",
        ),
        (
            paths.object_path(
                paths.collection_path("rbac.authorization.k8s.io/v1", "clusterroles"),
                "system:node",
            ),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
            "clusterroles/system:node",
        ),
        (paths.version(), "/version", "version"),
    ],
)
def test_builds_and_describes_paths(path: str, expected: str, described: str) -> None:
    assert path == expected
    assert paths.describe(path) == described
