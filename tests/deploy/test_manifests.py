"""Rules about the chart's rights and policies that can be read off what it renders, without a server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.rendered import CHART, NAMESPACE, Object, of_kind, render

TEMPLATES = sorted((CHART / "templates").rglob("*.*"))
RIGHTS = [
    *sorted((CHART / "templates" / "rights").glob("*.yaml")),
    CHART / "templates" / "leave.yaml",
]


def documents(*kinds: str) -> Iterator[Object]:
    return of_kind(render(), *kinds)


def rules() -> Iterator[tuple[str, Object]]:
    for role in documents("Role", "ClusterRole"):
        for rule in role["rules"]:
            yield f"{role['kind']} {role['metadata']['name']}", rule


def admission_hook() -> Object:
    (found,) = documents("List")
    return found


def test_no_rule_has_a_wildcard() -> None:
    for where, rule in rules():
        assert not any("*" in word for words in rule.values() for word in words), where


def test_no_rule_reaches_secrets_roles_or_tokens() -> None:
    forbidden = {"secrets", "serviceaccounts/token", "pods/exec", "pods/attach", "nodes/proxy"}
    for where, rule in rules():
        assert not forbidden & set(rule["resources"]), where
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"]), (
            where
        )
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"], where


@pytest.mark.parametrize("file", RIGHTS, ids=lambda f: f.name)
def test_every_rule_says_why(file: Path) -> None:
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  - apiGroups:"):
            assert lines[number - 1].strip().startswith("#"), f"{file.name}:{number + 1}"


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda f: f.name)
def test_every_template_says_what_it_is_for(file: Path) -> None:
    assert file.suffix == ".txt" or re.search(r"^# |{{-? ?/[*]", file.read_text(), re.MULTILINE)


def test_no_role_is_bound_to_node_tasks() -> None:
    for binding in documents("ClusterRoleBinding", "RoleBinding"):
        subjects = [s["name"] for s in binding["subjects"]]
        assert "fleetmend-node-task" not in subjects, binding["metadata"]["name"]


def test_no_account_mounts_its_token_unasked() -> None:
    for account in documents("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False, account["metadata"]["name"]


def test_every_policy_fails_closed_and_denies() -> None:
    bound = {b["spec"]["policyName"]: b for b in documents("ValidatingAdmissionPolicyBinding")}
    for policy in documents("ValidatingAdmissionPolicy"):
        name = policy["metadata"]["name"]
        assert policy["spec"]["failurePolicy"] == "Fail", name
        binding = bound[name]["spec"]
        assert binding["validationActions"] == ["Deny"], name
        # What is missing for a parameter is refused to everybody: admission/_worker-pods.tpl.
        assert "paramKind" not in policy["spec"], name
        assert "paramRef" not in binding, name


def test_every_validation_names_itself_and_is_forbidden() -> None:
    for policy in documents("ValidatingAdmissionPolicy"):
        name = policy["metadata"]["name"]
        for number, validation in enumerate(policy["spec"]["validations"], start=1):
            assert validation["message"].startswith(f"{name}/{number}: "), (name, number)
            assert validation["reason"] == "Forbidden", (name, number)


def test_the_policies_are_stored_before_everything_else() -> None:
    """By a hook that Helm changes in place: the default policy of a hook would delete them first."""
    annotations = admission_hook()["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade,pre-rollback"
    known_to_helm = {"before-hook-creation", "hook-succeeded", "hook-failed"}
    assert not known_to_helm & set(annotations["helm.sh/hook-delete-policy"].split(","))
    # As objects of the release as well, or an uninstallation would leave them.
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    by_hook = [item for item in admission_hook()["items"] if item["kind"] in kinds]
    assert len(by_hook) == 12
    assert sorted(by_hook, key=str) == sorted(documents(*kinds), key=str)


def test_the_first_hook_is_of_policies_alone() -> None:
    """Whoever deletes a hook's objects before it makes them anew would delete what else is in it."""
    kinds = {item["kind"] for item in admission_hook()["items"]}
    assert kinds == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_nothing_is_fixed_to_a_namespace_of_one_name() -> None:
    for item in render():
        namespace = item["metadata"].get("namespace")
        # Events about Nodes live in namespace default.
        wanted = {"default"} if "node-events" in item["metadata"]["name"] else {None, NAMESPACE}
        assert namespace in wanted, item["metadata"]["name"]
        for subject in item.get("subjects", []):
            assert subject["namespace"] == NAMESPACE
    for policy in documents("ValidatingAdmissionPolicy"):
        assert "fleetmend:fleetmend" not in str(policy), policy["metadata"]["name"]
        assert "namespace == 'fleetmend'" not in str(policy), policy["metadata"]["name"]


def unbounded(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of a CRD's schema that could grow without limit."""
    kind = schema.get("type")
    bound = {"string": "maxLength", "array": "maxItems", "integer": "maximum"}.get(str(kind))
    if bound and bound not in schema:
        yield path
    if kind == "object" and "properties" not in schema and "maxProperties" not in schema:
        yield path
    for key, child in schema.get("properties", {}).items():
        yield from unbounded(child, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from unbounded(schema[key], f"{path}.{key}")


def test_everything_in_the_machine_record_is_bounded() -> None:
    (crd,) = documents("CustomResourceDefinition")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    of_ours = {key: schema["properties"][key] for key in ("spec", "status")}
    assert list(unbounded({"type": "object", "properties": of_ours}, "")) == []


def test_the_machine_records_outlive_an_uninstallation() -> None:
    (crd,) = documents("CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
