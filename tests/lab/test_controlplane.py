"""The lab's control plane, for real: it comes up, can be disturbed, and leaves nothing behind."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.harness.audit import Wanted, whole_audit
from tests.harness.waiting import wait_until
from workers.lab.address import (
    NAMESPACE,
    Component,
    ComponentStage,
    LabAccount,
    LabAddress,
    LabNotRunning,
    ProcessId,
    read_address,
    read_lab_file,
)
from workers.lab.controlplane.api import MERGE, LabApi
from workers.lab.controlplane.components import SEARCH_ATTRIBUTES
from workers.lab.controlplane.errors import ApiRequestFailed, LabCommandRefused, LabStartFailed
from workers.lab.controlplane.install import service_account_kubeconfig
from workers.lab.controlplane.lab import Lab, StartListeners, lab_status, start_lab, stop_lab
from workers.lab.controlplane.pki import KeyPair, node_certificate
from workers.lab.controlplane.programs import find_programs
from workers.lab.controlplane.settings import AuditMode, LabSettings

# Without the parts that a test of the control plane's own life doesn't need.
BARE = LabSettings(fleet=False, temporal=False, deploy=None)
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab that the tests of this module may disturb; its directory name is a long one."""
    folder = tmp_path_factory.mktemp("a-directory-deeper-than-a-socket-address-may-be-long") / (
        "x" * 60
    )
    settings = LabSettings(fleet=False, cluster="own", audit_mode=AuditMode.BLOCKING)
    address = start_lab(folder, settings, detached=False)
    yield address
    stop_lab(folder)


@pytest.fixture
def hands(own_lab: LabAddress) -> Iterator[Lab]:
    """The handle on the lab; whatever a test ended or froze runs again afterwards."""
    lab = Lab(own_lab.directory)
    yield lab
    for component in lab.status().components:
        if component.is_frozen:
            lab.continue_signal(component.report.component)
        if component.report.process is None:
            lab.start(component.report.component)


@pytest.fixture
def admin(own_lab: LabAddress) -> Iterator[LabApi]:
    api = LabApi(own_lab)
    yield api
    api.close()


def _process_ids(address: LabAddress) -> list[ProcessId]:
    content = read_lab_file(address.directory)
    return [r.process for r in content.components if r.process is not None]


def _none_alive(processes: list[ProcessId]) -> bool:
    return not any(process.is_alive() for process in processes)


def _stage(lab: Lab, component: Component) -> ComponentStage:
    report = read_lab_file(lab.directory).report(component)
    assert report is not None
    return report.stage


def _temporal_answers(address: LabAddress, timeout_s: float = 1.0) -> bool:
    url = urlsplit(address.temporal_ui_url)
    connection = HTTPConnection(url.netloc, timeout=timeout_s)
    try:
        connection.request("GET", "/api/v1/namespaces/default/search-attributes")
        answer = connection.getresponse()
        known = json.load(answer)["customAttributes"] if answer.status == 200 else {}
    except OSError:
        return False
    finally:
        connection.close()
    return set(SEARCH_ATTRIBUTES) <= set(known)


def _anonymous_status(address: LabAddress, path: str) -> int:
    context = ssl.create_default_context(cafile=str(address.ca_file))
    connection = HTTPSConnection(urlsplit(address.api_url).netloc, context=context)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_every_component_is_ready_and_listens_on_loopback_only(own_lab: LabAddress) -> None:
    status = lab_status(own_lab.directory)
    assert status.is_whole
    assert [c.report.component for c in status.components] == [
        Component.ETCD,
        Component.API_SERVER,
        Component.CONTROLLER_MANAGER,
        Component.SCHEDULER,
        Component.TEMPORAL,
    ]
    for component in status.components:
        assert component.rss_mib is not None
        assert component.rss_mib > 10
        assert component.report.process is not None
        listening = [
            c.laddr.ip
            for c in psutil.Process(component.report.process.pid).net_connections("inet")
            if c.status == psutil.CONN_LISTEN
        ]
        assert set(listening) <= {"127.0.0.1", "::1"}


def test_temporal_knows_all_search_attributes_once_the_lab_is_ready(own_lab: LabAddress) -> None:
    # At once, but an answer may take its time.
    assert _temporal_answers(own_lab, DEADLINE_S)
    host, port = own_lab.temporal_address.split(":")
    socket.create_connection((host, int(port)), timeout=1.0).close()


def test_a_second_start_finds_the_first(own_lab: LabAddress) -> None:
    before = _process_ids(own_lab)
    assert start_lab(own_lab.directory, detached=True) == own_lab
    assert _process_ids(own_lab) == before


def test_keys_and_kubeconfigs_are_readable_by_their_owner_only(own_lab: LabAddress) -> None:
    secret = [*own_lab.kubeconfigs.iterdir(), *own_lab.paths.pki.glob("*.key")]
    assert own_lab.kubeconfig(LabAccount.ADMIN) in secret
    assert {path.stat().st_mode & 0o077 for path in secret} == {0}
    assert own_lab.directory.stat().st_mode & 0o077 == 0


