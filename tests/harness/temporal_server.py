"""A Temporal dev server of a test's own: real, in memory, gone afterwards.

Owns the flags (timers to the millisecond, short limits where a test asks for them), the search
attributes and the sandbox as the worker process sets it. Tests that need a cluster too use the
session's lab instead.
"""

import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from workers.payloads import DATA_CONVERTER
from workflows.search_attributes import ALL

IDENTITY = "tests"
"""Instead of `pid@host`: recorded histories name no machine."""
TRIES = 8
# A server's timers are otherwise rounded up to a second.
EXACT_TIMERS = {"history.timerProcessorMaxTimeShift": '"0s"'}


def sandbox() -> SandboxedWorkflowRunner:
    """As `workers/control/process.py` sets it: the pure part is shared by all runs."""
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "workflows.model", "workflows.contracts"
        )
    )


@asynccontextmanager
async def dev_server(settings: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    """A connected client of a fresh server; `settings` are dynamic configuration, as JSON."""
    flags: list[str] = []
    for key, value in {**EXACT_TIMERS, **(settings or {})}.items():
        flags += ["--dynamic-config-value", f"{key}={value}"]
    beside = Path(sys.executable).with_name("temporal")
    program = str(beside) if beside.exists() else shutil.which("temporal")
    assert program, "no `temporal` beside python or on PATH: make venv"
    async with await _started(program, flags) as environment:
        yield environment.client


async def _started(program: str, flags: Sequence[str]) -> WorkflowEnvironment:
    """The SDK gives a server 5 s to answer, which on a busy machine it may not do at once."""
    for left in reversed(range(TRIES)):
        try:
            return await WorkflowEnvironment.start_local(
                data_converter=DATA_CONVERTER,
                identity=IDENTITY,
                search_attributes=ALL,
                dev_server_existing_path=program,
                dev_server_log_level="error",
                dev_server_extra_args=flags,
            )
        except RuntimeError as error:
            if not left or "did not start within" not in str(error):
                raise
    raise AssertionError("the last try returns or raises")
