"""Where output is no terminal, each row of a table is one line, whatever COLUMNS says."""

import contextlib
import io
import os
import pty

import pytest
from rich.console import Console

from tests.harness.processes import fleetmend
from workers.tables import UNFOLDED, open_console, plain_table

ROW = ("a-node", "gpu-memory-uncorrectable", "word " * 60)


def _show(console: Console) -> None:
    table = plain_table("NODE", "FAULT", "DETAIL")
    table.add_row(*ROW)
    console.print(table)
    console.print("said: " + ROW[2])


@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "40"}, {"FORCE_COLOR": "1"}])
def test_what_is_piped_is_never_folded(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with contextlib.redirect_stdout(io.StringIO()) as piped:
        _show(open_console())
    _heading, row, said = piped.getvalue().splitlines()
    assert row.split()[:3] == ["a-node", "gpu-memory-uncorrectable", "word"]
    assert row.count("word") == said.count("word") == 60


def test_a_terminal_is_as_wide_as_it_is() -> None:
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "rb"),
        os.fdopen(theirs, "w") as terminal,
        contextlib.redirect_stdout(terminal),
    ):
        assert open_console().width < UNFOLDED


def test_a_table_of_the_lab_is_piped_row_by_row() -> None:
    shown = fleetmend(None, "lab", "faults").out
    (line,) = [line for line in shown.splitlines() if line.startswith("gpu-lost ")]
    assert "A reboot heals it." in line
    assert "seconds until it clears itself" in line
