"""The kernel-log task over the lab's log, which has the kernel's own record format."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.workers.node_task.conftest import BOOT
from workers.lab.devices.kmsg import RING_RECORDS, Kmsg
from workers.node_task.main import main
from workflows.contracts.node_tasks import TaskAnswer, read_verdict
from workflows.model.node_task import Health, Result, TaskKind

UUID = "GPU-11111111-2222-3333-4444-555555555555"
Look = Callable[..., TaskAnswer]


@pytest.fixture
def log(root: Path) -> Iterator[Kmsg]:
    kmsg = Kmsg(root / "dev/kmsg")
    kmsg.open()
    kmsg.nvrm(f"GPU at PCI:0000:1b:00: {UUID}")
    yield kmsg
    kmsg.close()


@pytest.fixture
def look(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    monkeypatch.delenv("FLEETMEND_KMSG", raising=False)

    def one(**order: Any) -> TaskAnswer:
        text = {"kind": "kernel-log", "episode": "ep", "task": "t", "node": "n", **order}
        environment = {
            "FLEETMEND_TASK": json.dumps(text, default=lambda at: at.isoformat()),
            "FLEETMEND_HOST_ROOT": str(root),
            "FLEETMEND_TERMINATION_LOG": str(tmp_path / "termination-log"),
        }
        main("kernel-log", environment)
        message = (tmp_path / "termination-log").read_text()
        return read_verdict(message, kind=TaskKind.KERNEL_LOG, episode="ep", task="t")

    return one


def ago(**time: float) -> datetime:
    return datetime.now(UTC) - timedelta(**time)


def xid(log: Kmsg, code: int, text: str) -> None:
    log.nvrm(f"Xid (PCI:0000:1b:00): {code}, {text}")


def test_a_clean_log_is_healthy_and_bound_to_its_boot(look: Look, log: Kmsg) -> None:
    log.write("usb 1-1: new device")
    answer = look(since=ago(hours=1))
    assert (answer.result, answer.health, answer.boot_id) == (Result.DONE, Health.HEALTHY, BOOT)
    assert answer.failures == ()


def test_hardware_xids_are_told_worst_first_with_class_device_and_line(
    look: Look, log: Kmsg
) -> None:
    xid(log, 13, "pid=7, name=python, Graphics Exception: ESR 0x404600=0x80000002")
    xid(log, 94, "pid=7, name=python, Contained: SM (0x1). RST: No, D-RST: No")
    xid(log, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    answer = look(since=ago(hours=1))
    assert answer.health is Health.FAULTY
    assert [(f.what, f.fault) for f in answer.failures] == [
        ("xid-79", "gpu-lost"),
        ("xid-94", "gpu-memory-contained"),
    ]
    assert answer.failures[0].device == UUID
    assert "fallen off the bus" in answer.failures[0].words


def test_an_applications_xid_is_no_hardware_fault(look: Look, log: Kmsg) -> None:
    xid(log, 31, "pid=7, name=python, Ch 00000008, intr 00000000. MMU Fault")
    assert look().health is Health.HEALTHY


def test_an_xid_that_nobody_knows_is_unknown_and_never_clean(look: Look, log: Kmsg) -> None:
    xid(log, 999, "something new")
    answer = look()
    assert answer.health is Health.UNKNOWN
    assert "999" in answer.detail


def test_what_user_space_wrote_is_not_believed(look: Look, log: Kmsg) -> None:
    log.write("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", priority=12)
    assert look().health is Health.HEALTHY


def test_what_was_said_before_the_time_does_not_count(look: Look, log: Kmsg) -> None:
    log.skew = timedelta(hours=-2)
    xid(log, 79, "GPU has fallen off the bus.")
    log.skew = timedelta()
    log.write("later")
    assert look(since=ago(hours=1)).health is Health.HEALTHY
    assert look(since=ago(hours=3)).health is Health.UNKNOWN, "the first look emptied this FIFO"


def test_the_whole_boot_is_read_when_no_time_is_given(look: Look, log: Kmsg) -> None:
    log.skew = timedelta(hours=-2)
    xid(log, 79, "GPU has fallen off the bus.")
    assert look().health is Health.FAULTY


def test_a_log_that_does_not_reach_back_is_unknown_unless_it_shows_a_fault(
    look: Look, log: Kmsg
) -> None:
    for number in range(RING_RECORDS + 10):
        log.write(f"line {number}")
    answer = look(since=ago(hours=1))
    assert answer.health is Health.UNKNOWN
    assert "reaches back only to" in answer.detail


def test_a_fault_in_a_log_that_was_overrun_is_a_fault(look: Look, log: Kmsg) -> None:
    for number in range(RING_RECORDS + 10):
        log.write(f"line {number}")
    xid(log, 48, "pid=1, name=a, DBE (double bit error)")
    assert look(since=ago(hours=1)).failures[0].fault == "gpu-memory-uncorrectable"


@pytest.mark.parametrize("kind", ["absent", "file", "folder", "empty"])
def test_a_log_that_cannot_be_read_is_unknown(look: Look, root: Path, kind: str) -> None:
    path = root / "dev/kmsg"
    path.parent.mkdir(parents=True)
    kmsg = Kmsg(path)
    if kind == "file":
        path.write_text("4,0,1,-;NVRM: fine\n")
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        kmsg.open()
    answer = look()
    assert (answer.result, answer.health) == (Result.DONE, Health.UNKNOWN)
    assert "dev/kmsg" in answer.detail
    kmsg.close()


def test_hostile_records_are_passed_over(look: Look, log: Kmsg) -> None:
    for record in (b"no header\n", b"4,x,1,-;a\n", b";" * 4000 + b"\n", b"\xff\xfe;\n"):
        log.write_raw(record)
    xid(log, 79, "GPU \x1b[31m`has` fallen off the bus." + "x" * 3000)
    answer = look()
    assert answer.failures[0].fault == "gpu-lost"
    assert answer.failures[0].words.isprintable()
    assert "`" not in answer.failures[0].words
