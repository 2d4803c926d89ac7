"""The kernel log as a source: told at once, folded, bounded, and not moved by the wall clock."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.devices import kernel_log
from activities.devices.bursts import RETELL_S, SILENCE_S
from activities.devices.kernel_log import KernelLogSource
from activities.devices.reading import CannotTell, Reading
from tests.activities.devices.test_kernel_lines import CASES, make_readings, told
from tests.lab.devices.conftest import BOARDS, Machine
from workers.lab.devices.driver_log import Xid
from workflows.model.detection.fault import Fault

UUID = "GPU-5f0e1d2c-aaaa-bbbb-cccc-0123456789ab"
XID_79 = CASES["L07"][0]
XID_95 = CASES["L23"][0]


class _Log:
    """A node's root with a FIFO as its kernel log, and the source over it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        self.path = root / "dev/kmsg"
        os.mkfifo(self.path)
        gpu = root / "proc/driver/nvidia/gpus/0000:9b:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t NVIDIA H100\nGPU UUID: \t {UUID}\n")
        self.source = KernelLogSource(self.path, root, clock=lambda: self.wall)
        self.wall = datetime(2026, 11, 29, 12, tzinfo=UTC)
        self.stream = self.source.stream()
        self._seq = 0
        self._writer = -1

    def write(self, *lines: str) -> None:
        if self._writer < 0:
            self._writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        for line in lines:
            self._seq += 1
            os.write(self._writer, f"4,{self._seq},{self._seq},-;{line}\n".encode())

    def close(self) -> None:
        self.stream.close()  # type: ignore[attr-defined]
        if self._writer >= 0:
            os.close(self._writer)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[_Log]:
    made = _Log(tmp_path)
    assert next(made.stream) == ()
    yield made
    made.close()


def test_the_first_line_of_a_fault_is_told_at_once(log: _Log) -> None:
    waits = []
    for n in range(20):
        line = XID_79.replace("79,", f"{200 + n},")
        writer = threading.Timer(0.01, log.write, [line])
        begun = time.monotonic()
        writer.start()
        (reading,) = next(log.stream)
        waits.append(time.monotonic() - begun - 0.01)
        assert reading.device == UUID
        writer.join()
    # A read that collects would last COUNT_S, a second.
    assert sorted(waits)[10] < 0.5, "no line is held back to be collected with others"


def test_a_driver_that_hangs_on_its_files_keeps_no_line_back(
    log: _Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "LIST_S", 0.2)
    information = log.root / "proc/driver/nvidia/gpus/0000:9b:00.0/information"
    information.unlink()
    os.mkfifo(information)  # whoever opens it waits
    stream = log.source.stream()
    assert next(stream) == ()
    log.write(XID_79)
    (reading,) = next(stream)
    assert (reading.device, reading.code) == ("0000:9b:00", "xid-79")
    stream.close()  # type: ignore[attr-defined]
    os.close(os.open(information, os.O_RDWR | os.O_NONBLOCK))


def test_a_reading_has_the_time_of_its_line(log: _Log) -> None:
    log.write(XID_79)
    (reading,) = next(log.stream)
    assert (reading.at, reading.key) == (log.wall, f"{UUID}/xid-79")


@pytest.mark.parametrize("step", [timedelta(minutes=10), timedelta(minutes=-10)])
def test_a_step_of_the_wall_clock_neither_ends_nor_repeats_a_burst(
    log: _Log, step: timedelta
) -> None:
    log.write(XID_79)
    assert len(next(log.stream)) == 1
    log.wall += step
    log.write(XID_79, XID_79, "NVRM: GPU4 RPC history", XID_95)
    (other,) = next(log.stream)
    assert (other.code, other.at) == ("xid-95", log.wall) or other.count == 3


def test_a_quiet_log_says_that_it_lives(log: _Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "ALIVE_S", 0.1)
    assert next(log.stream) == ()
    assert log.source.deadline_s > 2 * 5


def test_an_unreadable_log_cannot_tell_at_once(tmp_path: Path) -> None:
    with pytest.raises(CannotTell):
        next(KernelLogSource(tmp_path / "dev/kmsg", tmp_path).stream())


def test_lost_records_are_told_and_cost_no_node(log: _Log) -> None:
    log.write("one")
    log._seq += 500
    log.write(XID_79)
    lost, xid = next(log.stream)
    assert (lost.code, lost.condition, xid.code) == ("kernel-log-overrun", None, "xid-79")
    assert "500" in lost.text


def test_no_item_is_longer_than_the_agent_reads(log: _Log) -> None:
    found: list[Reading] = []
    lines = [XID_79.replace("79,", f"{1000 + n},") for n in range(200)]
    writing = threading.Thread(target=log.write, args=lines)
    writing.start()
    while len(found) < 200:
        item = next(log.stream)
        assert len(item) <= kernel_log.MAX_ITEM
        found += item
    writing.join()
    assert len({reading.key for reading in found}) == 200


