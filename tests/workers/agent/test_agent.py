"""The agent as a real process against a real API server, with sources that a test plays."""

import json
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.waiting import stays_true, wait_until
from tests.workers.agent.playing import DEADLINE_S
from tests.workers.agent.stage import ALL, LIMIT_S, Stage, reading
from tests.workers.agent.test_small import family
from workflows.model.detection.fault import Fault

# A deadline, and what a loaded machine may add to it.
SOON_S = DEADLINE_S + 12
NEXT_BOOT = "11111111-2222-4333-8444-555555555555"


def test_agent_without_findings_reports_four_healthy_conditions(stage: Stage) -> None:
    stage.start_healthy()
    assert stage.annotation()["boot"] == stage.nodes.view(stage.node).boot_id
    assert stage.findings() == ()
    assert {row["reason"] for row in stage.conditions().values()} == {"Healthy"}


def test_a_polled_fault_comes_and_goes_with_the_polls(stage: Stage) -> None:
    stage.start_healthy()
    stage.polled(reading())
    stage.until_reason("GPUHealthy", "GpuLost")
    (found,) = stage.findings()
    assert (found.code, found.device, found.source) == ("xid-79", "GPU-1", "nvml")
    assert found.boot_id == stage.nodes.view(stage.node).boot_id
    stage.polled()
    stage.until({"GPUHealthy": "True"})
    assert stage.findings() == ()


def test_a_lasting_event_stands_whatever_is_said_later(stage: Stage) -> None:
    stage.start_healthy()
    stage.stream(reading(lasting=True))
    stage.until({"GPUHealthy": "False"})
    stage.stream()
    stage.polled(reading("nvml-hot", fault="thermal"))
    wait_until(lambda: "nvml-hot" in stage.codes(), LIMIT_S, "the second finding is reported")
    assert stage.conditions()["GPUHealthy"]["reason"] == "GpuLost"
    assert [f.fault for f in stage.findings()] == [Fault.GPU_LOST, Fault.THERMAL]


