"""What can be said of the image without building one: its base, its user, what goes into it."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
LINES: Final = (ROOT / "deploy" / "image" / "Containerfile").read_text().splitlines()


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ") for line in LINES if line.startswith(f"{name} ")]


def test_each_base_is_pinned_to_a_release_of_python_that_the_project_takes() -> None:
    named = [*instructions("FROM"), *instructions("ARG")]
    bases = [word for line in named for word in re.split(r"[ =]", line) if "/python:" in word]
    assert len(set(bases)) == 1, "wheels are made by another Python than the one that runs them"
    version = re.fullmatch(r"docker\.io/library/python:(3\.\d+)\.\d+-slim-\w+", bases[0])
    assert version, bases[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f">={version[1]}" == project["requires-python"], "the oldest that is promised"
    # The tests run with what the image has.
    assert version[1] == ".".join(map(str, sys.version_info[:2])) or sys.version_info > (3, 11)


def test_it_runs_as_a_user_that_is_not_root_and_is_named_by_number() -> None:
    (user,) = instructions("USER")
    uid, gid = user.split(":")
    assert int(uid) > 0
    assert int(gid) > 0
    assert LINES.index(f"USER {user}") > max(i for i, s in enumerate(LINES) if s.startswith("RUN"))


def test_only_what_the_lock_names_is_installed() -> None:
    run = " ".join("\n".join(LINES).replace("\\\n", "").split())
    assert "--require-hashes" in run
    for install in re.findall(r"pip install [^&]*?(?= ENV| FROM|$)", run):
        assert "--no-index" in install, install


@pytest.mark.parametrize("package", ["workflows", "activities", "workers"])
def test_each_package_of_the_wheel_is_in_it(package: str) -> None:
    assert f"{package} {package}" in instructions("COPY")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_the_command_is_the_one_that_node_tasks_name() -> None:
    assert instructions("ENTRYPOINT") == ['["fleetmend"]']
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "fleetmend" in scripts
