"""`helm uninstall` that cannot hand over: it fails soon, says why, and takes nothing away.

In a lab of its own, which has a node for the hook's pod and no Temporal.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.deploy.rendered import CHART
from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.chart import RELEASE, install_chart, lab_values, run_helm
from workers.lab.controlplane.errors import ChartRejected
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.programs import find_helm
from workers.lab.controlplane.progress import build_on_terminal
from workers.lab.controlplane.release import TEMPORAL_SECRET, ensure_system_node
from workers.lab.controlplane.settings import LabSettings
from workers.lab.kubelet.pod_logs import find_pod_logs
from workers.lab.kubelet.spec import ROLE_LABEL, SYSTEM_ROLE

pytestmark = pytest.mark.long

LEAVE: Final = "fleetmend-leave"
TRIES: Final = 2
SOON_S: Final = 100.0
"""Two tries of 8 s and 10 s between them, on two idle cores; it was cut off after 240 s."""
CORE: Final = f"/api/v1/namespaces/{NAMESPACE}"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
RIGHTS: Final = (
    f"{CORE}/serviceaccounts",
    f"{RBAC}/clusterroles",
    f"{RBAC}/clusterrolebindings",
    f"{RBAC}/namespaces/{NAMESPACE}/roles",
    f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
)


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    directory = tmp_path_factory.mktemp("uninstalling") / "lab"
    yield start_lab(directory, LabSettings(temporal=False), detached=False)
    stop_lab(directory)


@pytest.fixture
def unreachable(own_lab: LabAddress, api: LabApi, unused_tcp_port: int) -> str:
    """The chart is installed, and nobody listens where its Secret says that Temporal is."""
    address = f"127.0.0.1:{unused_tcp_port}"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": TEMPORAL_SECRET, "namespace": NAMESPACE},
        "stringData": {"TEMPORAL_ADDRESS": address},
    }
    api.apply(secret)
    ensure_system_node(own_lab)
    where = {"replicas": 0, "nodeSelector": {ROLE_LABEL: SYSTEM_ROLE}}
    values = {**lab_values(own_lab), "worker": where, "uninstall": {"handOver": True}}
    install_chart(own_lab, find_helm(build_on_terminal), CHART, values)
    return address


def uninstall(lab: LabAddress, *words: str) -> str:
    return run_helm(lab, find_helm(build_on_terminal), "uninstall", RELEASE, *words)


def names(api: LabApi, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in api.request("GET", path)["items"]}


def test_an_uninstallation_without_temporal_fails_soon_and_its_pods_say_why(
    own_lab: LabAddress, api: LabApi, unreachable: str
) -> None:
    begun = time.monotonic()
    with pytest.raises(ChartRejected, match=LEAVE):
        uninstall(own_lab)
    assert time.monotonic() - begun < SOON_S

    job = api.request("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{LEAVE}")
    reasons = {c["type"]: c["reason"] for c in job["status"]["conditions"]}
    assert reasons["Failed"] == "BackoffLimitExceeded"
    query = {"labelSelector": f"job-name={LEAVE}"}
    pods: list[dict[str, Any]] = api.request("GET", f"{CORE}/pods", query=query)["items"]
    assert len(pods) == TRIES
    for pod in pods:
        (container,) = pod["status"]["containerStatuses"]
        assert (
            f"cannot reach Temporal at {unreachable}" in container["state"]["terminated"]["message"]
        )
    logs = find_pod_logs(own_lab.directory, NAMESPACE, LEAVE)
    assert {log.pod for log in logs} == {pod["metadata"]["name"] for pod in pods}
    assert all(f"cannot reach Temporal at {unreachable}" in log.text() for log in logs)

    # What may write Nodes is gone, and all else is as it was.
    assert [path for path in RIGHTS if LEAVE in names(api, path)] == []
    assert "fleetmend-watch" in names(api, f"{RBAC}/clusterroles")

    said = uninstall(own_lab, "--no-hooks")
    assert "uninstalled" in said
    assert not [n for n in names(api, f"{RBAC}/clusterroles") if n.startswith(RELEASE)]
    assert LEAVE in names(api, f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")
