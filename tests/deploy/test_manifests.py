"""Rules about deploy/crd and deploy/rights that can be read off the files, without a server."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RIGHTS = sorted((DEPLOY / "rights").glob("*.yaml"))
FILES = [*RIGHTS, *sorted((DEPLOY / "crd").glob("*.yaml"))]
ROLES = {"Role", "ClusterRole"}


@cache
def everything() -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(
        (file.name, document)
        for file in RIGHTS
        for document in yaml.safe_load_all(file.read_text())
    )


def documents(*kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((file, document) for file, document in everything() if document["kind"] in kinds)


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for file, role in documents(*ROLES):
        for rule in role["rules"]:
            yield f"{file} {role['metadata']['name']}", rule


def test_policies_come_before_the_rights_they_bound() -> None:
    last_policy = max(file for file, _ in documents("ValidatingAdmissionPolicyBinding"))
    first_right = min(file for file, _ in documents("ClusterRoleBinding", "RoleBinding"))
    assert last_policy < first_right


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


@pytest.mark.parametrize(
    "file", [f for f in RIGHTS if f.name.startswith("30-")], ids=lambda f: f.name
)
def test_every_rule_says_why(file: Path) -> None:
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  - apiGroups:"):
            assert lines[number - 1].strip().startswith("#"), f"{file.name}:{number + 1}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_every_file_says_what_it_is_for(file: Path) -> None:
    assert file.read_text().startswith("# ")


def test_no_role_is_bound_to_node_tasks() -> None:
    for file, binding in documents("ClusterRoleBinding", "RoleBinding"):
        assert "fleetmend-node-task" not in [s["name"] for s in binding["subjects"]], file


def test_no_account_mounts_its_token_unasked() -> None:
    for file, account in documents("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False, file


def test_every_policy_fails_closed_and_denies() -> None:
    bound = {b["spec"]["policyName"]: b for _, b in documents("ValidatingAdmissionPolicyBinding")}
    for file, policy in documents("ValidatingAdmissionPolicy"):
        assert policy["spec"]["failurePolicy"] == "Fail", file
        binding = bound[policy["metadata"]["name"]]["spec"]
        assert binding["validationActions"] == ["Deny"], file
        has_param = "paramKind" in policy["spec"]
        assert has_param == ("paramRef" in binding), file
        assert not has_param or binding["paramRef"]["parameterNotFoundAction"] == "Deny", file


def test_every_validation_names_itself_and_is_forbidden() -> None:
    for file, policy in documents("ValidatingAdmissionPolicy"):
        name = policy["metadata"]["name"]
        for number, validation in enumerate(policy["spec"]["validations"], start=1):
            assert validation["message"].startswith(f"{name}/{number}: "), (file, number)
            assert validation["reason"] == "Forbidden", (file, number)


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
    crd = yaml.safe_load((DEPLOY / "crd" / "gpumachines.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    of_ours = {key: schema["properties"][key] for key in ("spec", "status")}
    assert list(unbounded({"type": "object", "properties": of_ours}, "")) == []
