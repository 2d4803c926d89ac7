"""The fields of a pod that it may ask for itself: the downward API.

Pure: owns the paths that are known. `environment` and `volumes` ask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from workers.lab.kubelet.api import JsonObject

HOST_IP: Final = "127.0.0.1"
"""Of every simulated node."""

_MAP_ENTRY: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class UnknownField(Exception):
    """No such field, or none that the lab knows; the message lists those that it does."""


@dataclass(frozen=True)
class PodFields:
    """One pod, on its node, with its address."""

    pod: JsonObject
    node: str
    ip: str

    def value(self, path: str) -> str:
        """The field's text; '' = a label or annotation that the pod doesn't have.

        Raises:
            UnknownField: the lab doesn't know the path.
        """
        meta, spec = self.pod["metadata"], self.pod["spec"]
        entry = _MAP_ENTRY.fullmatch(path)
        if entry is not None:
            return str((meta.get(entry[1]) or {}).get(entry[2], ""))
        known = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": self.node,
            "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
            "status.podIP": self.ip,
            "status.podIPs": self.ip,
            "status.hostIP": HOST_IP,
            "status.hostIPs": HOST_IP,
        }
        if path not in known:
            raise UnknownField(
                f"{path} is not known to the lab; known: {', '.join(known)}, "
                "metadata.labels['KEY'], metadata.annotations['KEY']"
            )
        return str(known[path])
