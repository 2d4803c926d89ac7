"""The simulated kernel log: format, numbers, overrun, readers that come and go."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from workers.lab.devices.kmsg import RING_RECORDS, Kmsg

LIMIT_S = 10.0


@pytest.fixture
def kmsg(tmp_path: Path) -> Iterator[Kmsg]:
    log = Kmsg(tmp_path / "dev/kmsg")
    log.open()
    yield log
    log.close()


@contextmanager
def _reader(path: Path) -> Iterator[int]:
    """As a program opens the device."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_all(fd: int) -> list[bytes]:
    records = []
    while True:
        try:
            records.append(os.read(fd, 8192))
        except BlockingIOError:
            return records


def _all(path: Path) -> list[bytes]:
    with _reader(path) as fd:
        return _read_all(fd)


def _seqs(records: list[bytes]) -> list[int]:
    return [int(record.split(b",")[1]) for record in records]


def test_a_read_gives_one_record_in_the_kernels_format(kmsg: Kmsg) -> None:
    before = time.monotonic_ns() // 1000
    kmsg.nvrm("Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
    kmsg.write("next", priority=6)
    first, second = _all(kmsg.path)
    header, _, text = first.partition(b";")
    priority, seq, microseconds, flags = header.split(b",")
    assert (priority, seq, flags) == (b"4", b"0", b"-")
    assert before <= int(microseconds) <= time.monotonic_ns() // 1000
    assert text == b"NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
    assert second.startswith(b"6,1,")


def test_odd_bytes_are_escaped_and_keys_follow_in_lines_of_their_own(kmsg: Kmsg) -> None:
    kmsg.write("a\nb\\c\x7fé", keys={"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:1b:00.0"})
    (record,) = _all(kmsg.path)
    lines = record.split(b"\n")
    assert lines[0].endswith(rb";a\x0ab\x5cc\x7f\xc3\xa9")
    assert lines[1:] == [b" SUBSYSTEM=pci", b" DEVICE=+pci:0000:1b:00.0", b""]


def test_headers_may_be_odd(kmsg: Kmsg) -> None:
    kmsg.write("forged", priority=12)
    kmsg.write("who", extra="caller=T123")
    kmsg.write("begun", flags="c")
    kmsg.write_raw(b"no header at all\n")
    kmsg.write("after")
    records = _all(kmsg.path)
    assert records[0].startswith(b"12,0,")
    assert records[1].split(b";")[0].endswith(b",-,caller=T123")
    assert records[2].split(b";")[0].endswith(b",c")
    assert records[3] == b"no header at all\n"
    assert records[4].startswith(b"4,4,")


def test_what_is_written_while_nobody_reads_waits(kmsg: Kmsg) -> None:
    for i in range(RING_RECORDS):
        kmsg.write(str(i))
    assert _seqs(_all(kmsg.path)) == list(range(RING_RECORDS))


def test_a_full_log_loses_its_oldest_records_and_the_numbers_show_it(kmsg: Kmsg) -> None:
    with _reader(kmsg.path) as fd:
        kmsg.write("seen")
        assert _seqs(_read_all(fd)) == [0]
        for i in range(RING_RECORDS + 100):
            kmsg.write(str(i))
        assert _seqs(_read_all(fd)) == list(range(101, RING_RECORDS + 101))


async def test_a_burst_of_100000_lines_blocks_nobody_and_its_end_is_kept(kmsg: Kmsg) -> None:
    longest = asyncio.create_task(_longest_pause())
    await asyncio.sleep(0)
    await kmsg.burst("NVRM: one of many lines", 100_000)
    kmsg.write("the last")
    longest.cancel()
    records = _all(kmsg.path)
    assert _seqs(records)[-1] == 100_000
    assert records[-1].endswith(b";the last\n")
    assert _pauses[-1] < 1.0


_pauses: list[float] = []


async def _longest_pause() -> None:
    worst, last = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.monotonic()
            worst, last = max(worst, now - last), now
            _pauses.append(worst)
    except asyncio.CancelledError:
        _pauses.append(worst)


def test_a_boot_begins_an_empty_log_at_number_0(kmsg: Kmsg) -> None:
    with _reader(kmsg.path) as fd:
        kmsg.write("old")
        kmsg.boot()
        assert _read_all(fd) == []
        kmsg.write("new")
        assert [r.endswith(b";new\n") for r in _read_all(fd)] == [True]
    assert kmsg.next_seq == 1


def test_each_program_has_a_place_of_its_own(kmsg: Kmsg, tmp_path: Path) -> None:
    kmsg.write("before")
    own = tmp_path / "pod/kmsg"
    kmsg.offer(own)
    kmsg.write("after")
    assert _seqs(_all(own)) == _seqs(_all(kmsg.path)) == [0, 1]
    kmsg.withdraw(own)
    assert not own.exists()
    kmsg.write("later")
    assert _seqs(_all(kmsg.path)) == [2]


async def test_the_next_reader_begins_with_the_oldest_record(tmp_path: Path) -> None:
    kmsg = Kmsg(tmp_path / "kmsg")
    kmsg.open(asyncio.get_running_loop())
    kmsg.write("first")
    assert _seqs(_all(kmsg.path)) == [0]
    kmsg.write("second")

    async def reads_from_the_oldest() -> None:
        while _seqs(_all(kmsg.path)) != [0, 1]:
            await asyncio.sleep(0.01)

    async with asyncio.timeout(LIMIT_S):
        await reads_from_the_oldest()
    kmsg.close()


async def test_a_reader_that_stays_gets_each_record_once(tmp_path: Path) -> None:
    kmsg = Kmsg(tmp_path / "kmsg")
    kmsg.open(asyncio.get_running_loop())
    with _reader(kmsg.path) as fd:
        got: list[int] = []
        for i in range(50):
            kmsg.write(str(i))
            got += _seqs(_read_all(fd))
            await asyncio.sleep(0)
    assert got == list(range(50))
    kmsg.close()


@pytest.mark.parametrize("seconds", [600, -600])
def test_the_kernels_clock_may_differ_from_the_machines(kmsg: Kmsg, seconds: int) -> None:
    kmsg.skew = timedelta(seconds=seconds)
    kmsg.write("x")
    told = int(_all(kmsg.path)[0].split(b",")[2])
    expected = time.monotonic_ns() // 1000 + seconds * 1_000_000
    assert abs(told - max(0, expected)) < LIMIT_S * 1_000_000


def test_a_record_is_never_cut_in_two(kmsg: Kmsg) -> None:
    kmsg.write("\x01" * 3000)
    kmsg.write("next")
    first, second = _all(kmsg.path)
    assert (len(first), first[-1:]) == (4096, b"\n")
    assert second.endswith(b";next\n")
