"""A path that cannot be used ends any `fleetmend lab` command in one line with the remedy."""

from pathlib import Path

import pytest

from tests.harness.processes import CliAnswer, fleetmend
from workers.cli.outcome import ExitCode

IN_NO_FOLDER = "/proc/fleetmend/lab"
"""Nobody can make a folder there, root neither."""
OTHERS = {
    "status": ("status",),
    "node list": ("node", "list"),
}


def is_one_line(answer: CliAnswer) -> bool:
    lines = answer.err.splitlines()
    return len(lines) == 1 and lines[0].startswith("error: ")


def test_up_where_no_folder_can_be() -> None:
    answer = fleetmend(None, "lab", "up", "--dir", IN_NO_FOLDER, "--json")
    assert answer.code == ExitCode.REFUSED
    assert is_one_line(answer), answer.err
    assert answer.json["error"].startswith("cannot use /proc/")
    assert "--dir" in answer.json["error"]


def test_up_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("a file")
    answer = fleetmend(None, "lab", "up", "--dir", str(file))
    assert answer.code == ExitCode.REFUSED
    assert is_one_line(answer), answer.err
    assert f"cannot use {file}: it is no folder" in answer.err


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS.keys())
def test_the_other_commands_find_no_lab_there(words: tuple[str, ...]) -> None:
    answer = fleetmend(None, "lab", *words, "--dir", IN_NO_FOLDER)
    assert answer.code == ExitCode.UNREACHABLE
    assert is_one_line(answer), answer.err
    assert "fleetmend lab up" in answer.err
