"""Building the stand-ins: once, safely by two at a time, and with a word when it can't be."""

import subprocess
import sys
from pathlib import Path

import pytest

from workers.lab.controlplane.errors import BuildFailed, ProgramsUnavailable
from workers.lab.devices.build import NATIVE, ensure_programs

BUILD_LIMIT_S = 100.0
CODE = "from workers.lab.devices.build import ensure_programs; print(ensure_programs().folder)"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETMEND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_two_builds_at_once_both_succeed_and_leave_one_whole_folder(cache: Path) -> None:
    builds = [
        subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {build.communicate(timeout=BUILD_LIMIT_S)[0].strip() for build in builds}
    assert [build.returncode for build in builds] == [0, 0]
    assert folders == {str(path) for path in cache.iterdir()}
    programs = ensure_programs()
    for path in (programs.nvml, programs.old_nvml, programs.dcgmi):
        assert path.stat().st_mode & 0o111


def test_what_is_built_is_not_built_again(cache: Path) -> None:
    before = ensure_programs().dcgmi.stat()
    assert ensure_programs().dcgmi.stat().st_ino == before.st_ino


def test_another_compiler_or_source_is_another_build(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_programs().folder
    compiler = tmp_path / "mycc"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo mine && exit\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert ensure_programs().folder != first


def test_a_missing_compiler_is_named_with_its_remedy(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(ProgramsUnavailable, match=r"no-such-cc is missing.*apt-get install gcc"):
        ensure_programs()


def test_a_compiler_that_fails_leaves_nothing_and_says_its_words(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "badcc"
    compiler.write_text("#!/bin/sh\necho 'fatal error: no header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(BuildFailed, match="fatal error: no header"):
        ensure_programs()
    assert list(cache.iterdir()) == []


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    strict = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-fPIC", "-c")
    for source in NATIVE.glob("*.c"):
        command = ["cc", *strict, str(source), "-o", str(tmp_path / "out.o")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
