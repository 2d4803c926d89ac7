"""What a node task reads of the node it stands on: boot id, GPUs, who holds them.

Owns the paths below the mounted host root and their bounds: everything read is hostile or broken
until it was checked. Reads only. Imports nothing that is heavy; the node has work to do.
"""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
GPU_FOLDER: Final = "proc/driver/nvidia/gpus"
"""One folder a GPU, named by its bus id, with a file `information` (NVIDIA driver's procfs)."""
MAX_GPUS: Final = 64
MAX_FILE_BYTES: Final = 4_096
MAX_PROCESSES: Final = 65_536
MAX_FDS: Final = 4_096
SCAN_S: Final = 10.0
"""Longest scan of the node's processes; past it the answer is "cannot tell"."""

_GPU_UUID = re.compile(r"GPU-[0-9a-zA-Z-]{1,64}")
_BOOT_ID = re.compile(r"[0-9a-fA-F-]{8,64}")
_GPU_DEVICE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.*)")


class HostUnreadable(Exception):
    """The node cannot be read as it must be; the message says which file and why."""


@dataclass(frozen=True)
class GpuList:
    """The GPUs that the driver shows; `unreadable` are bus ids that gave no usable UUID."""

    uuids: tuple[str, ...]
    model: str
    unreadable: tuple[str, ...]


class Host:
    """One node's file system, mounted at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def at(cls, name: str) -> "Host":
        """The host whose root is mounted at `name`.

        Raises:
            HostUnreadable: it is `/` (that would be the pod itself), relative, or no folder.
        """
        given = Path(name)
        if not given.is_absolute():
            raise HostUnreadable(f"host root {name!r} is not an absolute path")
        try:
            root = given.resolve(strict=True)
        except OSError as error:
            raise HostUnreadable(f"host root {name!r} is not there: {error}") from error
        if root == Path("/"):
            raise HostUnreadable("host root is /: a task acts only below a mounted host root")
        if not root.is_dir():
            raise HostUnreadable(f"host root {name!r} is no folder")
        return cls(root)

    def boot_id(self) -> str:
        """The id of the boot that runs.

        Raises:
            HostUnreadable: it is not there, or is none.
        """
        text = self._read(self.root / BOOT_ID).strip()
        if not _BOOT_ID.fullmatch(text):
            raise HostUnreadable(f"{BOOT_ID} holds no boot id")
        return text

    def gpus(self) -> GpuList:
        """What the driver shows.

        Raises:
            HostUnreadable: the driver is not loaded, or shows more than `MAX_GPUS`.
        """
        try:
            folders = sorted((self.root / GPU_FOLDER).iterdir())
        except OSError as error:
            raise HostUnreadable(
                f"{GPU_FOLDER}: {error.strerror}: the NVIDIA driver is not loaded"
            ) from error
        if len(folders) > MAX_GPUS:
            raise HostUnreadable(f"{GPU_FOLDER} has {len(folders)} entries, over {MAX_GPUS}")
        uuids: dict[str, None] = {}
        models: dict[str, None] = {}
        unreadable = []
        for folder in folders:
            facts = self._information(folder)
            uuid = facts.get("GPU UUID", "")
            if not _GPU_UUID.fullmatch(uuid) or uuid in uuids:
                unreadable.append(folder.name[:32])
                continue
            uuids[uuid] = None
            models.setdefault(facts.get("Model", "")[:128])
        return GpuList(tuple(uuids), next(iter(models), ""), tuple(unreadable))

    def gpu_holders(self) -> tuple[str, ...]:
        """Processes that have a GPU open, as "pid 12 (/dev/nvidia0)"; empty = none.

        Raises:
            HostUnreadable: there are too many processes or files to tell, or they may not be read.
        """
        until = monotonic() + SCAN_S
        holders = []
        for count, process in enumerate(self._processes()):
            if count >= MAX_PROCESSES or monotonic() > until:
                raise HostUnreadable("too many processes to tell who holds a GPU")
            device = self._gpu_of(process)
            if device:
                holders.append(f"pid {process.name} ({device})")
        return tuple(holders)

    def processes_named(self, name: str) -> int:
        """How many processes of the host run a program of this name; 0 also if none can be read."""
        count = 0
        with contextlib.suppress(HostUnreadable):
            for process in self._processes()[:MAX_PROCESSES]:
                with contextlib.suppress(HostUnreadable):
                    count += self._read(process / "comm").strip() == name
        return count

    def _information(self, folder: Path) -> dict[str, str]:
        try:
            text = self._read(folder / "information")
        except HostUnreadable:
            return {}
        pairs = (line.partition(":") for line in text.splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs}

    def _processes(self) -> list[Path]:
        try:
            return [entry for entry in (self.root / "proc").iterdir() if entry.name.isdigit()]
        except OSError as error:
            raise HostUnreadable(f"proc: {error.strerror}: cannot tell who holds a GPU") from error

    def _gpu_of(self, process: Path) -> str:
        """The GPU device that a process has open; "" = none, or it has ended meanwhile."""
        try:
            links = list((process / "fd").iterdir())
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            return ""
        except OSError as error:
            raise HostUnreadable(f"proc/{process.name}/fd: {error.strerror}") from error
        if len(links) > MAX_FDS:
            raise HostUnreadable(f"proc/{process.name} has over {MAX_FDS} open files")
        for link in links:
            try:
                target = str(link.readlink())
            except OSError:
                continue  # closed meanwhile
            if _GPU_DEVICE.fullmatch(target):
                return target[:64]
        return ""

    def _read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError as error:
            name = path.relative_to(self.root)
            raise HostUnreadable(f"{name}: {error.strerror}") from error
