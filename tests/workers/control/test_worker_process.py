"""The worker process: what it waits for, what it brings about, and how it ends."""

import asyncio
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest
import urllib3
from temporalio.client import Client

from tests.harness.policies import write_policy
from tests.harness.processes import WORKING, Processes, processes
from tests.harness.starts import start_cold
from tests.harness.waiting import wait_until
from workers.control.health import STUCK_AFTER_S, WorkerHealth
from workers.control.settings import read_settings
from workers.lab.address import Component, LabAddress
from workers.lab.controlplane.lab import Lab
from workers.lab.controlplane.programs import find_temporal
from workers.listening import SettingsError
from workers.temporal_connection import (
    SEARCH_ATTRIBUTES,
    connect_or_explain,
    ensure_search_attributes,
    read_target,
)
from workflows.model.identity import guard_workflow_id, sweep_workflow_id


async def connected(lab: LabAddress, namespace: str = "default") -> Client:
    variables = {"TEMPORAL_ADDRESS": lab.temporal_address, "TEMPORAL_NAMESPACE": namespace}
    return await connect_or_explain(read_target(variables), timeout_s=20)


def on_namespace(lab: LabAddress, verb: str, namespace: str) -> None:
    """`create` or `delete` one, as Temporal's operators do."""
    words = ["operator", "namespace", verb, "--address", lab.temporal_address, "-n", namespace]
    sure = ["--yes"] if verb == "delete" else []
    subprocess.run([str(find_temporal()), *words, *sure], check=True)


async def test_attributes_are_registered_where_they_are_missing(lab: LabAddress) -> None:
    namespace = "attributes"
    await asyncio.to_thread(on_namespace, lab, "create", namespace)
    client = await connected(lab, namespace)
    await ensure_search_attributes(client)
    # Again finds them there.
    await ensure_search_attributes(client)
    assert len(SEARCH_ATTRIBUTES) == 7


async def test_two_workers_bring_about_one_guard_and_one_schedule(
    lab: LabAddress, started: Processes
) -> None:
    started.worker(FLEETMEND_SWEEP_INTERVAL_S="30")
    started.worker(FLEETMEND_SWEEP_INTERVAL_S="40")
    client = await connected(lab)
    guard = await client.get_workflow_handle(guard_workflow_id(lab.cluster)).describe()
    assert guard.status is not None
    assert guard.status.name == "RUNNING"
    schedule = await client.get_schedule_handle(sweep_workflow_id(lab.cluster)).describe()
    (interval,) = schedule.schedule.spec.intervals
    assert interval.every == timedelta(seconds=40)
    assert schedule.schedule.policy.overlap.name == "SKIP"
    assert schedule.schedule.policy.catchup_window == timedelta(seconds=180)


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and text; status 0 = nobody listens."""
    try:
        answer = urllib3.request(
            "GET", f"http://127.0.0.1:{port}/{path}", timeout=5.0, retries=False
        )
    except urllib3.exceptions.HTTPError:
        return 0, ""
    return answer.status, answer.data.decode()


def test_it_is_ready_when_it_polls_and_healthy_before(
    started: Processes, unused_tcp_port_factory: Callable[[], int]
) -> None:
    port, nobody = unused_tcp_port_factory(), unused_tcp_port_factory()
    waiting = started.start(
        "worker",
        {
            "FLEETMEND_WORKER_LISTEN": f"127.0.0.1:{port}",
            "TEMPORAL_ADDRESS": f"127.0.0.1:{nobody}",
        },
    )
    wait_until(lambda: waiting.logged("waiting for Temporal"), 30, "it waits", saw=waiting.tail)
    assert asked(port, "healthz") == (200, "ok\n")
    status, text = asked(port, "readyz")
    assert (status, "Temporal" in text) == (503, True)
    waiting.end()
    polling = started.worker(FLEETMEND_WORKER_LISTEN=f"127.0.0.1:{port}")
    assert asked(port, "readyz") == (200, "ok\n"), polling.tail()
    assert asked(port, "metrics")[0] == 404


def test_a_worker_whose_loop_stands_is_to_be_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    health = WorkerHealth()
    assert health.unhealthy() == ""
    later = monotonic() + STUCK_AFTER_S + 1
    monkeypatch.setattr("workers.control.health.monotonic", lambda: later)
    assert "its loop stands" in health.unhealthy()


def test_it_starts_cold_and_sigterm_ends_it_in_order(started: Processes) -> None:
    started.start_by = start_cold
    worker = started.worker()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(20) == 0, worker.tail()
    assert worker.logged("worker ended")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_namespace_that_is_deleted_ends_it_with_1_and_the_reason(
    lab: LabAddress, started: Processes
) -> None:
    """The server forgets the namespace within a minute, and a poll that waits lasts another."""
    namespace = "doomed"
    on_namespace(lab, "create", namespace)
    worker = started.worker(TEMPORAL_NAMESPACE=namespace)
    on_namespace(lab, "delete", namespace)
    assert worker.process.wait(300) == 1, worker.tail()
    (failure,) = worker.logged("worker failed")
    assert failure["level"] == "error"
    assert f"Namespace {namespace} is not found" in failure["problem"]
    assert "Traceback" in failure["exception"]


def test_it_waits_for_temporal_and_then_goes_on(
    lab: LabAddress, lab_hands: Lab, started: Processes
) -> None:
    lab_hands.kill(Component.TEMPORAL)
    try:
        worker = started.start("worker")
        waiting = "waiting for Temporal"
        wait_until(lambda: worker.logged(waiting), 30, "it waits for Temporal", saw=worker.tail)
        assert lab.temporal_address in worker.logged(waiting)[0]["problem"]
        assert worker.is_alive()
    finally:
        lab_hands.start(Component.TEMPORAL)
    wait_until(lambda: worker.logged(WORKING), 60, "it polls", saw=worker.tail)


def test_sigterm_ends_it_while_it_waits(lab: LabAddress, tmp_path: Path) -> None:
    with processes(lab, tmp_path, {"TEMPORAL_ADDRESS": "127.0.0.1:1"}) as own:
        worker = own.start("worker")
        wait_until(lambda: worker.logged("waiting for Temporal"), 30, "it waits", saw=worker.tail)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0, worker.tail()


def test_a_policy_that_cannot_be_used_stops_it(started: Processes, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    write_policy(policy, ["pool"])
    policy.write_text(policy.read_text() + "\npoools: []\n")
    worker = started.start("worker", {"FLEETMEND_POLICY": str(policy)})
    assert worker.process.wait(60) == 2, worker.tail()
    assert "poools" in worker.tail()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FLEETMEND_CLUSTER", "", "FLEETMEND_CLUSTER"),
        ("FLEETMEND_MAX_CACHED_WORKFLOWS", "many", "FLEETMEND_MAX_CACHED_WORKFLOWS"),
        ("FLEETMEND_WORKER_LISTEN", "9473", "FLEETMEND_WORKER_LISTEN: '9473' is no address"),
        ("FLEETMEND_SWEEP_INTERVAL_S", "0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_setting_is_told_with_its_variable(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_settings({"FLEETMEND_CLUSTER": "c", variable: value})
