"""The machine record as the API server keeps it: what fits, what is refused, how it prints, who may write it."""

import copy
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.deploy.caller import JSON, MERGE, Caller, Request
from tests.deploy.world import World

MACHINES = "/apis/fleetmend.io/v1alpha1/gpumachines"
NOW = "2026-11-29T18:00:00.123456+00:00"
FULL: Mapping[str, Any] = {
    "phase": "rebooted",
    "fault": "gpu-lost",
    "workflowID": "node/lab/n1/u1",
    "runID": "r1",
    "episode": "e1",
    "outcome": None,
    "held": False,
    "heldReason": "",
    "baseline": {
        "gpus": ["GPU-1", "GPU-2"],
        "gpuCount": 2,
        "model": "H100",
        "bootID": "b1",
        "recordedAt": NOW,
        "allocatable": {"nvidia.com/gpu": 2},
    },
    "attempts": [
        {
            "rung": "reboot",
            "at": NOW,
            "episode": "e1",
            "result": "unknown",
            "bootIDBefore": "b1",
            "bootIDAfter": None,
        }
    ],
    "strikes": [{"episode": "e0", "fault": "gpu-lost", "outcome": "returned", "at": NOW}],
    "strikeCount": 1,
    "overruled": [
        {"fault": "thermal", "device": "GPU-1", "bootID": "b1", "at": NOW, "episode": "e0"}
    ],
    "lastValidation": {"at": NOW, "result": "passed", "detail": "8 of 8"},
    "lastTransition": NOW,
}

_serial = itertools.count(1)
_run = secrets.token_hex(4)


@pytest.fixture(scope="module")
def worker(world: World) -> Caller:
    """The record's only writer."""
    return world.account("fleetmend-worker")


@pytest.fixture
def machine(world: World, worker: Caller) -> Iterator[str]:
    """The path of a fresh record."""
    name = f"rights-{_run}-{next(_serial)}"
    created = worker.send(Request("POST", MACHINES, record(name)))
    assert created.code == 201, created
    yield f"{MACHINES}/{name}"
    world.admin.delete(f"{MACHINES}/{name}")


def record(name: str, **spec: Any) -> dict[str, Any]:
    node = {"name": "n1", "uid": "u1", "providerID": "lab://n1"}
    return {
        "apiVersion": "fleetmend.io/v1alpha1",
        "kind": "GPUMachine",
        "metadata": {"name": name},
        "spec": {"machineID": name, "node": node, "pool": "train", **spec},
    }


def without_nulls(value: Any) -> Any:
    """What the server keeps: null means absent."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_worker_writes_the_whole_status_and_reads_it_back(worker: Caller, machine: str) -> None:
    worker.patch(f"{machine}/status", {"status": FULL})
    assert worker.get(machine)["status"] == without_nulls(FULL)


def test_worker_clears_what_no_longer_holds(worker: Caller, machine: str) -> None:
    worker.patch(f"{machine}/status", {"status": FULL})
    worker.patch(f"{machine}/status", {"status": {"workflowID": None, "baseline": None}})
    worker.patch(machine, {"spec": {"node": None}})
    left = worker.get(machine)
    assert "baseline" not in left["status"]
    assert "node" not in left["spec"]


def test_status_is_not_written_with_the_spec(worker: Caller, machine: str) -> None:
    worker.patch(machine, {"status": {"phase": "drained"}})
    assert "status" not in worker.get(machine)


def grown(field: str, count: int) -> Callable[[dict[str, Any]], None]:
    def grow(status: dict[str, Any]) -> None:
        status[field] = status[field] * count

    return grow


def put(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda status: status.update({field: value})


def in_baseline(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda status: status["baseline"].update({field: value})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(grown("attempts", 51), "status.attempts", id="51 attempts"),
        pytest.param(grown("strikes", 51), "status.strikes", id="51 strikes"),
        pytest.param(grown("overruled", 51), "status.overruled", id="51 overruled faults"),
        pytest.param(put("phase", "Re booted"), "status.phase", id="phase with a space"),
        pytest.param(put("phase", "p" * 64), "status.phase", id="long phase"),
        pytest.param(put("heldReason", "x" * 1025), "status.heldReason", id="long reason"),
        pytest.param(put("held", "yes"), "status.held", id="held as a word"),
        pytest.param(put("lastTransition", "yesterday"), "status.lastTransition", id="no time"),
        pytest.param(in_baseline("gpus", ["GPU"] * 65), "status.baseline.gpus", id="65 GPUs"),
        pytest.param(in_baseline("gpuCount", -1), "status.baseline.gpuCount", id="-1 GPUs"),
        pytest.param(in_baseline("model", "x" * 129), "status.baseline.model", id="long model"),
        pytest.param(
            in_baseline("allocatable", {f"r{n}": 1 for n in range(33)}),
            "status.baseline.allocatable",
            id="33 resources",
        ),
        pytest.param(
            in_baseline("allocatable", {"nvidia.com/gpu": "8"}),
            "status.baseline.allocatable",
            id="resource as text",
        ),
    ],
)
def test_record_out_of_bounds_is_refused_by_field(
    worker: Caller, machine: str, change: Callable[[dict[str, Any]], None], field: str
) -> None:
    status = copy.deepcopy(dict(FULL))
    change(status)
    answer = worker.send(Request("PATCH", f"{machine}/status", {"status": status}, MERGE))
    assert answer.code == 422, answer
    assert field in answer.message


def test_record_is_named_by_its_machine(worker: Caller) -> None:
    answer = worker.send(Request("POST", MACHINES, record("rights-a", machineID="rights-b")))
    assert answer.code == 422, answer
    assert "named by its machine id" in answer.message


def test_machine_id_never_changes(worker: Caller, machine: str) -> None:
    body = {"spec": {"machineID": "rights-other"}}
    answer = worker.send(Request("PATCH", machine, body, MERGE))
    assert answer.code == 422, answer
    assert "a machine id never changes" in answer.message


def test_records_print_as_a_table(worker: Caller, machine: str) -> None:
    worker.patch(f"{machine}/status", {"status": FULL})
    table = worker.accepting("application/json;as=Table;v=v1;g=meta.k8s.io").get(machine)
    shown = [c["name"] for c in table["columnDefinitions"] if c["priority"] == 0]
    expected = "Name,Node,Pool,Phase,Fault,GPUs,Strikes,Last validated,Age"
    assert ",".join(shown) == expected
    names = [c["name"] for c in table["columnDefinitions"]]
    cells = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert cells["Node"] == "n1"
    assert cells["Phase"] == "rebooted"
    assert cells["GPUs"] == 2
    assert cells["Strikes"] == 1


@pytest.mark.parametrize("account", ["fleetmend-watch", "fleetmend-operator", "fleetmend-agent"])
def test_only_the_worker_writes_records(world: World, account: str, machine: str) -> None:
    caller = world.account(account)
    for request in (
        Request("POST", MACHINES, record("rights-x")),
        Request("PATCH", machine, {"spec": {"pool": "x"}}, MERGE),
        Request("PATCH", f"{machine}/status", {"status": {"phase": "x"}}, MERGE),
        Request("DELETE", machine),
    ):
        answer = caller.send(request)
        assert answer.code == 403, answer


def test_worker_deletes_no_record(worker: Caller, machine: str) -> None:
    assert worker.send(Request("DELETE", machine, content_type=JSON)).code == 403
