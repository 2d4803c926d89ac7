"""A plain client of the Kubernetes API for simulated nodes: JSON in, JSON out, over aiohttp.

Owns connections, credentials, error mapping and the list-and-watch loop. Knows no kind of object.
Deliberately not the `kubernetes` package: hundreds of clients live in one process here, and a
stand-in must not share the library, and so the mistakes, of what it stands against.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import aiohttp

JsonObject = dict[str, Any]
"""A raw Kubernetes object. Nobody types all of Kubernetes for a stand-in."""

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"

REQUEST_TIMEOUT_S: Final = 10.0
WATCH_WINDOW_S: Final = 300
"""How long one watch is asked to last; the reflector then opens the next."""
WATCH_SILENCE_S: Final = 330.0
"""Longer than the window: a connection silent for so long is dead."""
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""An object is at most about 1.5 MiB in etcd; twice that as JSON with room to spare."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 2.0
"""Short: tests restart the API server and wait for the fleet to be back."""


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}"[:500])
        self.status = status
        self.reason = reason

    @property
    def is_transient(self) -> bool:
        """Whether the same request may well succeed a moment later."""
        return self.status in (0, 429) or self.status >= 500


class Change(StrEnum):
    """What a reflector saw. GONE is made up for objects that a re-list no longer shows."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    GONE = "GONE"
    SYNCED = "SYNCED"


@dataclass(frozen=True)
class Seen:
    """One event of a reflector; `item` is empty for SYNCED."""

    change: Change
    item: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class ClientCertificate:
    """The files of a TLS identity."""

    certificate: Path
    key: Path


class ApiClient:
    """One identity's connection to the API server.

    Built by `connect`; closed with `close`. `as_user` and `with_token` give clients of another
    identity that share this one's connections.
    """

    def __init__(
        self, url: str, session: aiohttp.ClientSession, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._session = session
        self._headers = dict(headers or {})

    @classmethod
    def connect(
        cls,
        url: str,
        ca_file: Path,
        *,
        identity: ClientCertificate | None = None,
        connections: int = 8,
    ) -> ApiClient:
        """A client with its own connections; without an identity it needs `with_token`."""
        context = ssl.create_default_context(cafile=str(ca_file))
        if identity is not None:
            context.load_cert_chain(str(identity.certificate), str(identity.key))
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=context),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            headers={"User-Agent": "fleetmend-lab-kubelet", "Accept": JSON},
            read_bufsize=MAX_LINE_BYTES,
        )
        return cls(url, session)

    def as_user(self, user: str, groups: tuple[str, ...]) -> ApiClient:
        """The same connections, acting as another user (needs the right to impersonate)."""
        # A header may occur once only in a dict: one group is all that a kubelet needs.
        if len(groups) != 1:
            raise ValueError(f"as_user({user!r}): give exactly one group, got {groups!r}")
        headers = {"Impersonate-User": user, "Impersonate-Group": groups[0]}
        return ApiClient(self._url, self._session, headers)

    def with_token(self, token: str) -> ApiClient:
        """The same connections, acting by a bearer token."""
        return ApiClient(self._url, self._session, {"Authorization": f"Bearer {token}"})

    async def close(self) -> None:
        """Close the connections, also those of clients derived from this one."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """One request, never retried here.

        Raises:
            ApiError: refused, or not answered in time (status 0).
        """
        payload = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": content_type}
        try:
            async with self._session.request(
                method, self._url + path, data=payload, headers=headers, params=params
            ) as response:
                raw = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error!r}") from error
        if status >= 400:
            raise _refused(status, raw, f"{method} {path}")
        return _json_object(raw, f"{method} {path}")

    async def get(self, path: str) -> JsonObject:
        return await self.request("GET", path)

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        return await self.request("POST", path, body)

    async def patch(
        self, path: str, body: JsonObject, *, content_type: str = STRATEGIC_MERGE
    ) -> JsonObject:
        return await self.request("PATCH", path, body, content_type=content_type)

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "") -> JsonObject:
        """Delete; with a UID only that very object."""
        options: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        return await self.request("DELETE", path, options)

    async def reflect(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Seen]:
        """List, then watch, for ever: errors are waited out, a lost position is listed again."""
        known: dict[str, JsonObject] = {}
        pause = BACKOFF_FIRST_S
        while True:
            try:
                listed = await self.request("GET", path, params=params)
                now = {item["metadata"]["uid"]: item for item in listed.get("items") or []}
                for uid in known.keys() - now.keys():
                    yield Seen(Change.GONE, known[uid])
                for uid, item in now.items():
                    yield Seen(Change.MODIFIED if uid in known else Change.ADDED, item)
                yield Seen(Change.SYNCED)
                known = now
                pause = BACKOFF_FIRST_S
                version = listed["metadata"]["resourceVersion"]
                async for seen in self._watch_on(path, params, version):
                    _note(known, seen)
                    yield seen
            except ApiError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, BACKOFF_LAST_S)

    async def _watch_on(
        self, path: str, params: Mapping[str, str], version: str
    ) -> AsyncIterator[Seen]:
        """Watch window after window from `version`; ends when the position is lost (410)."""
        while True:
            query = {
                **params,
                "watch": "1",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(WATCH_WINDOW_S),
            }
            async for frame in self._frames(path, query):
                if frame["type"] == "ERROR":
                    return
                item = frame["object"]
                version = item["metadata"]["resourceVersion"]
                if frame["type"] != "BOOKMARK":
                    yield Seen(Change(frame["type"]), item)

    async def _frames(self, path: str, query: Mapping[str, str]) -> AsyncIterator[JsonObject]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=WATCH_SILENCE_S)
        try:
            async with self._session.get(
                self._url + path, params=query, headers=self._headers, timeout=timeout
            ) as response:
                if response.status >= 400:
                    raise _refused(response.status, await response.read(), f"watch {path}")
                async for line in response.content:
                    yield _json_object(line, f"watch {path}")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"watch {path}: {error!r}") from error


async def delete_node(admin: ApiClient, name: str) -> None:
    """Delete a Node object, as a cloud's controller does; one that is gone is no error."""
    try:
        await admin.delete(f"/api/v1/nodes/{name}")
    except ApiError as error:
        if error.status != 404:
            raise


def _note(known: dict[str, JsonObject], seen: Seen) -> None:
    uid = seen.item["metadata"]["uid"]
    if seen.change is Change.DELETED:
        known.pop(uid, None)
    else:
        known[uid] = seen.item


def _refused(status: int, raw: bytes, action: str) -> ApiError:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    reason = str(answer.get("reason") or "Refused")
    return ApiError(status, reason, f"{action}: {answer.get('message') or raw[:200]!r}")


def _json_object(raw: bytes, action: str) -> JsonObject:
    try:
        answer = json.loads(raw)
    except ValueError as error:
        raise ApiError(0, "NoJSON", f"{action}: {raw[:100]!r}") from error
    if not isinstance(answer, dict):
        raise ApiError(0, "NoJSON", f"{action}: not an object: {raw[:100]!r}")
    return answer
