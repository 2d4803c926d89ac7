"""`setup temporal`, `schedules` and `validate` as a person runs them, on a real Temporal."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, ScheduleDescription, ScheduleOverlapPolicy
from temporalio.service import RPCError

from tests.harness.processes import CliAnswer, fleetmend
from workers.cli.outcome import ExitCode
from workers.control.schedules import Ensured, ensure_schedule, wanted_schedules
from workers.control.settings import WorkerSettings
from workers.lab.address import LabAddress
from workers.payloads import DATA_CONVERTER

CLUSTER = "nobody-serves-this"
"""So that no worker of another test meets these schedules."""


@pytest.fixture(autouse=True)
def _none_is_left(lab: LabAddress) -> Iterator[None]:
    yield

    async def remove() -> None:
        client = await connected(lab)
        for name in ("sweep", "validate"):
            with suppress(RPCError):
                await client.get_schedule_handle(f"{name}/{CLUSTER}").delete()

    asyncio.run(remove())


async def connected(lab: LabAddress) -> Client:
    return await Client.connect(lab.temporal_address, data_converter=DATA_CONVERTER)


def described(lab: LabAddress, name: str) -> ScheduleDescription:
    async def describe() -> ScheduleDescription:
        client = await connected(lab)
        return await client.get_schedule_handle(f"{name}/{CLUSTER}").describe()

    return asyncio.run(describe())


def run(lab: LabAddress, *words: str, **environment: str) -> CliAnswer:
    names: Mapping[str, str] = {"FLEETMEND_CLUSTER": CLUSTER, **environment}
    return fleetmend(lab, *words, environment=names)


def done(answer: CliAnswer) -> dict[str, str]:
    assert answer.code == ExitCode.OK, answer.err
    return {row["name"]: row["done"] for row in answer.json["schedules"]}


def listed(lab: LabAddress) -> dict[str, dict[str, Any]]:
    answer = run(lab, "schedules", "list", "--json")
    assert answer.code == ExitCode.OK, answer.err
    return {row["name"]: row for row in answer.json["schedules"]}


def test_setting_up_twice_is_one_schedule_as_it_was(lab: LabAddress) -> None:
    made = done(run(lab, "setup", "temporal", "--json"))
    assert made == {"sweep": "created", "validate": "created"}
    first = described(lab, "validate")
    again = done(run(lab, "setup", "temporal", "--json"))
    assert again == {"sweep": "unchanged", "validate": "unchanged"}
    second = described(lab, "validate")
    assert second.schedule.spec == first.schedule.spec
    assert second.info.last_updated_at == first.info.last_updated_at
    assert second.schedule.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert second.schedule.policy.catchup_window == timedelta(minutes=5)
    assert second.schedule.spec.jitter == timedelta(seconds=60)


def test_what_stands_outlives_a_caller_whose_environment_says_otherwise(lab: LabAddress) -> None:
    """A laptop's environment has not the worker's variables, and its defaults are nobody's word."""
    words = ("setup", "temporal")
    done(run(lab, *words, "--json", FLEETMEND_VALIDATION_INTERVAL_S="3600"))
    answer = run(lab, *words, "--json")
    assert done(answer) == {"sweep": "unchanged", "validate": "differs"}
    told = {row["name"]: row["differences"] for row in answer.json["schedules"]}
    every = {"what": "every", "there": "3600 s", "wanted": "600 s"}
    assert told == {"sweep": [], "validate": [every]}
    shown = run(lab, *words)
    assert shown.code == ExitCode.OK
    line = "every 3600 s there, 600 s by your environment; --correct writes yours"
    assert line in shown.out
    assert listed(lab)["validate"]["every_s"] == 3600.0
    corrected = run(lab, *words, "--correct")
    assert "every 3600 s before, 600 s now" in corrected.out
    assert listed(lab)["validate"]["every_s"] == 600.0


def test_the_worker_s_settings_correct_it_at_its_start(lab: LabAddress) -> None:
    done(run(lab, "setup", "temporal", "--json"))

    async def start() -> Ensured:
        settings = WorkerSettings(cluster=CLUSTER, validation_interval_s=1800.0)
        return await ensure_schedule(await connected(lab), wanted_schedules(settings)[1])

    assert asyncio.run(start()) is Ensured.CORRECTED
    assert listed(lab)["validate"]["every_s"] == 1800.0


def test_a_correction_keeps_a_pause(lab: LabAddress) -> None:
    done(run(lab, "setup", "temporal", "--json"))
    assert run(lab, "schedules", "pause", "validate", "--reason", "busy").code == ExitCode.OK
    words = ("setup", "temporal", "--correct", "--json")
    changed = run(lab, *words, FLEETMEND_VALIDATION_INTERVAL_S="1200")
    assert done(changed) == {"sweep": "unchanged", "validate": "corrected"}
    row = listed(lab)["validate"]
    assert (row["paused"], row["every_s"]) == (True, 1200.0)
    assert "busy" in row["note"]
    assert row["next_at"] is None
    assert run(lab, "schedules", "resume", "validate").code == ExitCode.OK
    assert listed(lab)["validate"]["paused"] is False


def test_what_nobody_has_made_is_listed_as_missing_with_the_remedy(lab: LabAddress) -> None:
    assert listed(lab)["validate"]["exists"] is False
    shown = run(lab, "schedules", "list")
    assert "fleetmend setup temporal" in shown.out
    triggered = run(lab, "schedules", "trigger", "validate")
    assert triggered.code == ExitCode.REFUSED
    assert "fleetmend setup temporal" in triggered.err


def test_a_schedule_of_another_name_is_wrong_usage(lab: LabAddress) -> None:
    answer = run(lab, "schedules", "pause", "stragglers")
    assert answer.code == ExitCode.USAGE
    assert "sweep, validate" in answer.err


def test_the_cluster_must_be_named(lab: LabAddress) -> None:
    for words in (("setup", "temporal"), ("schedules", "list"), ("validate", "a")):
        answer = run(lab, *words, FLEETMEND_CLUSTER="")
        assert answer.code == ExitCode.USAGE
        assert "FLEETMEND_CLUSTER" in answer.err


def test_temporal_away_is_told(lab: LabAddress) -> None:
    for words in (("setup", "temporal"), ("schedules", "list"), ("validate", "a")):
        answer = run(lab, *words, TEMPORAL_ADDRESS="127.0.0.1:1")
        assert answer.code == ExitCode.UNREACHABLE
        assert "TEMPORAL_ADDRESS" in answer.err


@pytest.mark.parametrize(
    "words",
    [(), ("a", "--pool", "p"), ("a", "--level", "5"), ("a", "--level", "0")],
    ids=["nothing", "node and pool", "too high", "too low"],
)
def test_a_validation_names_one_target_and_a_level_that_there_is(words: tuple[str, ...]) -> None:
    assert fleetmend(None, "validate", *words).code == ExitCode.USAGE
