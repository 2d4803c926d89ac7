"""The devices of one full node: made with it, healed by its boots, changed by faults and tests.

Owns `opt/lab/devices.json` and what is rendered from it for the stand-ins (`nvml.state`, `dcgm/`),
the installed stand-ins themselves, the node's sysfs and its kernel log. Every change is read from
and written to the file, so another process (a test) may make changes too; only the kernel log
belongs to one process. Does not know faults; `workers.lab.faults.device` breaks what is here.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from workers.lab.devices.build import NativePrograms
from workers.lab.devices.dcgm_output import (
    diag_exit_code,
    diag_json,
    discovery_text,
    health_json,
    health_text,
    version_text,
)
from workers.lab.devices.driver_log import DriverLog, Xid, recovery_xid
from workers.lab.devices.kmsg import Kmsg
from workers.lab.devices.network import RdmaDevice, infiniband_devices
from workers.lab.devices.state import (
    DcgmState,
    DeviceState,
    GpuState,
    Manner,
    NvmlState,
    RecoveryAction,
    render_nvml,
)
from workers.lab.devices.sysfs import Sysfs
from workers.lab.kubelet.spec import WireModel

STATE_FILE: Final = "opt/lab/devices.json"
NVML_DRIVE: Final = "opt/lab/nvml.state"
LIBRARY_FOLDER: Final = "opt/lab/lib"
DCGM_FOLDER: Final = "opt/lab/dcgm"
PROGRAMS: Final = "opt/lab/bin"
KMSG: Final = "dev/kmsg"
KMSG_VARIABLE: Final = "FLEETMEND_KMSG"
DIAG_LEVELS: Final = (1, 2, 3, 4)


@dataclass(frozen=True)
class Board:
    """What identifies a GPU's board."""

    index: int
    uuid: str
    bus_id: str


_Model = TypeVar("_Model", bound=WireModel)


class NoSuchDevice(Exception):
    """The node has no such GPU or network device now; the message names it."""


