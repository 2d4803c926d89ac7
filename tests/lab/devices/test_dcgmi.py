"""The stand-in for dcgmi: NVIDIA's shapes, exit codes and bad manners."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from tests.lab.devices.conftest import ANSWER_LIMIT_S, Machine
from workers.lab.devices.state import (
    Behaviour,
    DiagResult,
    Ecc,
    HealthIncident,
    Manner,
    NvLink,
    RemappedRows,
    Severity,
    TestStatus,
)

QUICK = Manner()
DCGM_3 = "DCGM GPU Diagnostic"
DCGM_4 = "DCGM Diagnostic"


@pytest.fixture(autouse=True)
def quick(machine: Machine) -> None:
    machine.devices.change_dcgm(diag=QUICK)


def _tests(body: Any, top: str) -> dict[str, Any]:
    return {t["name"]: t for c in body[top]["test_categories"] for t in c["tests"]}


def _diag(machine: Machine, level: int) -> Any:
    done = machine.dcgmi("diag", "-r", str(level), "-j")
    assert done.returncode == 0
    return json.loads(done.stdout)


def test_dcgm_4_has_one_software_test_and_a_result_for_each_gpu(machine: Machine) -> None:
    body = _diag(machine, 1)
    assert list(_tests(body, DCGM_4)) == ["software"]
    software = _tests(body, DCGM_4)["software"]
    assert [r["entity_id"] for r in software["results"]] == [0, 1, 2, 3]
    assert {r["status"] for r in software["results"]} == {"Pass"}
    assert software["test_summary"]["status"] == "Pass"
    assert body["metadata"]["version"] == "4.4.1"
    entities = body["entity_groups"][0]["entities"]
    assert [e["entity_id"] for e in entities] == [0, 1, 2, 3]
    assert {"device_id", "serial_num"} <= entities[0].keys()


def test_each_level_adds_its_tests(machine: Machine) -> None:
    names = [set(_tests(_diag(machine, level), DCGM_4)) for level in (1, 2, 3, 4)]
    assert names[0] < names[1] < names[2] < names[3]
    assert names[1] == {"software", "pcie", "memory"}


def test_dcgm_3_3_names_gpus_by_text_in_plugins_and_not_at_all_at_level_1(
    machine: Machine,
) -> None:
    machine.devices.change_dcgm(version="3.3.7")
    body = _diag(machine, 2)
    tests = _tests(body, DCGM_3)
    assert tests["Denylist"]["results"] == [{"status": "Pass"}]
    assert [r["gpu_id"] for r in tests["PCIe"]["results"]] == ["0", "1", "2", "3"]
    assert body["version"] == "3.3.7"
    assert len(body["GPU Device IDs"]) == len(body["GPU Device Serials"]) == 4


def test_dcgm_3_3_fails_with_its_two_keys_for_the_text(machine: Machine) -> None:
    results = (DiagResult(test="software", gpu=3, text="row"), DiagResult(test="pcie", gpu=1))
    machine.devices.change_dcgm(version="3.3.7", results=results)
    done = machine.dcgmi("diag", "-r", "2", "-j")
    tests = _tests(json.loads(done.stdout), DCGM_3)
    (software,) = tests["Page Retirement/Row Remap"]["results"]
    assert (software["gpu_id"], software["warnings"][0]["warnings"]) == (3, "row")
    pcie = tests["PCIe"]["results"][1]
    assert (pcie["status"], "warning" in pcie["warnings"][0]) == ("Fail", True)


def test_dcgm_3_3_shows_null_for_a_gpu_that_was_not_run(machine: Machine) -> None:
    omitted = DiagResult(test="memory", gpu=2, status=TestStatus.OMITTED)
    machine.devices.change_dcgm(version="3.3.7", results=(omitted,))
    assert _tests(_diag(machine, 2), DCGM_3)["GPU Memory"]["results"][2] is None


def test_dcgm_2_warns_with_plain_text(machine: Machine) -> None:
    failed = DiagResult(test="memory", gpu=1, text="one plain string")
    machine.devices.change_dcgm(version="2.4.7", results=(failed,))
    done = machine.dcgmi("diag", "-r", "2", "-j")
    body = json.loads(done.stdout)
    assert set(body) == {DCGM_3}
    result = _tests(body, DCGM_3)["GPU Memory"]["results"][1]
    assert result == {"gpu_ids": "1", "status": "Fail", "warnings": "one plain string"}


def test_dcgm_4_leaves_out_a_gpu_that_was_not_run(machine: Machine) -> None:
    omitted = DiagResult(test="pcie", gpu=2, status=TestStatus.OMITTED)
    machine.devices.change_dcgm(results=(omitted,))
    results = _tests(_diag(machine, 2), DCGM_4)["pcie"]["results"]
    assert [r["entity_id"] for r in results] == [0, 1, 3]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (DiagResult(test="memory", gpu=0, severity=Severity.ISOLATE), 205),
        (DiagResult(test="memory", gpu=0, severity=Severity.TRIAGE), 226),
        (DiagResult(test="memory", gpu=0, status=TestStatus.SKIP), 0),
        (DiagResult(test="memory", gpu=0, status=TestStatus.WARN), 0),
    ],
    ids=["isolate", "triage", "skip", "warn"],
)
def test_a_result_is_shown_and_decides_the_exit_code(
    machine: Machine, result: DiagResult, code: int
) -> None:
    machine.devices.change_dcgm(results=(result,))
    done = machine.dcgmi("diag", "-r", "2", "-j")
    assert done.returncode == code
    row = _tests(json.loads(done.stdout), DCGM_4)["memory"]["results"][0]
    assert row["status"] == result.status.value
    if result.status is TestStatus.FAIL:
        assert row["warnings"][0]["error_severity"] == result.severity


def test_a_test_of_a_higher_level_does_not_fail_a_lower_one(machine: Machine) -> None:
    machine.devices.change_dcgm(results=(DiagResult(test="memory", gpu=0),))
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == 0


@pytest.mark.parametrize(
    ("changes", "code", "version"),
    [({"is_busy": True}, 217, "4.4.1"), ({"is_busy": True, "version": "3.3.7"}, 217, "3.3.7")],
    ids=["4", "3.3"],
)
def test_busy_is_a_runtime_error_in_the_shape_of_its_version(
    machine: Machine, changes: dict[str, Any], code: int, version: str
) -> None:
    machine.devices.change_dcgm(**changes)
    done = machine.dcgmi("diag", "-r", "2", "-j")
    top = json.loads(done.stdout)[DCGM_4 if version[0] == "4" else DCGM_3]
    assert (done.returncode, top["version"]) == (code, version)
    assert "already running" in top["runtime_error"]


def test_a_lost_gpu_stops_the_diagnostic(machine: Machine) -> None:
    machine.devices.change_gpu(1, behaviour=Behaviour.LOST)
    done = machine.dcgmi("diag", "-r", "2", "-j")
    assert done.returncode == 238
    assert "lost" in json.loads(done.stdout)[DCGM_4]["runtime_error"]


@pytest.mark.parametrize("words", [("diag", "-r", "1", "-j"), ("health", "-c", "-j")])
def test_without_a_host_engine_there_is_text_and_235(
    machine: Machine, words: tuple[str, ...]
) -> None:
    machine.devices.change_dcgm(is_down=True)
    done = machine.dcgmi(*words)
    assert (done.returncode, done.stdout[:6]) == (235, "Error:")


def test_a_banner_comes_before_the_json(machine: Machine) -> None:
    machine.devices.change_dcgm(banner="WARNING: debug build")
    done = machine.dcgmi("diag", "-r", "1", "-j")
    first, _, rest = done.stdout.partition("\n")
    assert first == "WARNING: debug build"
    assert DCGM_4 in json.loads(rest)


def test_a_diagnostic_takes_its_time_and_ends_at_its_timeout(machine: Machine) -> None:
    machine.devices.change_dcgm(diag=Manner(ms=1_400))
    began = time.monotonic()
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == 0
    assert time.monotonic() - began >= 1.4
    assert machine.dcgmi("diag", "-r", "1", "-j", "--timeout", "1").returncode == 245


@pytest.mark.parametrize("command", ["diag", "health"])
def test_a_hang_lasts_until_it_is_cleared(machine: Machine, command: str) -> None:
    machine.dcgmi("health", "-s", "a")
    machine.devices.change_dcgm(**{command: Manner(behaviour=Behaviour.HANG)})
    words = ("diag", "-r", "1", "-j") if command == "diag" else ("health", "-c", "-j")
    with machine.start_dcgmi(*words) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        machine.devices.change_dcgm(**{command: QUICK})
        process.communicate(timeout=ANSWER_LIMIT_S)
    assert process.returncode == 0


def test_a_deaf_hang_takes_no_notice_of_sigterm(machine: Machine) -> None:
    machine.devices.change_dcgm(diag=Manner(behaviour=Behaviour.HANG, deaf=True))
    with machine.start_dcgmi("diag", "-r", "1", "-j") as process:
        wait_until(lambda: _ignores_sigterm(process.pid), ANSWER_LIMIT_S, "it is deaf")
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
    assert process.returncode == -signal.SIGKILL


def _ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_crash_is_a_segmentation_fault(machine: Machine) -> None:
    machine.devices.change_dcgm(diag=Manner(behaviour=Behaviour.CRASH))
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == -signal.SIGSEGV


def test_health_without_watches_is_an_error_in_text(machine: Machine) -> None:
    done = machine.dcgmi("health", "-c", "-j")
    assert done.returncode == 253
    assert done.stdout.startswith("Error: Health watches not enabled.")


def test_the_first_health_check_only_takes_a_baseline(machine: Machine) -> None:
    machine.devices.change_gpu(1, ecc=Ecc(volatile_uncorrected=1))
    machine.dcgmi("health", "-s", "a")
    answers = [json.loads(machine.dcgmi("health", "-c", "-j").stdout) for _ in range(2)]
    assert [a["body"]["Overall Health"]["value"] for a in answers] == ["Healthy", "Failure"]


def test_setting_watches_again_keeps_the_baseline(machine: Machine) -> None:
    _watch(machine)
    machine.dcgmi("health", "-s", "a")
    machine.devices.change_gpu(1, ecc=Ecc(volatile_uncorrected=1))
    assert _health(machine)["Overall Health"]["value"] == "Failure"


def test_a_boot_forgets_the_watches(machine: Machine) -> None:
    _watch(machine)
    machine.devices.boot(())
    assert machine.dcgmi("health", "-c", "-j").returncode == 253


@pytest.mark.parametrize(
    ("changes", "system", "words"),
    [
        ({"ecc": Ecc(volatile_uncorrected=2)}, "Memory system", "2 volatile DBEs"),
        ({"remapped_rows": RemappedRows(failure=True)}, "Memory system", "row remapping failed"),
        ({"nvlinks": (NvLink(), NvLink(active=False))}, "NVLINK system", "link 1 is currently"),
    ],
    ids=["ecc", "remap", "nvlink"],
)
def test_health_follows_from_what_nvml_shows(
    machine: Machine, changes: dict[str, Any], system: str, words: str
) -> None:
    _watch(machine)
    machine.devices.change_gpu(2, **changes)
    gpu = _health(machine)["GPU"]["children"]["2"]
    error = gpu["children"]["Errors"]["children"][system]
    assert (gpu["value"], error["value"]) == ("Failure", "Failure")
    assert words in " ".join(error["overflow"])
    assert all(len(piece) <= 54 for piece in error["overflow"])


def test_an_incident_of_the_lab_is_shown_in_dcgmis_words(machine: Machine) -> None:
    _watch(machine)
    hot = HealthIncident(gpu=0, system="Thermal system", health="Warning", text="hot")
    machine.devices.change_dcgm(incidents=(hot,))
    body = _health(machine)
    assert body["Overall Health"]["value"] == "Warning"
    errors = body["GPU"]["children"]["0"]["children"]["Errors"]["children"]
    assert errors == {"Thermal system": {"value": "Warning", "overflow": ["hot"]}}


def test_discovery_lists_the_gpus_of_this_boot(machine: Machine) -> None:
    text = machine.dcgmi("discovery", "-l").stdout
    assert text.startswith("4 GPUs found.")
    assert "PCI Bus ID: 00000000:1B:00.0" in text


def test_the_version_is_the_states(machine: Machine) -> None:
    machine.devices.change_dcgm(version="4.2.3")
    assert machine.dcgmi("--version").stdout.strip() == "dcgmi  version: 4.2.3"


@pytest.mark.parametrize("words", [("diag", "-r", "pcie", "-j"), ("stats",), ("diag", "--odd")])
def test_what_the_stand_in_does_not_know_is_refused(
    machine: Machine, words: tuple[str, ...]
) -> None:
    done = machine.dcgmi(*words)
    assert (done.returncode, done.stdout[:6]) == (255, "Error:")


def _watch(machine: Machine) -> None:
    assert machine.dcgmi("health", "-s", "a").returncode == 0
    assert machine.dcgmi("health", "-c", "-j").returncode == 0


def _health(machine: Machine) -> Any:
    answer = json.loads(machine.dcgmi("health", "-c", "-j").stdout)
    assert answer["header"] == ["Health Monitor Report"]
    return answer["body"]
