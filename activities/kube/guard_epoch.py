"""The guard's epoch: which run of FleetGuard may have its grants noted.

Owns the ConfigMap `fleetmend-guard` (key `epoch`). A grant carries the epoch of the guard that
gave it; the activities that note a place ask here right before their patch and refuse an older
one, so that two guards can never fill one budget twice. Talks to the API server only.
"""

from typing import Final

from activities.kube import paths
from activities.kube.client import KubeClient, PatchKind
from activities.kube.errors import NotFound
from activities.kube.own_namespace import OWN_NAMESPACE
from workflows.contracts.guard import Asked, RebuildRequest

NAMESPACE: Final = OWN_NAMESPACE
GUARD_CONFIG_MAP: Final = "fleetmend-guard"
EPOCH_KEY: Final = "epoch"


class GuardEpoch:
    """Reads and claims the epoch. Thread-safe."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    def current(self) -> str:
        """The only valid epoch; "" = no guard has claimed one yet."""
        try:
            found = self._kube.get(_PATH)
        except NotFound:
            return ""
        return str((found.get("data") or {}).get(EPOCH_KEY, ""))

    def stale_grant(self, epoch: str) -> str:
        """Why a grant of `epoch` may not be noted now; "" = it may."""
        current = self.current()
        if epoch == current:
            return ""
        return f"the grant is of guard run {epoch}, the guard is now {current or 'not ready'}"

    def claim(self, request: RebuildRequest) -> Asked:
        """Implements `claim_epoch`.

        Idempotent: a second run finds the epoch. Guarded by resourceVersion and tried once, so
        that an attempt of a guard that ended meanwhile cannot take the epoch from its successor.
        """
        asked = Asked(guard=request.epoch)
        body = {EPOCH_KEY: request.epoch}
        try:
            found = self._kube.get(_PATH)
        except NotFound:
            manifest = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": GUARD_CONFIG_MAP, "namespace": NAMESPACE},
                "data": body,
            }
            self._kube.create(paths.config_maps(NAMESPACE), manifest)
            return asked
        if (found.get("data") or {}).get(EPOCH_KEY) != request.epoch:
            self._kube.patch(
                _PATH,
                {"data": body},
                kind=PatchKind.MERGE,
                resource_version=str(found["metadata"]["resourceVersion"]),
            )
        return asked


_PATH: Final = paths.config_map(NAMESPACE, GUARD_CONFIG_MAP)
