"""A workflow that stands where the runbook would, and only writes down what it is sent.

Owns the recording workflow and the worker that runs it, in a thread of the test's process. With it
a test sees what watch told Temporal, from Temporal's own history, and nothing acts on the nodes.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from workers.lab.address import LabAddress
from workers.payloads import DATA_CONVERTER
from workflows.contracts.messages import NodeFacts, Opening, Report
from workflows.model.identity import task_queue

T = TypeVar("T")
CALL_LIMIT_S = 20.0


@workflow.defn(name="RemediateNode")
class RecordingRun:
    """Lives until `finish`; keeps every signal."""

    @workflow.init
    def __init__(self, opening: Opening) -> None:
        """Signals may come before `run`."""
        self._opening = opening
        self._reports: list[Report] = []
        self._facts: list[NodeFacts] = []
        self._is_done = False

    @workflow.run
    async def run(self, _opening: Opening) -> None:
        await workflow.wait_condition(lambda: self._is_done)

    @workflow.signal
    def report(self, report: Report) -> None:
        self._reports.append(report)
        if report.facts is not None:
            self._facts.append(report.facts)

    @workflow.signal
    def node_changed(self, facts: NodeFacts) -> None:
        self._facts.append(facts)

    @workflow.signal
    def finish(self) -> None:
        self._is_done = True

    @workflow.query
    def opening(self) -> Opening:
        return self._opening

    @workflow.query
    def reports(self) -> list[Report]:
        return self._reports

    @workflow.query
    def facts(self) -> list[NodeFacts]:
        return self._facts


@dataclass
class Recorder:
    """What Temporal knows of the nodes of this test."""

    loop: asyncio.AbstractEventLoop
    client: Client
    cluster: str
    seen: set[str] = field(default_factory=set)

    def runs(self, node: str, uid: str) -> list[WorkflowExecution]:
        """Every run for a Node object, open or closed, by workflow id in the visibility store."""

        async def find() -> list[WorkflowExecution]:
            query = f"WorkflowId = '{self._id(node, uid)}'"
            return [run async for run in self.client.list_workflows(query)]

        return self._wait(find())

    def reports(self, node: str, uid: str) -> list[Report]:
        """The reports that the newest run got, each once; [] without one.

        A signal that was taken and answered too late is sent again, as it was.
        """
        told = self._ask(node, uid, RecordingRun.reports) or []
        return [row for turn, row in enumerate(told) if turn == 0 or row != told[turn - 1]]

    def facts(self, node: str, uid: str) -> list[NodeFacts]:
        """The facts that the newest run got; [] without one."""
        return self._ask(node, uid, RecordingRun.facts) or []

    def opening(self, node: str, uid: str) -> Opening | None:
        """What the newest run was started with."""
        opening: Opening | None = self._ask(node, uid, RecordingRun.opening)
        return opening

    def signals(self, node: str, uid: str) -> list[str]:
        """Names of all signals in the newest run's history, as the server wrote it."""

        async def read() -> list[str]:
            history = await self._handle(node, uid).fetch_history()
            named = (e.workflow_execution_signaled_event_attributes for e in history.events)
            return [attributes.signal_name for attributes in named if attributes.signal_name]

        return self._wait(read())

    def finish(self, node: str, uid: str) -> None:
        """Close the open run; returns when it is closed."""

        async def end() -> None:
            handle = self._handle(node, uid)
            await handle.signal(RecordingRun.finish)
            await handle.result()

        self._wait(end())

    async def terminate_all(self) -> None:
        """Nothing of this test is left open: another worker would not understand it."""
        async for run in self.client.list_workflows(
            f"WorkflowType = 'RemediateNode' AND ExecutionStatus = 'Running' "
            f"AND WorkflowId STARTS_WITH 'node/{self.cluster}/'"
        ):
            if run.status is WorkflowExecutionStatus.RUNNING:
                await self.client.get_workflow_handle(run.id, run_id=run.run_id).terminate()

    def _id(self, node: str, uid: str) -> str:
        return f"node/{self.cluster}/{node}/{uid}"

    def _handle(self, node: str, uid: str) -> Any:
        return self.client.get_workflow_handle(self._id(node, uid))

    def _ask(self, node: str, uid: str, query: Any) -> Any:
        async def ask() -> Any:
            if not [
                r async for r in self.client.list_workflows(f"WorkflowId = '{self._id(node, uid)}'")
            ]:
                return None
            return await self._handle(node, uid).query(query)

        try:
            return self._wait(ask())
        except (RPCError, WorkflowQueryFailedError, TimeoutError):
            return None  # Temporal is away, or its worker has not come back yet

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(CALL_LIMIT_S)


@contextmanager
def recording(lab: LabAddress) -> Iterator[Recorder]:
    """A recording worker that ends with the block; its runs end too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="recorder", daemon=True)
    thread.start()

    def do(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(CALL_LIMIT_S)

    client = do(Client.connect(lab.temporal_address, data_converter=DATA_CONVERTER))

    async def start() -> Worker:
        worker = Worker(
            client,
            task_queue=task_queue(lab.cluster),
            workflows=[RecordingRun],
            # It is a test's own recorder; the sandbox would import the test's modules again.
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        tasks.append(asyncio.create_task(worker.run()))
        return worker

    tasks: list[asyncio.Task[None]] = []
    worker = do(start())
    recorder = Recorder(loop, client, lab.cluster)
    try:
        yield recorder
    finally:
        do(recorder.terminate_all())
        do(worker.shutdown())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_LIMIT_S)
