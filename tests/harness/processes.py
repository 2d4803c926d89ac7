"""fleetmend's own processes as tests start, freeze and kill them.

Owns the subprocesses of watch, worker and the CLI: their account's environment, their log file and
their end with the test. What they print on failure is shown by `Running.tail`. Talks to the lab's
address only.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.harness.starts import Start, Started, start_warm
from tests.harness.waiting import wait_until
from workers.lab.address import LabAccount, LabAddress

END_LIMIT_S = 15.0
QUICK = {
    "FLEETMEND_LOG_LEVEL": "info",
    "FLEETMEND_SWEEP_INTERVAL_S": "3",
    "FLEETMEND_SWEEP_JITTER_S": "0",
    "FLEETMEND_STICKY_TIMEOUT_S": "1",
    "FLEETMEND_WATCH_LISTEN": "off",
}
"""Settings that most tests want; each can be given differently."""
ACCOUNTS = {"watch": LabAccount.WATCH, "worker": LabAccount.WORKER}


@dataclass
class Running:
    """One started process."""

    name: str
    process: Started
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL; it is gone afterwards."""
        self.process.kill()
        self.process.wait(END_LIMIT_S)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """SIGTERM, and SIGKILL if it does not end in time; its exit code."""
        if self.is_alive():
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """Every JSON line it logged."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                item = json.loads(line)
            except ValueError:
                continue
            if isinstance(item, dict):
                found.append(item)
        return found

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Its log lines with this message."""
        return [line for line in self.lines() if line.get("event") == event]

    def tail(self, count: int = 30) -> str:
        """The end of its log, for messages."""
        lines = self.log.read_text(errors="replace").splitlines()[-count:]
        code = self.process.poll()
        state = "alive" if code is None else f"exit code {code}"
        return f"{self.name} ({state}), {self.log}:\n" + "\n".join(line[:600] for line in lines)

    def rss_mib(self) -> float:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Processes:
    """Starts processes on one lab, and ends all of them.

    `start_by`: `start_cold` where the start itself or the memory is what the test is about.
    """

    lab: LabAddress
    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    start_by: Start = start_warm
    started: list[Running] = field(default_factory=list)

    def watch(self, **environment: str) -> Running:
        """`fleetmend watch` as fleetmend-watch; it needs no Temporal to start."""
        return self.start("watch", environment)

    def worker(self, **environment: str) -> Running:
        """`fleetmend worker` as fleetmend-worker; returns when it polls."""
        return until_working(self.start("worker", environment))

    def start(self, command: str, environment: Mapping[str, str] | None = None) -> Running:
        """Start a process without waiting for anything."""
        number = sum(1 for running in self.started if running.name.startswith(command)) + 1
        log = self.logs / f"{command}-{number}.log"
        env = {
            **os.environ,
            **self.lab.environment(ACCOUNTS[command]),
            **QUICK,
            **self.environment,
            **(environment or {}),
        }
        log.touch()
        running = Running(f"{command}-{number}", self.start_by([command], env, log, log), log)
        self.started.append(running)
        return running

    def end_all(self) -> None:
        """End every process, workers and watches at the same time."""
        for running in self.started:
            if running.is_alive():
                running.thaw()
                running.process.terminate()
        for running in self.started:
            running.end()

    def tails(self) -> str:
        """The ends of all logs, for messages."""
        return "\n\n".join(running.tail() for running in self.started)


WORKING = "worker polls"
"""The worker's log line when it has begun to poll its task queue."""


def until_working(worker: Running, deadline_s: float = 60.0) -> Running:
    """The worker, once it polls."""

    def polls() -> bool:
        assert worker.is_alive(), worker.tail()
        return bool(worker.logged(WORKING))

    wait_until(polls, deadline_s, "the worker polls", saw=worker.tail)
    return worker


@contextmanager
def processes(
    lab: LabAddress,
    logs: Path,
    environment: Mapping[str, str] | None = None,
    *,
    start_by: Start = start_warm,
) -> Iterator[Processes]:
    """Processes that end with the block, whatever happens in it."""
    logs.mkdir(parents=True, exist_ok=True)
    own = Processes(lab, logs, dict(environment or {}), start_by)
    try:
        yield own
    finally:
        own.end_all()


@dataclass(frozen=True)
class CliAnswer:
    """What one `fleetmend` command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as JSON."""
        return json.loads(self.out)


def fleetmend(
    lab: LabAddress | None,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    start_by: Start = start_warm,
) -> CliAnswer:
    """Run one command as a person would, with the operator's kubeconfig of the lab."""
    env = {**os.environ, **_operator(lab), **(environment or {})}
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        command = start_by(arguments, env, out, err)
        try:
            code = command.wait(timeout_s)
        finally:
            command.kill()
        return CliAnswer(code, out.read_text(), err.read_text())


def _operator(lab: LabAddress | None) -> Mapping[str, str]:
    return {} if lab is None else lab.environment(LabAccount.OPERATOR)
