"""The chart's whole life on a real API server: installed, upgraded, rolled back, uninstalled, installed again.

The witness of what came before what is the API server's audit log.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.caller import Request, read_kubeconfig
from tests.deploy.rendered import CHART
from tests.harness.audit import AuditEvent, AuditLog, audit, whole_audit
from tests.harness.waiting import wait_until
from workers.lab.address import NAMESPACE, LabAccount, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.chart import RELEASE, install_chart, lab_values, run_helm
from workers.lab.controlplane.errors import ApiRequestFailed, ChartRejected
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.programs import find_helm
from workers.lab.controlplane.progress import build_on_terminal
from workers.lab.controlplane.settings import AuditMode, LabSettings

pytestmark = pytest.mark.long

POLICIES: Final = {"validatingadmissionpolicies", "validatingadmissionpolicybindings"}
RIGHTS: Final = {"roles", "rolebindings", "clusterroles", "clusterrolebindings"}
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
CRD: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpumachines.fleetmend.io"
RECORDS: Final = "/apis/fleetmend.io/v1alpha1/gpumachines"
AGENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
WORKER: Final = f"system:serviceaccount:{NAMESPACE}:fleetmend-worker"
OURS: Final = "app.kubernetes.io/part-of=fleetmend"
COLLECTIONS: Final = (
    f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets",
    f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    ADMISSION,
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
)
"""Of every kind that the chart makes but the CRD."""


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab with the chart, without nodes and Temporal: what is looked at is the release."""
    directory = tmp_path_factory.mktemp("release") / "lab"
    settings = LabSettings(fleet=False, temporal=False, audit_mode=AuditMode.BLOCKING)
    yield start_lab(directory, settings, detached=False)
    stop_lab(directory)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A changed version of the chart: wider rights, a stricter policy, a CRD with one more column."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    change(chart / "Chart.yaml", "version: 0.1.0", "version: 0.2.0")
    change(
        chart / "templates" / "rights" / "agent.yaml",
        "    resources: [nodes/status]\n    verbs: [patch]",
        "    resources: [nodes/status]\n    verbs: [patch, update]",
    )
    change(
        chart / "templates" / "admission" / "_agent.tpl",
        "fleetmend-agent/12: ",
        "fleetmend-agent/12: (0.2.0) ",
    )
    change(
        chart / "templates" / "gpumachines.yaml",
        "        - {name: Node, type: string, jsonPath: .spec.node.name}",
        "        - {name: Node, type: string, jsonPath: .spec.node.name}\n"
        "        - {name: Newer, type: string, jsonPath: .spec.pool}",
    )
    return chart


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, (file.name, old)
    file.write_text(text.replace(old, new))


def helm(lab: LabAddress, *words: str) -> str:
    return run_helm(lab, find_helm(build_on_terminal), *words)


def install(lab: LabAddress, chart: Path = CHART, **values: Any) -> None:
    install_chart(lab, find_helm(build_on_terminal), chart, {**lab_values(lab), **values})


def helm_s_writes(log: AuditLog, resources: Iterable[str], verb: str) -> list[AuditEvent]:
    return [
        event
        for event in log.events()
        if event.verb == verb
        and event.resource in resources
        and "Helm/4" in event.raw.get("userAgent", "")
    ]


def uids(api: LabApi) -> dict[str, str]:
    return {
        i["metadata"]["name"]: i["metadata"]["uid"] for i in api.request("GET", ADMISSION)["items"]
    }


def left(api: LabApi) -> list[str]:
    """What of the release stands, by kind and name."""
    query = {"labelSelector": OURS}
    return [
        f"{path.rsplit('/', 1)[1]}/{item['metadata']['name']}"
        for path in COLLECTIONS
        for item in api.request("GET", path, query=query)["items"]
    ]


def test_at_the_installation_every_policy_stands_before_the_first_right(
    own_lab: LabAddress,
) -> None:
    log = whole_audit(own_lab)
    stored: dict[tuple[str, str], AuditEvent] = {}
    for event in helm_s_writes(log, POLICIES, "patch"):
        stored.setdefault((event.resource, event.name), event)
    assert len(stored) == 12
    rights = helm_s_writes(log, RIGHTS, "patch")
    assert len(rights) > 10
    last_policy = max(event.answered_at for event in stored.values())
    assert last_policy < min(event.received_at for event in rights)


