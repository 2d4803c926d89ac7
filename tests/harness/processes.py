"""fleetmend's own processes as tests start, freeze and kill them.

Owns the subprocesses of watch, worker and the CLI: their account's environment, their log file and
their end with the test. What they print on failure is shown by `Running.tail`. Talks to the lab's
address only.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.waiting import wait_until
from workers.lab.address import LabAccount, LabAddress
from workers.lab.controlplane.tether import tether

END_LIMIT_S = 15.0
CLI = (sys.executable, "-m", "workers.cli")
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
    process: "subprocess.Popen[bytes]"
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
        return self.process.returncode

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
        state = "alive" if self.is_alive() else f"exit code {self.process.returncode}"
        return f"{self.name} ({state}), {self.log}:\n" + "\n".join(line[:600] for line in lines)

    def rss_mib(self) -> float:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Processes:
    """Starts processes on one lab, and ends all of them."""

    lab: LabAddress
    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict)
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
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*CLI, command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                # It loads nothing between fork and exec.
                preexec_fn=tether(os.getpid()),  # noqa: PLW1509
            )
        running = Running(f"{command}-{number}", process, log)
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
    lab: LabAddress, logs: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Processes]:
    """Processes that end with the block, whatever happens in it."""
    logs.mkdir(parents=True, exist_ok=True)
    own = Processes(lab, logs, dict(environment or {}))
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
) -> CliAnswer:
    """Run one command as a person would, with the operator's kubeconfig of the lab."""
    env = {**os.environ, **_operator(lab), **(environment or {})}
    command: Sequence[str] = [*CLI, *arguments]
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return CliAnswer(done.returncode, done.stdout, done.stderr)


def _operator(lab: LabAddress | None) -> Mapping[str, str]:
    return {} if lab is None else lab.environment(LabAccount.OPERATOR)
