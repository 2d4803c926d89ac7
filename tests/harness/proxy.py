"""A reverse proxy in front of the real API server that breaks things on purpose.

Owns the faults between a client and the server: wrong answers, silence, cut connections, and broken
watches; everything else goes to the real server, so nothing of Kubernetes is imitated. It ends TLS
with a certificate of its own and passes the caller's bearer token on, so callers keep their rights;
for a client certificate the caller gets a token that stands for it between caller and proxy.
The faults themselves are in `tests.harness.proxy_faults`. How to use it:

    with FaultProxy(lab_kubeconfig, tmp_path) as proxy:
        kubeconfig = kubeconfig_through_proxy(proxy, worker_kubeconfig, tmp_path / "worker")
        rule = proxy.add(Answer(409), method="PATCH", path=r"/nodes/gpu-1$")     # the first one
        rule = proxy.add(Drop(forwarded=True), method="POST", path="/eviction", nth=2, times=3)
        ...
        assert rule.wait_fired(10)

`method` is a regular expression for the HTTP method, where a watch counts as "WATCH" and not as
"GET"; `path` is searched for in path and query ("/api/v1/nodes?limit=500"), `body` in what is sent
(so that a rule for a create can be for one node). A rule fires from its
`nth` match on, `times` times (None: until removed). Of several rules that match, the oldest fires.
`proxy.seen()` is every request so far, to run a fault at each call of an episode. `refuse()` and
`accept()` take the server off the network and back; `cut()` resets all connections;
`insert_frame(path, GONE_FRAME)` writes into the watches that stand right now.
"""

import asyncio
import re
import secrets
import ssl
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from tests.harness.proxy_faults import (
    Answer,
    CutWatch,
    Delay,
    Drop,
    EndWatch,
    Fault,
    Hang,
    InsertFrame,
    Rewrite,
    StallWatch,
    WatchFault,
)
from tests.harness.proxy_tls import make_server_certificate
from tests.harness.proxy_upstream import current_entries, file_of, open_session, upstream_tls

_HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_CALL_S = 10.0
BODY_LIMIT = 16 * 1024
_FRAME_LIMIT_BYTES = 16 * 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """One request that reached the proxy.

    Attributes:
        at: seconds since the epoch.
        method: of HTTP, or "WATCH".
        path: path and query.
        agent: the caller's User-Agent.
        body: what was sent, its first BODY_LIMIT characters.
        fault: name of the fault that was done to it; None if it was passed on.
    """

    at: float
    method: str
    path: str
    agent: str
    body: str
    fault: str | None


