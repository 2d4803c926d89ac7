"""The environment of a container's process: what its specification says, and what the lab adds.

Owns the order of the variables, where each value comes from, the expansion of `$(NAME)`, and the
translation of paths: a subprocess has no mounts of its own, so a path below a volumeMount becomes
the place of the volume on this machine. Pure; what it needs of the cluster was fetched (`sources`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.lab.devices.devices import KMSG_VARIABLE
from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.container import BadContainer
from workers.lab.kubelet.pod_fields import PodFields, UnknownField
from workers.lab.kubelet.sources import Contents, Source, SourceKind

TEMPORARY: Final = "/tmp"  # noqa: S108 - a mount path in a container, not on this machine

_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
_VARIABLE: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


@dataclass(frozen=True)
class Mount:
    """A volume of a container: its path there, and where it lies on this machine."""

    path: str
    place: Path


@dataclass(frozen=True)
class PodPlace:
    """Where a pod lives on this machine, and what was fetched for the container to start."""

    folder: Path
    log_folder: Path
    host_root: Path
    programs: Path
    node_name: str
    api_host: str
    api_port: str
    service_account: Path | None
    """Folder with token, ca.crt and namespace; None when the container has no token."""
    kubeconfig: Path | None
    devices: Mapping[str, str] = field(default_factory=dict)
    """Environment by which programs find the machine's devices; empty where it has none."""
    ip: str = ""
    release: Path | None = None
    """The folder of the image's packages; None = this checkout's."""
    mounts: tuple[Mount, ...] = ()
    contents: Contents = field(default_factory=dict)


def compose_environment(pod: JsonObject, container: JsonObject, place: PodPlace) -> dict[str, str]:
    """All variables of the container's process.

    Raises:
        BadContainer: a source that the lab doesn't know, or that isn't there.
    """
    environment = _base_environment(place)
    environment["FLEETMEND_LAB_POD"] = (
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} {pod['metadata']['uid']}"
    )
    environment["HOSTNAME"] = str(pod["metadata"]["name"])
    if mounts_host_root(pod, container):
        environment["FLEETMEND_HOST_ROOT"] = str(place.host_root)
        environment |= place.devices
        if KMSG_VARIABLE in place.devices:
            # Its own: each opening of the real kernel log has a place of its own.
            environment[KMSG_VARIABLE] = str(place.folder / f"kmsg-{container['name']}")
    for mount in place.mounts:
        if mount.path == TEMPORARY:
            environment["TMPDIR"] = str(mount.place)
    for name, text in _from_whole_objects(container, place):
        environment[name] = translate(text, place.mounts)
    fields = PodFields(pod, place.node_name, place.ip)
    for variable in container.get("env") or []:
        value = _value(variable, place, fields, environment)
        if value is not None:
            environment[variable["name"]] = value
    return environment


def expand(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) as a kubelet expands it: unknown names stay, $$ is a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else environment.get(name, match.group(0))

    return _REFERENCE.sub(replace, text)


def translate(text: str, mounts: tuple[Mount, ...]) -> str:
    """The text with paths at or below a mount replaced by the places on this machine."""
    places = {mount.path: str(mount.place) for mount in mounts if mount.path}
    if not places:
        return text
    # The longest first: a mount may lie below another one.
    paths = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
    whole = rf"(?<![\w.~/-])(?:{paths})(?![\w.~-])"
    return re.sub(whole, lambda match: places[match.group(0)], text)


def mounts_host_root(pod: JsonObject, container: JsonObject) -> bool:
    """Whether the container sees the node's root, and with it the node's devices."""
    roots = {
        volume["name"]
        for volume in pod["spec"].get("volumes") or []
        if (volume.get("hostPath") or {}).get("path") == "/"
    }
    return any(mount["name"] in roots for mount in container.get("volumeMounts") or [])


def _base_environment(place: PodPlace) -> dict[str, str]:
    """Nothing of the fleet's own environment but the search paths: it holds the admin's rights."""
    environment = {
        "PATH": f"{place.programs}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(place.folder),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "KUBERNETES_SERVICE_HOST": place.api_host,
        "KUBERNETES_SERVICE_PORT": place.api_port,
    }
    searched = [] if place.release is None else [str(place.release)]
    if "PYTHONPATH" in os.environ:
        searched.append(os.environ["PYTHONPATH"])
    if searched:
        environment["PYTHONPATH"] = os.pathsep.join(searched)
    if place.service_account is not None:
        environment["FLEETMEND_SERVICEACCOUNT"] = str(place.service_account)
    if place.kubeconfig is not None:
        environment["KUBECONFIG"] = str(place.kubeconfig)
    return environment


def _from_whole_objects(container: JsonObject, place: PodPlace) -> Iterator[tuple[str, str]]:
    """The variables of `envFrom`; keys that are no names of variables are left out."""
    for origin in container.get("envFrom") or []:
        if "configMapRef" in origin:
            reference, kind = origin["configMapRef"], SourceKind.CONFIG_MAP
        elif "secretRef" in origin:
            reference, kind = origin["secretRef"], SourceKind.SECRET
        else:
            raise BadContainer(f"envFrom: {', '.join(origin)} is not known to the lab")
        source = Source(kind, reference["name"])
        content = place.contents.get(source)
        if content is None:
            if not reference.get("optional"):
                raise BadContainer(f"envFrom: {source} not found")
            continue
        for key, value in content.items():
            name = origin.get("prefix", "") + key
            if _VARIABLE.fullmatch(name):
                yield name, value.decode("utf-8", "replace")


def _value(
    variable: JsonObject, place: PodPlace, fields: PodFields, environment: Mapping[str, str]
) -> str | None:
    """The variable's value; None = it comes from an optional source that isn't there."""
    origin = variable.get("valueFrom")
    if origin is None:
        return expand(translate(variable.get("value", ""), place.mounts), environment)
    try:
        if "fieldRef" in origin:
            return fields.value(origin["fieldRef"].get("fieldPath", ""))
    except UnknownField as error:
        raise BadContainer(f"env {variable['name']}: {error}") from error
    if "configMapKeyRef" in origin:
        reference, kind = origin["configMapKeyRef"], SourceKind.CONFIG_MAP
    elif "secretKeyRef" in origin:
        reference, kind = origin["secretKeyRef"], SourceKind.SECRET
    else:
        raise BadContainer(
            f"env {variable['name']}: {', '.join(origin)} is not known to the lab; known: "
            "fieldRef, configMapKeyRef, secretKeyRef"
        )
    source, key = Source(kind, reference["name"]), reference["key"]
    content = place.contents.get(source)
    if content is not None and key in content:
        return translate(content[key].decode("utf-8", "replace"), place.mounts)
    if reference.get("optional"):
        return None
    what = f"{source} not found" if content is None else f"{source} has no key {key!r}"
    raise BadContainer(f"env {variable['name']}: {what}")
