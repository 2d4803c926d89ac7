"""Building the lab's programs from a pinned Go module, as the recipe says.

Owns the cache folder `bin-KEY` (KEY = versions, recipe, machine type), and the scratch folder
`build-KEY` with Go's own caches, which is cleared after success and resumed after an interruption.
A file lock lets one process build while others wait. Does not know what is built (`recipe.py`) nor
whether that is needed at all (`programs.py`), and prints nothing: a listener is told.
"""

import json
import os
import platform
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Final

from filelock import FileLock, Timeout

from workers.lab.controlplane.errors import BuildFailed, ProgramsUnavailable
from workers.lab.controlplane.recipe import CRD_FOLDER, Recipe
from workers.lab.controlplane.tether import tether
from workers.lab.paths import cache_directory

# The first Go that fetches the newer toolchain which go.mod asks for.
MINIMUM_GO: Final = (1, 21)
BUILD_LIMIT_S: Final = 7200.0
WAIT_LIMIT_S: Final = 7200.0
TICK_S: Final = 1.0
KEPT_LINES: Final = 30

# Settings of the user that would change what is built or where; everything else that Go reads
# (proxy, checksum database, private modules) stays as the user has it.
_OVERRULED: Final = re.compile(
    r"GO(FLAGS|WORK|TOOLCHAIN|111MODULE|OS|ARCH|AMD64|ARM|ARM64|386|EXPERIMENT|DEBUG|FIPS140|BIN"
    r"|PATH|CACHE|CACHEPROG|MODCACHE|TMPDIR)|CGO_.*"
)
_GO_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class BuildStage(StrEnum):
    """What a build is doing."""

    WAITING = "waiting for another build"
    DOWNLOADING = "downloading modules"
    COMPILING = "compiling"
    DONE = "done"


@dataclass(frozen=True)
class BuildProgress:
    """One step of a build, told about once a second."""

    stage: BuildStage
    elapsed_s: float
    done: int = 0  # modules or packages
    total: int | None = None  # None = unknown
    note: str = ""


BuildListener = Callable[[BuildProgress], None]


def ensure_built(recipe: Recipe, listener: BuildListener) -> Path:
    """The folder with all programs of a recipe, built if it isn't there or not whole.

    Raises:
        ProgramsUnavailable: no Go, a too old Go, or not enough disk.
        BuildFailed: Go ended with an error; a next call resumes.
    """
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"bin-{recipe.key}"
    if _is_whole(folder, recipe):
        return folder
    started = time.monotonic()
    with _lock(cache / f"bin-{recipe.key}.lock", listener, started):
        if not _is_whole(folder, recipe):
            _Build(recipe, folder, listener, started).run()
    return folder