def test_an_upgrade_changes_policies_in_place_before_the_rights_and_the_crd_with_them(
    own_lab: LabAddress, api: LabApi, newer: Path
) -> None:
    before, log = uids(api), audit(own_lab)
    install(own_lab, newer)
    assert uids(api) == before
    assert helm_s_writes(log, POLICIES, "delete") == []
    changed: dict[str, AuditEvent] = {}
    for event in helm_s_writes(log, POLICIES, "patch"):
        changed.setdefault(event.name, event)
    (role,) = (
        e
        for e in helm_s_writes(log, RIGHTS, "patch")
        if e.name == "fleetmend-agent" and e.resource == "clusterroles"
    )
    assert max(event.answered_at for event in changed.values()) < role.received_at
    policy = api.request("GET", f"{ADMISSION}/fleetmend-agent")
    assert "(0.2.0)" in policy["spec"]["validations"][11]["message"]
    columns = api.request("GET", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert "Newer" in [column["name"] for column in columns]

    log = audit(own_lab)
    helm(own_lab, "rollback", RELEASE)
    assert uids(api) == before
    assert helm_s_writes(log, POLICIES, "delete") == []
    policy = api.request("GET", f"{ADMISSION}/fleetmend-agent")
    assert "(0.2.0)" not in policy["spec"]["validations"][11]["message"]


def test_an_upgrade_that_reuses_the_values_takes_the_nulls_among_them(
    own_lab: LabAddress, api: LabApi
) -> None:
    """Helm hands on what took a default away at the installation."""
    limits = {"limits": {"memory": None}, "requests": None}
    values = lab_values(own_lab)
    selector = values["agent"]["nodeSelector"]
    assert selector["nvidia.com/gpu.present"] is None
    install(own_lab, agent={**values["agent"], "resources": limits})

    def agent() -> Any:
        found = api.request("GET", f"{AGENTS}/fleetmend-agent")
        return found["spec"]["template"]["spec"]

    before = agent()
    assert before["nodeSelector"] == {k: v for k, v in selector.items() if v is not None}
    helm(own_lab, "upgrade", RELEASE, str(CHART), "--reuse-values")
    assert agent() == before
    install(own_lab)


def test_what_the_values_take_away_goes(own_lab: LabAddress, api: LabApi) -> None:
    install(own_lab, flowControl={"enabled": False}, networkPolicy={"enabled": False})
    assert not [name for name in left(api) if name.startswith(("flowschemas", "networkpolicies"))]
    install(own_lab)
    assert "flowschemas/fleetmend-watch" in left(api)


def test_a_refused_upgrade_leaves_policies_and_rights_as_they_were(
    own_lab: LabAddress, api: LabApi, newer: Path
) -> None:
    change(newer / "templates" / "rights" / "agent.yaml", "verbs: [patch, update]", "verbs: patch")
    before = uids(api)
    with pytest.raises(ChartRejected, match="fleetmend-agent"):
        install(own_lab, newer)
    assert uids(api) == before
    assert "clusterrolebindings/fleetmend-agent" in left(api)
    install(own_lab)


def test_an_uninstallation_takes_rights_before_policies_and_keeps_the_records(
    own_lab: LabAddress, api: LabApi, tmp_path: Path
) -> None:
    record = {
        "apiVersion": "fleetmend.io/v1alpha1",
        "kind": "GPUMachine",
        "metadata": {"name": "machine-1"},
        "spec": {"machineID": "machine-1"},
    }
    api.request("POST", RECORDS, body=record)
    assert left(api)
    log = audit(own_lab)
    said = helm(own_lab, "uninstall", RELEASE)
    assert left(api) == []
    rights = helm_s_writes(log, RIGHTS, "delete")
    policies = helm_s_writes(log, POLICIES, "delete")
    assert len(policies) == 12
    assert max(e.answered_at for e in rights) < min(e.received_at for e in policies)
    assert "gpumachines.fleetmend.io" in said
    (kept,) = api.request("GET", RECORDS)["items"]
    assert kept["metadata"]["name"] == "machine-1"

    # And again: what was kept is taken over, and policies come first as on the first day.
    log = audit(own_lab)
    install(own_lab)
    assert len(uids(api)) == 6
    (kept,) = api.request("GET", RECORDS)["items"]
    first_right = min(e.received_at for e in helm_s_writes(log, RIGHTS, "patch"))
    names = {e.name for e in helm_s_writes(log, POLICIES, "patch") if e.answered_at < first_right}
    assert names == set(uids(api))

    # The policies act again, and only on whom they are about.
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {
            "serviceAccountName": "fleetmend-worker",
            "containers": [{"name": "main", "image": "other:1"}],
        },
    }
    request = Request("POST", f"{PODS}?dryRun=All", pod)
    admin = read_kubeconfig(own_lab.kubeconfig(LabAccount.ADMIN), tmp_path)
    worker = admin.impersonating(WORKER, "system:masters")
    wait_until(lambda: "'fleetmend-worker-pods'" in worker.send(request).message, 30, "it acts")
    assert "fleetmend-worker-pods/4:" in worker.send(request).message
    assert admin.send(request).code == 201


def test_a_second_release_in_another_namespace_is_refused(own_lab: LabAddress, api: LabApi) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "second"}}
    api.request("POST", "/api/v1/namespaces", body=namespace)
    values = own_lab.directory / "helm" / "values.json"
    words = ("upgrade", "--install", "other", str(CHART), "--values", str(values))
    with pytest.raises(ChartRejected, match="cannot be imported into the current release"):
        run_helm(own_lab, find_helm(build_on_terminal), *words, namespace="second")
    with pytest.raises(ApiRequestFailed, match="404"):
        api.request("GET", "/api/v1/namespaces/second/configmaps/fleetmend-release")
