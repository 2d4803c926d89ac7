"""The demo itself, as a person starts it; what it leaves behind, and how it is stopped."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.harness.processes import fleetmend
from tests.harness.starts import CLI
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.timeout(400)


def left_behind() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("fleetmend-demo-*"))


def test_each_node_ends_as_it_should_within_the_demo_s_own_limit() -> None:
    """It gives up by itself; how long it takes is the bench's (`demo_s`)."""
    before = left_behind()
    answer = fleetmend(None, "demo", "--once", "--json", timeout_s=350)
    assert answer.code == 0, answer.out + answer.err
    assert answer.json["passed"] is True
    ended = {node["node"]: node["ended"] for node in answer.json["nodes"]}
    returned = {"training-1", "training-2", "inference-4", "spare-0", "spare-1"}
    assert {node for node, how in ended.items() if how == "returned"} == returned
    assert ended["inference-1"] == "held"
    assert ended["inference-2"] == "retired"
    (replaced,) = [node for node in answer.json["nodes"] if node["ended"] == "replaced"]
    assert replaced["pool"] == "elastic"
    assert replaced["successor"] not in ("", replaced["node"])
    assert replaced["pods_on_successor"] == 2
    well = [node for node in answer.json["nodes"] if node["ended"] in ("returned", "replaced")]
    assert all("validated" in dict(node["phases"]) for node in well), well
    assert left_behind() == before


def test_it_is_stopped_in_order() -> None:
    before = left_behind()
    demo = subprocess.Popen(
        [*CLI, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "CI": "1"},
        start_new_session=True,
    )
    wait_until(lambda: left_behind() - before, 60, "the demo has its directory")
    (directory,) = left_behind() - before
    wait_until((directory / "lab.json").exists, 60, "its lab starts")
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=90)
    assert demo.returncode == 130
    assert left_behind() == before
