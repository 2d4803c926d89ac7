"""A person is told within 5 s what cannot be reached, where, and what to do."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.harness.processes import CliAnswer, fleetmend
from tests.harness.starts import start_cold
from workers.cli.cluster import open_cluster
from workers.cli.outcome import CommandError, ExitCode
from workers.lab.address import Component, LabAddress
from workers.lab.controlplane.lab import Lab
from workflows.model.identity import guard_workflow_id, task_queue

PATIENCE_S = 5.0
BUSY_FACTOR = 3
"""Where the bare start of a command takes seconds, the machine is busy with other things; then
the bound is this many starts."""
BUSY_S = 60.0
TRIES = 3


@contextmanager
def frozen(lab: Lab, component: Component) -> Iterator[None]:
    lab.stop_signal(component)
    try:
        yield
    finally:
        lab.continue_signal(component)


@pytest.fixture(scope="module")
def start_s(lab: LabAddress) -> float:
    return bare_start_s(lab)


def bare_start_s(lab: LabAddress) -> float:
    """How long a command takes here when everything answers at once: refused by name."""
    begun = time.monotonic()
    answer = fleetmend(lab, "pause", "no-such-node", start_by=start_cold)
    assert answer.code == ExitCode.REFUSED, answer.err
    return time.monotonic() - begun


def told(
    lab: LabAddress, start_s: float, *words: str, environment: Mapping[str, str] | None = None
) -> CliAnswer:
    """The command's answer, which comes in time; a moment in which the machine is busier is borne."""
    took_s: list[float] = []
    while len(took_s) < TRIES:
        start_s = max(start_s, bare_start_s(lab)) if took_s else start_s
        begun = time.monotonic()
        answer = fleetmend(
            lab,
            *words,
            environment=environment,
            timeout_s=PATIENCE_S + BUSY_S,
            start_by=start_cold,
        )
        took_s.append(time.monotonic() - begun)
        if took_s[-1] < max(PATIENCE_S, BUSY_FACTOR * start_s):
            return answer
    raise AssertionError(
        f"an explanation takes {took_s} s; a command starts within {start_s:.2f} s"
    )


def test_temporal_refused(lab: LabAddress, nobody: str, start_s: float) -> None:
    answer = told(
        lab, start_s, "pause", "--fleet", "--reason", "x", environment={"TEMPORAL_ADDRESS": nobody}
    )
    # The ConfigMap is the truth: the pause holds although the guard could not be told.
    assert answer.code == ExitCode.OK
    assert f"cannot reach Temporal at {nobody}" in answer.out.replace("\n", " ")
    assert fleetmend(lab, "resume", "--fleet").code == ExitCode.OK


@pytest.mark.parametrize("words", [("retire", "{node}"), ("approve", "{node}")])
def test_a_word_that_needs_temporal_ends_with_3(
    lab: LabAddress, nobody: str, start_s: float, a_node: str, words: tuple[str, str]
) -> None:
    command = [word.format(node=a_node) for word in words]
    answer = told(lab, start_s, *command, "--json", environment={"TEMPORAL_ADDRESS": nobody})
    assert answer.code == ExitCode.UNREACHABLE
    assert nobody in answer.json["error"]
    assert "TEMPORAL_ADDRESS" in answer.json["error"]


def test_temporal_hung(lab: LabAddress, lab_hands: Lab, start_s: float, a_node: str) -> None:
    with frozen(lab_hands, Component.TEMPORAL):
        answer = told(lab, start_s, "retire", a_node)
    assert answer.code == ExitCode.UNREACHABLE
    assert lab.temporal_address in answer.err
    assert "no answer within" in answer.err
    assert "Next:" in answer.err


def test_status_without_temporal_tells_what_the_cluster_knows(
    lab: LabAddress, nobody: str, a_node: str
) -> None:
    answer = fleetmend(lab, "status", "--json", environment={"TEMPORAL_ADDRESS": nobody})
    assert answer.code == ExitCode.UNREACHABLE
    assert nobody in answer.json["temporal"]
    assert a_node in [row["node"] for row in answer.json["nodes"]]


def test_node_without_temporal_tells_what_the_cluster_knows(
    lab: LabAddress, nobody: str, a_node: str
) -> None:
    answer = fleetmend(lab, "node", a_node, environment={"TEMPORAL_ADDRESS": nobody})
    assert answer.code == ExitCode.UNREACHABLE
    assert "its story is missing" in answer.out
    assert a_node in answer.out


def test_cluster_refused(lab: LabAddress, nobody: str, start_s: float, elsewhere: str) -> None:
    answer = told(lab, start_s, "status", environment={"KUBECONFIG": elsewhere})
    assert answer.code == ExitCode.UNREACHABLE
    assert nobody in answer.err
    assert "KUBECONFIG" in answer.err


def test_cluster_hung(lab: LabAddress, lab_hands: Lab, start_s: float) -> None:
    with frozen(lab_hands, Component.API_SERVER):
        answer = told(lab, start_s, "status")
    assert answer.code == ExitCode.UNREACHABLE
    assert lab.api_url in answer.err


def test_a_missing_kubeconfig_is_named(lab: LabAddress) -> None:
    answer = fleetmend(lab, "status", environment={"KUBECONFIG": "/no/such/file"})
    assert answer.code == ExitCode.UNREACHABLE
    assert "/no/such/file" in answer.err


def test_a_kubeconfig_that_is_a_directory_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    with pytest.raises(CommandError, match="it is a directory") as told, open_cluster():
        pass
    assert told.value.code is ExitCode.UNREACHABLE


async def leave_a_guard(lab: LabAddress, cluster: str) -> None:
    """What a worker leaves behind that has stood once and is gone."""
    client = await Client.connect(lab.temporal_address)
    await client.start_workflow(
        "FleetGuard", id=guard_workflow_id(cluster), task_queue=task_queue(cluster)
    )


def test_a_word_without_a_worker_is_sent_and_said_to_be_unconfirmed(
    lab: LabAddress, a_node: str
) -> None:
    cluster = "without-a-worker"
    answer = fleetmend(lab, "retire", a_node, "--json", environment={"FLEETMEND_CLUSTER": cluster})
    assert answer.code == ExitCode.REFUSED
    assert f"no worker has worked for cluster '{cluster}'" in answer.json["error"]
    assert "FLEETMEND_CLUSTER" in answer.json["error"]
    asyncio.run(leave_a_guard(lab, cluster))
    answer = fleetmend(lab, "retire", a_node, "--json", environment={"FLEETMEND_CLUSTER": cluster})
    assert answer.code == ExitCode.OK, answer.err
    assert answer.json["heeded"] is None
