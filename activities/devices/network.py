"""RDMA devices as a source: how many InfiniBand and EFA devices there are, and their links.

Owns the reading of `sys/class/infiniband` and what is compared with what: the expected count, or
what the first reading found. A link that was never up is not in use and not missed. Answers for the
network; counters and flaps are not looked at here.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from activities.devices.fact import Fact, FirstSeen, utc_now
from activities.devices.gpu_list import names_in, read_file
from activities.devices.reading import CannotTell, ConditionType, Reading
from workflows.model.detection.fault import Fault
from workflows.model.detection.verdict import Verdict

CLASS_FOLDER: Final = "sys/class/infiniband"
EFA_VENDOR: Final = "0x1d0f"
"""Amazon (PCI ID database)."""
ACTIVE: Final = "4:"
""" "4: ACTIVE" (kernel ABI document sysfs-class-infiniband)."""
CONFIRMED_AFTER: Final = 2
"""Polls in a row; ours: a link that retrains is back within seconds."""
MAX_DEVICES: Final = 128
MAX_PORTS: Final = 8

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BAD = Verdict(Fault.NETWORK, "NetworkHealthy", "certain", "fatal")


@dataclass(frozen=True)
class _Device:
    """One RDMA device as sysfs shows it; `ports` by number: its state in the kernel's words."""

    name: str
    is_efa: bool
    ports: dict[int, str]

    @property
    def kind(self) -> str:
        return "efa" if self.is_efa else "ib"

    @property
    def is_up(self) -> bool:
        return any(state.startswith(ACTIVE) for state in self.ports.values())


class NetworkSource:
    """A `PolledSource` over the host's RDMA devices.

    Args:
        host_root: where the host's sysfs is.
        expected: how many RDMA devices with a link a healthy node has; None = what was seen first.
    """

    name = "network"
    period_s = 10.0
    deadline_s = 10.0
    conditions = frozenset({ConditionType.NETWORK})

    def __init__(
        self,
        host_root: Path,
        expected: int | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._folder = host_root / CLASS_FOLDER
        self._expected = expected
        self._clock = clock
        self._kinds: dict[str, str] = {}
        self._were_up: set[tuple[str, int]] = set()
        self._polls: dict[str, int] = {}
        self._first_seen = FirstSeen()

    def poll(self) -> tuple[Reading, ...]:
        """All that is wrong with the devices now, seen at least twice.

        Raises:
            CannotTell: devices are expected, and the folder that shows them cannot be read.
        """
        facts = {fact.key: fact for fact in self._facts(self._devices())}
        self._polls = {key: self._polls.get(key, 0) + 1 for key in facts}
        sure = [fact for key, fact in facts.items() if self._polls[key] >= CONFIRMED_AFTER]
        return self._first_seen.dated(sure, self._clock())

    def _devices(self) -> list[_Device]:
        names = names_in(self._folder)
        if names is None:
            if self._expected or self._kinds:
                raise CannotTell(
                    f"{CLASS_FOLDER} cannot be read, but the node has RDMA devices; mount the "
                    "host's /sys, load ib_core"
                )
            return []
        return [self._device(name) for name in names[:MAX_DEVICES] if _NAME.fullmatch(name)]

    def _device(self, name: str) -> _Device:
        folder = self._folder / name
        numbers = [port for port in names_in(folder / "ports") or [] if port.isdigit()]
        ports = {
            int(n[:3]): read_file(folder / "ports" / n / "state").strip()
            for n in numbers[:MAX_PORTS]
        }
        return _Device(name, read_file(folder / "device/vendor").strip() == EFA_VENDOR, ports)

    def _facts(self, devices: list[_Device]) -> Iterator[Fact]:
        present = {device.name for device in devices}
        for name, kind in self._kinds.items():
            if name not in present:
                yield Fact(name, f"{kind}-missing", _BAD, f"RDMA device {name} is gone")
        up = 0
        for device in devices:
            if device.name in self._kinds or len(self._kinds) < MAX_DEVICES:
                self._kinds[device.name] = device.kind
            up += device.is_up
            yield from self._links(device)
        if self._expected is not None and up < self._expected:
            text = f"{up} of {self._expected} RDMA devices have a link, {len(devices)} are there"
            yield Fact("", "rdma-missing", _BAD, text)

    def _links(self, device: _Device) -> Iterator[Fact]:
        for port, state in device.ports.items():
            place = (device.name, port)
            if state.startswith(ACTIVE):
                self._were_up.add(place)
            elif place in self._were_up:
                said = state or "unreadable"
                text = f"RDMA device {device.name} port {port}: link is {said}"
                yield Fact(device.name, f"{device.kind}-link-down", _BAD, text, f"port-{port}")
