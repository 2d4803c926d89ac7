"""Health and metrics over HTTP: /healthz and /metrics, in the agent's own loop.

Owns the two answers; what the metrics say is `metrics.py`'s. The loop itself answers /healthz: a
loop that is stuck gives no answer, and a task that died has ended the process. What the devices or
the API server do is no reason to restart an agent: conditions and /metrics tell it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from workers.listening import Listen

READ_S: Final = 5.0
MAX_LINE_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100


class HealthServer:
    """Serves both paths from `start` until `stop`."""

    def __init__(self, listen: Listen, metrics: Callable[[], str]) -> None:
        self._listen = listen
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Begin to answer; the port.

        Raises:
            OSError: the address is taken or not ours.
        """
        self._server = await asyncio.start_server(
            self._serve, self._listen.host, self._listen.port, limit=MAX_LINE_BYTES
        )
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """End."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_S):
                path = await _read_path(reader)
                status, text = self._answer(path)
                content = text.encode()
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + content)
                await writer.drain()
        except (OSError, EOFError, ValueError, TimeoutError):
            pass  # whoever asked has gone, or asked for nothing
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    def _answer(self, path: str) -> tuple[str, str]:
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/metrics":
            return "200 OK", self._metrics()
        return "404 Not Found", "ask for /healthz or /metrics\n"


async def _read_path(reader: asyncio.StreamReader) -> str:
    words = (await reader.readline()).decode("latin-1").split()
    for _ in range(MAX_HEADERS):
        if not (await reader.readline()).strip():
            break
    return words[1] if len(words) > 1 and words[0] == "GET" else ""