class Devices:
    """All devices of the node whose root is `root`."""

    def __init__(self, root: Path, *, model: str) -> None:
        self.root = root.absolute()
        self.kmsg = Kmsg(self.root / KMSG)
        self._model = model
        self._log = DriverLog(self.kmsg)
        self._sysfs = Sysfs(self.root)
        self._dcgm_files: dict[str, str] = {}
        self._read: tuple[tuple[int, int], DeviceState] | None = None

    def install(self, programs: NativePrograms, boards: tuple[Board, ...]) -> None:
        """Lay out a machine's files, all healthy; called again when the machine is another one.

        Hundreds of small files: a loop leaves it to a thread.
        """
        for folder in (LIBRARY_FOLDER, DCGM_FOLDER, PROGRAMS):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        # A copy: it finds its answers beside its own path.
        _install(programs.dcgmi, self.root / PROGRAMS / "dcgmi")
        library = self.root / LIBRARY_FOLDER
        _install(programs.nvml, library / "full.so")
        _install(programs.old_nvml, library / "old.so")
        gpus = tuple(self._new_gpu(board) for board in boards)
        state = DeviceState(nvml=NvmlState(gpus=gpus), rdma=infiniband_devices(min(len(gpus), 8)))
        self._save(state)
        self._sysfs.show_all(gpus, state.rdma)

    def open(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin the kernel log; `loop` as in `Kmsg.open`."""
        self.kmsg.open(loop)

    def boot(self, boards: tuple[Board, ...]) -> None:
        """Another boot, which found these GPUs: all is healed but what boards remember."""
        old = self.state
        known = {gpu.uuid: gpu for gpu in old.nvml.gpus}
        gpus = tuple(
            known[board.uuid].after_boot() if board.uuid in known else self._new_gpu(board)
            for board in boards
        )
        nvml = NvmlState(driver=old.nvml.driver, is_old=old.nvml.is_old, gpus=gpus)
        self._save(DeviceState(nvml=nvml, dcgm=DcgmState(version=old.dcgm.version), rdma=old.rdma))
        (self.root / DCGM_FOLDER / "watched").unlink(missing_ok=True)
        self._sysfs.show_all(gpus, old.rdma)
        self.kmsg.boot()
        self._log.boot(nvml)

    def close(self) -> None:
        """The machine is switched off for good."""
        self.kmsg.close()

    @property
    def state(self) -> DeviceState:
        """What is so now."""
        path = self.root / STATE_FILE
        try:
            found = path.stat()
        except FileNotFoundError:
            return DeviceState()
        stamp = (found.st_ino, found.st_mtime_ns)
        if self._read is None or self._read[0] != stamp:
            # Another process has made a change: what this one has written may be no more.
            self._dcgm_files.clear()
            self._sysfs.forget()
            self._read = (stamp, DeviceState.model_validate_json(path.read_bytes()))
        return self._read[1]

    def gpu(self, index: int) -> GpuState:
        """The GPU of that minor number.

        Raises:
            NoSuchDevice: this boot didn't find it.
        """
        for gpu in self.state.nvml.gpus:
            if gpu.index == index:
                return gpu
        raise NoSuchDevice(
            f"GPU {index} isn't there: this boot of {self.root.name} did not find it"
        )

    def rdma(self, index: int) -> RdmaDevice:
        """A network device as a boot finds it.

        Raises:
            NoSuchDevice: there are fewer.
        """
        devices = self.state.rdma
        if index >= len(devices):
            raise NoSuchDevice(f"{self.root.name} has {len(devices)} RDMA devices, none is {index}")
        return devices[index]

    def position(self, index: int) -> int:
        """Its place among those found, which is DCGM's entity id; raises NoSuchDevice."""
        return self.state.nvml.gpus.index(self.gpu(index))

    def change_gpu(self, index: int, **changes: object) -> GpuState:
        """Change fields of `GpuState`; checked, and so for every program from the next call on."""
        gpu = _changed(self.gpu(index), changes)
        gpus = tuple(gpu if each.index == index else each for each in self.state.nvml.gpus)
        self.change_nvml(gpus=gpus)
        self._sysfs.show(gpu)
        return gpu

    def change_nvml(self, **changes: object) -> None:
        """Change fields of `NvmlState`."""
        state = self.state
        self._save(state.model_copy(update={"nvml": _changed(state.nvml, changes)}))

    def change_dcgm(self, **changes: object) -> None:
        """Change fields of `DcgmState`."""
        state = self.state
        self._save(state.model_copy(update={"dcgm": _changed(state.dcgm, changes)}))

    def hide_dcgmi(self) -> None:
        """There is no dcgmi on the node, until `show_dcgmi`."""
        program = self.root / PROGRAMS / "dcgmi"
        if program.exists():
            program.rename(self.root / DCGM_FOLDER / "hidden")

    def show_dcgmi(self) -> None:
        """Put it back; nothing if it is there."""
        hidden = self.root / DCGM_FOLDER / "hidden"
        if hidden.exists():
            hidden.rename(self.root / PROGRAMS / "dcgmi")

    def set_network(self, devices: tuple[RdmaDevice, ...]) -> None:
        """Put other network devices into the machine; they stay over boots."""
        state = self.state.model_copy(update={"rdma": devices})
        self._save(state)
        self._sysfs.show_all(state.nvml.gpus, devices)

    def change_rdma(self, device: RdmaDevice) -> None:
        """Show a network device like this, until the next boot."""
        self._sysfs.show(device)

    def xid(self, index: int, xid: Xid) -> int:
        """An Xid of that GPU as its driver prints it; the number of its record."""
        return self._log.xid(self.state.nvml.driver, self.gpu(index), xid)

    def change_recovery(self, index: int, action: RecoveryAction) -> None:
        """Let the driver want this for that GPU, and say so as far as its branch does."""
        driver, old = self.state.nvml.driver, self.gpu(index).recovery_action
        self.change_gpu(index, recovery_action=action)
        told = recovery_xid(driver, old or RecoveryAction.NONE, action)
        if told is not None:
            self.xid(index, told)

    def environment(self) -> Mapping[str, str]:
        """What a program on the node needs to meet these devices, beside `PATH`."""
        return {
            "LD_LIBRARY_PATH": str(self.root / LIBRARY_FOLDER),
            "FLEETMEND_LAB_NVML": str(self.root / NVML_DRIVE),
            KMSG_VARIABLE: str(self.kmsg.path),
        }

    def _new_gpu(self, board: Board) -> GpuState:
        serial = f"165{int(board.uuid[-12:], 16) % 10**10:010d}"
        return GpuState(
            index=board.index,
            uuid=board.uuid,
            bus_id=board.bus_id,
            name=self._model,
            serial=serial,
        )

    def _save(self, state: DeviceState) -> None:
        path = self.root / STATE_FILE
        _write(path, state.model_dump_json())
        found = path.stat()
        self._read = ((found.st_ino, found.st_mtime_ns), state)
        _write(self.root / NVML_DRIVE, render_nvml(state.nvml))
        self._point_library("old.so" if state.nvml.is_old else "full.so")
        files = _dcgm_files(state)
        for name, text in files.items():
            if self._dcgm_files.get(name) != text:
                _write(self.root / DCGM_FOLDER / name, text)
        self._dcgm_files = files

    def _point_library(self, target: str) -> None:
        link = self.root / LIBRARY_FOLDER / "libnvidia-ml.so.1"
        if link.is_symlink() and str(link.readlink()) == target:
            return
        draft = link.with_name("libnvidia-ml.so.new")
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.replace(link)


def _dcgm_files(state: DeviceState) -> dict[str, str]:
    """All that the stand-in for dcgmi reads and prints, by file name."""
    dcgm = state.dcgm
    files = {
        "discovery.txt": discovery_text(state.nvml.gpus),
        "version.txt": version_text(dcgm),
        "health-first.json": health_json(state, is_first=True),
        "health.json": health_json(state, is_first=False),
        "health-first.txt": health_text(state, is_first=True),
        "health.txt": health_text(state, is_first=False),
    }
    drive = [f"down {dcgm.is_down:d}"]
    if dcgm.banner:
        drive.append(f"banner {dcgm.banner}")
    for name in ("diag", "health", "discovery"):
        manner: Manner = getattr(dcgm, name)
        drive.append(f"{name}_behaviour {manner.behaviour.value}")
        drive.append(f"{name}_ms {manner.ms}")
        drive.append(f"{name}_deaf {manner.deaf:d}")
        drive.append(f"{name}_exit {manner.exit_code or 0}")
    for level in DIAG_LEVELS:
        files[f"diag-{level}.json"] = diag_json(state, level)
        code = diag_exit_code(state, level)
        files[f"diag-{level}.txt"] = f"Diagnostic of level {level} ended with {code}.\n"
        drive.append(f"diag-{level}_exit {code}")
    files["drive"] = "\n".join(drive) + "\n"
    return files


def _changed(model: _Model, changes: Mapping[str, object]) -> _Model:
    """A checked copy: `model_copy` alone would take anything."""
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    return type(model).model_validate(fields | dict(changes))


def _install(program: Path, target: Path) -> None:
    """Replace in one step: an older one may be running or loaded."""
    draft = target.with_name(f".{target.name}.new")
    shutil.copy(program, draft)
    draft.replace(target)


def _write(path: Path, text: str) -> None:
    """In one step: a program never reads half of it."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
