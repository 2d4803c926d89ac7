"""dcgmi health as a source: incidents, and everything that is no answer."""

import json
import os
import time
from pathlib import Path

import pytest

from activities.devices import dcgm
from activities.devices.dcgm import DcgmSource
from activities.devices.dcgm_health import read_health
from activities.devices.reading import CannotTell, Reading
from tests.harness.waiting import wait_until
from tests.lab.devices.conftest import BOARDS, Machine
from workers.lab.devices.state import Behaviour, Ecc, HealthIncident, Manner, NvLink

FIRST = BOARDS[0].uuid


@pytest.fixture
def source(machine: Machine) -> DcgmSource:
    return DcgmSource(machine.environment())


def _only(source: DcgmSource) -> Reading:
    (reading,) = source.poll()
    return reading


def test_a_healthy_machine_has_nothing_to_tell(source: DcgmSource) -> None:
    assert [source.poll(), source.poll()] == [(), ()]


def test_an_incident_is_told_with_the_gpus_uuid_as_long_as_it_lasts(
    source: DcgmSource, machine: Machine
) -> None:
    links = (*(NvLink(),) * 17, NvLink(active=False))
    machine.devices.change_gpu(1, nvlinks=links)
    reading = _only(source)
    assert (reading.device, reading.code) == (BOARDS[1].uuid, "dcgm-nvlink")
    assert (reading.fault, reading.condition, reading.status, reading.lasting) == (
        "interconnect",
        "InterconnectHealthy",
        "False",
        False,
    )
    assert "link 17 is currently down" in reading.text
    machine.devices.change_gpu(1, nvlinks=(NvLink(),) * 18)
    assert source.poll() == ()


@pytest.mark.parametrize(
    ("incident", "code", "fault"),
    [
        (
            HealthIncident(gpu=0, text="row remapping failed"),
            "dcgm-memory",
            "gpu-memory-uncorrectable",
        ),
        (HealthIncident(gpu=0, system="PCIe system"), "dcgm-pcie", "gpu-driver"),
        (HealthIncident(gpu=0, system="Thermal system"), "dcgm-thermal", "thermal"),
        (HealthIncident(gpu=0, system="Power system"), "dcgm-power", "thermal"),
        (HealthIncident(gpu=0, system="Driver"), "dcgm-driver", "gpu-driver"),
        (HealthIncident(gpu=0, text="XID 48 detected"), "dcgm-memory", "gpu-memory-uncorrectable"),
        (
            HealthIncident(gpu=0, system="Thermal system", health="Warning"),
            "dcgm-thermal",
            "application",
        ),
        (HealthIncident(gpu=0, system="PCIe system", health="Warning"), "dcgm-pcie", "application"),
        (HealthIncident(gpu=0, system="A newer system"), "dcgm-other", "diagnostic-unknown"),
    ],
    ids=lambda value: f"{value.system} {value.health}" if isinstance(value, HealthIncident) else "",
)
def test_each_system_has_its_class(
    source: DcgmSource, machine: Machine, incident: HealthIncident, code: str, fault: str
) -> None:
    machine.devices.change_dcgm(incidents=(incident,))
    reading = _only(source)
    assert (reading.device, reading.code, reading.fault) == (FIRST, code, fault)
    assert (reading.condition is None) == (fault == "application")


def test_memory_errors_that_may_have_been_contained_are_not_called_more(
    source: DcgmSource, machine: Machine
) -> None:
    machine.devices.change_gpu(0, ecc=Ecc(volatile_uncorrected=1))
    assert _only(source).fault == "gpu-memory-contained"


@pytest.mark.parametrize("xid", [31, 43, 63])
def test_an_applications_xid_is_no_memory_warning(
    source: DcgmSource, machine: Machine, xid: int
) -> None:
    text = f"Detected XID {xid} for GPU 0"
    machine.devices.change_dcgm(incidents=(HealthIncident(gpu=0, health="Warning", text=text),))
    assert source.poll() == ()


@pytest.mark.parametrize("deaf", [False, True])
def test_d9_a_check_that_hangs_cannot_tell_in_time_and_nothing_is_left(
    source: DcgmSource, machine: Machine, monkeypatch: pytest.MonkeyPatch, *, deaf: bool
) -> None:
    monkeypatch.setattr(dcgm, "POLL_S", 1.0)
    machine.devices.change_dcgm(health=Manner(behaviour=Behaviour.HANG, deaf=deaf))
    begun = time.monotonic()
    with pytest.raises(CannotTell, match="no answer in time"):
        source.poll()
    assert time.monotonic() - begun < 5
    assert _running(machine) == []
    assert source.deadline_s > 20


def _running(machine: Machine) -> list[str]:
    program = str(machine.devices.root / "opt/lab/bin/dcgmi").encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().startswith(program):
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def test_d17_a_failure_at_the_start_is_gone_with_the_next_good_poll(
    source: DcgmSource, machine: Machine
) -> None:
    machine.devices.change_dcgm(health=Manner(behaviour=Behaviour.CRASH))
    for _ in range(2):
        with pytest.raises(CannotTell, match="ended by signal 11"):
            source.poll()
    machine.devices.change_dcgm(health=Manner())
    assert source.poll() == ()


