"""Putting fleetmend into a fresh lab cluster: namespace, chart, kubeconfigs.

Owns the proof that what the chart brings acts and is served, not only that it is stored. Does not
write any rule: those are in deploy/chart, and helm installs them (`chart.py`). Runs at each start of
a lab, and may be run again at any time.
"""

import hashlib
import json
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from workers.lab.address import NAMESPACE, LabAccount, LabAddress, write_atomically
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.chart import install_chart, lab_values
from workers.lab.controlplane.errors import ApiRequestFailed, LabStartFailed
from workers.lab.controlplane.kubeconfig import certificate_user, kubeconfig
from workers.lab.controlplane.manifests import INSTALL_LIMIT_S, POLL_S, await_served
from workers.lab.controlplane.pki import KeyPair
from workers.lab.controlplane.programs import find_helm
from workers.lab.controlplane.progress import build_on_terminal
from workers.lab.controlplane.release import pod_values, write_temporal_secret
from workers.lab.controlplane.settings import REPOSITORY_CHART, ReleaseSettings

# A lab that runs longer gets fresh ones by the next `lab up`.
TOKEN_LIFE_S: Final = 7 * 24 * 3600
SERVICE_ACCOUNTS: Final = {
    LabAccount.WATCH: "fleetmend-watch",
    LabAccount.WORKER: "fleetmend-worker",
    LabAccount.OPERATOR: "fleetmend-operator",
}
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD: Final = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
_PROBE_NAME: Final = "fleetmend-lab-admission-probe"


class Installed(BaseModel):
    """What was installed last in a lab."""

    model_config = ConfigDict(frozen=True)

    digest: str
    until: float  # Unix time at which half of the tokens' life is over


def install(
    address: LabAddress,
    chart: Path | None = REPOSITORY_CHART,
    release: ReleaseSettings | None = None,
) -> None:
    """Install everything; returns when CRDs are served and admission policies act.

    Args:
        address: the lab; its API server is ready.
        chart: folder of the Helm chart; None = only the namespace.
        release: what of fleetmend runs as pods; None = nothing but agents.

    Raises:
        ChartRejected: the chart can't be read or was refused.
        LabStartFailed: something was accepted but does not act within the limit.
    """
    api = LabApi(address)
    try:
        _ensure_namespace(api)
        _write_admin_kubeconfig(address)
        if chart is not None:
            if address.temporal_address:
                write_temporal_secret(api, address)
            # For whoever calls helm by hand: the values with which all runs as pods.
            pods = pod_values(address, release or ReleaseSettings())
            write_atomically(address.paths.pod_values, yaml.safe_dump(pods))
            values = _values(address, release)
            install_chart(address, find_helm(build_on_terminal), chart, values)
            for crd in api.request("GET", CRDS).get("items", []):
                await_served(api, {**_CRD, **crd})
            _await_admission(api)
        _await_default_service_account(api)
        for account, name in SERVICE_ACCOUNTS.items():
            # People who look around in a lab without the chart have no such accounts.
            with suppress(ServiceAccountMissing):
                service_account_kubeconfig(address, NAMESPACE, name, address.kubeconfig(account))
    finally:
        api.close()
    record = Installed(
        digest=_digest(address, chart, release), until=time.time() + TOKEN_LIFE_S / 2
    )
    write_atomically(address.paths.installed_file, record.model_dump_json())


def is_installed(
    address: LabAddress, chart: Path | None, release: ReleaseSettings | None = None
) -> bool:
    """Whether exactly this chart was installed since the lab's start, with fresh tokens."""
    try:
        record = Installed.model_validate_json(address.paths.installed_file.read_bytes())
    except (OSError, ValidationError):
        return False
    return record.digest == _digest(address, chart, release) and time.time() < record.until


class ServiceAccountMissing(ApiRequestFailed):
    """The ServiceAccount, or its namespace, does not exist."""


def service_account_kubeconfig(
    address: LabAddress, namespace: str, account: str, path: Path
) -> None:
    """Write a kubeconfig (0600) with a fresh token of a ServiceAccount, valid for seven days.

    Raises:
        ServiceAccountMissing: there is no such ServiceAccount.
        ApiRequestFailed: the request was refused.
    """
    api = LabApi(address)
    try:
        answer = api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            body={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": TOKEN_LIFE_S},
            },
        )
    except ApiRequestFailed as error:
        if error.status == 404:
            raise ServiceAccountMissing(
                f"token of {namespace}/{account}", 404, str(error)
            ) from error
        raise
    finally:
        api.close()
    user = {"token": answer["status"]["token"]}
    content = kubeconfig(address.api_url, address.ca_file, user, namespace=namespace)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, content)


def _ensure_namespace(api: LabApi) -> None:
    if not api.exists(f"/api/v1/namespaces/{NAMESPACE}"):
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        api.request("POST", "/api/v1/namespaces", body=manifest)


def _write_admin_kubeconfig(address: LabAddress) -> None:
    pki = address.paths.pki
    user = certificate_user(KeyPair(pki / "admin.crt", pki / "admin.key"))
    content = kubeconfig(address.api_url, address.ca_file, user, namespace=NAMESPACE)
    write_atomically(address.kubeconfig(LabAccount.ADMIN), content)


def _await_admission(api: LabApi) -> None:
    """Return when the policies stored so far act.

    A policy takes effect about a second after it was stored. All of them are taken over at once,
    so one that was stored last and refuses a request of ours proves the others.
    """
    nonce = secrets.token_hex(8)
    metadata = {"name": _PROBE_NAME}
    group_version = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
        "resourceNames": [_PROBE_NAME],
    }
    policy = {
        "apiVersion": group_version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": nonce}],
        },
    }
    binding = {
        "apiVersion": group_version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": _PROBE_NAME, "validationActions": ["Deny"]},
    }
    for manifest in (policy, binding):
        api.apply(manifest)
    try:
        _await_refusal(api, nonce)
    finally:
        for manifest in (binding, policy):
            with suppress(ApiRequestFailed):
                api.request("DELETE", api.path_of(manifest))


def _await_refusal(api: LabApi, nonce: str) -> None:
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _PROBE_NAME}}
    deadline = time.monotonic() + INSTALL_LIMIT_S
    while time.monotonic() < deadline:
        try:
            api.request(
                "POST",
                f"/api/v1/namespaces/{NAMESPACE}/configmaps",
                body=probe,
                query={"dryRun": "All"},
            )
        except ApiRequestFailed as error:
            if nonce in str(error):
                return
        time.sleep(POLL_S)
    raise LabStartFailed("admission policies were stored but do not act", None, ())


def _await_default_service_account(api: LabApi) -> None:
    deadline = time.monotonic() + INSTALL_LIMIT_S
    while time.monotonic() < deadline:
        if api.exists(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"):
            return
        time.sleep(POLL_S)
    log = api.address.paths.log("kube-controller-manager")
    raise LabStartFailed(
        f"namespace {NAMESPACE} has no default ServiceAccount after {INSTALL_LIMIT_S:.0f} s; "
        "the controller-manager makes it",
        log,
        (),
    )


def _values(address: LabAddress, release: ReleaseSettings | None) -> dict[str, Any]:
    return lab_values(address) if release is None else pod_values(address, release)


def _digest(address: LabAddress, chart: Path | None, release: ReleaseSettings | None) -> str:
    digest = hashlib.sha256(json.dumps([_values(address, release), str(chart)]).encode())
    if chart is not None:
        for path in sorted(p for p in chart.rglob("*") if p.is_file()):
            digest.update(str(path.relative_to(chart)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
