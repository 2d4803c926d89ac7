"""The volumes of one pod, as files of this machine.

Owns where each volume lies below the pod's folder, what it holds, and that a change of a ConfigMap,
a Secret or a token that ages reaches the files: all of a volume's files at once, by one rename, as a
kubelet does it. A path in the container is told to its process by `environment`; who refreshes
when is `pod_worker`'s.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.lab.kubelet.api import ApiClient, JsonObject
from workers.lab.kubelet.container import BadContainer, now
from workers.lab.kubelet.environment import Mount
from workers.lab.kubelet.pod_fields import PodFields, UnknownField
from workers.lab.kubelet.sources import Source, SourceKind, SourceMissing, read_source
from workers.lab.kubelet.token import Token, request_token

ACCOUNT_MOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where programs in a cluster look for their token."""
ROOT_CA: Final = Source(SourceKind.CONFIG_MAP, "kube-root-ca.crt")
"""The controller-manager puts it into every namespace; its content is the lab's own CA."""

_CURRENT: Final = "..data"
_FOLDERS: Final = {
    "configMap": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "projected": "kubernetes.io~projected",
    "downwardAPI": "kubernetes.io~downward-api",
    "emptyDir": "kubernetes.io~empty-dir",
}

Files = Mapping[str, bytes]
"""By path below the volume."""


@dataclass(frozen=True)
class VolumeGround:
    """What the volumes of a pod are made from."""

    client: ApiClient
    """The node's own identity."""
    ca_file: Path
    host_root: Path
    fields: PodFields


@dataclass
class PodVolumes:
    """All volumes of one pod. Made once for a pod; `refresh` before a container starts and later."""

    folder: Path
    ground: VolumeGround
    _tokens: dict[str, Token] = field(default_factory=dict)
    """By the name of the volume and the file's path in it."""

    @property
    def changes(self) -> bool:
        """Whether anything of them can change while the pod runs."""
        return any(
            kind in volume
            for volume in self._all()
            for kind in ("configMap", "secret", "projected", "downwardAPI")
        )

    async def refresh(self) -> None:
        """Bring every volume up to date.

        Raises:
            BadContainer: a volume that the lab doesn't know, or whose source isn't there.
            ApiError: the API server refused or could not be reached.
        """
        for volume in self._all():
            place = self._place(volume)
            if "emptyDir" in volume:
                place.mkdir(parents=True, exist_ok=True)
            elif "hostPath" not in volume:
                try:
                    files = await self._files(volume)
                except (SourceMissing, UnknownField) as error:
                    text = f"volume {volume['name']}: {error}"
                    raise BadContainer(text, "ContainerCreating") from error
                write_files(place, files)

    def mounts(self, container: JsonObject) -> tuple[Mount, ...]:
        """The container's mounts; their places are there once `refresh` has returned."""
        places = {volume["name"]: self._place(volume) for volume in self._all()}
        return tuple(
            Mount(mount["mountPath"].rstrip("/"), places[mount["name"]] / mount.get("subPath", ""))
            for mount in container.get("volumeMounts") or []
        )

    def _all(self) -> list[JsonObject]:
        return list(self.ground.fields.pod["spec"].get("volumes") or [])

    def _place(self, volume: JsonObject) -> Path:
        if "hostPath" in volume:
            return self.ground.host_root / str(volume["hostPath"]["path"]).strip("/")
        for kind, folder in _FOLDERS.items():
            if kind in volume:
                return self.folder / "volumes" / folder / str(volume["name"])
        kinds = ", ".join(key for key in volume if key != "name")
        raise BadContainer(
            f"volume {volume['name']}: {kinds} is not known to the lab; known: "
            f"{', '.join(_FOLDERS)}, hostPath"
        )

    async def _files(self, volume: JsonObject) -> Files:
        if "projected" not in volume:
            return await self._of_objects(volume)
        files: dict[str, bytes] = {}
        for origin in volume["projected"].get("sources") or []:
            if "serviceAccountToken" in origin:
                wanted = origin["serviceAccountToken"]
                token = await self._token(volume["name"], wanted)
                files[wanted["path"]] = token.text.encode()
            else:
                files |= await self._of_objects(origin)
        return files

    async def _of_objects(self, origin: JsonObject) -> Files:
        """A ConfigMap, a Secret or the pod's own fields: a volume, or one source of a projected one."""
        if "configMap" in origin:
            reference = origin["configMap"]
            return await self._of(Source(SourceKind.CONFIG_MAP, reference["name"]), reference)
        if "secret" in origin:
            reference = origin["secret"]
            # The API has two names for it: a volume's own, and that of all sources.
            name = reference.get("secretName") or reference["name"]
            return await self._of(Source(SourceKind.SECRET, name), reference)
        if "downwardAPI" in origin:
            return self._of_fields(origin["downwardAPI"])
        raise SourceMissing(f"source {', '.join(origin)} is not known to the lab")

    async def _of(self, source: Source, reference: JsonObject) -> Files:
        """The keys of a ConfigMap or Secret as files, all or those that `items` names."""
        namespace = self.ground.fields.pod["metadata"]["namespace"]
        if source == ROOT_CA:
            # Known beforehand: a pod in a new namespace needn't wait for the controller.
            content: Mapping[str, bytes] | None = {"ca.crt": self.ground.ca_file.read_bytes()}
        else:
            content = await read_source(self.ground.client, namespace, source)
        is_optional = bool(reference.get("optional"))
        if content is None:
            if is_optional:
                return {}
            raise SourceMissing(f"{source} not found")
        items = reference.get("items")
        if not items:
            return content
        missing = [item["key"] for item in items if item["key"] not in content]
        if missing and not is_optional:
            raise SourceMissing(f"{source} has no key {missing[0]!r}")
        return {item["path"]: content[item["key"]] for item in items if item["key"] in content}

    def _of_fields(self, reference: JsonObject) -> Files:
        return {
            item["path"]: self.ground.fields.value(item["fieldRef"]["fieldPath"]).encode()
            for item in reference.get("items") or []
        }

    async def _token(self, volume: str, wanted: JsonObject) -> Token:
        key = f"{volume}/{wanted['path']}"
        known = self._tokens.get(key)
        if known is None or known.renew_at < now():
            pod = self.ground.fields.pod
            known = self._tokens[key] = await request_token(self.ground.client, pod, wanted)
        return known


def write_files(folder: Path, files: Files) -> None:
    """Make the folder hold exactly these files; a reader sees all old or all new ones.

    They lie in a folder of their own to which `..data` points, and that link is replaced. A Secret
    may be among them, so nobody but this user may read any.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    current = folder / _CURRENT
    if current.is_symlink() and _read_files(current.resolve()) == dict(files):
        return
    old = current.resolve() if current.is_symlink() else None
    new = Path(tempfile.mkdtemp(prefix=f"..{now():%Y_%m_%d_%H_%M_%S}.", dir=folder))
    for name, content in files.items():
        target = new / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.touch(mode=0o600)
        target.write_bytes(content)
    draft = folder / f"{_CURRENT}_tmp"
    draft.unlink(missing_ok=True)
    draft.symlink_to(new.name)
    draft.replace(current)
    _link(folder, {Path(name).parts[0] for name in files})
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _read_files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _link(folder: Path, names: set[str]) -> None:
    """A link for each name at the volume's top, through `..data`; none for any other."""
    for entry in list(folder.iterdir()):
        if not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    for name in names:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"{_CURRENT}/{name}")
