"""DCGM's health watches as a source: `dcgmi health`, asked once a minute.

Owns the program's run (own process group, one deadline a poll, output bounded) and what comes of
it. A hang, a crash, words that cannot be read and watches that are not set cannot tell. Nothing is
remembered from a poll that failed: the next good one counts. The words are `dcgm_health.py`'s.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from activities.devices.dcgm_discovery import DISCOVER, read_uuids, why_foreign
from activities.devices.dcgm_health import Incident, read_health
from activities.devices.fact import Fact, FirstSeen, utc_now
from activities.devices.gpu_list import read_gpus
from activities.devices.parent import die_with_parent
from activities.devices.reading import CannotTell, ConditionType, Reading
from workflows.model.host_engine import host_engine, host_words, is_over_network

POLL_S: Final = 20.0
"""For all commands of one poll together; a check of a healthy node takes well under a second."""
REAP_S: Final = 2.0
MAX_OUTPUT: Final = 1024 * 1024
_SET = ("health", "-s", "a")
_CHECK = ("health", "-c", "-j")


class DcgmSource:
    """A `PolledSource` over the `dcgmi` that `environment` names by its PATH.

    Raises:
        HostEngineError: `environment` names a host engine that can be none.
    """

    name = "dcgm"
    period_s = 60.0
    deadline_s = POLL_S + 2 * REAP_S
    conditions = frozenset({ConditionType.GPU, ConditionType.INTERCONNECT})

    def __init__(
        self,
        environment: Mapping[str, str],
        clock: Callable[[], datetime] = utc_now,
        *,
        host_root: Path = Path("/host"),
    ) -> None:
        self._environment = dict(environment)
        self._host_root = host_root
        self._engine = host_engine(environment)
        self._clock = clock
        self._is_watched = False
        self._uuids: dict[str, str] = {}
        self._first_seen = FirstSeen()

    def poll(self) -> tuple[Reading, ...]:
        """All that DCGM says is wrong now.

        Raises:
            CannotTell: it is not there, hangs, crashes, or says nothing that can be read.
        """
        until = time.monotonic() + POLL_S
        try:
            if not self._is_watched:
                self._demand_own_engine(until)
                self._run(_SET, until)
                self._run(_CHECK, until)  # the first check only takes the baseline
            incidents = read_health(self._run(_CHECK, until))
        except CannotTell:
            # The host engine may have been restarted and forgotten its watches.
            self._is_watched = False
            raise
        self._is_watched = True
        return self._first_seen.dated(self._facts(incidents, until), self._clock())

    def _demand_own_engine(self, until: float) -> None:
        """Raises: CannotTell: what an address on the network leads to is not this node's."""
        if is_over_network(self._engine):
            of_node = read_gpus(self._host_root).uuids.values()
            why = why_foreign(self._run(DISCOVER, until), self._engine, of_node)
            if why:
                raise CannotTell(why)

    def _facts(self, incidents: tuple[Incident, ...], until: float) -> Iterable[Fact]:
        if any(incident.gpu not in self._uuids for incident in incidents if incident.gpu):
            self._uuids = read_uuids(self._run(DISCOVER, until))
        for incident in incidents:
            who = self._uuids.get(incident.gpu) or (f"dcgm:{incident.gpu}" if incident.gpu else "")
            yield Fact(who, incident.code, incident.verdict, f"DCGM: {incident.text}")

    def _run(self, words: tuple[str, ...], until: float) -> str:
        """What dcgmi prints.

        Raises:
            CannotTell: it did not end by `until`, or not with 0.
        """
        called = f"dcgmi {' '.join(words)}"
        program = shutil.which("dcgmi", path=self._environment.get("PATH"))
        if program is None:
            raise CannotTell(
                "dcgmi is not found; install DCGM where the agent runs, or leave dcgm out of "
                "FLEETMEND_SOURCES"
            )
        try:
            process = subprocess.Popen(
                [program, *words, *host_words(self._engine)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - a source's child has one thread
            )
        except OSError as error:
            raise CannotTell(f"{called}: cannot be started: {error.strerror}") from error
        try:
            output = _read_all(process, until)
        finally:
            _end(process)
        if output is None:
            raise CannotTell(f"{called}: no answer in time; see nv-hostengine and the kernel log")
        if process.returncode != 0:
            raise CannotTell(f"{called}: {_ending(process.returncode)}: {output[-200:].strip()}")
        return output


def _read_all(process: "subprocess.Popen[bytes]", until: float) -> str | None:
    """Its output, once it has ended; None = it did not end in time, or talks without end."""
    assert process.stdout is not None
    output = bytearray()
    while len(output) <= MAX_OUTPUT:
        left_s = until - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            return None
        chunk = os.read(process.stdout.fileno(), 65536)
        if not chunk:
            break
        output += chunk
    else:
        return None
    try:
        process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return output.decode(errors="replace")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill its whole group if it still runs, and reap it.

    Raises:
        CannotTell: not even SIGKILL ends it: it sits in the kernel.
    """
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(REAP_S)
        except ProcessLookupError:
            process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            raise CannotTell(
                f"dcgmi (pid {process.pid}) cannot be killed: it waits in the driver; see the "
                "kernel log, the node may need a reboot"
            ) from None
    if process.stdout is not None:
        process.stdout.close()


def _ending(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"
