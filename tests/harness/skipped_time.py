"""A Temporal server on a file of its own, to be killed, and a Schedule whose clock is moved.

Owns the process (started, killed, started again at the same address on the same file) and the
hands on the clock of one Schedule: on to the next moment, or on at once over days, as it finds its
clock after the server was away. The workflows that a tick starts live in real time.
"""

import asyncio
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client, ScheduleDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import TimeSkipper

from tests.harness.temporal_server import IDENTITY
from workers.lab.controlplane.programs import find_temporal
from workers.payloads import DATA_CONVERTER

LOOPBACK = "127.0.0.1"
UP_WITHIN_S = 60.0
LOOK_S = 0.1
SOON_S = 0.02
AS_NAMED = "%Y-%m-%dT%H:%M:%SZ"
"""The moment of a tick, at the end of the id of the run that it starts."""
AT_ONCE = "0s"
HELD = "30s"
"""A timer that is set meanwhile fires so much later, on the next server too."""
PROBED_FOR_S = 1.0
PENDING_S = 2.0
"""A skip that stops at a timer which is held back does so in 10 ms and never ends."""


class FileServer:
    """One server; `kill` and `start` again are an outage."""

    def __init__(self, folder: Path, port: int) -> None:
        self._file = folder / "temporal.db"
        self._port = port
        self._process: Process | None = None

    async def start(self, timers: str = AT_ONCE) -> Client:
        """A client of the server that now answers; `timers` = how late one that is due may fire."""
        dynamic = {
            "frontend.WorkflowTimeSkippingEnabled": "true",
            "history.timerProcessorMaxTimeShift": f'"{timers}"',
        }
        command = [str(find_temporal()), "server", "start-dev", "--headless"]
        command += [f"--ip={LOOPBACK}", f"--port={self._port}", f"--db-filename={self._file}"]
        command += ["--sqlite-pragma=synchronous=OFF", "--log-level=error"]
        for key, value in dynamic.items():
            command += ["--dynamic-config-value", f"{key}={value}"]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdout=DEVNULL, stderr=DEVNULL
        )
        async with asyncio.timeout(UP_WITHIN_S):
            while True:
                try:
                    return await self._connect()
                except (RPCError, RuntimeError):
                    assert self._process.returncode is None, "the server ended"
                    await asyncio.sleep(LOOK_S)

    async def start_held(self) -> None:
        """Started, with timers HELD: a probe has shown it, as the first moments are too early."""
        client = await self.start(HELD)
        async with asyncio.timeout(UP_WITHIN_S):
            while not await _is_held(client):
                pass

    async def kill(self) -> None:
        """SIGKILL, and it is gone."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _connect(self) -> Client:
        client = await Client.connect(
            f"{LOOPBACK}:{self._port}", data_converter=DATA_CONVERTER, identity=IDENTITY
        )
        await client.count_workflows("WorkflowType = 'any'")
        return client


async def _is_held(client: Client) -> bool:
    """False if a workflow with a short delay begins in time; nobody works on it."""
    probe = await client.start_workflow(
        "probe",
        id=f"probe/{uuid4()}",
        task_queue="nobody",
        start_delay=timedelta(seconds=PROBED_FOR_S / 20),
    )
    await asyncio.sleep(PROBED_FOR_S)  # in which it does not begin
    begun = len((await probe.fetch_history()).events) > 1
    await probe.terminate()
    return not begun


@asynccontextmanager
async def file_server(folder: Path, port: int) -> AsyncIterator[FileServer]:
    """A server that is not yet started, and ends with the block."""
    server = FileServer(folder, port)
    try:
        yield server
    finally:
        await server.kill()


@dataclass(frozen=True)
class Run:
    """One run that a tick has started; `tick` is the moment the tick was for."""

    tick: datetime
    began: datetime
    ended: datetime | None


class ScheduleClock:
    """The clock of one Schedule, which the server keeps in a workflow of its own."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._skipper = TimeSkipper(client)
        self._ticker = client.get_workflow_handle(f"temporal-sys-scheduler:{identity}")

    async def now(self) -> datetime:
        """What the Schedule takes for the present."""
        return await self._skipper.get_current_time(self._ticker)

    async def pass_to(self, moment: datetime) -> None:
        """Time passes up to `moment`; what is due until then happens."""
        assert await self._skipper.fast_forward(self._ticker, moment - await self.now())

    async def stop_at_timer(self, within: timedelta) -> None:
        """Time passes up to the Schedule's timer, which a server with HELD timers does not see."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PENDING_S):
                await self._skipper.fast_forward(self._ticker, within)

    async def described(self) -> ScheduleDescription:
        """The Schedule as the server tells it."""
        return await self._client.get_schedule_handle(self._identity).describe()

    async def until_due_after(self, tick: datetime, deadline_s: float) -> None:
        """The Schedule has dealt with that tick, in whatever way."""
        async with asyncio.timeout(deadline_s):
            while not (due := (await self.described()).info.next_action_times) or due[0] < tick:
                await asyncio.sleep(LOOK_S)

    async def ended(self, tick: datetime, deadline_s: float) -> None:
        """The run of that tick began and has ended well."""
        handle = self._client.get_workflow_handle(f"{self._identity}-{tick:{AS_NAMED}}")
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    await handle.result()
                except RPCError as error:
                    if error.status is not RPCStatusCode.NOT_FOUND:
                        raise
                    await asyncio.sleep(SOON_S)
                else:
                    return

    def tick_of(self, run: str) -> datetime:
        """The moment which the tick that started this run was for."""
        named = run.removeprefix(f"{self._identity}-")
        return datetime.strptime(named, AS_NAMED).replace(tzinfo=UTC)

    async def runs(self, workflow: str, *, is_open: bool = False) -> list[Run]:
        """Those the server knows, oldest tick first; `is_open` = only the ones that run."""
        query = f"WorkflowType = '{workflow}'"
        if is_open:
            query += " AND ExecutionStatus = 'Running'"
        found = [
            Run(self.tick_of(run.id), run.start_time, run.close_time)
            async for run in self._client.list_workflows(query)
            if not is_open or run.status is WorkflowExecutionStatus.RUNNING
        ]
        return sorted(found, key=lambda run: run.tick)
