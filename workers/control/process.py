"""The worker process: waits for what it needs, polls Temporal, and ends in order.

Owns the wiring (connection, activities, workflows, sandbox), the order of the start and the end,
and the exit code: 0 after SIGTERM or SIGINT, 1 after a fatal error of the worker, 2 for wrong
settings. What is done in an episode is `workflows` and `activities`; this module decides none of
it. The CLI calls `main`.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

import structlog
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.kube import errors as kube_errors
from activities.kube import paths
from activities.kube.backoff import Backoff
from activities.kube.client import KubeClient
from activities.policy_file import PolicySource
from activities.registry import Dependencies, build_activities
from workers.control.health import WorkerHealth
from workers.control.settings import WorkerSettings, read_settings
from workers.control.standing import ensure_standing
from workers.control.step_logs import StepFacts, tell_refusals_in_one_line
from workers.health import served
from workers.listening import SettingsError
from workers.telemetry import TelemetryError, set_up_telemetry
from workers.temporal_connection import (
    TemporalMisconfigured,
    TemporalUnreachable,
    connect_forever,
    ensure_search_attributes,
)
from workflows.fleet_guard import FleetGuard
from workflows.model.identity import task_queue
from workflows.model.policy import PolicyError
from workflows.remediate_node import RemediateNode
from workflows.sweep import Sweep
from workflows.validate_fleet import ValidateFleet

EXIT_OK: Final = 0
EXIT_FATAL: Final = 1
EXIT_BAD_SETTINGS: Final = 2
WORKFLOWS: Final = (RemediateNode, FleetGuard, Sweep, ValidateFleet)
PASSED_THROUGH: Final = ("workflows.model", "workflows.contracts")
"""Pure and without mutable state: not imported anew for each workflow (time and memory)."""
BACKOFF: Final = Backoff(first_s=0.2, limit_s=5.0)
CALL_S: Final = 10.0
"""Longest single try of something that is repeated until it is so."""
MAX_PROBLEM: Final = 500
"""Longest problem in a line, in characters (style guide, rule 21)."""

Found = TypeVar("Found")

_log = structlog.get_logger(__name__)
_chance = random.Random()


def main() -> int:
    """Run the worker with the environment's settings; its exit code."""
    try:
        set_up_telemetry("worker")
        tell_refusals_in_one_line()
        settings = read_settings()
        kube = KubeClient.from_environment(process="worker", pool_size=settings.kube_pool_size)
    except (SettingsError, TelemetryError, kube_errors.KubeconfigError) as error:
        _log.error("worker cannot start", problem=str(error))
        return EXIT_BAD_SETTINGS
    health = WorkerHealth()
    try:
        with served(settings.listen, health.probes):
            return asyncio.run(_until_signalled(settings, kube, health))
    finally:
        kube.close()


async def _until_signalled(settings: WorkerSettings, kube: KubeClient, health: WorkerHealth) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    stop = asyncio.create_task(stopping.wait())
    beating = asyncio.create_task(health.beat())
    starting = asyncio.create_task(_prepare(settings, kube))
    await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        _log.info("worker ended before it had started")
        return EXIT_OK
    try:
        client = starting.result()
    except (PolicyError, TemporalMisconfigured, kube_errors.Forbidden) as error:
        _log.error("worker cannot start", problem=str(error))
        stop.cancel()
        return EXIT_BAD_SETTINGS
    code = await _poll(client, settings, kube, stop, health)
    beating.cancel()
    return code


async def _prepare(settings: WorkerSettings, kube: KubeClient) -> Client:
    """Everything that must be so before the first poll, however long it takes to come about."""
    await _until_done("the cluster", lambda: asyncio.to_thread(kube.get, paths.version()))
    policies = PolicySource.from_environment(kube)
    await _until_done("the policy", lambda: asyncio.to_thread(policies.read))
    client = await connect_forever()
    await _until_done("the search attributes", lambda: ensure_search_attributes(client))
    _log.info("worker prepared", cluster=settings.cluster, namespace=client.namespace)
    return client


async def _poll(
    client: Client,
    settings: WorkerSettings,
    kube: KubeClient,
    stop: "asyncio.Task[bool]",
    health: WorkerHealth,
) -> int:
    executor = ThreadPoolExecutor(settings.max_concurrent_activities, "activity")
    worker = make_worker(client, settings, kube, executor)
    running = asyncio.create_task(worker.run())
    standing = asyncio.create_task(_stand(client, settings, health))
    await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
    standing.cancel()
    health.unready = "it ends"
    failure: BaseException | None = None
    if not running.done():
        _log.info("worker ends", grace_s=settings.graceful_shutdown_s)
        await worker.shutdown()
    try:
        await running
    except Exception as error:  # noqa: BLE001 - the process's main loop; logged with its traceback
        failure = error
        _log.exception("worker failed", problem=first_cause(error))
    stop.cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    if failure is not None:
        return EXIT_FATAL
    _log.info("worker ended")
    return EXIT_OK


def first_cause(error: BaseException) -> str:
    """What began it: the SDK's own words say only which of its parts failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)[:MAX_PROBLEM] or type(error).__name__


def make_worker(
    client: Client, settings: WorkerSettings, kube: KubeClient, executor: ThreadPoolExecutor
) -> Worker:
    """The Temporal worker, wired; it does not poll yet."""
    dependencies = Dependencies(
        kube=kube,
        temporal=client,
        policies=PolicySource.from_environment(kube),
        cluster=settings.cluster,
    )
    return Worker(
        client,
        task_queue=task_queue(settings.cluster),
        workflows=list(WORKFLOWS),
        activities=build_activities(dependencies),
        activity_executor=executor,
        interceptors=[StepFacts()],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
        ),
        max_concurrent_activities=settings.max_concurrent_activities,
        max_cached_workflows=settings.max_cached_workflows,
        max_heartbeat_throttle_interval=timedelta(seconds=settings.heartbeat_throttle_s),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout_s),
        graceful_shutdown_timeout=timedelta(seconds=settings.graceful_shutdown_s),
        identity=f"worker-{os.getpid()}@{os.uname().nodename}",
    )


async def _stand(client: Client, settings: WorkerSettings, health: WorkerHealth) -> None:
    await _until_done("guard and sweeps", lambda: ensure_standing(client, settings))
    health.unready = ""
    # Tests and readiness probes of a log look for this line.
    _log.info("worker polls", task_queue=task_queue(settings.cluster), cluster=settings.cluster)


async def _until_done(what: str, attempt: Callable[[], Awaitable[Found]]) -> Found:
    """What `attempt` gives, tried again with growing pauses while the other side is away."""
    tries = 0
    while True:
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that meets the answer.
            async with asyncio.timeout(CALL_S):
                return await attempt()
        except (
            kube_errors.Unreachable,
            kube_errors.ServerError,
            TemporalUnreachable,
            RPCError,
            TimeoutError,
        ) as error:
            tries += 1
            problem = str(error) or f"no answer within {CALL_S:g} s"
            _log.warning("waiting", waiting_for=what, problem=problem, attempt=tries)
        await asyncio.sleep(BACKOFF.pause_s(tries, _chance))
