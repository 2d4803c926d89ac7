"""fleetmend's Helm chart, on its way into a lab.

Owns the call of helm (with folders of its own below the lab's, so that nothing of the user's is read
or left), the values that a lab needs by default, and what becomes of a release whose installation
was killed. The rules themselves are the chart's (deploy/chart); what else is installed, and the
proof that admission acts: `install.py`.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from workers.lab.address import NAMESPACE, LabAccount, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.errors import ChartRejected

RELEASE: Final = "fleetmend"
RELEASE_IMAGE: Final = "fleetmend:lab"
HELM_LIMIT_S: Final = 120.0
"""Of one call. It takes 2 s on two idle cores, some ten times that beside other labs."""
KEPT_REVISIONS: Final = 5
UNFINISHED: Final = (
    "owner=helm,name={},status in (pending-install,pending-upgrade,pending-rollback)"
)
"""The records of a release (Helm 4 writes these labels) whose installation did not end."""


def lab_values(address: LabAddress) -> dict[str, Any]:
    """Rights, CRD, policies, and the agents of nodes that ask for the real one; no watch, no worker.

    Those are started as processes under their accounts, by tests and people.
    """
    repository, _, tag = RELEASE_IMAGE.partition(":")
    return {
        "cluster": address.cluster,
        "image": {"repository": repository, "tag": tag},
        # None = FLEETMEND_POLICY of whoever starts watch and worker counts.
        "policy": None,
        "watch": {"replicas": 0},
        "worker": {"replicas": 0},
        # Nothing here could run its pod.
        "uninstall": {"handOver": False},
        "agent": {
            "nodeSelector": {
                "nvidia.com/gpu.present": None,
                "lab.fleetmend.io/kind": "full",
                "lab.fleetmend.io/agent": "real",
            },
            # Every minute by default: longer than a spectator of the lab waits.
            "env": {"FLEETMEND_DCGM_PERIOD_S": "10"},
        },
    }


def install_chart(
    address: LabAddress, helm: Path, chart: Path, values: Mapping[str, Any] | None = None
) -> None:
    """`helm upgrade --install` of a chart folder as release `fleetmend`, by the lab's admin.

    Args:
        address: the lab; its API server is ready and has the namespace.
        helm: the program.
        chart: the chart's folder.
        values: None = `lab_values`.

    Raises:
        ChartRejected: helm, or the API server, refused it; the message has helm's own words.
    """
    _forget_unfinished(address)
    path = _folder(address) / "values.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(json.dumps(lab_values(address) if values is None else values))
    run_helm(
        address,
        helm,
        *("upgrade", "--install", RELEASE, str(chart), "--values", str(path)),
        *("--history-max", str(KEPT_REVISIONS), "--hide-notes"),
        # The API server checks every field of an apply itself; helm's own check of it against the
        # whole OpenAPI document is a third of its time.
        "--disable-openapi-validation",
    )


def run_helm(address: LabAddress, helm: Path, *words: str, namespace: str = NAMESPACE) -> str:
    """One helm command on a lab, as its admin; what it printed.

    Raises:
        ChartRejected: it failed.
    """
    folder = _folder(address)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "HELM_CACHE_HOME": str(folder / "cache"),
        "HELM_CONFIG_HOME": str(folder / "config"),
        "HELM_DATA_HOME": str(folder / "data"),
        "KUBECACHEDIR": str(folder / "discovery"),
        "KUBECONFIG": str(address.kubeconfig(LabAccount.ADMIN)),
    }
    argv = [str(helm), *words, "--namespace", namespace]
    try:
        answer = subprocess.run(
            argv,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=HELM_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChartRejected(f"helm {words[0]}: {error}") from error
    if answer.returncode != 0:
        raise ChartRejected(f"helm {words[0]}: {_reason(answer)}")
    return answer.stdout


def _forget_unfinished(address: LabAddress) -> None:
    """Helm refuses a release whose last installation it believes to be under way for ever.

    Here nothing can be: the lab's start holds a lock, and its API server has just come up.
    """
    api = LabApi(address)
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    try:
        found = api.request("GET", path, query={"labelSelector": UNFINISHED.format(RELEASE)})
        for secret in found.get("items", []):
            api.request("DELETE", f"{path}/{secret['metadata']['name']}")
    finally:
        api.close()


def _folder(address: LabAddress) -> Path:
    return address.directory / "helm"


def _reason(answer: "subprocess.CompletedProcess[str]") -> str:
    """Helm's last words."""
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    lines = lines or [f"ended with {answer.returncode} and said nothing"]
    return re.sub(r"\s+", " ", " ".join(lines[-8:]))[:1500]
