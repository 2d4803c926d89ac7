"""ConfigMaps and Secrets as a kubelet reads them for its pods.

Owns naming them, reading them with the node's own identity, and the patience that this needs.
What becomes of their content is `environment`'s and `volumes`'.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from workers.lab.kubelet.api import ApiClient, ApiError, JsonObject

DEADLINE_S: Final = 5.0
"""The Node authorizer learns of a new pod a moment after the kubelet does, and refuses till then."""
RETRY_S: Final = 0.05


class SourceKind(StrEnum):
    """Kinds of objects that a pod may take values from; the value is the API's plural."""

    CONFIG_MAP = "configmaps"
    SECRET = "secrets"  # noqa: S105 - the kind, no secret


@dataclass(frozen=True)
class Source:
    """One object of the pod's namespace."""

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.removesuffix('s')} {self.name!r}"


Content = Mapping[str, bytes]
Contents = Mapping[Source, Content | None]
"""What each source holds; None = there is no such object."""


class SourceMissing(Exception):
    """An object, or a key of it, that the pod needs is not there."""


async def read_source(client: ApiClient, namespace: str, source: Source) -> Content | None:
    """The object's keys with their values; None = there is no such object.

    Args:
        client: the node's own identity: it may read what its pods name, nothing else.
        namespace: the pod's.
        source: which.

    Raises:
        ApiError: still refused after the deadline, or the API server cannot be reached.
    """
    path = f"/api/v1/namespaces/{namespace}/{source.kind}/{source.name}"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        try:
            return _content(await client.get(path))
        except ApiError as error:
            if error.status == 404:
                return None
            if error.status != 403 or loop.time() > deadline:
                raise
            await asyncio.sleep(RETRY_S)


async def read_sources(client: ApiClient, namespace: str, wanted: Iterable[Source]) -> Contents:
    """Each of them once.

    Raises:
        ApiError: as `read_source`.
    """
    return {source: await read_source(client, namespace, source) for source in set(wanted)}


def sources_of_environment(container: JsonObject) -> Iterator[Source]:
    """What the container's `env` and `envFrom` name."""
    for variable in container.get("env") or []:
        origin = variable.get("valueFrom") or {}
        if "configMapKeyRef" in origin:
            yield Source(SourceKind.CONFIG_MAP, origin["configMapKeyRef"]["name"])
        if "secretKeyRef" in origin:
            yield Source(SourceKind.SECRET, origin["secretKeyRef"]["name"])
    for origin in container.get("envFrom") or []:
        if "configMapRef" in origin:
            yield Source(SourceKind.CONFIG_MAP, origin["configMapRef"]["name"])
        if "secretRef" in origin:
            yield Source(SourceKind.SECRET, origin["secretRef"]["name"])


def _content(item: JsonObject) -> Content:
    if item.get("kind") == "Secret":
        return {key: _decoded(value) for key, value in (item.get("data") or {}).items()}
    plain = {key: str(value).encode() for key, value in (item.get("data") or {}).items()}
    binary = {key: _decoded(value) for key, value in (item.get("binaryData") or {}).items()}
    return plain | binary


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""  # the API server accepts none that isn't base64
