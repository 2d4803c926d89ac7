"""The parent of a lab's processes: `python -m workers.lab.controlplane.supervisor --lab DIR`.

Owns the running processes, lab.json and the control socket of one lab. Every child is tethered: it
dies with this process, whatever ends it. A child that dies by itself is reported, not restarted:
tests and people are to see it. What to run comes from `components.py`; who starts this program is
`lab.py`. Everything happens in the main thread, because the kernel ties a tether to a thread.
"""

import argparse
import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError

from workers.lab.address import (
    Component,
    LabAddress,
    LabFile,
    ProcessId,
    write_atomically,
)
from workers.lab.controlplane.child import Child
from workers.lab.controlplane.child_spec import ChildSpec
from workers.lab.controlplane.components import children_of
from workers.lab.controlplane.control import (
    MAXIMUM_MESSAGE_BYTES,
    ControlAnswer,
    ControlRequest,
    LabCommand,
)
from workers.lab.controlplane.errors import LabCommandRefused, LabError
from workers.lab.controlplane.launch import address_of
from workers.lab.controlplane.pki import ensure_pki
from workers.lab.controlplane.programs import Programs
from workers.lab.controlplane.settings import LaunchPlan
from workers.lab.paths import LabPaths, listen_unix

# Ends in this order: first who uses the others.
_STOP_ORDER: Final = (
    (Component.FLEET, Component.KARPENTER),
    (
        Component.SCHEDULER,
        Component.CONTROLLER_MANAGER,
        Component.API_SERVER,
        Component.TEMPORAL,
    ),
    (Component.ETCD,),
)


def main() -> None:
    """Run one lab until it is told to end, or until the process it is tied to ends."""
    parser = argparse.ArgumentParser(description="supervisor of one fleetmend lab")
    parser.add_argument("--lab", type=Path, required=True, help="the lab directory")
    parser.add_argument("--tied-to", type=int, help="end when this parent process ends")
    arguments = parser.parse_args()
    paths = LabPaths(arguments.lab)
    lock = os.open(paths.supervisor_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"another supervisor runs in {paths.directory}") from None
    _log_as_json()
    asyncio.run(_run(paths, arguments.tied_to))


async def _run(paths: LabPaths, tied_to: int | None) -> None:
    plan = LaunchPlan.model_validate_json(paths.settings_file.read_bytes())
    address = address_of(paths, plan)
    programs = Programs(plan.programs_source, plan.programs)
    specs = children_of(address, plan.settings, plan.ports, programs, ensure_pki(paths.directory))
    supervisor = Supervisor(address, specs)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.end, number.name)
    if tied_to is not None:
        # A process descriptor, not a parent-death signal: the parent may have started us from a
        # thread that ends.
        try:
            descriptor = os.pidfd_open(tied_to)
        except ProcessLookupError:
            return
        if os.getppid() != tied_to:
            return
        loop.add_reader(descriptor, supervisor.end, "the process it is tied to has ended")
    await supervisor.run()


class Supervisor:
    """One lab's processes, from start to end."""

    def __init__(self, address: LabAddress, specs: Iterable[ChildSpec]) -> None:
        """Prepare; nothing runs before `run`."""
        own = ProcessId.of(os.getpid())
        assert own is not None  # this process lives
        self._address = address
        self._own = own
        self._children = {s.component: Child(s, self._publish) for s in specs}
        self._ending = asyncio.Event()
        self._log = structlog.get_logger(__name__).bind(lab=str(address.directory))

    async def run(self) -> None:
        """Start everything, serve commands, and stop everything at the end."""
        paths = self._address.paths
        self._publish()
        listener = listen_unix(paths.control_socket)
        server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=MAXIMUM_MESSAGE_BYTES
        )
        starts = [asyncio.create_task(self._start(c)) for c in self._children.values()]
        try:
            await self._ending.wait()
        finally:
            server.close()
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self._stop_all()
            for path in (paths.control_socket, paths.lab_file):
                path.unlink(missing_ok=True)
        self._log.info("lab ended")

    def end(self, reason: str) -> None:
        """Begin to end the lab."""
        if not self._ending.is_set():
            self._log.info("lab ends", reason=reason)
            self._ending.set()
            self._publish()

    async def _start(self, child: Child) -> None:
        for needed in child.spec.needs:
            await self._children[needed].until_ready()
        try:
            await child.start()
        except LabError as error:
            self._log.error("component did not start", error=str(error))

    async def _stop_all(self) -> None:
        for group in _STOP_ORDER:
            await asyncio.gather(*(self._children[c].stop() for c in group if c in self._children))

    def _publish(self) -> None:
        content = LabFile(
            address=self._address,
            supervisor=self._own,
            components=tuple(child.report() for child in self._children.values()),
            ending=self._ending.is_set(),
        )
        # The directory may be removed under a running lab; the lab then still ends in order.
        with suppress(FileNotFoundError):
            write_atomically(self._address.paths.lab_file, content.model_dump_json(indent=2))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = ControlRequest.model_validate_json(await reader.readline())
            answer = ControlAnswer(refusal=await self._carry_out(request))
        except (ValidationError, ValueError) as error:
            answer = ControlAnswer(refusal=f"not a command: {error}"[:500])
        with suppress(OSError):
            writer.write(answer.model_dump_json().encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _carry_out(self, request: ControlRequest) -> str:
        """Do it; why it could not be done, or an empty string."""
        self._log.info("command", command=request.command, component=request.component)
        if request.component is None:
            self.end("shutdown was asked for")
            return ""
        child = self._children.get(request.component)
        if child is None:
            return f"this lab has no {request.component.value}"
        try:
            match request.command:
                case LabCommand.KILL:
                    await child.kill()
                case LabCommand.STOP:
                    await child.stop()
                case LabCommand.START:
                    await child.start()
                case LabCommand.RESTART:
                    await child.kill()
                    await child.start()
                case LabCommand.SIGNAL:
                    assert request.signal is not None  # ControlRequest checks it
                    child.send(request.signal.number)
        except LabCommandRefused as error:
            return str(error)
        return ""


def _log_as_json() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    main()
