"""`fleetmend lab node ...`, `lab inject`, `lab clear`, `lab faults`: words, tables, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.kubelet.cli import EXIT_FAILED, EXIT_NOT_RUNNING, EXIT_USAGE, mount


def _fleetmend_lab(*words: str) -> Result:
    app = typer.Typer()
    mount(app)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))


def test_tables_have_no_lines_and_cut_nothing_off() -> None:
    table = _fleetmend_lab("faults").stdout
    assert table.startswith("FAULT")
    assert not set(table) & set("│┃━─┏┡└…")


def test_faults_are_listed_for_people_and_for_programs() -> None:
    assert "gpu-missing-after-reboot" in _fleetmend_lab("faults").stdout
    lines = json.loads(_fleetmend_lab("faults", "--json").stdout)
    lost = next(line for line in lines if line["name"] == "gpu-lost")
    assert [option["key"] for option in lost["options"]] == ["for", "gpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("inject", "n", "gpu-lots"), "no fault 'gpu-lots'"),
        (("inject", "n", "gpu-lost", "gpu"), "write it as key=value"),
        (("inject", "n", "gpu-lost", "gpu=x"), "option gpu=x"),
        (("node", "add", "Bad_Name"), "is no node name"),
        (("node", "add", "n", "--label", "x"), "write it as key=value"),
    ],
    ids=["fault", "option", "value", "name", "label"],
)
def test_wrong_usage_is_told_without_a_lab(words: tuple[str, ...], message: str) -> None:
    result = _fleetmend_lab(*words)
    assert result.exit_code == EXIT_USAGE
    assert message in result.stderr


@pytest.mark.parametrize(
    "words", [("node", "list"), ("inject", "n", "gpu-lost"), ("node", "rm", "n")]
)
def test_without_a_lab_the_remedy_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    result = _fleetmend_lab(*words, "--dir", str(tmp_path))
    assert result.exit_code == EXIT_NOT_RUNNING
    assert "fleetmend lab up" in result.stderr


def test_nodes_are_added_broken_healed_and_removed(
    lab: LabAddress, nodes: TestNodes, unique: Callable[[str], str]
) -> None:
    stem, here = unique("n"), ("--dir", str(lab.directory))
    added = _fleetmend_lab(
        "node", "add", stem, "--count", "2", "--light", "--gpus", "4", *here, "--json"
    )
    names = [view["name"] for view in json.loads(added.stdout)]
    nodes.added += names
    assert names == [f"{stem}-0", f"{stem}-1"]
    told = _fleetmend_lab("inject", names[0], "gpu-lost", "gpu=3", *here)
    assert "conditions written in" in told.stdout
    again = _fleetmend_lab("inject", names[0], "gpu-lost", "gpu=3", *here)
    assert (again.exit_code, "clear it first" in again.stderr) == (EXIT_FAILED, True)
    assert "gpu-lost/3" in _fleetmend_lab("node", "list", *here).stdout
    cleared = _fleetmend_lab("clear", names[0], "gpu-lost", *here, "--json")
    assert json.loads(cleared.stdout)["cleared"] == ["gpu-lost/3"]
    assert _fleetmend_lab("node", "rm", *names, *here).exit_code == 0
    assert names[0] not in _fleetmend_lab("node", "list", *here).stdout


@pytest.mark.parametrize("agent", ["real", "stand-in"])
def test_a_node_whose_agent_has_not_started_yet_is_not_said_to_have_none(
    lab: LabAddress, nodes: TestNodes, unique: Callable[[str], str], agent: str
) -> None:
    name, here = unique("n"), ("--dir", str(lab.directory))
    nodes.added.append(name)
    added = _fleetmend_lab("node", "add", name, "--agent", agent, *here)
    assert added.exit_code == 0, added.stderr
    assert agent in added.stdout, "it runs, or it starts"
    wait_until(lambda: nodes.view(name).is_agent_running, 60, f"the agent of {name} runs")
    row = next(
        line for line in _fleetmend_lab("node", "list", *here).stdout.splitlines() if name in line
    )
    assert row.split()[-1] == agent
    listed = json.loads(_fleetmend_lab("node", "list", *here, "--json").stdout)
    assert {view["name"]: view["agent"] for view in listed}[name] == agent