def test_an_applications_fault_is_told_and_changes_no_condition(stage: Stage) -> None:
    stage.start_healthy()
    stage.stream(reading("xid-13", fault="application", condition=None, lasting=True))
    wait_until(lambda: "xid-13" in stage.codes(), LIMIT_S, "the finding is reported")
    assert set(stage.said("GPUHealthy")) == {"True"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_restart_neither_loses_nor_repeats_a_finding(
    stage: Stage, number: signal.Signals
) -> None:
    agent = stage.start_healthy()
    first = reading()
    stage.polled(first)
    stage.stream(reading("xid-48", fault="gpu-memory-uncorrectable", lasting=True, count=7))
    stage.stream(reading("xid-31", fault="application", condition=None, lasting=True))
    wait_until(lambda: len(stage.codes()) == 3, LIMIT_S, "all three are reported")
    before = stage.annotation()["findings"]
    since = stage.conditions()["GPUHealthy"]["lastTransitionTime"]
    reports = len(stage.reports())
    agent.process.send_signal(number)
    agent.process.wait(10)
    # The same fault, seen anew by the next agent's first poll.
    stage.polled({**first, "at": datetime.now().astimezone().isoformat()})
    stage.start()
    wait_until(lambda: len(stage.reports()) > reports, LIMIT_S, "the new agent reports")
    wait_until(
        lambda: stage.agents[-1].logged("took_over"), LIMIT_S, "it has read its forerunner's"
    )
    stays_true(lambda: stage.annotation()["findings"] == before, 1.0, "the findings are the same")
    assert stage.conditions()["GPUHealthy"]["lastTransitionTime"] == since
    later = [row["status"] for e in stage.reports()[reports:] for row in _rows(e, "GPUHealthy")]
    assert set(later) == {"False"}


def test_findings_of_another_boot_are_dropped_and_no_old_condition_passes(stage: Stage) -> None:
    agent = stage.start_healthy()
    stage.stream(reading(lasting=True))
    stage.until({"GPUHealthy": "False"})
    agent.end()
    reports = len(stage.reports())
    stage.boot(NEXT_BOOT)
    stage.polled(do="hang")
    stage.start()
    stage.until_reason("GPUHealthy", "DiagnosticUnknown", SOON_S)
    assert stage.codes() == {"no-answer"}
    # The first report of the new boot told all four at once.
    first = stage.reports()[reports]
    assert {row["type"] for row in first.body["status"]["conditions"]} == set(ALL)
    assert [row["status"] for row in _rows(first, "GPUHealthy")] == ["Unknown"]


def test_a_fault_of_a_new_boot_is_told_at_once_and_the_rest_as_unknown(stage: Stage) -> None:
    agent = stage.start_healthy()
    stage.polled(reading())
    stage.until({"GPUHealthy": "False"})
    agent.end()
    reports = len(stage.reports())
    stage.boot(NEXT_BOOT)
    stage.polled(do="hang")
    down = reading("ib-link-down", fault="network", condition="NetworkHealthy", lasting=True)
    (stage.folder / "first.json").write_text(json.dumps([down]))
    stage.start()
    stage.until_reason("NetworkHealthy", "Network")
    first = stage.reports()[reports]
    said = {row["type"]: row["status"] for row in first.body["status"]["conditions"]}
    assert said == {
        "GPUHealthy": "Unknown",
        "InterconnectHealthy": "Unknown",
        "NetworkHealthy": "False",
        "HostHealthy": "True",
    }


def test_a_boot_under_a_running_agent_begins_a_new_ledger(stage: Stage) -> None:
    stage.start_healthy()
    stage.stream(reading(lasting=True))
    stage.until({"GPUHealthy": "False"})
    stage.boot(NEXT_BOOT)
    stage.polled(reading("nvml-hot", fault="thermal"))
    stage.until_reason("GPUHealthy", "Thermal")
    assert stage.codes() == {"nvml-hot"}
    assert stage.annotation()["boot"] == NEXT_BOOT


def test_an_unreadable_boot_id_makes_the_host_unknown(stage: Stage) -> None:
    stage.start_healthy()
    boot = stage.host_root / "proc/sys/kernel/random/boot_id"
    kept = boot.read_text()
    boot.unlink()
    stage.polled(reading())
    stage.until({"GPUHealthy": "False", "HostHealthy": "Unknown"})
    boot.write_text(kept)
    stage.polled()
    stage.until(dict.fromkeys(ALL, "True"))


@pytest.mark.parametrize("source", ["polled", "streamed"])
@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("hang", "no-answer"),
        ("segv", "crashed"),
        ("exit", "crashed"),
        ("raise", "crashed"),
        ("garbage", "garbage"),
        ("endless", "garbage"),
        ("cannot", "cannot-tell"),
    ],
)
def test_a_source_that_fails_is_unknown_within_its_deadline_and_comes_back(
    stage: Stage, source: str, deed: str, code: str
) -> None:
    stage.start_healthy()
    if source == "polled":
        stage.polled(do=deed)
        kind, other = "InterconnectHealthy", "NetworkHealthy"
    else:
        (stage.folder / "streamed.do").write_text(deed)
        stage.stream(do=deed)
        kind, other = "NetworkHealthy", "InterconnectHealthy"
    stage.until({kind: "Unknown", "GPUHealthy": "Unknown", other: "True"}, SOON_S)
    assert stage.conditions()[kind]["reason"] == "DiagnosticUnknown"
    assert {f.code for f in stage.findings()} == {code}
    assert {f.fault for f in stage.findings()} == {Fault.DIAGNOSTIC_UNKNOWN}
    (stage.folder / "streamed.do").unlink(missing_ok=True)
    stage.polled()
    stage.until(dict.fromkeys(ALL, "True"))
    assert stage.findings() == ()


def test_what_a_source_saw_before_it_died_still_stands(stage: Stage) -> None:
    """A library that dies of a lost GPU does not unsay it (D43)."""
    stage.start_healthy()
    stage.polled(reading())
    stage.until({"GPUHealthy": "False"})
    stage.polled(do="segv")
    stage.until({"InterconnectHealthy": "Unknown"}, SOON_S)
    assert stage.conditions()["GPUHealthy"]["reason"] == "GpuLost"


def test_a_driver_that_never_comes_up_is_unknown_and_never_healthy(stage: Stage) -> None:
    """NVML's init fails from the start (D40)."""
    stage.polled(do="cannot")
    stage.start()
    stage.until({"GPUHealthy": "Unknown", "InterconnectHealthy": "Unknown"}, SOON_S)
    stays_true(lambda: stage.statuses()["GPUHealthy"] == "Unknown", 1.0, "it stays unknown")
    assert "True" not in stage.said("GPUHealthy")


