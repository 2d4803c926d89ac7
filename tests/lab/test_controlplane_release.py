"""fleetmend as pods of a lab: when it counts as rolled out, and how a running lab gets it.

The installation itself, an upgrade and the end are in tests/scenarios/test_helm_upgrade.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.lab.address import Component
from workers.lab.controlplane.launch import remember_release, wanted_settings
from workers.lab.controlplane.release import is_rolled_out
from workers.lab.controlplane.settings import LabPorts, LabSettings, LaunchPlan, ReleaseSettings
from workers.lab.paths import LabPaths


def _deployment(**status: int) -> dict[str, Any]:
    whole = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
    return {
        "metadata": {"generation": 3},
        "spec": {"replicas": 2},
        "status": {key: value for key, value in (whole | status).items() if value},
    }


def test_it_is_rolled_out_when_all_replicas_are_new_and_ready() -> None:
    assert is_rolled_out(_deployment())


@pytest.mark.parametrize(
    "status",
    [
        {"observedGeneration": 2},
        {"replicas": 3},
        {"updatedReplicas": 1},
        {"readyReplicas": 1},
        {"replicas": 0, "updatedReplicas": 0, "readyReplicas": 0},
    ],
    ids=["not seen yet", "an old one is left", "an old one counts", "one not ready", "none yet"],
)
def test_it_is_not_rolled_out(status: dict[str, int]) -> None:
    assert not is_rolled_out(_deployment(**status))


def test_a_running_lab_takes_a_release_and_keeps_its_other_settings(tmp_path: Path) -> None:
    paths = LabPaths(tmp_path)
    plan = LaunchPlan(
        settings=LabSettings(cluster="c1"),
        ports=LabPorts(api=1, temporal=2, temporal_ui=3),
        programs_source="test",
        programs={Component.ETCD: tmp_path / "etcd"},
    )
    paths.settings_file.write_text(plan.model_dump_json())
    remember_release(paths, ReleaseSettings(replicas=2))
    settings = wanted_settings(paths, None)
    assert settings.release == ReleaseSettings(replicas=2)
    assert settings.cluster == "c1"
    assert json.loads(paths.settings_file.read_text())["ports"]["api"] == 1
    remember_release(paths, None)
    assert wanted_settings(paths, None).release is None


def test_what_nothing_remembers_is_not_changed(tmp_path: Path) -> None:
    remember_release(LabPaths(tmp_path), ReleaseSettings())
    assert not LabPaths(tmp_path).settings_file.exists()
