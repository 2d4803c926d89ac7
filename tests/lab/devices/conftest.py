"""A machine's devices in a folder of the test, without a node around them."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workers.lab.devices.build import NativePrograms, ensure_programs
from workers.lab.devices.devices import Board, Devices

ANSWER_LIMIT_S = 20.0
BOARDS = tuple(
    Board(i, f"GPU-00000000-1111-2222-3333-{i:012d}", f"0000:{0x1B + i:02x}:00.0") for i in range(4)
)


@dataclass(frozen=True)
class Machine:
    """Devices, and programs that run against them."""

    devices: Devices
    programs: NativePrograms

    def environment(self) -> dict[str, str]:
        root = self.devices.root
        path = f"{root / 'opt/lab/bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, **self.devices.environment()}

    def start(self, code: str) -> "subprocess.Popen[str]":
        """Run Python code with pynvml imported as `n`; what `tell` was given is printed as JSON."""
        head = "import json, pynvml as n\ntell = lambda v: print(json.dumps(v), flush=True)\n"
        return subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(code)],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def ask(self, code: str) -> Any:
        """What the code told."""
        with self.start(code) as process:
            out, errors = process.communicate(timeout=ANSWER_LIMIT_S)
        assert process.returncode == 0, errors
        return json.loads(out)

    def dcgmi(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["dcgmi", *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT_S,
            check=False,
        )

    def start_dcgmi(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["dcgmi", *words], env=self.environment(), stdout=subprocess.PIPE, text=True
        )


@pytest.fixture(scope="session")
def programs() -> NativePrograms:
    """The stand-ins in the user's cache."""
    return ensure_programs()


@pytest.fixture
def machine(tmp_path: Path, programs: NativePrograms) -> Iterator[Machine]:
    """A booted machine with four GPUs."""
    devices = Devices(tmp_path / "node", model="NVIDIA H100 80GB HBM3")
    devices.install(programs, BOARDS)
    devices.open()
    devices.boot(BOARDS)
    yield Machine(devices, programs)
    devices.close()