def test_a_child_that_cannot_be_killed_is_told_and_not_doubled(stage: Stage) -> None:
    agent = stage.start_healthy()
    (stage.folder / "undead").touch()
    stage.polled(do="hang")
    wait_until(lambda: "unkillable-child" in stage.codes(), LIMIT_S, "it is reported")
    assert stage.statuses()["GPUHealthy"] == "Unknown"
    stage.polled()
    children = _children(agent.pid)
    stays_true(lambda: _children(agent.pid) == children, 1.5, "no second child is started")
    # The other source goes on.
    stage.stream(reading("xid-79", lasting=True))
    stage.until({"GPUHealthy": "False"})
    (stage.folder / "undead").unlink()
    (stuck,) = [pid for pid in children if _is_asleep_in(pid, stage)]
    os.kill(stuck, signal.SIGKILL)
    stage.until({"InterconnectHealthy": "True"})
    assert "unkillable-child" not in stage.codes()


@pytest.mark.parametrize("by", ["deadline", "SIGTERM", "crash"])
def test_a_program_that_a_child_had_started_goes_with_it(stage: Stage, by: str) -> None:
    agent = stage.start_healthy()
    stage.polled(do="program")
    program = wait_until(
        lambda: next((pid for pid in family(agent.pid) if _name(pid) == "sleep"), None),
        LIMIT_S,
        "the program runs",
    )
    assert program is not None
    if by == "SIGTERM":
        agent.end()
    elif by == "crash":
        child = int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(child, signal.SIGSEGV)
    wait_until(lambda: not _is_alive(program), SOON_S, "the program is gone")


def test_sigterm_ends_agent_and_children(stage: Stage) -> None:
    agent = stage.start_healthy()
    children = _children(agent.pid)
    assert len(children) == 2
    assert agent.end() == 0
    assert not [pid for pid in children if _is_alive(pid)]


def test_sigkill_leaves_no_child(stage: Stage) -> None:
    agent = stage.start_healthy()
    children = _children(agent.pid)
    agent.kill()
    wait_until(lambda: not [p for p in children if _is_alive(p)], LIMIT_S, "its children are gone")


def test_sigusr1_releases_the_gpus_and_what_was_said_stands(stage: Stage) -> None:
    agent = stage.start_healthy()
    children = _children(agent.pid)
    agent.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: len(_children(agent.pid)) == 1, LIMIT_S, "the NVML client is gone")
    assert _children(agent.pid) < children
    stays_true(
        lambda: len(_children(agent.pid)) == 1 and set(stage.statuses().values()) == {"True"},
        DEADLINE_S + 1,
        "it stays away and nothing is unknown",
    )


@pytest.mark.parametrize("step_s", [600, -600], ids=["forward", "back"])
def test_a_step_of_the_clock_changes_no_finding_and_no_pace(stage: Stage, step_s: int) -> None:
    stage.start_healthy()
    stage.polled(reading())
    stage.until({"GPUHealthy": "False"})
    (before,) = stage.findings()
    since = stage.conditions()["GPUHealthy"]["lastTransitionTime"]
    (stage.folder / "clock").write_text(str(step_s))
    stage.stream(reading("xid-48", fault="gpu-memory-uncorrectable", lasting=True))
    wait_until(lambda: "xid-48" in stage.codes(), LIMIT_S, "a new finding is reported")
    assert before in stage.findings()
    assert stage.conditions()["GPUHealthy"]["lastTransitionTime"] == since
    stage.polled(do="hang")
    stage.until({"InterconnectHealthy": "Unknown"}, SOON_S)


def test_reports_are_refreshed_and_paced(stage: Stage) -> None:
    stage.environment["FLEETMEND_AGENT_REFRESH_S"] = "1"
    stage.start_healthy()
    reports = len(stage.reports())
    wait_until(lambda: len(stage.reports()) >= reports + 3, LIMIT_S, "it refreshes each second")
    for number in range(40):
        stage.stream(reading(f"xid-{number}", lasting=True))
    wait_until(lambda: len(stage.codes()) > 10, LIMIT_S, "the burst is reported")
    times = [event.received_at.timestamp() for event in stage.reports()]
    assert all(times[i + 6] - times[i] > 1 for i in range(len(times) - 6)), times


def _rows(event: object, kind: str) -> list[dict[str, str]]:
    rows = event.body["status"]["conditions"]  # type: ignore[attr-defined]  # an AuditEvent
    return [row for row in rows if row["type"] == kind]


def _children(pid: int) -> set[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123 - procfs
        return {int(word) for word in file.read().split()}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - procfs
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _is_asleep_in(pid: int, stage: Stage) -> bool:
    """True for the child that hangs: the other one has the stream open."""
    folder = f"/proc/{pid}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]  # noqa: PTH208, PTH115
    return str(stage.folder / "stream") not in links
