"""Asking one process of the lab whether it is ready.

Owns the kinds of probes; each is a value with one question, `is_ready`, that never raises for a
process that is merely not there yet. Knows nothing of who is asked why: `components.py` chooses.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from workers.lab.paths import connect_unix

PROBE_TIMEOUT_S: Final = 2.0
MAXIMUM_ANSWER_BYTES: Final = 1 << 20


class Probe(Protocol):
    """One question to one process."""

    async def is_ready(self) -> bool:
        """Whether it is ready now."""


@dataclass(frozen=True)
class NoProbe:
    """For a process that offers nothing to ask: it is ready once it runs."""

    async def is_ready(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class SocketProbe:
    """Somebody accepts connections at a Unix socket."""

    path: Path

    async def is_ready(self) -> bool:
        """Whether a connection was accepted."""
        try:
            # A Unix connect answers at once: accepted into the queue, or refused.
            connect_unix(self.path, timeout_s=0.2).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class HttpsProbe:
    """A path answers 200 over TLS of the lab's CA."""

    url: str
    ca: Path

    async def is_ready(self) -> bool:
        """Whether it did."""
        context = ssl.create_default_context(cafile=str(self.ca))
        status, _ = await _get(self.url, context)
        return status == 200


@dataclass(frozen=True)
class HttpProbe:
    """A path answers 200, without TLS."""

    url: str

    async def is_ready(self) -> bool:
        """Whether it did."""
        status, _ = await _get(self.url, None)
        return status == 200


@dataclass(frozen=True)
class TemporalProbe:
    """Temporal's frontend answers, and knows all our search attributes."""

    ui_url: str
    search_attributes: frozenset[str]

    async def is_ready(self) -> bool:
        """Whether it does."""
        url = f"{self.ui_url}/api/v1/namespaces/default/search-attributes"
        status, body = await _get(url, None)
        if status != 200:
            return False
        try:
            known = json.loads(body)["customAttributes"]
        except (ValueError, KeyError, TypeError):
            return False
        return self.search_attributes <= set(known)


async def _get(url: str, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    """Status and body of one GET; status 0 = no answer."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await _exchange(url, context)
    except (OSError, TimeoutError, ValueError, IndexError, asyncio.IncompleteReadError):
        return 0, b""


async def _exchange(url: str, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        # HTTP/1.0: the server closes after the answer and doesn't chunk it.
        writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read(MAXIMUM_ANSWER_BYTES)
        while chunk := await reader.read(MAXIMUM_ANSWER_BYTES - len(answer)):
            answer += chunk
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(None, 2)[1]), body
