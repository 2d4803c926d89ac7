"""One supervised process: started, probed until ready, watched until it ends.

Owns the life of a single child: its stage, its log file, its signals. Knows nothing of the other
children or of lab.json; it calls back at each change. Used by `supervisor.py` only.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from workers.lab.address import ComponentReport, ComponentStage, ProcessId
from workers.lab.controlplane.child_spec import LOOPBACK, ChildSpec
from workers.lab.controlplane.errors import LabCommandRefused, LabError
from workers.lab.controlplane.tether import tether

READY_LIMIT_S: Final = 120.0
PROBE_PAUSE_S: Final = 0.05
PORT_LIMIT_S: Final = 15.0
KILL_LIMIT_S: Final = 10.0
LAST_LINES: Final = 15
LAST_BYTES: Final = 32768


class Child:
    """One process of a lab; may be ended and started again."""

    def __init__(self, spec: ChildSpec, changed: Callable[[], None]) -> None:
        """Prepare; nothing runs before `start`."""
        self.spec = spec
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._process_id: ProcessId | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stage = ComponentStage.STARTING
        self._ready = asyncio.Event()
        self._is_end_wanted = False
        self._exit_code: int | None = None
        self._last_lines: tuple[str, ...] = ()
        self._log = structlog.get_logger(__name__).bind(component=spec.component.value)

    def report(self) -> ComponentReport:
        """How it stands now."""
        return ComponentReport(
            component=self.spec.component,
            stage=self._stage,
            process=self._process_id,
            address=self.spec.address,
            log=self.spec.log,
            exit_code=self._exit_code,
            last_lines=self._last_lines,
        )

    async def until_ready(self) -> None:
        """Wait, without limit, until it has become ready once."""
        await self._ready.wait()

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            LabCommandRefused: it runs already, its port is taken, it died, or it took too long.
            LabError: what must be there before it could not be prepared.
        """
        if self._process is not None:
            raise LabCommandRefused(f"{self.spec.component.value} runs already")
        await self._until_ports_free()
        await self._prepare()
        started = time.monotonic()
        self._is_end_wanted = False
        self._exit_code, self._last_lines = None, ()
        process = await self._spawn()
        self._process, self._process_id = process, ProcessId.of(process.pid)
        self._watcher = asyncio.create_task(self._watch(process))
        self._enter(ComponentStage.STARTING)
        while time.monotonic() - started < READY_LIMIT_S:
            if self._process is not process:
                raise LabCommandRefused(f"{self.spec.component.value} died before it was ready")
            if await self.spec.probe.is_ready() and self._process is process:
                self._log.info("ready", after_s=round(time.monotonic() - started, 3))
                self._ready.set()
                self._enter(ComponentStage.READY)
                return
            await asyncio.sleep(PROBE_PAUSE_S)
        raise LabCommandRefused(
            f"{self.spec.component.value} was not ready after {READY_LIMIT_S:.0f} s; "
            f"see {self.spec.log}"
        )

    async def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone. Fine if it isn't there."""
        if self._process is None:
            return
        self.send(signal.SIGKILL)
        await self._until_gone(KILL_LIMIT_S)

    async def stop(self) -> None:
        """End it by SIGTERM, after the grace by SIGKILL; returns when it is gone."""
        if self._process is None:
            return
        self.send(signal.SIGTERM)
        with suppress(LabCommandRefused):
            await self._until_gone(self.spec.stop_grace_s)
            return
        await self.kill()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal. One that ends it is not taken for an accident.

        Raises:
            LabCommandRefused: it does not run.
        """
        if self._process is None:
            raise LabCommandRefused(f"{self.spec.component.value} does not run")
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            self._is_end_wanted = True
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _prepare(self) -> None:
        if self.spec.prepare is None:
            return
        try:
            # In a thread: it waits for the API server, and the other children start meanwhile.
            await asyncio.to_thread(self.spec.prepare)
        except LabError as error:
            self._last_lines = (str(error)[:500],)
            self._enter(ComponentStage.DIED)
            raise

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self.spec.log.open("ab") as log:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            log.write(f"--- {now} starting {self.spec.command[0]}\n".encode())
            log.flush()
            return await asyncio.create_subprocess_exec(
                *self.spec.command,
                cwd=self.spec.folder,
                env=os.environ | dict(self.spec.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the supervisor alone
                preexec_fn=tether(os.getpid()),
            )

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        exit_code = await process.wait()
        self._process, self._process_id, self._exit_code = None, None, exit_code
        if self._is_end_wanted:
            self._log.info("ended on request", exit_code=exit_code)
            self._enter(ComponentStage.STOPPED)
            return
        self._last_lines = last_lines(self.spec.log)
        self._log.error("died", exit_code=exit_code, last_lines=self._last_lines)
        self._enter(ComponentStage.DIED)

    async def _until_gone(self, limit_s: float) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        done, _ = await asyncio.wait([watcher], timeout=limit_s)
        if not done:
            raise LabCommandRefused(
                f"{self.spec.component.value} still runs {limit_s:.0f} s after the signal"
            )

    async def _until_ports_free(self) -> None:
        deadline = time.monotonic() + PORT_LIMIT_S
        while taken := [port for port in self.spec.ports if not is_port_free(port)]:
            if time.monotonic() > deadline:
                raise LabCommandRefused(
                    f"{self.spec.component.value} needs port {taken[0]}, which another process "
                    "holds"
                )
            await asyncio.sleep(PROBE_PAUSE_S)

    def _enter(self, stage: ComponentStage) -> None:
        self._stage = stage
        self._changed()


def is_port_free(port: int) -> bool:
    """Whether a server could listen on a loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Go's listeners do: old connections in TIME_WAIT don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def last_lines(log: Path) -> tuple[str, ...]:
    """The end of a log, bounded in lines and bytes; empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LAST_BYTES))
            tail = file.read(LAST_BYTES)
    except OSError:
        return ()
    lines = tail.decode(errors="replace").splitlines()
    return tuple(line[:500] for line in lines[-LAST_LINES:])