class _Build:
    """One build, under the lock."""

    def __init__(
        self, recipe: Recipe, folder: Path, listener: BuildListener, started: float
    ) -> None:
        self._recipe = recipe
        self._folder = folder
        self._scratch = folder.with_name(f"build-{recipe.key}")
        self._log = folder.with_name(f"build-{recipe.key}.log")
        self._listener = listener
        self._started = started

    def run(self) -> None:
        recipe = self._recipe
        go = _find_go(recipe)
        resumed = self._scratch.exists()
        if not resumed:
            _check_disk(recipe, self._folder.parent)
        for part in ("module", "tmp", "out"):
            shutil.rmtree(self._scratch / part, ignore_errors=True)
            (self._scratch / part).mkdir(parents=True)
        # A copy, so that an editor or a checkout in mid build can't disturb it.
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(recipe.module / name, self._scratch / "module" / name)
        self._tell(BuildStage.DOWNLOADING, note=_announcement(recipe, resumed=resumed))
        packages = self._download(go)
        try:
            self._compile(go, packages, resumed=resumed)
        except BuildFailed:
            if not resumed:
                raise
            # The interrupted build may have left a damaged object behind: once more from nothing.
            shutil.rmtree(self._scratch / "gocache", ignore_errors=True)
            self._compile(go, packages, resumed=False)
        self._copy_files(go)
        self._publish()
        self._tell(BuildStage.DONE, done=packages, total=packages, note=str(self._folder))

    def _download(self, go: Path) -> int:
        """Fetch what the programs need; how many packages they consist of."""
        listed, fetched = 0, 0
        packages = self._recipe.packages.values()
        command = [str(go), "list", "-deps", "-f", "{{.ImportPath}}", *packages]
        with closing(self._output_of(command, "downloading the modules")) as lines:
            for line in lines:
                if line is None or line.startswith("go: downloading"):
                    fetched += line is not None
                    self._tell(BuildStage.DOWNLOADING, done=fetched)
                elif not line.startswith("go: "):
                    listed += 1
        return listed

    def _compile(self, go: Path, packages: int, *, resumed: bool) -> None:
        compiled = 0
        out = self._scratch / "out"
        what = self._recipe.packages.values()
        command = [str(go), "build", "-v", *self._recipe.build_flags, "-o", f"{out}/", *what]
        with closing(self._output_of(command, "compiling")) as lines:
            for line in lines:
                compiled += line is not None
                # After a resumed build nobody knows how many were compiled before.
                total = None if resumed else packages
                self._tell(BuildStage.COMPILING, done=min(compiled, packages), total=total)

    def _copy_files(self, go: Path) -> None:
        """Beside the programs go the files of their modules that belong to them."""
        for module, globs in self._recipe.files.items():
            command = [str(go), "list", "-m", "-f", "{{.Dir}}", module]
            with closing(self._output_of(command, f"looking for {module}")) as lines:
                folders = [line for line in lines if line is not None and line.startswith("/")]
            found = [file for name in folders for glob in globs for file in Path(name).glob(glob)]
            if not found:
                raise BuildFailed(f"{module} has no files {' '.join(globs)}")
            target = self._scratch / "out" / CRD_FOLDER
            target.mkdir(exist_ok=True)
            for file in found:
                shutil.copyfile(file, target / file.name)

    def _publish(self) -> None:
        out = self._scratch / "out"
        for name in self._recipe.packages:
            built = out / self._recipe.built_as.get(name, name)
            if not built.exists():
                raise BuildFailed(f"the build ended well, but made no {name}")
            built.replace(out / name)
        sizes = {
            str(file.relative_to(out)): file.stat().st_size
            for file in sorted(out.rglob("*"))
            if file.is_file()
        }
        (out / "whole.json").write_text(json.dumps(sizes))
        shutil.rmtree(self._folder, ignore_errors=True)
        out.replace(self._folder)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _output_of(self, command: Sequence[str], what: str) -> Generator[str | None, None, None]:
        """Lines of a command as they come, and None for each tick without one."""
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        with self._log.open("a") as log, _running(command, self._scratch) as process:
            log.write(f"$ {' '.join(command)}\n")
            assert process.stdout is not None  # PIPE was asked for
            for line in _lines(process.stdout, self._started + BUILD_LIMIT_S):
                if line is not None:
                    kept.append(line)
                    log.write(f"{line}\n")
                yield line
            exit_code = process.wait()
        if exit_code != 0:
            tail = "\n".join(f"  | {line[:300]}" for line in list(kept)[-12:])
            raise BuildFailed(
                f"{what} failed (go ended with {exit_code}); a next start goes on from here\n"
                f"log: {self._log}\n{tail}"
            )

    def _tell(
        self, stage: BuildStage, *, done: int = 0, total: int | None = None, note: str = ""
    ) -> None:
        elapsed_s = time.monotonic() - self._started
        self._listener(BuildProgress(stage, elapsed_s, done, total, note))


