"""The node-task program: its order, its refusals, its verdict. A folder stands for the host."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.workers.node_task.conftest import BOOT
from workers.node_task import host as host_module
from workers.node_task.host import Host, HostUnreadable
from workers.node_task.main import encode_verdict, main
from workflows.contracts.node_tasks import TaskAnswer, read_verdict
from workflows.model.node_task import MAX_VERDICT_BYTES, Result, TaskKind, TaskVerdict

Run = Callable[..., TaskAnswer]


@pytest.fixture
def root(root: Path) -> Path:
    """The host with two GPUs."""
    for number in range(2):
        gpu(root, f"0000:1{number}:00.0", f"GPU-{number}")
    return root


def gpu(root: Path, bus_id: str, uuid: str) -> None:
    folder = root / "proc/driver/nvidia/gpus" / bus_id
    folder.mkdir(parents=True)
    (folder / "information").write_text(
        f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {bus_id}\n"
    )


def program(tmp_path: Path, script: str) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    chroot = folder / "chroot"
    chroot.write_text(f"#!/bin/sh\n{script}\n")
    chroot.chmod(0o755)
    return folder


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one task as the kubelet would; its verdict as the worker reads it."""
    log = tmp_path / "termination-log"

    def one(kind: TaskKind, host_root: str | None = None, **order: Any) -> TaskAnswer:
        script = f'cat {log} > {tmp_path}/before; echo "$@" > {tmp_path}/asked'
        monkeypatch.setenv(
            "PATH", f"{program(tmp_path, order.pop('script', script))}:/usr/bin:/bin"
        )
        text = {"kind": kind.value, "episode": "ep", "task": "t", "node": "n", **order}
        environment = {
            "FLEETMEND_TASK": json.dumps(text, default=str),
            "FLEETMEND_HOST_ROOT": host_root or str(root),
            "FLEETMEND_TERMINATION_LOG": str(log),
        }
        main(kind.value, environment)
        return read_verdict(log.read_text(), kind=kind, episode="ep", task="t")

    return one


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=30)


def test_the_inventory_names_every_gpu(run: Run) -> None:
    answer = run(TaskKind.INVENTORY)
    assert answer == TaskAnswer(Result.DONE, "2 GPUs", BOOT, ("GPU-0", "GPU-1"), "NVIDIA H100")


@pytest.mark.parametrize("uuid", ["", "GPU-" + "x" * 99, "\x1b[31m", "GPU-0"])
def test_a_gpu_without_a_usable_uuid_is_named_and_not_counted(
    run: Run, root: Path, uuid: str
) -> None:
    gpu(root, "0000:99:00.0", uuid)
    answer = run(TaskKind.INVENTORY)
    assert answer.gpus == ("GPU-0", "GPU-1")
    assert "0000:99:00.0" in answer.detail


def test_without_the_driver_nothing_is_known(run: Run, root: Path) -> None:
    (root / "proc/driver/nvidia/gpus").rename(root / "proc/driver/nvidia/gone")
    answer = run(TaskKind.INVENTORY)
    assert answer.result is Result.UNKNOWN
    assert "driver is not loaded" in answer.detail


def test_a_reboot_leaves_its_verdict_before_it_asks(run: Run, tmp_path: Path, root: Path) -> None:
    answer = run(TaskKind.REBOOT, expected_boot_id=BOOT, not_after=soon())
    assert (answer.result, answer.boot_id) == (Result.DONE, BOOT)
    assert (tmp_path / "asked").read_text().split() == [str(root), "/usr/bin/systemctl", "reboot"]
    before = read_verdict(
        (tmp_path / "before").read_text(), kind=TaskKind.REBOOT, episode="ep", task="t"
    )
    assert before.result is Result.DONE


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"expected_boot_id": "another", "not_after": soon()}, "not in another"),
        ({"expected_boot_id": BOOT, "not_after": datetime(2026, 1, 1, tzinfo=UTC)}, "too late"),
        ({"expected_boot_id": "", "not_after": soon()}, "expected_boot_id is missing"),
    ],
    ids=["boot", "late", "unbound"],
)
def test_a_reboot_that_no_longer_holds_is_refused(
    run: Run, tmp_path: Path, order: dict[str, Any], why: str
) -> None:
    answer = run(TaskKind.REBOOT, **order)
    assert answer.result is Result.REFUSED
    assert why in answer.detail
    assert answer.boot_id == BOOT
    assert not (tmp_path / "asked").exists()


def open_file(root: Path, pid: int, target: str) -> None:
    folder = root / f"proc/{pid}/fd"
    folder.mkdir(parents=True)
    (folder / "3").symlink_to(target)


