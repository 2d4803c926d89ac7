"""An agent over sources that a test plays: `python -m tests.workers.agent.playing FOLDER`.

Owns two sources that do what files in FOLDER say, and the two things that no test can do to its own
machine: a kill that the kernel refuses (`undead` is there) and a step of the wall clock (`clock`
holds seconds). Everything else is the agent's own code in a process of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from activities.devices.reading import CannotTell, Certainty, ConditionType, Reading
from workers.agent.findings import Moment
from workers.agent.main import run
from workers.agent.process import Surroundings
from workers.agent.settings import AgentSettings

POLLED, STREAMED = "nvml", "stream"
PERIOD_S, DEADLINE_S = 0.2, 3.0
BIND = {
    POLLED: frozenset({ConditionType.GPU, ConditionType.INTERCONNECT}),
    STREAMED: frozenset({ConditionType.GPU, ConditionType.NETWORK, ConditionType.HOST}),
}
NORMAL: dict[str, Any] = {"readings": []}


def reading(code: str = "xid-79", **changes: Any) -> dict[str, Any]:
    """A reading as these sources are told it."""
    return {
        "device": "GPU-1",
        "code": code,
        "fault": "gpu-lost",
        "condition": "GPUHealthy",
        "status": "False",
        "certainty": "certain",
        "at": datetime.now(UTC).isoformat(),
        "text": f"{code} was seen",
        "lasting": False,
        **changes,
    }


def _reading(row: dict[str, Any]) -> Reading:
    condition = row["condition"]
    return Reading(
        key=row.get("key", f"{row['device']}/{row['code']}"),
        device=row["device"],
        code=row["code"],
        fault=row["fault"],
        condition=None if condition is None else ConditionType(condition),
        status=row["status"],
        certainty=Certainty(row["certainty"]),
        at=datetime.fromisoformat(row["at"]),
        text=row["text"],
        lasting=row["lasting"],
        count=row.get("count", 1),
    )


def _misbehave(deed: str) -> None:
    """One deed of a bad child; returns for those that leave it alive."""
    if deed == "hang":
        time.sleep(3600)
    elif deed == "program":
        # As the source of DCGM does it: in a process group of its own.
        subprocess.Popen(["sleep", "3600"], process_group=0)
        time.sleep(3600)
    elif deed == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif deed == "exit":
        os._exit(3)
    elif deed == "raise":
        raise RuntimeError("a bug in a source")
    elif deed == "garbage":
        os.write(4, b"\x00\xffnot JSON\n")
        time.sleep(3600)
    elif deed == "endless":
        _write_without_end()
    elif deed == "cannot":
        raise CannotTell("the driver is not loaded; load it")


def _write_without_end() -> NoReturn:
    while True:
        os.write(4, b"x" * 65536)


@dataclass(frozen=True)
class Polled:
    """Says what `polled.json` says: {"readings": [...]} or {"do": DEED}."""

    folder: Path
    name: str = POLLED
    period_s: float = PERIOD_S
    deadline_s: float = DEADLINE_S
    conditions: frozenset[ConditionType] = BIND[POLLED]

    def poll(self) -> tuple[Reading, ...]:
        order = json.loads((self.folder / "polled.json").read_text())
        _misbehave(order.get("do", ""))
        return tuple(_reading(row) for row in order["readings"])


@dataclass(frozen=True)
class Streamed:
    """Says what is appended to `stream`, from the line on at which it stood when it began.

    What it does (`streamed.do`) it does from the start, each time, until that is gone.
    """

    folder: Path
    name: str = STREAMED
    deadline_s: float = DEADLINE_S
    conditions: frozenset[ConditionType] = BIND[STREAMED]

    def stream(self) -> Iterator[tuple[Reading, ...]]:
        with (self.folder / "stream").open() as file:
            file.seek(0, os.SEEK_END)
            deed = self.folder / "streamed.do"
            if deed.exists():
                _misbehave(deed.read_text())
            yield self._first()
            last = time.monotonic()
            while True:
                line = file.readline()
                if line:
                    order = json.loads(line)
                    _misbehave(order.get("do", ""))
                    yield tuple(_reading(row) for row in order.get("readings", []))
                elif time.monotonic() > last + DEADLINE_S / 4:
                    yield ()
                    last = time.monotonic()
                else:
                    time.sleep(0.005)

    def _first(self) -> tuple[Reading, ...]:
        """What it says at once, as a log that is read from its beginning."""
        file = self.folder / "first.json"
        return tuple(map(_reading, json.loads(file.read_text()))) if file.exists() else ()


def _surroundings(folder: Path) -> Surroundings:
    def kill(group: int, number: int) -> None:
        if not (folder / "undead").exists():
            os.killpg(group, number)

    def clock() -> Moment:
        step = (folder / "clock").read_text() if (folder / "clock").exists() else "0"
        return Moment(datetime.now(UTC) + timedelta(seconds=float(step)), time.monotonic())

    return Surroundings(kill=kill, clock=clock)


if __name__ == "__main__":
    here = Path(sys.argv[1])
    played = (Polled(here), Streamed(here))
    sys.exit(run(AgentSettings.from_environment(), played, _surroundings(here)))
