"""Sources over the simulated devices of one machine, each in a process as the agent runs it."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.devices.conftest import Machine, machine, programs

__all__ = ["machine", "programs"]

_LOOP = """
import json, sys
from pathlib import Path
from activities.devices.reading import CannotTell
{setup}
for line in sys.stdin:
    try:
        told = [
            [r.device, r.code, r.fault, r.status, r.certainty, r.lasting, r.text, r.condition]
            for r in source.poll()
        ]
    except CannotTell as reason:
        told = str(reason)
    print(json.dumps(told), flush=True)
"""


@dataclass(frozen=True)
class Told:
    """One reading as the other process told it."""

    device: str
    code: str
    fault: str
    status: str
    certainty: str
    lasting: bool
    text: str
    condition: str | None


@dataclass
class Poller:
    """A process that polls one source when it is told to."""

    process: "subprocess.Popen[str]"

    def poll(self) -> list[Told]:
        """The readings of the next poll; a source that cannot tell fails here."""
        answer = self.answer()
        assert isinstance(answer, list), answer
        return [Told(*row) for row in answer]

    def codes(self) -> list[str]:
        return [told.code for told in self.poll()]

    def refusal(self) -> str:
        """Why it cannot tell."""
        answer = self.answer()
        assert isinstance(answer, str), answer
        return answer

    def answer(self) -> Any:
        self.ask()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(10)}"
        return json.loads(line)

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("poll\n")
        self.process.stdin.flush()


@dataclass
class Pollers:
    """Starts them, and ends them with the test."""

    machine: Machine
    running: list[Poller] = field(default_factory=list)

    def start(self, setup: str, **environment: str) -> Poller:
        """`setup` makes `source`; `root` is the machine's root."""
        root = f"root = Path({str(self.machine.devices.root)!r})\n"
        code = _LOOP.format(setup=root + textwrap.dedent(setup))
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**self.machine.environment(), **environment},
            cwd=Path.cwd(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(Poller(process))
        return self.running[-1]


@pytest.fixture
def pollers(machine: Machine) -> Iterator[Pollers]:
    made = Pollers(machine)
    yield made
    for poller in made.running:
        poller.process.kill()
        poller.process.communicate()
