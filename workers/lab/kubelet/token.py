"""The projected ServiceAccount token of a pod, fetched as a kubelet fetches it.

Owns the TokenRequest bound to the pod (with the node's own identity, so that the API server puts
node and pod into the token) and the files a pod finds: token, ca.crt, namespace and a kubeconfig
made of them. Doesn't rotate: the API server extends the default token to a year, longer than a lab.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import yaml

from workers.lab.kubelet.api import ApiClient, ApiError, JsonObject

DEADLINE_S: Final = 5.0
"""The Node authorizer learns of a new pod a moment after the kubelet does, and refuses till then."""
RETRY_S: Final = 0.05


def projected_volume(pod: JsonObject) -> JsonObject | None:
    """The volume that carries a token, or None: then the pod asked for none.

    The API server's ServiceAccount admission has already worked automounting out, so the volumes
    tell all.
    """
    for volume in pod["spec"].get("volumes") or []:
        for source in (volume.get("projected") or {}).get("sources") or []:
            if "serviceAccountToken" in source:
                return dict(volume)
    return None


async def request_token(client: ApiClient, pod: JsonObject, volume: JsonObject) -> str:
    """A token bound to the pod, for the volume's audience.

    Raises:
        ApiError: still refused after the deadline.
    """
    source = next(
        item["serviceAccountToken"]
        for item in volume["projected"]["sources"]
        if "serviceAccountToken" in item
    )
    meta = pod["metadata"]
    account = pod["spec"].get("serviceAccountName", "default")
    spec: JsonObject = {
        "audiences": [source["audience"]] if source.get("audience") else [],
        "expirationSeconds": source.get("expirationSeconds", 3600),
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
            return str(answer["status"]["token"])
        except ApiError as error:
            is_early = error.status == 403 or error.is_transient
            if not is_early or loop.time() > deadline:
                raise
            await asyncio.sleep(RETRY_S)


def write_service_account(folder: Path, token: str, namespace: str, ca_file: Path) -> Path:
    """The three files of a projected volume; gives the folder back."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_private(folder / "token", token)
    _write_private(folder / "namespace", namespace)
    _write_private(folder / "ca.crt", ca_file.read_text())
    return folder


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
