"""The text of a kubeconfig for one identity on the lab's API server.

Owns the file's shape. Who writes it where: `components.py` for the lab's own processes, `install.py`
for people and fleetmend.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from workers.lab.controlplane.pki import KeyPair


def kubeconfig(api_url: str, ca: Path, user: Mapping[str, object], *, namespace: str) -> str:
    """The text of a kubeconfig; `user` is the content of its only user entry."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [
                {
                    "name": "lab",
                    "context": {"cluster": "lab", "user": "lab", "namespace": namespace},
                }
            ],
            "clusters": [
                {"name": "lab", "cluster": {"server": api_url, "certificate-authority": str(ca)}}
            ],
            "users": [{"name": "lab", "user": dict(user)}],
        },
        sort_keys=False,
    )


def certificate_user(pair: KeyPair) -> Mapping[str, object]:
    """A kubeconfig user that proves itself by certificate."""
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
