"""The two ways in which tests start fleetmend's commands: cold as people do, and warm.

A warm start is a fork of a process that has loaded the libraries (`warm_libraries.py`): loading
them costs 1.5 to 2 s of CPU, ten times what most commands then do. Code, environment, streams,
session, signals and exit code are those of a cold start, so tests start warm unless the start
itself, its time or the memory is what they are about, or FLEETMEND_NAMESPACE, which is read while
the libraries are loaded. Whatever was started ends with pytest.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from activities.kube.own_namespace import NAMESPACE_VARIABLE
from workers.lab.controlplane.tether import tether

CLI = (sys.executable, "-m", "workers.cli")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.harness.warm_libraries"])


class Started(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


Start = Callable[[Sequence[str], Mapping[str, str], Path, Path], Started]
"""Words of the command line, the whole environment, files for standard output and error."""


def start_cold(
    words: Sequence[str], environment: Mapping[str, str], out: Path, err: Path
) -> Started:
    """`python -m workers.cli WORDS` in a session of its own."""
    with out.open("ab") as first, err.open("ab") as second:
        return subprocess.Popen(
            [*CLI, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=first,
            stderr=second,
            start_new_session=True,
            # It loads nothing between fork and exec.
            preexec_fn=tether(os.getpid()),  # noqa: PLW1509
        )


def start_warm(
    words: Sequence[str], environment: Mapping[str, str], out: Path, err: Path
) -> Started:
    """The same, forked from this process's server of warm starts."""
    assert NAMESPACE_VARIABLE not in environment, f"{NAMESPACE_VARIABLE} needs a cold start"
    # A daemon: what is left over when pytest ends is ended then, and not waited for.
    process = _SERVER.Process(
        target=_command, args=(list(words), dict(environment), out, err), daemon=True
    )
    process.start()
    return _Warm(process, words)


class _Warm:
    def __init__(self, process: ForkServerProcess, words: Sequence[str]) -> None:
        assert process.pid is not None, "started, and no pid"
        self.pid = process.pid
        self._process = process
        self._words = words

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired([*CLI, *self._words], timeout or 0)
        return code

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # reaped by the server, which is about to tell us
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _command(words: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    """What runs in the new process."""
    os.setsid()
    tether(os.getppid())()
    os.environ.clear()
    os.environ.update(environment)
    _open_streams(out, err)
    sys.argv = ["fleetmend", *words]
    from workers.cli.main import main  # noqa: PLC0415 - a command's clock starts with this import

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends a process without them


def _open_streams(out: Path, err: Path) -> None:
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, out, appending),
        (2, err, appending),
    ):
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    # As an interpreter makes them when it starts: these were made for the server's streams.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
