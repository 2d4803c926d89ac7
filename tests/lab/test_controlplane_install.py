"""Installing a chart into the lab: it acts when it returns, and a bad one is told in helm's words."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml

from tests.harness.waiting import wait_until
from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.errors import ApiRequestFailed, ChartRejected
from workers.lab.controlplane.install import install, is_installed
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import LabSettings


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab without the chart, so that other charts can be its release."""
    directory = tmp_path_factory.mktemp("install") / "lab"
    settings = LabSettings(fleet=False, temporal=False, deploy=None)
    yield start_lab(directory, settings, detached=False)
    stop_lab(directory)


@pytest.fixture
def chart(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a chart with one template; returns its folder."""

    def write(template: str) -> Path:
        (tmp_path / "templates").mkdir()
        (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: own, version: 0.1.0}\n")
        (tmp_path / "templates" / "own.yaml").write_text(template)
        return tmp_path

    return write


REFUSED = "test-install-refuses"
DEADLINE_S = 60


@pytest.fixture
def refusing() -> str:
    """A policy that refuses the ConfigMap of the same name, and its binding."""
    name = REFUSED
    group = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
        "resourceNames": [name],
    }
    policy = {
        "apiVersion": group,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "refused by the test's policy"}],
        },
    }
    binding = {
        "apiVersion": group,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return yaml.safe_dump_all([policy, binding])


def test_a_policy_acts_on_the_first_request_after_the_installation(
    own_lab: LabAddress, api: LabApi, chart: Callable[[str], Path], refusing: str
) -> None:
    install(own_lab, chart(refusing))
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": REFUSED}}
    with pytest.raises(ApiRequestFailed, match="refused by the test's policy"):
        api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", body=config_map)


def test_a_lab_knows_whether_this_very_chart_is_installed(
    own_lab: LabAddress, chart: Callable[[str], Path], refusing: str
) -> None:
    folder = chart(refusing)
    assert not is_installed(own_lab, folder)
    install(own_lab, folder)
    assert is_installed(own_lab, folder)
    (folder / "templates" / "more.yaml").write_text("# nothing yet\n")
    assert not is_installed(own_lab, folder)


HANGING = """
apiVersion: batch/v1
kind: Job
metadata: {name: hangs, annotations: {"helm.sh/hook": "pre-install,pre-upgrade"}}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: hangs, image: none}]}
"""


def test_an_installation_that_was_killed_does_not_block_the_next(
    own_lab: LabAddress, api: LabApi, chart: Callable[[str], Path], refusing: str
) -> None:
    folder = chart(HANGING)
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    pending = {"labelSelector": "owner=helm,status in (pending-install,pending-upgrade)"}
    with ThreadPoolExecutor(1) as pool:
        installing = pool.submit(install, own_lab, folder)
        wait_until(
            lambda: api.request("GET", secrets, query=pending)["items"],
            DEADLINE_S,
            "helm waits for its hook",
        )
        for process in psutil.Process().children():
            if process.name() == "helm":
                process.kill()
        assert isinstance(installing.exception(), ChartRejected)
    (folder / "templates" / "own.yaml").write_text(refusing)
    install(own_lab, folder)
    assert api.request("GET", secrets, query=pending)["items"] == []


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("a: [", "YAML parse error on own/templates/own.yaml"),
        ("{{ .Values.a.b }}", "own/templates/own.yaml:1"),
        ("apiVersion: v1\nkind: Wish\nmetadata: {name: a}\n", "no matches for kind .?.Wish"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_b}\n", "A_b.* is invalid"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nwish: 1\n",
            "wish: field not declared",
        ),
    ],
    ids=["yaml", "template", "kind", "refused", "unknown field"],
)
def test_a_chart_that_can_t_be_installed_is_told_in_helm_s_words(
    own_lab: LabAddress, chart: Callable[[str], Path], template: str, reason: str
) -> None:
    with pytest.raises(ChartRejected, match=reason):
        install(own_lab, chart(template))
