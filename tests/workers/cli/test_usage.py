"""Wrong command lines, shadowed packages, and how fast the short ways are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import fleetmend
from tests.harness.starts import start_cold
from workers.cli.outcome import ExitCode
from workers.lab.address import LabAddress


@pytest.mark.parametrize(
    "words",
    [(), ("a-node", "--fleet"), ("--fleet", "--pool", "p")],
    ids=["nothing", "node and fleet", "fleet and pool"],
)
def test_a_pause_names_exactly_one_target(words: tuple[str, ...]) -> None:
    answer = fleetmend(None, "pause", *words)
    assert answer.code == ExitCode.USAGE
    assert "exactly one of NODE, --pool POOL and --fleet" in answer.err


def test_the_cluster_must_be_named(lab: LabAddress) -> None:
    answer = fleetmend(lab, "retire", "a", environment={"FLEETMEND_CLUSTER": ""})
    assert answer.code == ExitCode.USAGE
    assert "FLEETMEND_CLUSTER is not set" in answer.err


def test_a_node_that_is_not_there_is_told(lab: LabAddress) -> None:
    answer = fleetmend(lab, "node", "no-such-node", "--json")
    assert answer.code == ExitCode.REFUSED
    assert "there is no Node no-such-node" in answer.json["error"]


def test_a_name_that_is_no_name_is_wrong_usage(lab: LabAddress) -> None:
    assert fleetmend(lab, "node", "../pods").code == ExitCode.USAGE


def test_a_namespace_that_is_none_is_told_before_anything_runs() -> None:
    environment = {"FLEETMEND_NAMESPACE": "Our_Own"}
    answer = fleetmend(None, "status", environment=environment, start_by=start_cold)
    assert answer.code == ExitCode.USAGE
    assert "FLEETMEND_NAMESPACE: 'Our_Own' is no namespace" in answer.err


def test_a_command_asks_in_the_namespace_that_is_named(lab: LabAddress) -> None:
    environment = {"FLEETMEND_NAMESPACE": "elsewhere"}
    answer = fleetmend(lab, "status", environment=environment, start_by=start_cold)
    assert "namespaces/elsewhere/configmaps/fleetmend-policy: 403" in answer.err


def test_a_shadowed_package_is_told_before_anything_runs(tmp_path: Path) -> None:
    stranger = tmp_path / "workflows"
    stranger.mkdir()
    (stranger / "__init__.py").write_text("")
    code = (
        "import sys, runpy; "
        f"sys.path.insert(0, {str(tmp_path)!r}); "
        "sys.argv = ['fleetmend', 'status']; "
        "runpy.run_module('workers.cli', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert f"found at {stranger}" in done.stderr
    assert "virtual environment of its own" in done.stderr


SLOW = {"kubernetes", "temporalio", "opentelemetry"}
COMMANDS = {"typer", "click", "rich", "structlog", "yaml"}
OTHER_KINDS = {"workers.node_task.diagnose", "workers.node_task.kernel_log", "ctypes"}


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["node-task", "inventory"], SLOW | COMMANDS | OTHER_KINDS),
        (["--help"], SLOW),
    ],
    ids=["node-task", "help"],
)
def test_a_short_way_imports_nothing_that_is_slow_and_not_needed(
    words: list[str], slow: set[str]
) -> None:
    code = (
        f"import sys; sys.argv = ['fleetmend', *{words!r}]\n"
        "from workers.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('slow:', sorted({slow!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FLEETMEND_TASK": ""},
    )
    assert "slow: []" in done.stdout, done.stdout + done.stderr
