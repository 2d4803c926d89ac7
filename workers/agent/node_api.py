"""The agent's two requests: GET its own Node, PATCH that Node's status.

Owns one kept HTTPS connection to the API server, the bounds and deadlines of what comes back, the
token (read again for each request: the kubelet renews the file) and the kinds of refusal. A small
client of its own, because the official one costs more memory than the whole agent may take.
Repeats nothing but a request on a connection that the server had closed; `reporter.py` does.
"""

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from workers.agent.settings import AgentSettings

REQUEST_S: Final = 5.0
"""Of one request, connection and answer included; the API server answers in milliseconds."""
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""etcd keeps no object above 1.5 MiB; JSON is up to twice as long as protobuf."""
MAX_HEADERS: Final = 128
MAX_LINE_BYTES: Final = 16 * 1024
MAX_TOKEN_BYTES: Final = 64 * 1024
MAX_RETRY_AFTER_S: Final = 60.0
FIELD_MANAGER: Final = "fleetmend-agent"
STRATEGIC: Final = "application/strategic-merge-patch+json"


class Problem(StrEnum):
    """Why a request brought no Node."""

    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    BUSY = "busy"
    REFUSED = "refused"


_PROBLEMS: Final = {
    401: Problem.UNAUTHORIZED,
    403: Problem.FORBIDDEN,
    404: Problem.NOT_FOUND,
    409: Problem.CONFLICT,
    429: Problem.BUSY,
}


class ApiProblem(Exception):
    """The API server did not do it, or it is not known whether it did."""

    def __init__(self, problem: Problem, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{problem}: {message[:400]}")
        self.problem = problem
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class OwnNode:
    """What the agent needs to know of its Node."""

    uid: str
    boot_id: str
    """As the kubelet reported it; "" = not yet."""
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    body: bytes = b""
    content_type: str = "application/json"


class _Closed(Exception):
    """A kept connection was closed before it said anything."""


class NodeApi:
    """Reads and patches the agent's own Node, one request at a time."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._path = f"/api/v1/nodes/{settings.node}"

    async def read(self) -> OwnNode:
        """The Node as it stands.

        Raises:
            ApiProblem: no Node came back.
        """
        return await self._node(_Request("GET", self._path))

    async def patch_status(self, body: Any) -> OwnNode:
        """One strategic-merge patch of nodes/status; the Node as it stands then.

        Raises:
            ApiProblem: refused, or not known to be done.
        """
        content = json.dumps(body, separators=(",", ":")).encode()
        path = f"{self._path}/status?fieldManager={FIELD_MANAGER}"
        return await self._node(_Request("PATCH", path, content, STRATEGIC))

    def close(self) -> None:
        """Give the connection up."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()

    async def _node(self, request: _Request) -> OwnNode:
        answer = await self._send(request)
        try:
            content = json.loads(answer.body) if answer.body else {}
        except ValueError:
            content = {}
        if not isinstance(content, dict):
            content = {}
        if answer.status not in (200, 201):
            raise _problem(answer, str(content.get("message", ""))[:400])
        return _own_node(content)

    async def _send(self, request: _Request) -> _Answer:
        try:
            async with asyncio.timeout(REQUEST_S):
                try:
                    return await self._exchange(request)
                except _Closed:
                    # Both requests may be sent twice: the second finds what the first did.
                    self.close()
                    return await self._exchange(request)
        except TimeoutError as error:
            self.close()
            raise ApiProblem(Problem.UNREACHABLE, f"no answer within {REQUEST_S:g} s") from error
        except (OSError, EOFError, ValueError, ssl.SSLError, _Closed) as error:
            self.close()
            said = f"{type(error).__name__} {error}"
            raise ApiProblem(Problem.UNREACHABLE, said) from error
        except BaseException:
            self.close()
            raise

    async def _exchange(self, request: _Request) -> _Answer:
        is_kept = self._streams is not None
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        try:
            writer.write(self._head(request) + request.body)
            await writer.drain()
            status_line = await reader.readline()
        except (OSError, EOFError) as error:
            if is_kept:
                raise _Closed(str(error)) from error
            raise
        if not status_line:
            raise _Closed("closed without an answer")
        answer = await _read_answer(status_line, reader)
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Read at each connection: a cluster's authority may change while the agent lives.
        context.load_verify_locations(self._settings.account / "ca.crt")
        host, port = self._settings.api_host, self._settings.api_port
        return await asyncio.open_connection(host, port, ssl=context, limit=MAX_LINE_BYTES)

    def _head(self, request: _Request) -> bytes:
        host = self._settings.api_host
        host = f"[{host}]" if ":" in host else host
        lines = [
            f"{request.method} {request.path} HTTP/1.1",
            f"Host: {host}:{self._settings.api_port}",
            f"Authorization: Bearer {self._token()}",
            "Accept: application/json",
            "User-Agent: fleetmend-agent",
        ]
        if request.body:
            lines.append(f"Content-Type: {request.content_type}")
            lines.append(f"Content-Length: {len(request.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _token(self) -> str:
        with (self._settings.account / "token").open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
        if not token or not token.isprintable():
            raise ValueError("the token's file holds no token")
        return token


async def _read_answer(status_line: bytes, reader: asyncio.StreamReader) -> _Answer:
    parts = status_line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise ValueError("not an HTTP answer")
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = (await reader.readline()).decode("latin-1")
        if not line.endswith("\n"):
            raise EOFError("cut in its headers")
        if not line.strip():
            break
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    else:
        raise ValueError(f"over {MAX_HEADERS} headers")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        content = await _read_chunks(reader)
    else:
        content = await reader.readexactly(_length(headers.get("content-length", "0"), 10))
    return _Answer(int(parts[1]), headers, content)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    content = bytearray()
    while True:
        line = await reader.readline()
        length = _length(line.split(b";")[0].strip().decode("ascii"), 16)
        chunk = await reader.readexactly(length)
        await reader.readline()
        if not length:
            return bytes(content)
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise ValueError(f"an answer over {MAX_BODY_BYTES} bytes")


def _length(text: str, base: int) -> int:
    length = int(text, base)
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError(f"an answer over {MAX_BODY_BYTES} bytes")
    return length


def _problem(answer: _Answer, message: str) -> ApiProblem:
    problem = _PROBLEMS.get(answer.status)
    if problem is None:
        problem = Problem.BUSY if answer.status >= 500 else Problem.REFUSED
    retry_after_s = 0.0
    with contextlib.suppress(ValueError):
        retry_after_s = min(MAX_RETRY_AFTER_S, float(answer.headers.get("retry-after", "0")))
    return ApiProblem(problem, f"HTTP {answer.status} {message}", max(0.0, retry_after_s))


def _own_node(content: dict[str, Any]) -> OwnNode:
    meta = content.get("metadata") or {}
    status = content.get("status") or {}
    uid = str(meta.get("uid") or "")
    if not uid:
        raise ApiProblem(Problem.REFUSED, "the answer is no Node")
    return OwnNode(
        uid=uid,
        boot_id=str((status.get("nodeInfo") or {}).get("bootID") or ""),
        conditions={str(c.get("type")): c for c in status.get("conditions") or []},
        annotations=dict(meta.get("annotations") or {}),
    )
