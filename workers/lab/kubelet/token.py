"""The projected ServiceAccount token of a pod, fetched as a kubelet fetches it.

Owns the TokenRequest bound to the pod (with the node's own identity, so that the API server puts
node and pod into the token), when the next one is due, and the kubeconfig made of the files that
`volumes` writes.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import yaml

from workers.lab.kubelet.api import ApiClient, ApiError, JsonObject
from workers.lab.kubelet.container import now

DEADLINE_S: Final = 5.0
"""The Node authorizer learns of a new pod a moment after the kubelet does, and refuses till then."""
RETRY_S: Final = 0.05
RENEWED_AFTER: Final = 0.8
"""Of its life, as a kubelet does (documentation of projected volumes)."""


@dataclass(frozen=True)
class Token:
    """A token, and when a kubelet asks for the next one."""

    text: str
    renew_at: datetime


def wanted_token(pod: JsonObject) -> JsonObject | None:
    """The first token that the pod's volumes ask for, or None: then the pod has none.

    The API server's ServiceAccount admission has already worked automounting out, so the volumes
    tell all.
    """
    for volume in pod["spec"].get("volumes") or []:
        for source in (volume.get("projected") or {}).get("sources") or []:
            if "serviceAccountToken" in source:
                return dict(source["serviceAccountToken"])
    return None


async def request_token(client: ApiClient, pod: JsonObject, wanted: JsonObject) -> Token:
    """A token bound to the pod, for the audience and about the life that a volume asks for.

    Raises:
        ApiError: still refused after the deadline.
    """
    meta = pod["metadata"]
    account = pod["spec"].get("serviceAccountName", "default")
    spec: JsonObject = {
        "audiences": [wanted["audience"]] if wanted.get("audience") else [],
        "expirationSeconds": wanted.get("expirationSeconds", 3600),
        "boundObjectRef": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta["name"],
            "uid": meta["uid"],
        },
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        try:
            answer = await client.post(path, body)
        except ApiError as error:
            is_early = error.status == 403 or error.is_transient
            if not is_early or loop.time() > deadline:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            return _token(answer)


def _token(answer: JsonObject) -> Token:
    asked_at = now()
    life = datetime.fromisoformat(answer["status"]["expirationTimestamp"]) - asked_at
    return Token(str(answer["status"]["token"]), asked_at + RENEWED_AFTER * life)


def write_kubeconfig(path: Path, service_account: Path, api_url: str) -> Path:
    """A kubeconfig that points to the files, for programs that know no other way."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pod",
        "clusters": [
            {
                "name": "lab",
                "cluster": {
                    "server": api_url,
                    "certificate-authority": str(service_account / "ca.crt"),
                },
            }
        ],
        "users": [{"name": "pod", "user": {"tokenFile": str(service_account / "token")}}],
        "contexts": [
            {
                "name": "pod",
                "context": {
                    "cluster": "lab",
                    "user": "pod",
                    "namespace": (service_account / "namespace").read_text(),
                },
            }
        ],
    }
    _write_private(path, yaml.safe_dump(config))
    return path


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
