"""Building the C stand-ins for libnvidia-ml.so.1 and dcgmi, once for each user and compiler.

Owns the cache folder `devices-KEY` (KEY = sources, flags, compiler's version) beside the lab's
other programs. Two builds at once do each their own, in a scratch folder; the first to finish is
kept. Says nothing and installs nothing: `devices` copies what is built into a node's host root.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.lab.controlplane.errors import BuildFailed, ProgramsUnavailable
from workers.lab.paths import cache_directory

NATIVE: Final = Path(__file__).parent / "native"
COMPILE_LIMIT_S: Final = 120.0
"""It takes one second; a machine under full load has been seen to need twenty times as long."""

_FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-D_GNU_SOURCE")
_LIBRARY: Final = ("-fPIC", "-shared", "-pthread", "-Wl,-soname,libnvidia-ml.so.1")
_RECIPES: Final = {
    "libnvidia-ml.so.1": (*_LIBRARY, "nvml.c", "counters.c", "newer.c", "state.c", "-ldl"),
    "libnvidia-ml-old.so.1": (
        *_LIBRARY,
        "-DOLD_DRIVER",
        "nvml.c",
        "counters.c",
        "state.c",
        "-ldl",
    ),
    "dcgmi": ("dcgmi.c",),
}


@dataclass(frozen=True)
class NativePrograms:
    """The built stand-ins."""

    folder: Path

    @property
    def nvml(self) -> Path:
        """The library with all functions."""
        return self.folder / "libnvidia-ml.so.1"

    @property
    def old_nvml(self) -> Path:
        """The library of an old driver: it doesn't export what came after branch 470."""
        return self.folder / "libnvidia-ml-old.so.1"

    @property
    def dcgmi(self) -> Path:
        return self.folder / "dcgmi"


def ensure_programs() -> NativePrograms:
    """The stand-ins, compiled if they aren't there; blocks for about a second then.

    Raises:
        ProgramsUnavailable: there is no C compiler.
        BuildFailed: the compiler refused the sources.
    """
    compiler = _find_compiler()
    cache = cache_directory()
    folder = cache / f"devices-{_key(compiler)}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _build(compiler, folder)
    return NativePrograms(folder)


def _find_compiler() -> str:
    named = os.environ.get("CC", "cc")
    found = shutil.which(named)
    if found is None:
        raise ProgramsUnavailable(
            f"the C compiler {named} is missing: it builds the lab's NVML and dcgmi once; install "
            "one (apt-get install gcc libc6-dev), or name yours in CC"
        )
    return found


def _key(compiler: str) -> str:
    version = subprocess.run(
        [compiler, "--version"], check=False, capture_output=True, timeout=COMPILE_LIMIT_S
    ).stdout
    digest = hashlib.sha256(repr((version, _FLAGS, sorted(_RECIPES.items()))).encode())
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]


def _build(compiler: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="devices-build-", dir=folder.parent) as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        for name, recipe in _RECIPES.items():
            _compile([compiler, *_FLAGS, "-o", str(out / name), *recipe])
        try:
            out.rename(folder)
        except OSError as error:
            # Another build was quicker: its folder is whole, as it came by the same single step.
            if not folder.is_dir():
                raise BuildFailed(f"cannot keep the built devices in {folder}: {error}") from error


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=NATIVE,
            check=False,
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(
            f"compiling the lab's devices took longer than {COMPILE_LIMIT_S:.0f} s"
        ) from error
    if done.returncode != 0:
        raise BuildFailed(
            f"compiling the lab's devices failed ({command[0]} ended with {done.returncode}):\n"
            + "\n".join(f"  | {line[:300]}" for line in done.stderr.splitlines()[:12])
        )
