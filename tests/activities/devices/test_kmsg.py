"""The kernel's record format, and a log device that overruns, closes, or is not there."""

import errno
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.devices import kmsg
from activities.devices.kmsg import MAX_RECORD, KernelLog, Lost, Record, Splitter
from activities.devices.reading import CannotTell
from tests.harness.waiting import wait_until

XID_79 = (
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


def _split(*chunks: bytes) -> list[Record | Lost]:
    splitter = Splitter()
    found = [item for chunk in chunks for item in splitter.feed(chunk)]
    return [*found, *splitter.flush()]


def _texts(items: list[Record | Lost]) -> list[str]:
    return [line for item in items if isinstance(item, Record) for line in item.lines]


def test_a_record_has_its_number_its_time_and_its_text() -> None:
    line = f"4,1187,6781741548779,-,caller=T2024380;{XID_79}\n"
    assert _split(line.encode()) == [Record(1187, 6781741548779, (XID_79,))]


def test_dictionary_lines_are_no_text() -> None:
    data = b"3,1190,1,-;pcieport: AER\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.1\n3,1191,2,-;next\n"
    assert _texts(_split(data)) == ["pcieport: AER", "next"]


@pytest.mark.parametrize("prio", [8, 12, 30, 191])
def test_what_user_space_wrote_is_no_kernel_line(prio: int) -> None:
    assert _split(f"{prio},1,1,-;{XID_79}\n".encode()) == []


def test_escapes_are_decoded_and_a_newline_in_a_record_parts_its_lines() -> None:
    data = rb"4,1,1,-;one\x0atwo \xc3\xa9 back\x5cslash \xzz \x" + b"\n"
    assert _texts(_split(data)) == ["one", r"two é back\slash \xzz \x"]


def test_fragments_of_one_line_are_put_together() -> None:
    data = b"4,1,1,c;NVRM: Xid (PCI:0000:9b:00): \n4,2,1,+;79, GPU has\n4,3,1,-;other\n"
    assert _texts(_split(data)) == ["NVRM: Xid (PCI:0000:9b:00): 79, GPU has", "other"]


@pytest.mark.parametrize(
    "junk",
    [
        *(b"", b"no header", b";", b"1,2;x", b"a,b,c,-;x", b"-1,2,3,-;x", b"1,2,3"),
        *(b"\xff\xfe,1,1,-;x", b"9" * 30 + b",1,1,-;x"),
    ],
)
def test_a_record_that_is_none_is_passed_over(junk: bytes) -> None:
    assert _texts(_split(junk + b"\n4,7,1,-;after\n")) == ["after"]


def test_a_gap_in_the_numbers_is_records_lost() -> None:
    assert _split(b"4,1,1,-;a\n4,2,1,-;b\n4,12,1,-;c\n")[2] == Lost(9)


def test_a_record_over_the_bound_is_cut_and_the_next_is_whole() -> None:
    begin = f"4,1,1,-;{XID_79} ".encode()
    chunks = [begin, *[b"x" * 10_000] * 500, b"\n4,2,1,-;next\n"]
    first, last = _split(*chunks)
    assert isinstance(first, Record)
    assert first.cut
    assert first.lines[0].startswith(XID_79)
    assert len(first.lines[0]) <= MAX_RECORD
    assert last == Record(2, 1, ("next",))


@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same_records(data: st.DataObject) -> None:
    whole = b"".join(
        b"4,%d,%d,%s;line \\x0a %d\n K=v\n" % (i, i, b"-c+"[i % 3 :][:1], i) for i in range(9)
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=20)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert _split(*parts) == _split(whole)


@given(st.binary(max_size=400))
def test_no_bytes_break_it(data: bytes) -> None:
    items = _split(data, b"\n4,18446744073709551615,1,-;after\n")
    assert "after" in _texts(items)[-1:] or b"\n" not in data


class _Fifo:
    """A log device in the form of a FIFO, with one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self.log = KernelLog(path)
        self.writer = -1

    def write(self, data: bytes) -> None:
        if self.writer < 0:
            self.writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(self.writer, data)

    def hang_up(self) -> None:
        os.close(self.writer)
        self.writer = -1

    def texts(self, timeout_s: float = 0.0) -> list[str]:
        return _texts(list(self.log.read(timeout_s)))


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[_Fifo]:
    made = _Fifo(tmp_path / "kmsg")
    yield made
    made.log.close()
    if made.writer >= 0:
        made.hang_up()


def test_a_quiet_log_costs_its_reader_no_time(fifo: _Fifo) -> None:
    begun, spent = time.monotonic(), time.process_time()
    assert fifo.texts(0.5) == []
    assert time.monotonic() - begun >= 0.4
    assert time.process_time() - spent < 0.1


def test_d13_a_log_that_closes_is_opened_again_and_nothing_is_lost(fifo: _Fifo) -> None:
    fifo.log.open()
    for n in range(20):
        fifo.write(b"4,%d,1,-;line %d\n" % (n, n))
        fifo.hang_up()
        assert wait_until(lambda: fifo.texts(0.1), 5, "the line is read") == [f"line {n}"]


def test_what_is_written_while_it_is_opened_again_is_kept(
    fifo: _Fifo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo.log.open()
    fifo.write(b"4,1,1,-;before\n")
    fifo.hang_up()
    assert fifo.texts() == ["before"]
    real = os.open

    def open_after_a_line(*arguments: object) -> int:
        monkeypatch.setattr("activities.devices.kmsg.os.open", real)
        fifo.write(b"4,2,2,-;meanwhile\n")
        fifo.hang_up()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("activities.devices.kmsg.os.open", open_after_a_line)
    fifo.texts()
    assert fifo.texts() == ["meanwhile"]


def test_a_writer_that_died_in_a_line_leaves_what_it_wrote(fifo: _Fifo) -> None:
    fifo.log.open()
    fifo.write(f"4,1,1,-;{XID_79}".encode())
    fifo.hang_up()
    assert wait_until(lambda: fifo.texts(0.1), 5, "the line is read") == [XID_79]


def test_a_fragment_waits_for_its_end_but_not_for_long(fifo: _Fifo) -> None:
    fifo.log.open()
    fifo.write(b"4,1,1,c;the beginning\n")
    begun = time.monotonic()
    assert wait_until(lambda: fifo.texts(5.0), 5, "it is told") == ["the beginning"]
    assert time.monotonic() - begun < 4


def test_an_opening_that_begins_with_the_oldest_record_repeats_none(fifo: _Fifo) -> None:
    fifo.log.open()
    fifo.write(b"4,1,10,-;one\n4,2,20,-;two\n")
    assert fifo.texts() == ["one", "two"]
    fifo.hang_up()
    fifo.texts()
    fifo.write(b"4,1,10,-;one\n4,2,20,-;two\n4,3,30,-;three\n")
    assert fifo.texts() == ["three"]
    fifo.hang_up()
    fifo.texts()
    fifo.write(b"4,0,40,-;another boot\n")
    assert fifo.texts() == ["another boot"]


def _failing(monkeypatch: pytest.MonkeyPatch, *failures: int) -> None:
    """The next reads of the device fail like this; then it is read as it is."""
    left = list(failures)
    real = os.read

    def read(fd: int, size: int) -> bytes:
        if left:
            raise OSError(left.pop(0), "as the kernel would say")
        return real(fd, size)

    monkeypatch.setattr("activities.devices.kmsg.os.read", read)


def test_d12_overruns_are_told_and_reading_goes_on(
    fifo: _Fifo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo.log.open()
    fifo.write(b"4,1,1,-;before\n4,2,1,-;also\n")
    _failing(monkeypatch, *[errno.EPIPE] * 200)
    lost = [item for _ in range(200) for item in fifo.log.read(0)]
    assert lost == [Lost(0)] * 200
    assert fifo.texts() == ["before", "also"]


@pytest.mark.parametrize(
    "number", [errno.EAGAIN, errno.EINTR, errno.EINVAL, errno.EIO, errno.ENODEV]
)
def test_a_read_that_fails_once_costs_no_line(
    fifo: _Fifo, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fifo.log.open()
    fifo.write(b"4,1,1,-;kept\n")
    _failing(monkeypatch, number)
    assert fifo.texts() == []
    assert fifo.texts() == ["kept"]


def test_a_log_that_stays_closed_cannot_tell(fifo: _Fifo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg, "CLOSED_S", 0.2)
    fifo.log.open()
    fifo.write(b"4,1,1,-;x\n")
    _failing(monkeypatch, *[errno.EIO] * 100)
    with pytest.raises(CannotTell, match="closed for"):
        [item for _ in range(100) for item in fifo.log.read(0)]


def test_a_log_that_is_absent_cannot_tell_at_once(tmp_path: Path) -> None:
    with pytest.raises(CannotTell, match="No such file"):
        list(KernelLog(tmp_path / "kmsg").read(0))


def test_a_file_is_no_log_device(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(f"4,1,1,-;{XID_79}\n")
    with pytest.raises(CannotTell, match="neither a character device nor a FIFO"):
        list(KernelLog(tmp_path / "kmsg").read(0))


def test_100000_lines_in_a_second_lose_nothing_and_take_little_memory(fifo: _Fifo) -> None:
    count, every = 100_000, 1_000
    log = KernelLog(fifo.path, lambda text: b"Xid" in text)
    log.open()

    def flood() -> None:
        with fifo.path.open("wb") as writer:
            for n in range(count):
                text = XID_79 if n % every == 0 else "usb 1-1: new high-speed USB device"
                writer.write(f"4,{n},{n},-,caller=T1;{text}\n".encode())

    writing = threading.Thread(target=flood)
    tracemalloc.start()
    writing.start()
    found = []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        is_over = not writing.is_alive()
        items = list(log.read(0.1))
        found += _texts(items)
        if is_over and not items:
            break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    writing.join()
    log.close()
    assert len(found) == count // every
    assert peak < 2 * 1024 * 1024
