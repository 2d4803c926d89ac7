"""`fleetmend status` says whether a worker is there that carries episodes on."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client

from tests.harness.processes import Processes, fleetmend
from tests.harness.waiting import wait_until
from workers.cli.outcome import ExitCode
from workers.cli.polling import LIVES_S, read_polling
from workers.lab.address import LabAddress
from workflows.model.identity import task_queue


async def read_at(lab: LabAddress, cluster: str) -> tuple[bool | None, str]:
    polling = await read_polling(await Client.connect(lab.temporal_address), cluster)
    return polling.is_polled, polling.problem


def test_a_task_queue_that_nobody_polls_is_told_and_one_that_is_polled_is_not(
    lab: LabAddress, started: Processes
) -> None:
    """Seen: nothing was repaired, and `status` had no word for it."""
    cluster = "without-a-worker"
    away = {"FLEETMEND_CLUSTER": cluster}
    shown = fleetmend(lab, "status", environment=away)
    assert shown.code == ExitCode.OK, shown.err
    last = shown.out.strip().splitlines()[-1]
    assert last.startswith(f"no worker polls task queue {task_queue(cluster)}: ")
    assert "Deployment fleetmend-worker" in last
    assert "`fleetmend worker`" in last
    told = fleetmend(lab, "status", "--json", environment=away).json["worker"]
    assert told == {"task_queue": task_queue(cluster), "is_polled": False, "problem": last}
    started.worker()

    def polled() -> bool:
        return fleetmend(lab, "status", "--json").json["worker"]["is_polled"] is True

    wait_until(polled, 30, "the worker is seen", saw=started.tails)
    assert "no worker polls" not in fleetmend(lab, "status").out


def test_without_an_answer_nothing_is_said(lab: LabAddress, nobody: str) -> None:
    away = {"TEMPORAL_ADDRESS": nobody}
    answer = fleetmend(lab, "status", "--json", environment=away)
    assert answer.code == ExitCode.UNREACHABLE
    assert answer.json["worker"] == {"task_queue": "", "is_polled": None, "problem": ""}


def test_a_worker_that_has_not_asked_for_long_is_none(
    lab: LabAddress, started: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal remembers a poller for minutes after it has gone."""
    cluster = "one-that-ends"
    worker = started.worker(FLEETMEND_CLUSTER=cluster)
    wait_until(
        lambda: asyncio.run(read_at(lab, cluster))[0] is True, 30, "it is seen", saw=worker.tail
    )
    worker.kill()
    assert timedelta(seconds=LIVES_S) > timedelta(minutes=1), "of a poll that is held open"
    monkeypatch.setattr("workers.cli.polling.LIVES_S", 0.0)
    is_polled, problem = asyncio.run(read_at(lab, cluster))
    assert is_polled is False
    assert "(the last one asked " in problem