def test_a_driven_kernel_log_tells_a_lost_gpu_and_what_was_said_before(machine: Machine) -> None:
    machine.devices.xid(1, Xid(13, "Graphics Exception: ESR 0x54cfb0=0x11f000e", 77))
    stream = KernelLogSource(machine.devices.kmsg.path, machine.devices.root).stream()
    (before,) = next(stream)
    assert (before.device, before.code) == (BOARDS[1].uuid, "xid-13")
    machine.devices.xid(0, Xid(79, "GPU has fallen off the bus."))
    (lost,) = next(stream)
    assert (lost.device, lost.code, lost.fault) == (BOARDS[0].uuid, "xid-79", Fault.GPU_LOST)
    stream.close()  # type: ignore[attr-defined]


def test_a_driven_flood_of_100000_lines_does_not_drown_the_xid_behind_it(machine: Machine) -> None:
    kmsg = machine.devices.kmsg
    stream = KernelLogSource(kmsg.path, machine.devices.root).stream()
    next(stream)

    def flood() -> None:
        asyncio.run(kmsg.burst("usb 1-1: new high-speed USB device", 100_000))
        machine.devices.xid(0, Xid(79, "GPU has fallen off the bus."))

    writing = threading.Thread(target=flood)
    writing.start()
    codes: set[str] = set()
    until = time.monotonic() + 60
    while "xid-79" not in codes and time.monotonic() < until:
        codes.update(reading.code for reading in next(stream))
    writing.join()
    stream.close()  # type: ignore[attr-defined]
    assert "xid-79" in codes
    assert codes <= {"xid-79", "kernel-log-overrun"}


def test_d4_800000_lines_of_29_faults_are_29_readings_with_their_counts() -> None:
    lines = [
        XID_95.replace("0000:38:00", f"0000:{0x38 + n % 8:02x}:00").replace(
            "0x2, 0x1", f"0x2, 0x{n}"
        )
        for n in range(29)
    ]
    readings = make_readings()
    at = datetime.now(UTC)
    latest: dict[str, Reading] = {}
    tellings = 0
    for n in range(0, 800_000, len(lines)):
        for line in lines[: 800_000 - n]:
            # 800,000 lines in 40 s of the reader's clock.
            for reading in readings.take(line, at, n / 20_000):
                latest[reading.key] = reading
                tellings += 1
    for reading in readings.due(40 + RETELL_S):
        latest[reading.key] = reading
    assert len(latest) == 29
    assert sum(reading.count for reading in latest.values()) == 800_000
    assert tellings <= 29 * 5
    assert {reading.fault for reading in latest.values()} == {Fault.GPU_MEMORY_UNCORRECTABLE}
    assert len(readings._bursts._open) == 29


def test_n24_an_xid_145_that_says_nonfatal_is_not_told() -> None:
    assert told(make_readings(), CASES["L38"][0]) == []
    fatal = CASES["L38"][0].replace("Nonfatal", "Fatal")
    assert [r.fault for r in told(make_readings(), fatal)] == [Fault.INTERCONNECT]


def test_a_count_is_told_again_after_a_while_and_a_burst_ends_in_silence() -> None:
    readings = make_readings()
    assert [r.count for r in told(readings, XID_79, now=100)] == [1]
    assert told(readings, XID_79, XID_79, now=101) == []
    assert [r.count for r in readings.due(100 + RETELL_S)] == [3]
    assert list(readings.due(100 + 2 * RETELL_S)) == []
    assert [r.count for r in told(readings, XID_79, now=101 + SILENCE_S)] == [4]
    again = 102 + 2 * SILENCE_S
    assert [r.count for r in told(readings, XID_79, now=again)] == [1]


def test_the_echoes_of_a_lost_gpu_are_counted_with_it() -> None:
    readings = make_readings()
    peers = [CASES["L12"][0], CASES["L24"][0], CASES["L67"][0]]
    assert len(told(readings, XID_79)) == 1
    assert told(readings, *peers) == []
    assert [(r.code, r.count) for r in readings.due(100 + RETELL_S)] == [("xid-79", 4)]


def test_an_application_error_before_a_fault_hides_nothing() -> None:
    line_48 = CASES["L15"][0]
    codes = [r.code for r in told(make_readings(), CASES["L10"][0], CASES["L12"][0], line_48)]
    assert codes == ["xid-13", "xid-48"]


def test_an_xid_45_that_names_a_lost_gpu_counts_as_that_loss() -> None:
    caused = "NVRM: Xid (PCI:0000:9b:00): 45, pid=1, Ch 9 caused by previous Xid 79"
    (reading,) = told(make_readings(), caused)
    assert (reading.key, reading.fault) == ("0000:9b:00/xid-79", Fault.GPU_LOST)
    assert len(told(make_readings(), XID_79, caused)) == 1


def test_more_kinds_of_faults_than_there_can_be_are_bounded() -> None:
    readings = make_readings()
    for n in range(2_000):
        told(readings, XID_79.replace("79,", f"{n % 10_000},").replace("9b", f"{n % 256:02x}"))
    assert len(readings._bursts._open) <= 256
