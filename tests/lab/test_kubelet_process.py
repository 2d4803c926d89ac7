"""Containers as real processes: what they are given, how they end, what is kept of them."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from workers.lab.kubelet.container import TERMINATION_MESSAGE_BYTES, BadContainer, Exit
from workers.lab.kubelet.environment import PodPlace
from workers.lab.kubelet.host_root import (
    REBOOT_FIFO,
    BootEvent,
    HostRoot,
    make_identity,
    read_boot_log,
)
from workers.lab.kubelet.launch_plan import plan_launch
from workers.lab.kubelet.process import LOG_BYTES, ProcessContainer
from workers.lab.kubelet.spec import NodeSpec

END_S = 20.0


@pytest.fixture
def place(tmp_path: Path) -> PodPlace:
    pod_folder = tmp_path / "pod"
    pod_folder.mkdir()
    return PodPlace(
        folder=pod_folder,
        log_folder=tmp_path / "logs",
        host_root=tmp_path / "root",
        programs=tmp_path / "root/opt/lab/bin",
        node_name="node-1",
        api_host="127.0.0.1",
        api_port="6443",
        service_account=None,
        kubeconfig=None,
    )


def _pod(*command: str, **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "fleetmend", "uid": "uid-1"},
        "spec": {
            "serviceAccountName": "sa",
            "containers": [{"name": "main", "command": list(command), **container}],
        },
    }


async def _run(pod: dict[str, Any], place: PodPlace) -> ProcessContainer:
    return await ProcessContainer.launch(plan_launch(pod, pod["spec"]["containers"][0], place))


async def _end(container: ProcessContainer) -> Exit:
    return await asyncio.wait_for(container.done, END_S)


def _python(code: str) -> tuple[str, str, str]:
    return ("python", "-c", code)


def test_the_command_fleetmend_is_this_checkout(place: PodPlace) -> None:
    pod = _pod("fleetmend", "node-task", "reboot")
    plan = plan_launch(pod, pod["spec"]["containers"][0], place)
    assert plan.argv == (sys.executable, "-m", "workers.cli", "node-task", "reboot")


def test_environment_comes_from_the_pod_and_not_from_the_fleet(
    place: PodPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/admin")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:7233")
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(NONE)-$$(A)"},
        {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    pod = _pod("x", "$(A)", env=env)
    plan = plan_launch(pod, pod["spec"]["containers"][0], place)
    assert plan.environment["B"] == "1-$(NONE)-$(A)"
    assert (plan.environment["UID"], plan.environment["NODE"]) == ("uid-1", "node-1")
    assert plan.argv == ("x", "1")
    assert not {"KUBECONFIG", "TEMPORAL_ADDRESS", "FLEETMEND_HOST_ROOT"} & set(plan.environment)


def test_only_a_mounted_host_root_is_told(place: PodPlace) -> None:
    pod = _pod("x", volumeMounts=[{"name": "host", "mountPath": "/host"}])
    pod["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/"}}]
    plan = plan_launch(pod, pod["spec"]["containers"][0], place)
    assert plan.environment["FLEETMEND_HOST_ROOT"] == str(place.host_root)


def test_devices_come_with_the_host_root_and_a_kernel_log_of_the_containers_own(
    place: PodPlace,
) -> None:
    devices = {"LD_LIBRARY_PATH": "/node/lib", "FLEETMEND_KMSG": "/node/dev/kmsg"}
    place = replace(place, devices=devices)
    pod = _pod("x", volumeMounts=[{"name": "host", "mountPath": "/host"}])
    plan = plan_launch(pod, pod["spec"]["containers"][0], place)
    assert "LD_LIBRARY_PATH" not in plan.environment
    pod["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/"}}]
    plan = plan_launch(pod, pod["spec"]["containers"][0], place)
    assert plan.environment["LD_LIBRARY_PATH"] == "/node/lib"
    assert plan.environment["FLEETMEND_KMSG"] == str(place.folder / "kmsg-main")


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, "envFrom: configmap 'c' not found"),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "env A: secret 's' not found",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]},
            "env A: status.phase is not known to the lab; known: metadata.name",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            "env A: resourceFieldRef is not known to the lab; known: fieldRef",
        ),
        (
            {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}},
            "lifecycle.preStop by exec is not known to the lab; known: preStop by sleep",
        ),
    ],
    ids=["config map", "secret", "field", "resource", "hook"],
)
def test_what_the_lab_cannot_do_is_refused_by_name(
    place: PodPlace, container: dict[str, Any], message: str
) -> None:
    pod = _pod("x", **container)
    with pytest.raises(BadContainer) as refused:
        plan_launch(pod, pod["spec"]["containers"][0], place)
    assert message in str(refused.value)


async def test_a_program_that_is_not_there_is_refused(place: PodPlace) -> None:
    with pytest.raises(BadContainer, match="cannot run no-such-program"):
        await _run(_pod("no-such-program"), place)


async def test_the_last_4096_bytes_of_the_termination_message_are_kept(place: PodPlace) -> None:
    code = (
        "import os; open(os.environ['FLEETMEND_TERMINATION_LOG'],'w')"
        ".write('head' + 'x' * 5000 + 'tail'); raise SystemExit(3)"
    )
    end = await _end(await _run(_pod(*_python(code)), place))
    assert (end.code, end.reason) == (3, "Error")
    assert len(end.message) == TERMINATION_MESSAGE_BYTES
    assert end.message.endswith("xtail")


async def test_output_is_kept_and_bounded(place: PodPlace) -> None:
    code = "import sys; sys.stdout.write('o'); sys.stderr.write('e' * 3_000_000)"
    end = await _end(await _run(_pod(*_python(code)), place))
    log = (place.log_folder / "main.log").read_bytes()
    assert end.code == 0
    assert b"o" in log
    assert LOG_BYTES <= len(log) < LOG_BYTES + 100
    assert log.endswith(b"its bound is reached]\n")


async def test_an_error_without_a_message_falls_back_to_the_log_if_asked(place: PodPlace) -> None:
    pod = _pod(*_python("raise SystemExit('no good')"))
    assert (await _end(await _run(pod, place))).message == ""
    pod["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    assert "no good" in (await _end(await _run(pod, place))).message


async def test_stop_asks_first(place: PodPlace) -> None:
    code = (
        "import signal,sys; signal.signal(15, lambda *_: sys.exit(7)); print('up'); signal.pause()"
    )
    container = await _run(_pod(*_python(code)), place)
    await _until_logged(place, "up")
    container.stop(END_S)
    assert (await _end(container)).code == 7


async def test_a_pre_stop_sleep_comes_before_sigterm(place: PodPlace) -> None:
    hook = {"preStop": {"sleep": {"seconds": 1}}}
    pod = _pod(*_python("print('up', flush=True); import time; time.sleep(1000)"), lifecycle=hook)
    container = await _run(pod, place)
    await _until_logged(place, "up")
    asked_at = asyncio.get_running_loop().time()
    container.stop(grace_s=30)
    assert (await _end(container)).code == 128 + signal.SIGTERM
    assert asyncio.get_running_loop().time() - asked_at >= 1


async def test_stop_kills_after_the_grace(place: PodPlace) -> None:
    code = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('up')\nwhile True: signal.pause()"
    )
    container = await _run(_pod(*_python(code)), place)
    await _until_logged(place, "up")
    container.stop(0.2)
    assert (await _end(container)).code == 128 + signal.SIGKILL


async def test_nothing_of_a_container_outlives_it(place: PodPlace) -> None:
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '1000']); print('child', p.pid, 'end')"
    )
    await _end(await _run(_pod(*_python(code)), place))
    pid = int((place.log_folder / "main.log").read_text().split()[1])
    wait_until(lambda: not _is_alive(pid), END_S, "the container's child is gone")


def test_containers_die_with_the_fleet_whatever_kills_it(tmp_path: Path) -> None:
    code = f"""
