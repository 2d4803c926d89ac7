"""Raw requests to an API server under one identity.

Owns the identities that the tests of the rights speak as, and the answer as the server gave it. Deliberately not
`activities.kube`: these tests ask what the server refuses, whatever our client would send. Reads an admin kubeconfig;
starts nothing.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"

TIMEOUT: Final = urllib3.Timeout(connect=3, read=15)


@dataclass(frozen=True)
class Request:
    """One request as it goes over the wire."""

    method: str
    path: str
    body: Any = None
    content_type: str = JSON


@dataclass(frozen=True)
class Answer:
    """Status code and decoded body."""

    code: int
    body: Any

    @property
    def message(self) -> str:
        """The server's own words when it refused; the whole body otherwise."""
        if isinstance(self.body, dict) and self.body.get("kind") == "Status":
            return str(self.body.get("message", ""))
        return str(self.body)


@dataclass(frozen=True)
class Caller:
    """An identity and the server it speaks to."""

    server: str
    pool: urllib3.PoolManager = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def send(self, request: Request) -> Answer:
        """The server's answer, whatever its code."""
        body = None if request.body is None else json.dumps(request.body).encode()
        headers = {"Content-Type": request.content_type, "Accept": JSON, **self.headers}
        answer = self.pool.request(
            request.method,
            self.server + request.path,
            body=body,
            headers=headers,
            timeout=TIMEOUT,
            retries=False,
        )
        try:
            return Answer(answer.status, json.loads(answer.data))
        except ValueError:
            return Answer(answer.status, answer.data.decode(errors="replace"))

    def get(self, path: str) -> Any:
        """The object at `path`; fails the test if it can't be had."""
        return self._ok(Request("GET", path))

    def post(self, path: str, body: Any) -> Any:
        """Create; an object that is there already is fine."""
        answer = self.send(Request("POST", path, body))
        assert answer.code in {200, 201, 409}, answer
        return answer.body

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Any:
        """Patch; fails the test if it is refused."""
        return self._ok(Request("PATCH", path, body, content_type))

    def delete(self, path: str) -> None:
        """Delete at once; an object that is gone already is fine."""
        answer = self.send(Request("DELETE", path, {"gracePeriodSeconds": 0}))
        assert answer.code in {200, 202, 404}, answer

    def accepting(self, media_type: str) -> "Caller":
        """The same identity, asking for another form of the answer."""
        return replace(self, headers={**self.headers, "Accept": media_type})

    def with_token(self, token: str) -> "Caller":
        """Whoever holds that bearer token, at the same server."""
        pool = _pool(self.pool.connection_pool_kw.get("ca_certs"))
        return replace(self, pool=pool, headers={"Authorization": f"Bearer {token}"})

    def impersonating(
        self, user: str, *groups: str, extra: Mapping[str, str] | None = None
    ) -> "Caller":
        """Somebody else by this caller's right to impersonate."""
        headers = urllib3.HTTPHeaderDict(self.headers)
        headers["Impersonate-User"] = user
        for group in groups:
            headers.add("Impersonate-Group", group)
        for key, value in (extra or {}).items():
            headers[f"Impersonate-Extra-{key.replace('/', '%2f')}"] = value
        return replace(self, headers=headers)

    def _ok(self, request: Request) -> Any:
        answer = self.send(request)
        assert answer.code in {200, 201}, answer
        return answer.body


def read_kubeconfig(path: Path, folder: Path) -> Caller:
    """The identity of a kubeconfig's only user at its only cluster; keys it holds go to `folder`."""
    config = yaml.safe_load(path.read_text())
    cluster = config["clusters"][0]["cluster"]
    user = config["users"][0]["user"]

    def file(section: Mapping[str, str], key: str) -> str | None:
        if key in section:
            return str(path.parent / section[key])
        if f"{key}-data" not in section:
            return None
        target = folder / key
        target.write_bytes(base64.b64decode(section[f"{key}-data"]))
        target.chmod(0o600)
        return str(target)

    pool = _pool(
        file(cluster, "certificate-authority"),
        cert_file=file(user, "client-certificate"),
        key_file=file(user, "client-key"),
    )
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return Caller(cluster["server"], pool, headers)


def _pool(ca_certs: str | None, **client: str | None) -> urllib3.PoolManager:
    options: dict[str, Any] = {key: value for key, value in client.items() if value is not None}
    return urllib3.PoolManager(ca_certs=ca_certs, cert_reqs="CERT_REQUIRED", **options)