def test_anonymous_callers_see_readyz_and_nothing_else(own_lab: LabAddress) -> None:
    assert _anonymous_status(own_lab, "/readyz") == 200
    assert _anonymous_status(own_lab, "/version") == 401
    assert _anonymous_status(own_lab, "/api/v1/nodes") == 401


def test_a_kubelet_may_change_its_own_node_and_no_other(own_lab: LabAddress) -> None:
    kubelet = LabApi(own_lab, KeyPair(*node_certificate(own_lab.directory, "node-a")))
    other = LabApi(own_lab, KeyPair(*node_certificate(own_lab.directory, "node-b")))
    for api, name in ((kubelet, "node-a"), (other, "node-b")):
        api.request("POST", "/api/v1/nodes", body=_node(name))
    condition = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    kubelet.request("PATCH", "/api/v1/nodes/node-a/status", body=condition, content_type=MERGE)
    with pytest.raises(ApiRequestFailed, match="not allowed to modify node") as refusal:
        kubelet.request("PATCH", "/api/v1/nodes/node-b/status", body=condition, content_type=MERGE)
    assert refusal.value.status == 403
    taint = {"spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]}}
    with pytest.raises(ApiRequestFailed, match="not allowed to modify taints"):
        kubelet.request("PATCH", "/api/v1/nodes/node-a", body=taint, content_type=MERGE)


def test_the_audit_log_holds_who_wrote_what(own_lab: LabAddress, admin: LabApi) -> None:
    admin.request("POST", "/api/v1/nodes", body=_node("node-audited"))
    admin.request(
        "PATCH",
        "/api/v1/nodes/node-audited",
        body={"spec": {"unschedulable": True}},
        content_type=MERGE,
    )
    wanted = Wanted(who="fleetmend-lab-admin", verb="patch", name="node-audited")
    cordons = whole_audit(own_lab).events(wanted)
    assert [event.body for event in cordons] == [{"spec": {"unschedulable": True}}]
    assert cordons[0].answer["metadata"]["resourceVersion"].isdigit()


def test_tokens_and_reads_are_not_in_the_audit_log(own_lab: LabAddress, tmp_path: Path) -> None:
    path = tmp_path / "default.kubeconfig"
    service_account_kubeconfig(own_lab, NAMESPACE, "default", path)
    token = path.read_text().split("token: ")[1].strip()
    log = own_lab.audit_log.read_text()
    assert "serviceaccounts/default/token" in log
    assert token.rsplit(".", 1)[1] not in log
    assert '"verb":"list"' not in log


def test_a_missing_service_account_is_named(own_lab: LabAddress, tmp_path: Path) -> None:
    with pytest.raises(ApiRequestFailed, match=r"fleetmend/nobody.*404"):
        service_account_kubeconfig(own_lab, NAMESPACE, "nobody", tmp_path / "k")


def test_the_api_server_restarts_with_its_data_and_its_port(
    own_lab: LabAddress, hands: Lab, admin: LabApi
) -> None:
    # No controller writes to a ConfigMap: its version changes only by a loss of data.
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}
    folder = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    before = admin.request("POST", folder, body=config_map)["metadata"]
    hands.restart(Component.API_SERVER)
    again = LabApi(read_address(own_lab.directory))
    after = again.request("GET", f"{folder}/kept")["metadata"]
    again.close()
    assert read_address(own_lab.directory) == own_lab
    assert after["uid"] == before["uid"]
    assert after["resourceVersion"] == before["resourceVersion"]


def test_etcd_keeps_its_data_over_a_kill(hands: Lab, admin: LabApi) -> None:
    admin.request("POST", "/api/v1/nodes", body=_node("node-in-etcd"))
    hands.restart(Component.ETCD)

    def read() -> Any:
        try:
            return admin.request("GET", "/api/v1/nodes/node-in-etcd")
        except ApiRequestFailed as error:
            raise AssertionError(str(error)) from error

    wait_until(read, DEADLINE_S, "the API server has found etcd again")


def test_a_killed_temporal_is_gone_until_started_again(own_lab: LabAddress, hands: Lab) -> None:
    hands.kill(Component.TEMPORAL)
    assert not _temporal_answers(own_lab)
    assert _stage(hands, Component.TEMPORAL) is ComponentStage.STOPPED
    hands.start(Component.TEMPORAL)
    assert _temporal_answers(own_lab, DEADLINE_S)
    assert read_address(own_lab.directory) == own_lab


def test_a_frozen_temporal_keeps_its_port_and_answers_nothing(
    own_lab: LabAddress, hands: Lab
) -> None:
    hands.stop_signal(Component.TEMPORAL)
    host, port = own_lab.temporal_address.split(":")
    socket.create_connection((host, int(port)), timeout=1.0).close()
    assert not _temporal_answers(own_lab)
    assert not hands.status().is_whole
    hands.continue_signal(Component.TEMPORAL)
    wait_until(lambda: _temporal_answers(own_lab), DEADLINE_S, "Temporal answers again")
    assert hands.status().is_whole