def test_a_host_engine_that_is_down_cannot_tell(source: DcgmSource, machine: Machine) -> None:
    machine.devices.change_dcgm(is_down=True)
    with pytest.raises(CannotTell, match="exit code 235"):
        source.poll()
    machine.devices.change_dcgm(is_down=False)
    assert source.poll() == ()


def test_a_host_engine_that_forgot_its_watches_is_not_healthy_and_is_told_again(
    source: DcgmSource, machine: Machine
) -> None:
    assert source.poll() == ()
    next(machine.devices.root.rglob("watched")).unlink()
    with pytest.raises(CannotTell, match="watches not enabled"):
        source.poll()
    assert source.poll() == ()


def test_an_absent_dcgmi_cannot_tell(tmp_path: Path) -> None:
    with pytest.raises(CannotTell, match="not found"):
        DcgmSource({"PATH": str(tmp_path)}).poll()


@pytest.fixture
def keeping(machine: Machine, tmp_path: Path) -> dict[str, str]:
    """The machine's environment; each call of its dcgmi is kept, one a line, in `asked`."""
    environment = machine.environment()
    real = machine.devices.root / "opt/lab/bin/dcgmi"
    program = tmp_path / "bin/dcgmi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec {real} "$@"\n')
    program.chmod(0o755)
    return {**environment, "PATH": f"{program.parent}:{environment['PATH']}"}


@pytest.mark.parametrize(
    ("engine", "first"),
    [("engine.ns:5555", ["discovery -l"]), ("unix:///host/run/dcgm.sock", [])],
    ids=["port", "socket"],
)
def test_every_question_goes_to_the_host_engine_of_the_settings(
    machine: Machine, keeping: dict[str, str], tmp_path: Path, engine: str, first: list[str]
) -> None:
    environment = {**keeping, "FLEETMEND_DCGM_HOST_ENGINE": engine}
    machine.devices.change_gpu(1, nvlinks=(*(NvLink(),) * 17, NvLink(active=False)))
    for n, board in enumerate(BOARDS):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{n}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"GPU UUID: \t {board.uuid}\n")
    source = DcgmSource(environment, host_root=tmp_path)
    assert _only(source).device == BOARDS[1].uuid
    words = [*first, "health -s a", "health -c -j", "health -c -j", "discovery -l"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"{one} --host {engine}" for one in words]


def test_another_nodes_host_engine_cannot_tell_of_this_one(
    machine: Machine, keeping: dict[str, str], tmp_path: Path
) -> None:
    environment = {**keeping, "FLEETMEND_DCGM_HOST_ENGINE": "engine:5555"}
    source = DcgmSource(environment, host_root=tmp_path)
    with pytest.raises(CannotTell, match="the host engine at engine:5555 is another node's"):
        source.poll()
    assert (tmp_path / "asked").read_text().splitlines() == ["discovery -l --host engine:5555"]


def test_a_banner_before_the_report_is_passed_over(source: DcgmSource, machine: Machine) -> None:
    machine.devices.change_dcgm(banner="Warning: an old hostengine")
    assert source.poll() == ()


def test_a_program_that_talks_without_end_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\nexec yes\n")
    program.chmod(0o755)
    monkeypatch.setattr(dcgm, "POLL_S", 5.0)
    with pytest.raises(CannotTell):
        DcgmSource({"PATH": f"{tmp_path}:{os.environ['PATH']}"}).poll()
    wait_until(lambda: not _yes_of(os.getpid()), 5, "it is gone")


def _yes_of(parent: int) -> list[str]:
    """Children that are the program; the session's own, such as its warm interpreter, are not."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    found = children.read_text().split() if children.exists() else []
    return [pid for pid in found if _command_of(pid) in ("yes", "dcgmi")]


def _command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it ended meanwhile


def _report(overall: str, **groups: object) -> str:
    return json.dumps({"body": {"Overall Health": {"value": overall}, **groups}})


@pytest.mark.parametrize(
    "output",
    [
        "",
        "Error: unable to connect",
        "{",
        "[]",
        "{}",
        '{"body": []}',
        '{"body": {}}',
        _report("Fine"),
        _report("Failure"),
        _report("Failure", GPU={"children": []}),
        '{"body": {"Overall Health": {"value": null}}}',
        "[" * 100_000,
    ],
)
def test_words_that_are_no_report_cannot_tell(output: str) -> None:
    with pytest.raises(CannotTell):
        read_health(output)


def test_an_entity_that_is_no_gpu_is_told_as_the_hosts() -> None:
    error = {"NvSwitch system": {"value": "Failure", "overflow": ["fatal", "SXid"]}}
    switch = {"children": {"3": {"value": "Failure", "children": {"Errors": {"children": error}}}}}
    (incident,) = read_health(_report("Failure", NvSwitch=switch))
    assert (incident.gpu, incident.code, incident.verdict.fault) == (
        "",
        "dcgm-nvswitch",
        "interconnect",
    )
    assert incident.text == "NvSwitch 3, NvSwitch system, Failure: fatal SXid"
