"""Kubeconfigs that lead through the fault proxy.

Owns the rewriting of one kubeconfig; the user keeps their rights. Talks to `proxy.py`.
"""

import base64
from pathlib import Path

import yaml

from tests.harness.proxy import FaultProxy
from tests.harness.proxy_upstream import current_entries


def kubeconfig_through_proxy(proxy: FaultProxy, original: Path, target: Path) -> Path:
    """Write a kubeconfig that reaches the cluster of `original` through the proxy; `target`.

    Its user keeps their rights, whether they have a bearer token or a client certificate.
    """
    _, user = current_entries(original)
    if "client-certificate" in user or "client-certificate-data" in user:
        user = {"token": proxy.token_for_certificate(user, original.parent)}
    ca = base64.b64encode(proxy.ca_pem).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "proxy", "cluster": {"server": proxy.url, "certificate-authority-data": ca}}
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "user"}}],
        "current-context": "proxy",
    }
    target.write_text(yaml.safe_dump(config))
    target.chmod(0o600)
    return target