@pytest.mark.parametrize("device", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_a_process_on_a_gpu_stops_a_reboot_that_must_not_meet_one(
    run: Run, root: Path, tmp_path: Path, device: str
) -> None:
    open_file(root, 41, "/dev/null")
    open_file(root, 42, device)
    order = {"expected_boot_id": BOOT, "not_after": soon()}
    answer = run(TaskKind.REBOOT, refuse_if_gpu_in_use=True, **order)
    assert answer.result is Result.REFUSED
    assert f"pid 42 {device}" in answer.detail.replace("(", "").replace(")", "")
    assert not (tmp_path / "asked").exists()
    assert run(TaskKind.REBOOT, **order).result is Result.DONE


def test_too_many_processes_to_tell_is_a_refusal(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "MAX_PROCESSES", 1)
    for pid in (1, 2, 3):
        open_file(root, pid, "/dev/null")
    answer = run(
        TaskKind.REBOOT, expected_boot_id=BOOT, not_after=soon(), refuse_if_gpu_in_use=True
    )
    assert answer.result is Result.REFUSED
    assert "cannot tell" in answer.detail


def test_a_command_that_fails_is_unknown(run: Run) -> None:
    order = {"expected_boot_id": BOOT, "not_after": soon()}
    answer = run(TaskKind.REBOOT, script="echo no bus >&2; exit 7", **order)
    assert answer.result is Result.UNKNOWN
    assert "exit code 7: no bus" in answer.detail


@pytest.mark.parametrize("given", ["/", "/usr/..", "relative", "/no/such/folder"])
def test_only_a_mounted_root_is_acted_in(run: Run, tmp_path: Path, given: str) -> None:
    answer = run(TaskKind.REBOOT, given, expected_boot_id=BOOT, not_after=soon())
    assert answer.result is Result.UNKNOWN
    assert "host root" in answer.detail
    assert not (tmp_path / "asked").exists()


def test_a_boot_id_that_is_none_is_unknown(run: Run, root: Path) -> None:
    (root / "proc/sys/kernel/random/boot_id").write_text("\x00" * 5000)
    assert run(TaskKind.INVENTORY).result is Result.UNKNOWN


def test_more_gpus_than_any_machine_has_are_not_listed(root: Path) -> None:
    for number in range(70):
        gpu(root, f"0001:{number}:00.0", f"GPU-x{number}")
    with pytest.raises(HostUnreadable, match="72 entries"):
        Host(root).gpus()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not set"),
        ("{", "no JSON"),
        ('{"kind":"format"}', "kind"),
        ('{"kind":"reboot","episode":"e","task":"t","node":"n"}', "the command says inventory"),
        ('{"kind":"inventory","episode":"e","task":"t","node":"n","x":1}', "x"),
        (
            '{"kind":"inventory","episode":"e","task":"t","node":"n","not_after":"2026-01-01T00:00"}',
            "not_after",
        ),
    ],
)
def test_a_bad_order_is_named_and_nothing_done(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    environment = {"FLEETMEND_TASK": text, "FLEETMEND_TERMINATION_LOG": str(log)}
    assert main("inventory", environment) == 2
    assert why in capsys.readouterr().err
    assert not log.exists()


def test_a_verdict_always_arrives_whole() -> None:
    def verdict(detail: str, gpus: int) -> TaskVerdict:
        return TaskVerdict(
            kind=TaskKind.INVENTORY,
            episode="e" * 128,
            task="t" * 253,
            boot_id=BOOT,
            result=Result.DONE,
            detail=detail,
            gpus=tuple(f"GPU-{'0' * 36}{n}" for n in range(gpus)),
            model="m" * 128,
        )

    whole = json.loads(encode_verdict(verdict("d", 60)))
    assert len(whole["gpus"]) == 60
    cut = encode_verdict(verdict("d" * 1000, 64))
    assert len(cut) <= MAX_VERDICT_BYTES
    assert len(json.loads(cut)["gpus"]) == 64
    long = structs.replace(verdict("", 64), gpus=tuple(f"GPU-{'0' * 60}{n}" for n in range(64)))
    lost = json.loads(encode_verdict(long))
    assert (lost["result"], lost["gpus"]) == ("unknown", [])


def test_the_program_starts_without_what_only_the_control_plane_needs() -> None:
    code = (
        "import sys, workers.node_task.main, workers.node_task.diagnose; "
        "import workers.node_task.kernel_log; "
        "heavy = ('kubernetes', 'temporalio', 'structlog', 'pydantic', 'yaml'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
