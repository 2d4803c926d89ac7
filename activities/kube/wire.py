"""Requests and answers over HTTP: connections, credential, time limits, and nothing of kinds.

Owns what goes over the wire to one API server and how long and how big an answer may be. Errors
become those of `errors.py`; nothing is retried here. `client.py` builds the requests of the API on
it, `stream.py` reads watches from it. Uses the `kubernetes` client for configuration, credentials
and connection pools, and not for its models: those drop fields that they do not know.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

import msgspec
import urllib3
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.config import ConfigException

from activities.kube import errors
from activities.kube.connections import OpenConnections, tracked_pools
from activities.kube.paths import describe

JsonObject: TypeAlias = dict[str, Any]
"""One object of the API as it came over the wire. `Any` is the API's own openness: the functions
that know a kind turn it into a typed value at once."""

ANSWER_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""Longest answer that is read; a page of 500 Nodes has 3 to 15 MB."""
_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class CallTimeout:
    """How long one call may take.

    Attributes:
        connect_s: seconds for the connection, TLS handshake included.
        read_s: seconds of silence from the server; the whole answer may take twice as long.
    """

    connect_s: float = 3.0
    read_s: float = 10.0


DEFAULT_TIMEOUT: Final = CallTimeout()


@dataclass(frozen=True)
class Request:
    """One request, ready to be sent.

    Attributes:
        method: of HTTP.
        path: from `paths`.
        query: parameters, not yet quoted.
        body: the bytes to send; None for none.
        content_type: what the body is.
        timeout: how long it may take.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"
    timeout: CallTimeout = DEFAULT_TIMEOUT

    @property
    def name(self) -> str:
        """The request as a person reads it: "PATCH nodes/gpu-1"."""
        return f"{self.method} {describe(self.path)}"


class Wire:
    """The connections to one API server. Thread-safe."""

    def __init__(self, configuration: Configuration, *, process: str, pool_size: int) -> None:
        """Connections are made when they are needed.

        Args:
            configuration: address and credential; copied.
            process: which fleetmend process this is, for the server's audit log.
            pool_size: connections kept open.
        """
        self._configuration = copy.deepcopy(configuration)
        self._configuration.connection_pool_maxsize = pool_size
        # Adds TCP keep-alive to urllib3's own option, which turns Nagle's delay off.
        self._configuration.keep_alive = True
        self.process = process
        self.host = str(self._configuration.host)
        self._api = ApiClient(self._configuration)
        self._api.user_agent = f"fleetmend/{process}"
        self._connections = OpenConnections()
        self._pools: urllib3.PoolManager = self._api.rest_client.pool_manager
        self._pools.pool_classes_by_scheme = tracked_pools(self._connections)

    def sibling(self, *, pool_size: int) -> "Wire":
        """The same address and credential over connections of its own."""
        return Wire(self._configuration, process=self.process, pool_size=pool_size)

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._connections.is_closed

    def close(self) -> None:
        """End every connection at once; calls that wait on one raise `errors.Unreachable`."""
        self._connections.close()
        self._api.close()  # type: ignore[no-untyped-call]  # the client has no types here

    def ask(self, request: Request) -> JsonObject:
        """Send a request and read its answer: an object.

        Raises:
            errors.ApiError: any other outcome.
        """
        deadline = monotonic() + request.timeout.connect_s + 2 * request.timeout.read_s
        answer = self.open(request)
        body = self._read(request, answer, deadline)
        try:
            decoded = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            said = f"no JSON: {error}"
            raise errors.BadAnswer(request.name, said, status=answer.status) from error
        if not isinstance(decoded, dict):
            said = f"JSON, but no object: {type(decoded).__name__}"
            raise errors.BadAnswer(request.name, said, status=answer.status)
        return decoded

    def open(self, request: Request) -> urllib3.BaseHTTPResponse:
        """Send a request; its answer if it is a success, the body unread. The caller closes it.

        Raises:
            errors.ApiError: any other outcome.
        """
        url = f"{self.host}{request.path}"
        if request.query:
            url = f"{url}?{urlencode(request.query)}"
        try:
            answer = self._pools.urlopen(
                request.method,
                url,
                body=request.body,
                headers=self._headers(request),
                timeout=urllib3.Timeout(
                    connect=request.timeout.connect_s, read=request.timeout.read_s
                ),
                # No retries, no waiting for Retry-After inside the call: the callers' own policy
                # knows whether a second try is safe, and this thread is wanted elsewhere.
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self.network_error(request.name, error) from error
        if not 200 <= answer.status < 300:
            body = self._read(request, answer, monotonic() + request.timeout.read_s)
            raise errors.from_answer(request.name, answer.status, answer.headers, body)
        return answer

    def network_error(self, request_name: str, error: Exception) -> errors.Unreachable:
        """What a failed connection means here; after `close` that is named as the cause."""
        if self.is_closed:
            return errors.Unreachable(request_name, "this client was closed", maybe_done=True)
        return errors.from_network(request_name, self.host, error)

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {**self._api.default_headers, "Accept": "application/json"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            # Reads a rotated token again, as the configuration's own hook says.
            self._api.update_params_for_auth(
                headers, [], ["BearerToken"], request.path, request.method, None
            )
        except (OSError, ConfigException) as error:
            said = f"the credential cannot be read: {error}"
            raise errors.KubeconfigError(request.name, said) from error
        return headers

    def _read(self, request: Request, answer: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
        """The whole body, in bounded time and size."""
        parts: list[bytes] = []
        size = 0
        try:
            while part := answer.read1(_READ_BYTES):
                parts.append(part)
                size += len(part)
                if size > ANSWER_LIMIT_BYTES or monotonic() > deadline:
                    answer.close()
                    said = f"the answer did not end within {size} bytes or its time"
                    raise errors.BadAnswer(request.name, said, status=answer.status)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            answer.close()
            raise self.network_error(request.name, error) from error
        answer.release_conn()
        return parts[0] if len(parts) == 1 else b"".join(parts)
