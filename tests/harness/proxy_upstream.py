"""The fault proxy's way to the real API server, from a kubeconfig.

Owns reading the entries of a kubeconfig and the connections that follow from them. The proxy uses
it for itself and for the callers whose client certificate it stands for.
"""

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import yaml


def current_entries(kubeconfig: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user of the current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    contexts = {one["name"]: one["context"] for one in config["contexts"]}
    context = contexts[config["current-context"]]
    clusters = {one["name"]: one["cluster"] for one in config["clusters"]}
    users = {one["name"]: one["user"] for one in config["users"]}
    return clusters[context["cluster"]], users.get(context.get("user"), {})


def open_session(tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
    """Connections to the real server, without limits of their own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=None),
        auto_decompress=False,
    )


def file_of(user: dict[str, Any], name: str, base: Path, folder: Path) -> Path:
    """The file of a kubeconfig's entry that is given as a path or as data."""
    if data := user.get(f"{name}-data"):
        file = folder / name
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(data))
        return file
    return base / str(user[name])


def upstream_tls(cluster: dict[str, Any], base: Path) -> ssl.SSLContext | bool:
    """TLS that trusts the CA of a kubeconfig's cluster; True where the server speaks plain HTTP."""
    if not str(cluster["server"]).startswith("https"):
        return True
    if data := cluster.get("certificate-authority-data"):
        return ssl.create_default_context(cadata=base64.b64decode(data).decode())
    return ssl.create_default_context(cafile=str(base / cluster["certificate-authority"]))
