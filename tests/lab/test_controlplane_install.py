"""Installing manifests into the lab: they act when it returns, and a bad one names its file."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.errors import ApiRequestFailed, ManifestRejected
from workers.lab.controlplane.install import install, is_installed


@pytest.fixture
def api(lab: LabAddress) -> Iterator[LabApi]:
    api = LabApi(lab)
    yield api
    api.close()


@pytest.fixture
def deploy(tmp_path: Path) -> Callable[..., Path]:
    """Writes documents into rights/ of a deploy folder of its own; returns the folder."""

    def write(*documents: dict[str, Any]) -> Path:
        (tmp_path / "rights").mkdir()
        (tmp_path / "rights" / "10-own.yaml").write_text(yaml.safe_dump_all(documents))
        return tmp_path

    return write


@pytest.fixture
def objects(api: LabApi) -> Iterator[list[dict[str, Any]]]:
    """A policy that refuses the ConfigMap of the same name, and its binding."""
    name = "test-install-refuses"
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
    yield [policy, binding]
    for manifest in (binding, policy):
        with suppress(ApiRequestFailed):
            api.request("DELETE", api.path_of(manifest))


def test_a_policy_acts_on_the_first_request_after_the_installation(
    lab: LabAddress, api: LabApi, deploy: Callable[..., Path], objects: list[dict[str, Any]]
) -> None:
    install(lab, deploy(*objects))
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": objects[0]["metadata"]["name"]},
    }
    with pytest.raises(ApiRequestFailed, match="refused by the test's policy"):
        api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", body=config_map)


def test_a_lab_knows_whether_these_very_manifests_are_installed(
    lab: LabAddress, deploy: Callable[..., Path], objects: list[dict[str, Any]]
) -> None:
    folder = deploy(*objects)
    assert not is_installed(lab, folder)
    install(lab, folder)
    assert is_installed(lab, folder)
    (folder / "rights" / "20-more.yaml").write_text("# nothing yet\n")
    assert not is_installed(lab, folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "is no YAML"),
        ("- 1\n- 2\n", "a document without kind and metadata"),
        ("kind: Pod\n", "a document without kind and metadata"),
        ("apiVersion: v1\nkind: Wish\nmetadata: {name: a}\n", "Wish a: .*unknown kind"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "names no namespace"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_b, namespace: fleetmend}\n",
            "ConfigMap A_b: .*answered 422",
        ),
    ],
    ids=["yaml", "list", "no metadata", "kind", "namespace", "refused"],
)
def test_a_manifest_that_can_t_be_installed_names_its_file(
    lab: LabAddress, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "rights").mkdir()
    path = tmp_path / "rights" / "10-bad.yaml"
    path.write_text(text)
    with pytest.raises(ManifestRejected, match=f"{path}.*{reason}"):
        install(lab, tmp_path)