def _is_whole(folder: Path, recipe: Recipe) -> bool:
    try:
        sizes: dict[str, int] = json.loads((folder / "whole.json").read_bytes())
        return (
            recipe.packages.keys() <= sizes.keys()
            and all((folder / name).stat().st_size == size for name, size in sizes.items())
            and all(os.access(folder / name, os.X_OK) for name in recipe.packages)
        )
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def _lock(path: Path, listener: BuildListener, started: float) -> Iterator[None]:
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=TICK_S)
            break
        except Timeout:
            elapsed_s = time.monotonic() - started
            if elapsed_s > WAIT_LIMIT_S:
                raise BuildFailed(f"another build has held {path} for too long") from None
            listener(BuildProgress(BuildStage.WAITING, elapsed_s))
    try:
        yield
    finally:
        lock.release()


def _find_go(recipe: Recipe) -> Path:
    found = shutil.which("go")
    if found is None:
        raise ProgramsUnavailable(
            f"go is missing: it builds the lab's programs once; install Go {_dotted(MINIMUM_GO)} "
            "or newer from https://go.dev/doc/install, or set KUBEBUILDER_ASSETS to a folder with "
            f"{', '.join(recipe.packages)} and Karpenter's {CRD_FOLDER}/"
        )
    answer = subprocess.run(
        [found, "version"], check=False, capture_output=True, text=True, timeout=30.0
    )
    match = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    if match is None or tuple(map(int, match.groups())) < MINIMUM_GO:
        raise ProgramsUnavailable(
            f"{found} is {answer.stdout.strip() or 'no working Go'}: Go {_dotted(MINIMUM_GO)} or "
            "newer is needed, see https://go.dev/doc/install"
        )
    return Path(found).absolute()


def _check_disk(recipe: Recipe, folder: Path) -> None:
    free_gib = shutil.disk_usage(folder).free / 2**30
    if free_gib < recipe.disk_need_gib:
        raise ProgramsUnavailable(
            f"building the lab's programs needs {recipe.disk_need_gib:.0f} GiB in {folder}, "
            f"{free_gib:.1f} GiB are free; set FLEETMEND_CACHE to a folder with more room"
        )


def _announcement(recipe: Recipe, *, resumed: bool) -> str:
    if resumed:
        return "resuming an interrupted build of the lab's programs"
    return (
        f"{recipe.announcement}, up to {recipe.disk_need_gib:.0f} GiB of disk meanwhile, "
        f"{recipe.disk_kept_gib:.1f} GiB kept"
    )


def _go_environment(scratch: Path) -> Mapping[str, str]:
    environment = {k: v for k, v in os.environ.items() if not _OVERRULED.fullmatch(k)}
    environment |= {
        # Not empty, otherwise the user's GOENV file is asked; rw lets the scratch be removed.
        "GOFLAGS": "-mod=readonly -modcacherw",
        "GOWORK": "off",
        "GOTOOLCHAIN": "auto",
        "GO111MODULE": "on",
        "CGO_ENABLED": "0",
        "GOOS": "linux",
        "GOPATH": str(scratch / "gopath"),
        "GOCACHE": str(scratch / "gocache"),
        "GOMODCACHE": str(scratch / "gomodcache"),
        "GOTMPDIR": str(scratch / "tmp"),
    }
    if platform.machine() in _GO_ARCHITECTURES:
        environment["GOARCH"] = _GO_ARCHITECTURES[platform.machine()]
    return environment


@contextmanager
def _running(command: Sequence[str], scratch: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A running command of its own process group, ended with everything below it."""
    process = subprocess.Popen(
        command,
        cwd=scratch / "module",
        env=_go_environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=tether(os.getpid()),  # noqa: PLW1509 - it only makes two system calls
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _lines(stream: IO[bytes], deadline: float) -> Iterator[str | None]:
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if not selector.select(TICK_S):
                yield None
                continue
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                if pending:
                    yield pending.decode(errors="replace")
                return
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
    raise BuildFailed(f"the build took longer than {BUILD_LIMIT_S:.0f} s and was stopped")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
