"""The process as people meet it: settings, policy while it runs, health, start and end."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from activities.kube import paths
from tests.harness.policies import TestPool, write_policy
from tests.harness.processes import Running
from tests.harness.starts import start_cold
from tests.harness.waiting import wait_until
from tests.workers.watch.scene import Scene
from workers.lab.address import NAMESPACE, LabAccount, LabAddress
from workers.listening import Listen, SettingsError
from workers.watch.settings import WatchSettings


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FLEETMEND_CLUSTER", "a/b", "FLEETMEND_CLUSTER: 'a/b' names no cluster"),
        ("FLEETMEND_POLICY", "missing.yaml", "missing.yaml"),
        ("KUBECONFIG", "missing.kubeconfig", "KUBECONFIG"),
    ],
)
def test_wrong_setting_ends_the_start_with_a_line_that_names_it(
    lab: LabAddress, tmp_path: Path, variable: str, value: str, said: str
) -> None:
    environment = {"PATH": "/usr/bin:/bin", **lab.environment(LabAccount.WATCH), variable: value}
    done = subprocess.run(
        [sys.executable, "-m", "workers.watch"],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    told = json.loads(line)
    assert told["event"] == "watch cannot start"
    assert said in told["problem"]


def listening(text: str) -> Listen | None:
    environment = {"FLEETMEND_CLUSTER": "test", "FLEETMEND_WATCH_LISTEN": text}
    return WatchSettings.from_environment(environment).listen


@pytest.mark.parametrize("text", ["nine", "127.0.0.1:99999", ":80", "a b:80"])
def test_address_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match=r"FLEETMEND_WATCH_LISTEN.*use host:port"):
        listening(text)


def test_listen_is_off_or_an_address() -> None:
    assert listening("off") is None
    listen = listening("[::1]:9471")
    assert listen is not None
    assert (listen.host, listen.port) == ("::1", 9471)


def test_cluster_has_no_default_because_it_is_part_of_every_workflow_id() -> None:
    with pytest.raises(SettingsError, match="FLEETMEND_CLUSTER"):
        WatchSettings.from_environment({})


def test_health_is_served_where_it_is_told_and_sigterm_ends_it(scene: Scene, port: int) -> None:
    scene.processes.start_by = start_cold
    scene.add("a")
    watch = scene.writing_watch(FLEETMEND_WATCH_LISTEN=f"127.0.0.1:{port}")
    assert _ask(port, "healthz") == (200, "ok\n")
    assert _ask(port, "readyz") == (200, "ok\n")
    status, text = _ask(port, "metrics")
    assert status == 200
    assert "fleetmend_watch_is_writer 1" in text
    assert "fleetmend_watch_node_events_total" in text
    assert _ask(port, "secrets")[0] == 404
    assert watch.end() == 0
    assert watch.logged("watch_ended")


def test_policy_changes_while_it_runs_and_a_wrong_one_changes_nothing(
    scene: Scene, port: int
) -> None:
    """What stands in the ConfigMap counts before the file; the last good one stays in force."""
    first, second = scene.add("a", "b")
    scene.arm()
    watch = scene.writing_watch(FLEETMEND_WATCH_LISTEN=f"127.0.0.1:{port}")
    _write_policy_map(scene, "pools: 7")
    wait_until(lambda: watch.logged("policy_unusable"), 10, "it is said", saw=scene.tails)
    (said,) = watch.logged("policy_unusable")
    assert "pools" in said["problem"]
    # The file was in force; what the ConfigMap means cannot be told, so nothing is judged.
    wait_until(lambda: _ask(port, "readyz")[0] == 503, 10, "it is not ready", saw=scene.tails)
    file = scene.folder / "other.yaml"
    write_policy(file, [TestPool(scene.pool, budgets={"reflex_quarantine": 1})])
    _write_policy_map(scene, file.read_text())
    wait_until(lambda: _ask(port, "readyz")[0] == 200, 10, "it is ready", saw=scene.tails)
    _write_policy_map(scene, "{")
    wait_until(lambda: len(watch.logged("policy_unusable")) == 2, 10, "it is said again")
    scene.break_node(first)
    scene.until_quarantined(first)
    scene.break_node(second)
    wait_until(lambda: watch.logged("reflex_budget_full"), 10, "the good one rules on")


def test_policy_file_is_followed_and_a_broken_one_is_said_once_for_each_change(
    scene: Scene,
) -> None:
    first, second = scene.add("a", "b")
    scene.arm()
    watch = scene.writing_watch()
    file = scene.folder / "policy.yaml"
    good = file.read_text()
    for number, broken in enumerate(("pools: 7", "poools: []"), start=1):
        file.write_text(broken)
        _until_unusable(scene, watch, number)
    # The last good one stays in force.
    scene.break_node(first)
    scene.until_quarantined(first)
    said = [line["problem"] for line in watch.logged("policy_unusable")]
    assert [part in text for part, text in zip(("pools", "poools"), said, strict=True)] == [
        True
    ] * 2
    write_policy(file, [TestPool(scene.pool, budgets={"reflex_quarantine": 1})])
    assert file.read_text() != good
    wait_until(lambda: watch.logged("policy_read"), 10, "it is read", saw=scene.tails)
    scene.break_node(second)
    wait_until(lambda: watch.logged("reflex_budget_full"), 10, "the new one rules", saw=scene.tails)


def _until_unusable(scene: Scene, watch: Running, times: int) -> None:
    wait_until(
        lambda: len(watch.logged("policy_unusable")) == times, 10, "it is said", saw=scene.tails
    )


@pytest.fixture
def port(unused_tcp_port: int) -> int:
    return unused_tcp_port


def _write_policy_map(scene: Scene, text: str) -> None:
    name = "fleetmend-policy"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    if name not in scene.config_maps:
        scene.config_maps.append(name)
        scene.cluster.kube.create(
            paths.config_maps(NAMESPACE), {**body, "data": {"policy.yaml": text}}
        )
        return
    scene.cluster.kube.replace(
        paths.config_map(NAMESPACE, name), {**body, "data": {"policy.yaml": text}}
    )


def _ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
