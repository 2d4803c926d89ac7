"""A warm start is told from a cold one by nothing but its time."""

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness.starts import Start, start_cold, start_warm
from tests.harness.waiting import wait_until

LIMIT_S = 60.0
AT = re.compile(r'"timestamp": "[^"]*", ')
BARE = {"PATH": os.environ["PATH"]}
NAMED = {**BARE, "FLEETMEND_CLUSTER": "a/b"}


def told(start: Start, words: list[str], environment: Mapping[str, str], folder: Path) -> object:
    folder.mkdir()
    out, err = folder / "out", folder / "err"
    code = start(words, environment, out, err).wait(LIMIT_S)
    said = err.read_text().replace("python -m workers.cli", "fleetmend")
    return code, out.read_text(), AT.sub("", said)


@pytest.mark.parametrize(
    ("words", "environment", "code"),
    [
        (["policy", "check", "/no/such/file"], BARE, 1),
        (["retire"], BARE, 2),
        (["worker"], NAMED, 2),
        (["worker"], BARE, 2),
        (["watch"], BARE, 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_warm_start_answers_as_a_cold_one(
    words: list[str], environment: Mapping[str, str], code: int, tmp_path: Path
) -> None:
    warm = told(start_warm, words, environment, tmp_path / "warm")
    assert warm == told(start_cold, words, environment, tmp_path / "cold")
    assert isinstance(warm, tuple)
    assert warm[0] == code


@pytest.mark.parametrize("start", [start_warm, start_cold])
def test_it_leads_a_session_and_a_signal_that_ended_it_is_its_exit_code(
    start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    environment = {**BARE, "FLEETMEND_CLUSTER": "c", "KUBECONFIG": str(_nobody(tmp_path))}
    worker = start(["worker"], environment, log, log)
    wait_until(lambda: log.exists() and log.read_text(), LIMIT_S, "it logs")
    assert os.getsid(worker.pid) == worker.pid
    assert worker.poll() is None
    worker.kill()
    assert worker.wait(LIMIT_S) == -signal.SIGKILL


def _nobody(folder: Path) -> Path:
    """A kubeconfig of a server that does not answer: a worker waits for it."""
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        "clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
    )
    return path
