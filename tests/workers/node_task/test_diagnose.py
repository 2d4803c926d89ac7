"""The diagnose task over a real process: its end, its time limit, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from tests.workers.node_task.conftest import BOOT
from workers.node_task import diagnose
from workers.node_task.main import encode_verdict, main
from workflows.contracts.node_tasks import TaskAnswer, read_verdict
from workflows.model.node_task import (
    MAX_VERDICT_BYTES,
    Failure,
    Health,
    Result,
    TaskKind,
    TaskVerdict,
)

PASSED = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [
                            {"entity_group": "GPU", "entity_id": n, "status": "Pass"}
                            for n in range(2)
                        ],
                        "test_summary": {"status": "Pass"},
                    }
                ],
            }
        ]
    },
    "metadata": {"version": "4.4.1"},
}
Run = Callable[..., TaskAnswer]


def dcgmi(tmp_path: Path, script: str) -> str:
    """A PATH on which dcgmi is this shell script."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "dcgmi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def environment(tmp_path: Path, root: Path, **order: Any) -> dict[str, str]:
    text = {"kind": "diagnose", "episode": "ep", "task": "t", "node": "n", "level": 1}
    return {
        "FLEETMEND_TASK": json.dumps({**text, "expected_gpus": 2, "limit_s": 30, **order}),
        "FLEETMEND_HOST_ROOT": str(root),
        "FLEETMEND_TERMINATION_LOG": str(tmp_path / "termination-log"),
    }


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the task with this dcgmi; its verdict as the worker reads it."""

    def one(script: str, **order: Any) -> TaskAnswer:
        monkeypatch.setenv("PATH", dcgmi(tmp_path, script))
        main("diagnose", environment(tmp_path, root, **order))
        text = (tmp_path / "termination-log").read_text()
        return read_verdict(text, kind=TaskKind.DIAGNOSE, episode="ep", task="t")

    return one


def saying(body: Any, code: int = 0) -> str:
    return f"cat <<'END'\n{json.dumps(body)}\nEND\nexit {code}"


def test_a_passed_diagnostic_is_healthy_and_bound_to_its_boot(run: Run, tmp_path: Path) -> None:
    answer = run(f'echo "$@" > {tmp_path}/asked\n' + saying(PASSED), level=3, expected_gpus=2)
    assert (tmp_path / "asked").read_text().split() == ["diag", "-r", "3", "-j"]
    assert answer.health is Health.UNKNOWN, "level 3 wants more than the software tests"
    answer = run(saying(PASSED))
    assert (answer.result, answer.health, answer.boot_id) == (Result.DONE, Health.HEALTHY, BOOT)
    assert "4.4.1" in answer.detail


def test_a_failed_test_is_faulty_with_dcgms_words(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.loads(json.dumps(PASSED))
    result = body["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"][1]
    result["status"] = "Fail"
    result["warnings"] = [
        {"warning": "row remap failed", "error_id": 1, "error_severity": 2, "error_category": 10}
    ]
    answer = run(saying(body, 205))
    assert answer.health is Health.FAULTY
    assert [str(one) for one in answer.failures] == ["software on GPU 1: row remap failed"]
    assert "row remap failed" in capsys.readouterr().err, "the whole output is in the pod's log"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("kill -SEGV $$", "signal 11"),
        ("echo no hostengine >&2; exit 235", "hostengine"),
        ("exit 0", "no JSON"),
        ("head -c 3000000 /dev/zero", "longer than"),
        ('echo "{"', "no JSON"),
    ],
    ids=["crash", "no-hostengine", "silent", "endless", "cut"],
)
def test_a_run_without_an_answer_is_unknown(run: Run, script: str, why: str) -> None:
    answer = run(script)
    assert (answer.result, answer.health) == (Result.DONE, Health.UNKNOWN)
    assert why in answer.detail


def test_without_dcgmi_nothing_is_known(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    main("diagnose", environment(tmp_path, root))
    text = (tmp_path / "termination-log").read_text()
    answer = read_verdict(text, kind=TaskKind.DIAGNOSE, episode="ep", task="t")
    assert answer.health is Health.UNKNOWN
    assert "diagnose_level: 0" in answer.detail


def lists(*uuids: str) -> str:
    """What dcgmi says of the GPUs that its host engine serves."""
    return "\n".join(f"| {n}      | Device UUID: {uuid} |" for n, uuid in enumerate(uuids))


def with_gpus(root: Path, *uuids: str) -> None:
    for n, uuid in enumerate(uuids):
        folder = root / f"proc/driver/nvidia/gpus/0000:0{n}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\n")


OWN = tuple(f"GPU-aaaaaaaa-0000-4000-8000-00000000000{n}" for n in range(2))
FOREIGN = "GPU-bbbbbbbb-0000-4000-8000-000000000000"


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def engine_script(tmp_path: Path, *uuids: str, code: int = 0) -> str:
    """A dcgmi that keeps what it was asked, and whose host engine serves these GPUs."""
    table = f"cat <<'END'\n{lists(*uuids)}\nEND\nexit {code}"
    return (
        f'echo "$@" >> {tmp_path}/asked\nif [ "$1" = discovery ]; then\n{table}\nfi\n'
        f"{saying(PASSED)}"
    )


def test_the_releases_host_engine_is_asked(
    run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETMEND_DCGM_HOST_ENGINE", "engine.ns:5555")
    with_gpus(root, *OWN)
    answer = run(engine_script(tmp_path, *OWN))
    assert answer.health is Health.HEALTHY
    assert asked(tmp_path) == [
        "discovery -l --host engine.ns:5555",
        "diag -r 1 -j --host engine.ns:5555",
    ]


def test_a_socket_below_the_hosts_root_is_the_nodes_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETMEND_DCGM_HOST_ENGINE", "unix:///host/run/dcgm.sock")
    assert run(engine_script(tmp_path)).health is Health.HEALTHY
    assert asked(tmp_path) == ["diag -r 1 -j --host unix:///host/run/dcgm.sock"]


@pytest.mark.parametrize(
    ("uuids", "code", "why"),
    [
        ((OWN[0], FOREIGN), 0, f"another node's ({FOREIGN} is not on this one)"),
        ((), 0, "names no GPU"),
        (OWN, 235, "exit code 235"),
    ],
    ids=["another node's", "no GPU", "down"],
)
def test_a_host_engine_that_is_not_surely_the_nodes_is_asked_for_no_diagnosis(
    run: Run,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uuids: tuple[str, ...],
    code: int,
    why: str,
) -> None:
    monkeypatch.setenv("FLEETMEND_DCGM_HOST_ENGINE", "engine:5555")
    with_gpus(root, *OWN)
    answer = run(engine_script(tmp_path, *uuids, code=code))
    assert answer.health is Health.UNKNOWN
    assert why in answer.detail
    assert asked(tmp_path) == ["discovery -l --host engine:5555"]


def test_without_the_nodes_own_list_of_gpus_no_host_engine_is_believed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETMEND_DCGM_HOST_ENGINE", "engine:5555")
    answer = run(engine_script(tmp_path, *OWN))
    assert answer.health is Health.UNKNOWN
    assert "the NVIDIA driver is not loaded" in answer.detail
    assert not (tmp_path / "asked").exists()


def test_what_can_be_no_host_engine_is_unknown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETMEND_DCGM_HOST_ENGINE", "unix:///host/../run/x")
    answer = run(engine_script(tmp_path))
    assert answer.health is Health.UNKNOWN
    assert "is no address of a host engine" in answer.detail
    assert not (tmp_path / "asked").exists()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_hung_diagnostic_is_ended_with_all_its_children(
    run: Run, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "TERM_S", 0.2)
    (root / "proc/77").mkdir()
    (root / "proc/77/comm").write_text("nvvs\n")
    script = f"trap '' TERM\nsleep 300 &\necho $$ $! > {tmp_path}/pids\nwait\nsleep 300"
    answer = run(script, limit_s=3)
    assert answer.health is Health.UNKNOWN
    assert "no end within 3 s" in answer.detail
    assert "1 nvvs are left" in answer.detail
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(map(is_running, pids)), 30, "the group is gone")


def test_a_child_that_outlives_a_passed_run_is_ended(run: Run, tmp_path: Path) -> None:
    script = f"sleep 300 >/dev/null 2>&1 &\necho $! > {tmp_path}/pid\n" + saying(PASSED)
    assert run(script).health is Health.HEALTHY
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid), 5, "the child is gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_the_diagnostic_dies_with_its_task(
    root: Path, tmp_path: Path, number: signal.Signals
) -> None:
    path = dcgmi(tmp_path, f"echo $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\n"
                 "exec sleep 300")  # fmt: skip
    code = "import sys; from workers.node_task.main import main; sys.exit(main('diagnose'))"
    task = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environment(tmp_path, root), "PATH": path},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((tmp_path / "pid").exists, 30, "the diagnostic runs")
        task.send_signal(number)
        assert task.wait(10) != 0
    finally:
        task.kill()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid), 5, "dcgmi is gone")


@pytest.mark.parametrize("order", [{"level": 0}, {"limit_s": 0}, {"level": 5}])
def test_an_order_without_level_or_limit_is_refused(
    root: Path, tmp_path: Path, order: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("diagnose", environment(tmp_path, root, **order)) == 2
    assert next(iter(order)) in capsys.readouterr().err


def test_a_boot_during_the_diagnostic_proves_nothing(run: Run, root: Path) -> None:
    other = BOOT.replace("1", "2")
    answer = run(f"echo {other} > {root}/proc/sys/kernel/random/boot_id\n" + saying(PASSED))
    assert (answer.result, answer.health) == (Result.UNKNOWN, Health.UNKNOWN)


def test_a_verdict_with_many_failures_keeps_the_worst_and_counts_the_rest() -> None:
    verdict = TaskVerdict(
        kind=TaskKind.DIAGNOSE,
        episode="e" * 128,
        task="t" * 253,
        boot_id=BOOT,
        result=Result.DONE,
        detail="d" * 600,
        health=Health.FAULTY,
        failures=tuple(
            Failure(what=f"test-{n}", device="GPU 1", words="wörter " * 36) for n in range(16)
        ),
        more=4,
    )
    written = encode_verdict(verdict)
    assert len(written) <= MAX_VERDICT_BYTES
    told = json.loads(written)
    assert told["failures"][0]["what"] == "test-0"
    assert len(told["failures"]) + told["more"] == 20
    assert told["health"] == "faulty"
