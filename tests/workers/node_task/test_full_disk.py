"""A full disk under a node task: a verdict that cannot be left is unknown, and the pod log says so."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.node_task.conftest import BOOT
from workers.node_task.main import EXIT_OF
from workflows.contracts.node_tasks import read_verdict
from workflows.model.node_task import Result, TaskKind

ROOT = Path(__file__).parents[3]
FULL = Path("/dev/full")
LIMIT_S = 30.0


def no_byte() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def run_task(
    kind: TaskKind,
    root: Path,
    log: Path,
    *,
    preexec: Callable[[], None] | None = None,
    stderr: int = subprocess.PIPE,
) -> "subprocess.CompletedProcess[str]":
    """One task as a process of its own; chroot and dcgmi on its PATH are played."""
    programs = root.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name, line in (("chroot", f"mkdir {root.parent}/asked"), ("dcgmi", "echo no JSON")):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    order = {"kind": kind.value, "episode": "ep", "task": "t", "node": "n", "level": 1}
    return subprocess.run(
        [sys.executable, "-m", "workers.cli", "node-task", kind.value],
        cwd=ROOT,
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FLEETMEND_TASK": json.dumps({**order, "expected_boot_id": BOOT, "limit_s": 20}),
            "FLEETMEND_HOST_ROOT": str(root),
            "FLEETMEND_TERMINATION_LOG": str(log),
        },
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=preexec,
        check=False,
    )


@pytest.mark.parametrize("kind", [TaskKind.INVENTORY, TaskKind.REBOOT])
@pytest.mark.parametrize("is_device", [True, False], ids=["no-space", "no-room-for-a-byte"])
def test_a_verdict_that_cannot_be_left_is_unknown_with_one_clear_line(
    root: Path, tmp_path: Path, kind: TaskKind, *, is_device: bool
) -> None:
    log = FULL if is_device else tmp_path / "termination-log"
    ended = run_task(kind, root, log, preexec=None if is_device else no_byte)
    assert ended.returncode == EXIT_OF[Result.UNKNOWN]
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert "the verdict cannot be left" in lines[0]
    assert str(log) in lines[0]
    assert not (tmp_path / "asked").exists(), "no verdict, no reboot"
    if not is_device:
        assert log.read_text() == ""


@pytest.mark.parametrize("kind", [TaskKind.REBOOT, TaskKind.DIAGNOSE])
def test_a_full_pod_log_takes_no_verdict(root: Path, tmp_path: Path, kind: TaskKind) -> None:
    log = tmp_path / "termination-log"
    with FULL.open("wb") as full:
        run_task(kind, root, log, stderr=full.fileno())
    answer = read_verdict(log.read_text(), kind=kind, episode="ep", task="t")
    assert answer.result is Result.DONE
    assert "could not be started" not in answer.detail
    assert (tmp_path / "asked").exists() is (kind is TaskKind.REBOOT)
