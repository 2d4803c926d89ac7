"""A small client of the lab's API server for the lab itself.

Owns one kept connection, JSON in and out, and the paths of kinds by discovery. The lab is a plain
API client: it doesn't import the packages that fleetmend's activities use, so a fault in those
can't hide in the lab. For one thread.
"""

import http
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from workers.lab.address import LabAddress
from workers.lab.controlplane.errors import ApiRequestFailed
from workers.lab.controlplane.pki import KeyPair

REQUEST_TIMEOUT_S: Final = 15.0
BUSY_PAUSE_S: Final = 0.1
MAXIMUM_ANSWER_BYTES: Final = 64 << 20
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
FIELD_MANAGER: Final = "fleetmend-lab"

# What Kubernetes answers: nested, and of no use to spell out for the few fields the lab reads.
JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """Where objects of one kind live."""

    group_version: str
    plural: str
    is_namespaced: bool

    def path(self, name: str, namespace: str | None) -> str:
        """Path of one object."""
        root = f"/api/{self.group_version}"
        if "/" in self.group_version:
            root = f"/apis/{self.group_version}"
        scope = f"/namespaces/{quote(namespace or '')}" if self.is_namespaced else ""
        return f"{root}{scope}/{self.plural}/{quote(name)}"


@dataclass
class LabApi:
    """The API server as seen by one client certificate, by default the lab's admin's."""

    address: LabAddress
    identity: KeyPair | None = None  # None = group system:masters
    _connection: http.client.HTTPSConnection | None = field(default=None, repr=False)
    _kinds: dict[tuple[str, str], Kind] = field(default_factory=dict, repr=False)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """One request; the answer's JSON.

        Raises:
            ApiRequestFailed: the answer is no success; its status is in the error.
            OSError: the API server can't be reached.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = content_type
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            status, answer = self._exchange(method, target, content, headers)
            # "Later, please": the storage of a new kind is being set up, or too many are asking.
            if status != http.HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline:
                break
            time.sleep(BUSY_PAUSE_S)
        try:
            parsed = json.loads(answer or b"{}")
        except ValueError:
            parsed = {"message": answer[:400].decode(errors="replace")}
        if status >= 300:
            raise ApiRequestFailed(f"{method} {path}", status, str(parsed.get("message", "")))
        return dict(parsed)

    def apply(self, manifest: Mapping[str, Any]) -> JsonObject:
        """Server-side apply of one object; an older state of it is overruled.

        Raises:
            ApiRequestFailed: it was refused, or its kind is unknown (404).
        """
        path = self.path_of(manifest)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self.request("PATCH", path, body=manifest, content_type=APPLY, query=query)

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """Path of the object that a manifest describes.

        Raises:
            ApiRequestFailed: the API server doesn't know the kind (404).
        """
        kind = self._kind(str(manifest["apiVersion"]), str(manifest["kind"]))
        metadata = manifest["metadata"]
        return kind.path(str(metadata["name"]), metadata.get("namespace"))

    def is_namespaced(self, manifest: Mapping[str, Any]) -> bool:
        """Whether objects of that kind live in a namespace."""
        return self._kind(str(manifest["apiVersion"]), str(manifest["kind"])).is_namespaced

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path, or a kind is served there."""
        try:
            self.request("GET", path)
        except ApiRequestFailed as error:
            # A kind that is just being set up answers 503 for a moment.
            if error.status in (404, 503):
                return False
            raise
        return True

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _kind(self, group_version: str, kind: str) -> Kind:
        known = self._kinds.get((group_version, kind))
        if known is not None:
            return known
        root = "/apis" if "/" in group_version else "/api"
        for resource in self.request("GET", f"{root}/{group_version}").get("resources", []):
            if "/" not in resource["name"]:
                self._kinds[(group_version, resource["kind"])] = Kind(
                    group_version, resource["name"], resource["namespaced"]
                )
        if (group_version, kind) not in self._kinds:
            raise ApiRequestFailed(f"look up kind {kind} of {group_version}", 404, "unknown kind")
        return self._kinds[(group_version, kind)]

    def _exchange(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        for is_last in (False, True):
            if self._connection is None:
                self._connection = self._connect()
            try:
                self._connection.request(method, target, content, dict(headers))
                answer = self._connection.getresponse()
                return answer.status, answer.read(MAXIMUM_ANSWER_BYTES)
            except (http.client.HTTPException, ConnectionError):
                # A kept connection may have been closed meanwhile; a fresh one tells the truth.
                # All that the lab sends may be sent twice.
                self.close()
                if is_last:
                    raise
        raise AssertionError("unreachable: the loop returns or raises")

    def _connect(self) -> http.client.HTTPSConnection:
        pki = self.address.paths.pki
        own = self.identity or KeyPair(pki / "admin.crt", pki / "admin.key")
        context = ssl.create_default_context(cafile=str(self.address.ca_file))
        context.load_cert_chain(own.certificate, own.key)
        host = urlsplit(self.address.api_url)
        assert host.hostname is not None  # LabAddress is made by us
        return http.client.HTTPSConnection(
            host.hostname, host.port, timeout=REQUEST_TIMEOUT_S, context=context
        )