def test_a_component_that_dies_is_reported_and_not_restarted(hands: Lab) -> None:
    report = read_lab_file(hands.directory).report(Component.SCHEDULER)
    assert report is not None
    assert report.process is not None
    os.kill(report.process.pid, signal.SIGKILL)
    wait_until(
        lambda: _stage(hands, Component.SCHEDULER) is ComponentStage.DIED,
        DEADLINE_S,
        "the scheduler's death is reported",
    )
    report = read_lab_file(hands.directory).report(Component.SCHEDULER)
    assert report is not None
    assert report.exit_code == -signal.SIGKILL
    assert report.last_lines
    assert "died" in hands.address.paths.log("supervisor").read_text()
    with pytest.raises(LabStartFailed, match="kube-scheduler died"):
        start_lab(hands.directory, detached=False)


def test_what_runs_is_not_started_twice(hands: Lab) -> None:
    with pytest.raises(LabCommandRefused, match="etcd runs already"):
        hands.start(Component.ETCD)
    with pytest.raises(LabCommandRefused, match="this lab has no fleet"):
        hands.kill(Component.FLEET)


def test_a_killed_supervisor_takes_everything_with_it(tmp_path: Path) -> None:
    address = start_lab(tmp_path / "lab", BARE, detached=True)
    processes = _process_ids(address)
    assert len(processes) == 4
    os.kill(read_lab_file(address.directory).supervisor.pid, signal.SIGKILL)
    wait_until(lambda: _none_alive(processes), DEADLINE_S, "all its children are dead")
    with pytest.raises(LabNotRunning, match=r"fleetmend lab up"):
        read_address(address.directory)
    # What it left behind is recognised: the same directory starts again, with data and port.
    again = start_lab(address.directory, detached=False)
    assert again.api_url == address.api_url
    processes = _process_ids(again)
    stop_lab(again.directory)
    assert _none_alive(processes)
    assert not again.paths.lab_file.exists()


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_a_foreground_lab_dies_with_its_parent(tmp_path: Path, ends: signal.Signals) -> None:
    script = textwrap.dedent(
        """
        import sys, threading, time
        from pathlib import Path
        from workers.lab.controlplane.lab import start_lab
        from workers.lab.controlplane.settings import LabSettings

        def start():
            settings = LabSettings(fleet=False, temporal=False, deploy=None)
            start_lab(Path(sys.argv[1]), settings, detached=False)

        # In a thread that ends: the lab is tied to the process, not to the thread.
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lab")], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        content = read_lab_file(tmp_path / "lab")
        processes = [*_process_ids(content.address), content.supervisor]
        assert len(processes) == 5
        parent.send_signal(ends)
        wait_until(lambda: _none_alive(processes), DEADLINE_S, "the whole lab is gone")


def test_a_start_that_fails_shows_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    real = _real_programs()
    for name, version in (
        ("etcd", "etcd Version: 3.6.16"),
        *((n, "Kubernetes v1.36.3") for n in real if n != "etcd"),
    ):
        script = f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n'
        if name == "kube-apiserver":
            script += "echo the certificate is made of cheese\nexit 3\n"
        else:
            script += f'exec {real[name]} "$@"\n'
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "bin"))
    with pytest.raises(LabStartFailed, match=r"kube-apiserver died \(exit code 3\)") as failure:
        start_lab(tmp_path / "lab", BARE, detached=True)
    assert "the certificate is made of cheese" in str(failure.value)
    assert "kube-apiserver.log" in str(failure.value)
    with pytest.raises(LabNotRunning):
        read_address(tmp_path / "lab")
    assert not [p for p in psutil.process_iter(["cmdline"]) if _mentions(p, tmp_path / "lab")]


def test_a_lab_file_from_before_a_reboot_counts_as_none(
    own_lab: LabAddress, tmp_path: Path
) -> None:
    content = read_lab_file(own_lab.directory)
    older = content.supervisor.model_copy(update={"boot_id": "another-boot"})
    (tmp_path / "lab.json").write_text(
        content.model_copy(update={"supervisor": older}).model_dump_json()
    )
    with pytest.raises(LabNotRunning, match="is gone"):
        read_address(tmp_path)
    reused = content.supervisor.model_copy(update={"started_ticks": 1})
    (tmp_path / "lab.json").write_text(
        content.model_copy(update={"supervisor": reused}).model_dump_json()
    )
    with pytest.raises(LabNotRunning, match="is gone"):
        read_address(tmp_path)


def test_an_unreadable_lab_file_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text("{half a f")
    with pytest.raises(LabNotRunning, match=r"is damaged: .*fleetmend lab up") as refusal:
        read_address(tmp_path)
    assert "\n" not in str(refusal.value)


def _node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def _real_programs() -> dict[str, Path]:
    told = StartListeners()
    return {c.value: p for c, p in find_programs(told.announce, told.build).paths.items()}


def _mentions(process: psutil.Process, folder: Path) -> bool:
    return any(str(folder) in part for part in process.info["cmdline"] or ())