@dataclass
class Rule:
    """A fault and the requests it is for."""

    fault: Fault
    method: re.Pattern[str]
    path: re.Pattern[str]
    body: re.Pattern[str]
    nth: int
    times: int | None
    matched: int = 0
    fired: int = 0
    is_removed: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def claims(self, method: str, path: str, body: str) -> bool:
        """True if the request is this rule's; counts it."""
        if self.is_removed or not (self.method.fullmatch(method) and self.path.search(path)):
            return False
        if not self.body.search(body):
            return False
        with self._changed:
            self.matched += 1
            due = self.matched >= self.nth and (self.times is None or self.fired < self.times)
            self.fired += due
            self._changed.notify_all()
        return due

    def wait_fired(self, timeout_s: float, *, times: int = 1) -> bool:
        """True once it fired so many times; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.fired >= times, timeout_s)

    def remove(self) -> None:
        """Fire no more. Requests that hang because of it stay so until they are cut."""
        self.is_removed = True


@dataclass(eq=False)
class _OpenWatch:
    path: str
    answer: web.StreamResponse
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, line: bytes) -> None:
        async with self.lock:
            await self.answer.write(line)


class FaultProxy:
    """The proxy; a context manager. All methods may be called from any thread."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        """A proxy for the cluster of a kubeconfig.

        Args:
            kubeconfig: only the server's address and CA are taken from it.
            folder: an existing folder for the proxy's own certificate.
        """
        cluster = current_entries(kubeconfig)[0]
        self._upstream = str(cluster["server"]).rstrip("/")
        self._certificate = make_server_certificate(folder)
        self._rules: list[Rule] = []
        self._seen: list[Seen] = []
        self._watches: set[_OpenWatch] = set()
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._session: aiohttp.ClientSession | None = None
        self._cluster = cluster
        self._base = kubeconfig.parent
        self._certified: dict[str, aiohttp.ClientSession] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_pem(self) -> bytes:
        """The certificate that clients must trust."""
        return self._certificate.pem

    def add(
        self,
        fault: Fault,
        *,
        method: str = ".*",
        path: str = "",
        body: str = "",
        nth: int = 1,
        times: int | None = 1,
    ) -> Rule:
        """Do `fault` to the requests that match; see the module."""
        rule = Rule(fault, re.compile(method), re.compile(path), re.compile(body), nth, times)
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove all rules."""
        for rule in self._rules:
            rule.remove()
        self._rules = []

    def seen(self, *, method: str = ".*", path: str = "") -> list[Seen]:
        """The requests so far that match, oldest first."""
        return [
            one
            for one in list(self._seen)
            if re.fullmatch(method, one.method) and re.search(path, one.path)
        ]

    def token_for_certificate(self, user: dict[str, Any], base: Path) -> str:
        """A bearer token for callers whose user of a kubeconfig has a client certificate.

        Args:
            user: the user's part of the kubeconfig.
            base: where relative paths in it begin.
        """
        return self._do(self._certify(user, base))

    def refuse(self) -> None:
        """Take the server off the network: connections are reset, new ones refused."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Bring the server back, at the same address."""
        self._do(self._listen())

    def cut(self) -> None:
        """Reset every connection, idle ones too; new ones are accepted."""
        self._do(self._cut())

    def insert_frame(self, path: str, line: bytes) -> int:
        """Write a line into each standing watch whose path matches; how many there were."""
        return self._do(self._insert(re.compile(path), line))

    # Inside the loop

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_CALL_S)

    async def _start(self) -> None:
        self._session = open_session(upstream_tls(self._cluster, self._base))
        # With cancellation a client that goes away ends its request to the real server too.
        server = web.Server(self._serve, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        await self._listen()

    async def _listen(self) -> None:
        if self._site is not None:
            return
        assert self._runner is not None
        tls = self._certificate.context()
        self._site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, ssl_context=tls, reuse_address=True
        )
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def _refuse(self) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None
        await self._cut()

    async def _cut(self) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def _insert(self, path: re.Pattern[str], line: bytes) -> int:
        watches = [watch for watch in self._watches if path.search(watch.path)]
        for watch in watches:
            await watch.write(line)
        return len(watches)

    async def _stop(self) -> None:
        await self._refuse()
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        for session in (self._session, *self._certified.values()):
            await session.close()

    async def _certify(self, user: dict[str, Any], base: Path) -> str:
        tls = upstream_tls(self._cluster, self._base)
        assert isinstance(tls, ssl.SSLContext)
        with TemporaryDirectory() as folder:
            tls.load_cert_chain(
                file_of(user, "client-certificate", base, Path(folder)),
                file_of(user, "client-key", base, Path(folder)),
            )
        token = f"proxy-{secrets.token_hex(16)}"
        self._certified[f"Bearer {token}"] = open_session(tls)
        return token

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path
        query = request.rel_url.query
        is_watch = request.method == "GET" and query.get("watch") in ("true", "1")
        method = "WATCH" if is_watch else request.method
        body = await request.read()
        text = body[:BODY_LIMIT].decode("utf-8", "replace")
        rule = next((rule for rule in list(self._rules) if rule.claims(method, path, text)), None)
        fault = None if rule is None else rule.fault
        agent = request.headers.get("User-Agent", "")
        name = None if fault is None else type(fault).__name__
        self._seen.append(Seen(time(), method, path, agent, text, name))
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Answer | Hang | Drop) and not fault.forwarded:
            return await _misbehave(request, fault)
        try:
            async with self._ask(request, body) as answer:
                if is_watch:
                    watch_fault = fault if isinstance(fault, WatchFault) else None
                    return await self._relay_watch(request, answer, watch_fault)
                content = await answer.read()
                if isinstance(fault, Answer | Hang | Drop):
                    return await _misbehave(request, fault)
                if isinstance(fault, Rewrite):
                    content = fault.change(content)
                headers = _passed_on(answer.headers)
                return web.Response(status=answer.status, headers=headers, body=content)
        except aiohttp.ClientError:
            # The real server is away: for the client that must look like a broken connection, not
            # like an answer that the API server never gives.
            return await _misbehave(request, Drop())

    def _ask(
        self, request: web.BaseRequest, body: bytes
    ) -> Any:  # aiohttp's private context manager
        headers = _passed_on(request.headers)
        session = self._certified.get(headers.get("Authorization", ""))
        if session is None:
            session = self._session
        else:
            del headers["Authorization"]
        assert session is not None
        return session.request(
            request.method,
            URL(self._upstream + request.raw_path, encoded=True),
            headers=headers,
            data=body or None,
            allow_redirects=False,
        )

    async def _relay_watch(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, fault: WatchFault | None
    ) -> web.StreamResponse:
        relayed = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
        await relayed.prepare(request)
        watch = _OpenWatch(request.raw_path, relayed)
        self._watches.add(watch)
        try:
            if fault is None:
                await _relay(answer, watch)
            else:
                await _relay(answer, watch, up_to=fault.after_frames)
                await _break_watch(request, watch, fault)
                if not isinstance(fault, EndWatch):
                    await _relay(answer, watch)
            await relayed.write_eof()
        finally:
            self._watches.discard(watch)
        return relayed


async def _relay(
    answer: aiohttp.ClientResponse, watch: _OpenWatch, *, up_to: int | None = None
) -> None:
    """Pass lines on as they come, to the end or so many of them."""
    passed = 0
    while passed != up_to:
        line = await answer.content.readuntil(b"\n", max_size=_FRAME_LIMIT_BYTES)
        if not line:
            return
        await watch.write(line)
        passed += 1


async def _break_watch(request: web.BaseRequest, watch: _OpenWatch, fault: WatchFault) -> None:
    if isinstance(fault, InsertFrame):
        await watch.write(fault.line)
    elif isinstance(fault, CutWatch):
        _abort(request)
    elif isinstance(fault, StallWatch):
        await asyncio.Event().wait()  # until the client goes away or `cut`


async def _misbehave(request: web.BaseRequest, fault: Answer | Hang | Drop) -> web.StreamResponse:
    if isinstance(fault, Hang):
        await asyncio.Event().wait()
    if isinstance(fault, Answer):
        return web.Response(
            status=fault.status,
            headers={"Content-Type": "application/json", **fault.headers()},
            body=fault.content(),
        )
    _abort(request)
    return web.Response(status=500)  # goes nowhere: the connection is gone


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def _passed_on(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
