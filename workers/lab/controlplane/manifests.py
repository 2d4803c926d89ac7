"""Manifests on disk, on their way into the lab's API server.

Owns the reading of YAML files, the application of one object with the file's name in every error,
and the wait until a CRD is served. What is installed when: `install.py` and `karpenter/process.py`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.errors import ApiRequestFailed, LabStartFailed, ManifestRejected

INSTALL_LIMIT_S: Final = 30.0
POLL_S: Final = 0.05
MAXIMUM_MANIFEST_BYTES: Final = 4 << 20


def read_manifests(files: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every object of the files, documents in order, with its file; lists are unpacked.

    Raises:
        ManifestRejected: a file is no YAML, or a document no Kubernetes object.
    """
    for path in files:
        try:
            content = path.read_text()[:MAXIMUM_MANIFEST_BYTES]
            documents = [d for d in yaml.safe_load_all(content) if d is not None]
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ManifestRejected(f"{path} is no YAML: {error}") from error
        for document in documents:
            items = document.get("items", [document]) if isinstance(document, dict) else [document]
            for item in items:
                if not isinstance(item, dict) or not item.get("kind") or "metadata" not in item:
                    raise ManifestRejected(f"{path}: a document without kind and metadata")
                yield path, item


def apply_manifest(api: LabApi, path: Path, manifest: dict[str, Any]) -> None:
    """Apply one object of a file.

    Raises:
        ManifestRejected: it was refused, its kind is unknown, or it lacks its namespace.
    """
    name = f"{manifest['kind']} {manifest['metadata'].get('name')}"
    try:
        if api.is_namespaced(manifest) and not manifest["metadata"].get("namespace"):
            raise ManifestRejected(f"{path}: {name} names no namespace")
        api.apply(manifest)
    except ApiRequestFailed as error:
        raise ManifestRejected(f"{path}: {name}: {error}") from error


def await_served(api: LabApi, crd: Mapping[str, Any]) -> None:
    """Return when objects of a CRD can be asked for; at once for any other kind.

    Raises:
        LabStartFailed: not within INSTALL_LIMIT_S.
    """
    if crd["kind"] != "CustomResourceDefinition":
        return
    path = api.path_of(crd)
    spec = crd["spec"]
    version = next(v["name"] for v in spec["versions"] if v.get("served"))
    objects = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
    stages: dict[str, tuple[str, str]] = {}
    deadline = time.monotonic() + INSTALL_LIMIT_S
    while time.monotonic() < deadline:
        conditions = api.request("GET", path).get("status", {}).get("conditions") or ()
        stages = {c["type"]: (c["status"], c.get("message", "")) for c in conditions}
        # Established comes a moment before the requests are routed.
        if stages.get("Established", ("", ""))[0] == "True" and api.exists(objects):
            return
        time.sleep(POLL_S)
    raise LabStartFailed(f"CRD {crd['metadata']['name']} is not established: {stages}", None, ())