import asyncio
from pathlib import Path
from tests.lab.test_kubelet_process import _pod, _run
from workers.lab.kubelet.environment import PodPlace
here = Path({str(tmp_path)!r})
place = PodPlace(here, here / "logs", here, here, "n", "h", "1", None, None)
async def main():
    await _run(_pod("python", "-c", "import os,time; print(os.getpid(), 'up'); time.sleep(1000)"), place)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
    log = tmp_path / "logs/main.log"
    with subprocess.Popen([sys.executable, "-c", code]) as fleet:
        wait_until(lambda: log.exists() and "up" in log.read_text(), END_S, "the container runs")
        pid = int(log.read_text().split()[0])
        assert _is_alive(pid)
        fleet.kill()
    wait_until(lambda: not _is_alive(pid), END_S, "the container is gone")


@pytest.fixture
def root(tmp_path: Path) -> HostRoot:
    root = HostRoot(tmp_path / "root", "NVIDIA H100 80GB HBM3")
    identity = make_identity(NodeSpec(name="node-1", gpus=2))
    root.install(identity)
    root.boot(BootEvent.FIRST, "test", identity.gpus)
    return root


def test_the_host_root_reads_like_a_gpu_node(root: HostRoot) -> None:
    files = sorted((root.path / "proc/driver/nvidia/gpus").iterdir())
    assert [f.name for f in files] == ["0000:1b:00.0", "0000:43:00.0"]
    text = (files[1] / "information").read_text()
    assert "Model: \t\t NVIDIA H100 80GB HBM3\n" in text
    assert "GPU UUID: \t GPU-" in text
    assert "Bus Location: \t 0000:43:00.0\n" in text
    assert (root.path / "proc/sys/kernel/random/boot_id").read_text() == root.boot_id + "\n"


