"""fleetmend as pods of a lab, installed by Helm: what its chart needs there, and whether it runs.

Owns the values of a lab in which watch and worker are Deployments, the Secret that tells them where
Temporal is, and the wait until their pods are Ready. helm itself is called by `chart.py`; the pods
run on a system node (`NodeSpec.system`), which whoever starts such a lab adds.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import yaml

from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.chart import lab_values
from workers.lab.controlplane.errors import LabError
from workers.lab.controlplane.settings import ReleaseSettings
from workers.lab.kubelet.client import FleetClient
from workers.lab.kubelet.spec import ROLE_LABEL, SYSTEM_ROLE, NodeSpec

SYSTEM_NODE: Final = "system-0"
TEMPORAL_SECRET: Final = "fleetmend-temporal"  # noqa: S105 - its name, the chart's default
DEPLOYMENTS: Final = ("fleetmend-watch", "fleetmend-worker")
PODS_LIMIT_S: Final = 120.0
"""From the system node's start until all pods are Ready: 10 s on two idle cores."""
POLL_S: Final = 0.25
QUICK: Final = {"FLEETMEND_SWEEP_INTERVAL_S": "5", "FLEETMEND_SWEEP_JITTER_S": "0"}
"""Of the worker: once a minute is longer than a spectator of the lab waits."""


def pod_values(address: LabAddress, release: ReleaseSettings) -> dict[str, Any]:
    """The chart's values for a lab in which all of fleetmend runs as pods."""
    values = lab_values(address)
    where = {"replicas": release.replicas, "nodeSelector": {ROLE_LABEL: SYSTEM_ROLE}}
    return {
        **values,
        "image": {**values["image"], "tag": release.tag},
        "policy": yaml.safe_load(release.policy.read_text()),
        "watch": dict(where),
        "worker": {**where, "env": dict(QUICK)},
        "uninstall": {"handOver": True},
    }


def write_temporal_secret(api: LabApi, address: LabAddress) -> None:
    """The Secret that the chart names and never makes."""
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": TEMPORAL_SECRET, "namespace": NAMESPACE},
            "stringData": {"TEMPORAL_ADDRESS": address.temporal_address},
        }
    )


def ensure_system_node(address: LabAddress) -> None:
    """Add the node for fleetmend's pods, unless the lab has it from an earlier start."""
    with FleetClient(address.directory) as fleet:
        if all(view.name != SYSTEM_NODE for view in fleet.nodes()):
            fleet.add_node(NodeSpec.system(SYSTEM_NODE))


def await_pods(address: LabAddress, limit_s: float = PODS_LIMIT_S) -> None:
    """Return when every pod of watch and worker is Ready, in the newest revision alone.

    Raises:
        LabError: not within the limit; the message says which, and where to look.
    """
    api = LabApi(address)
    deadline = time.monotonic() + limit_s
    try:
        while True:
            missing = unready(api)
            if not missing:
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"{', '.join(missing)} not ready after {limit_s:g} s: look at `kubectl -n "
                    f"{NAMESPACE} describe pods` and `fleetmend lab logs {missing[0]}`"
                )
            time.sleep(POLL_S)
    finally:
        api.close()


def unready(api: LabApi) -> list[str]:
    """Those of watch's and worker's Deployments that are not rolled out."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    return [name for name in DEPLOYMENTS if not is_rolled_out(api.request("GET", f"{path}/{name}"))]


def is_rolled_out(deployment: Mapping[str, Any]) -> bool:
    """Whether all replicas are of the newest revision and Ready, and no older one is left."""
    wanted, status = deployment["spec"]["replicas"], deployment.get("status") or {}
    counts = (status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas"))
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return bool(is_seen and all(count == wanted for count in counts))
