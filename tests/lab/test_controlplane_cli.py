"""`fleetmend lab up | down | status | kubeconfig` on a real lab."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from workers.lab.address import Component, LabNotRunning, read_address
from workers.lab.controlplane.cli import EXIT_FAILED, EXIT_NOT_RUNNING, lab_app
from workers.lab.controlplane.lab import Lab, stop_lab

WITHOUT_KARPENTER = set(Component) - {Component.KARPENTER}


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(lab_app, list(arguments))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab that `up` has started, detached as for a person."""
    folder = tmp_path_factory.mktemp("cli") / "lab"
    result = _run("up", "--dir", str(folder), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ready_after_s"] > 0
    yield folder
    with suppress(LabNotRunning):
        stop_lab(folder)


def test_a_second_up_tells_the_addresses_and_the_next_steps(directory: Path) -> None:
    result = _run("up", "--dir", str(directory))
    assert result.exit_code == 0
    assert "the lab runs already" in result.stdout
    assert read_address(directory).temporal_ui_url in result.stdout
    assert f"fleetmend lab down --dir {directory}" in result.stdout


def test_up_tells_the_commands_that_install_fleetmend_by_helm(directory: Path) -> None:
    told = _run("up", "--dir", str(directory)).stdout
    assert f"fleetmend lab node add system-0 --system --dir {directory}" in told
    (command,) = (line.strip() for line in told.splitlines() if " upgrade --install " in line)
    helm, *_, chart, _namespace, namespace, _values, values = command.split()
    assert os.access(helm, os.X_OK)
    assert (Path(chart) / "Chart.yaml").exists()
    assert namespace == "fleetmend"
    content = yaml.safe_load(Path(values).read_text())
    assert content["watch"]["replicas"] == content["worker"]["replicas"] == 1
    assert [pool["name"] for pool in content["policy"]["pools"]]


def test_up_with_other_settings_says_that_they_don_t_apply(directory: Path) -> None:
    result = _run("up", "--dir", str(directory), "--node-monitor-grace-s", "4")
    assert result.exit_code == 0
    assert "first: fleetmend lab down" in result.stderr
    assert read_address(directory).node_monitor_grace_s == 8.0


def test_status_is_0_while_all_is_ready_and_1_when_something_is_not(directory: Path) -> None:
    whole = _run("status", "--dir", str(directory))
    assert whole.exit_code == 0
    assert all(component.value in whole.stdout for component in WITHOUT_KARPENTER)
    Lab(directory).kill(Component.SCHEDULER)
    broken = _run("status", "--dir", str(directory), "--json")
    Lab(directory).start(Component.SCHEDULER)
    assert broken.exit_code == EXIT_FAILED
    stages = {c["component"]: c["stage"] for c in json.loads(broken.stdout)["components"]}
    assert stages["kube-scheduler"] == "stopped"
    assert stages["etcd"] == "ready"


@pytest.mark.parametrize("account", ["admin", "watch", "worker", "operator"])
def test_kubeconfig_prints_a_path_or_the_file(directory: Path, account: str) -> None:
    path = _run("kubeconfig", "--dir", str(directory), "--as", account)
    content = _run("kubeconfig", "--dir", str(directory), "--as", account, "--content")
    assert (path.exit_code, content.exit_code) == (0, 0)
    assert Path(path.stdout.strip()).read_text().strip() == content.stdout.strip()
    cluster = yaml.safe_load(content.stdout)["clusters"][0]["cluster"]
    assert cluster["server"] == read_address(directory).api_url


def test_down_ends_it_and_the_next_command_names_the_remedy(directory: Path) -> None:
    assert _run("down", "--dir", str(directory)).exit_code == 0
    for command in ("status", "down", "kubeconfig"):
        result = _run(command, "--dir", str(directory))
        assert result.exit_code == EXIT_NOT_RUNNING
        assert "fleetmend lab up" in result.stderr
        assert str(directory) in result.stderr


def test_a_setting_out_of_range_is_told_with_the_range(tmp_path: Path) -> None:
    result = _run("up", "--dir", str(tmp_path), "--node-monitor-grace-s", "1")
    assert result.exit_code == 2
    assert "--node-monitor-grace-s" in result.stderr
    assert "greater than or" in result.stderr


def test_repair_without_karpenter_is_told_with_the_remedy(tmp_path: Path) -> None:
    result = _run("up", "--dir", str(tmp_path), "--node-repair")
    assert result.exit_code == EXIT_FAILED
    assert "set karpenter too" in result.stderr
    assert not (tmp_path / "lab.json").exists()