def test_the_boot_log_tells_each_boot_with_both_ids(root: HostRoot) -> None:
    first = root.boot_id
    second = root.boot(BootEvent.BOOT, "why", ())
    root.log(BootEvent.IGNORED, "not now")
    log = read_boot_log(root.path)
    assert [(r.event, r.old, r.new) for r in log] == [
        (BootEvent.FIRST, "", first),
        (BootEvent.BOOT, first, second),
        (BootEvent.IGNORED, second, second),
    ]


def _chroot(root: HostRoot, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [root.programs / "chroot", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=END_S,
    )


def test_chroot_into_the_nodes_root_asks_for_a_reboot(root: HostRoot) -> None:
    fifo = os.open(root.path / REBOOT_FIFO, os.O_RDWR | os.O_NONBLOCK)
    try:
        done = _chroot(root, f"{root.path}/", "/usr/bin/systemctl", "reboot")
        assert (done.returncode, done.stderr) == (0, "")
        assert os.read(fifo, 1000).startswith(b"systemctl reboot by ")
    finally:
        os.close(fifo)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("/", "/usr/bin/systemctl", "reboot"), "only the node's own root"),
        ((), "only the node's own root"),
        (("{root}", "/usr/bin/systemctl", "poweroff"), "only '/usr/bin/systemctl reboot' is known"),
        (("{root}", "/bin/sh"), "only '/usr/bin/systemctl reboot' is known"),
        (("{root}/etc", "/usr/bin/systemctl", "reboot"), "only the node's own root"),
    ],
    ids=["slash", "nothing", "poweroff", "shell", "below"],
)
def test_chroot_refuses_everything_else(
    root: HostRoot, words: tuple[str, ...], message: str
) -> None:
    done = _chroot(root, *(word.format(root=root.path) for word in words))
    assert done.returncode != 0
    assert message in done.stderr


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


async def _until_logged(place: PodPlace, text: str) -> None:
    log = place.log_folder / "main.log"
    async with asyncio.timeout(END_S):
        while not log.exists() or text not in log.read_text():
            await asyncio.sleep(0.02)
