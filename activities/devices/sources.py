"""The sources of a node, chosen and set up by the agent's environment.

Owns the names of the variables that choose them and the messages for wrong ones. Makes no source
run: the agent does, each in a child process. Nothing is opened or asked here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from activities.devices.dcgm import DcgmSource
from activities.devices.kernel_log import KernelLogSource
from activities.devices.network import NetworkSource
from activities.devices.nvml import NvmlSource
from activities.devices.reading import PolledSource, StreamedSource
from workflows.model.host_engine import HostEngineError

SOURCES_VARIABLE: Final = "FLEETMEND_SOURCES"
"""A comma list of names; empty = all."""
KMSG_VARIABLE: Final = "FLEETMEND_KMSG"
"""The kernel's log device; empty = `dev/kmsg` below the host root."""
EXPECTED_GPUS_VARIABLE: Final = "FLEETMEND_EXPECTED_GPUS"
EXPECTED_RDMA_VARIABLE: Final = "FLEETMEND_EXPECTED_RDMA"
"""Counts of a healthy node; empty = nobody says."""
DCGM_PERIOD_VARIABLE: Final = "FLEETMEND_DCGM_PERIOD_S"
"""Whole seconds from one health check to the next; empty = the source's own."""
SHORTEST_PERIOD_S: Final = 5
LONGEST_PERIOD_S: Final = 600
"""Ours: past ten minutes a hung DCGM would stay unseen for longer than the agent's refreshes."""
MAX_EXPECTED: Final = 1024


class SourcesError(ValueError):
    """A variable holds something that it cannot mean; the message says what it takes."""


Source = PolledSource | StreamedSource


def sources(host_root: Path, environment: Mapping[str, str]) -> tuple[Source, ...]:
    """The sources that `environment` asks for, in the order in which they stand in `SOURCES`.

    Raises:
        SourcesError: names the variable, its value and what is allowed.
    """
    given = environment.get(SOURCES_VARIABLE, "")
    names = [name.strip() for name in given.split(",") if name.strip()] or list(SOURCES)
    unknown = [name for name in names if name not in SOURCES]
    if unknown:
        raise SourcesError(
            f"{SOURCES_VARIABLE}: {unknown[0][:40]!r} is no source; use any of {', '.join(SOURCES)}"
        )
    return tuple(make(host_root, environment) for name, make in SOURCES.items() if name in names)


def _kernel_log(host_root: Path, environment: Mapping[str, str]) -> Source:
    given = environment.get(KMSG_VARIABLE, "")
    return KernelLogSource(Path(given) if given else host_root / "dev/kmsg", host_root)


def _nvml(host_root: Path, environment: Mapping[str, str]) -> Source:
    return NvmlSource(host_root, _count(environment, EXPECTED_GPUS_VARIABLE))


def _dcgm(host_root: Path, environment: Mapping[str, str]) -> Source:
    try:
        source = DcgmSource(environment, host_root=host_root)
    except HostEngineError as error:
        raise SourcesError(str(error)) from error
    source.period_s = _period(environment, DCGM_PERIOD_VARIABLE, source.period_s)
    return source


def _network(host_root: Path, environment: Mapping[str, str]) -> Source:
    return NetworkSource(host_root, _count(environment, EXPECTED_RDMA_VARIABLE))


SOURCES: Final[Mapping[str, Callable[[Path, Mapping[str, str]], Source]]] = MappingProxyType(
    {"kernel-log": _kernel_log, "nvml": _nvml, "dcgm": _dcgm, "network": _network}
)
"""Every source by its name."""


def _period(environment: Mapping[str, str], variable: str, default_s: float) -> float:
    text = environment.get(variable, "").strip()
    if not text:
        return default_s
    is_number = text.isascii() and text.isdigit() and len(text) <= 4
    if not is_number or not SHORTEST_PERIOD_S <= int(text) <= LONGEST_PERIOD_S:
        raise SourcesError(
            f"{variable}: {text[:40]!r} is no period; use {SHORTEST_PERIOD_S} to "
            f"{LONGEST_PERIOD_S} seconds, or leave it empty"
        )
    return float(text)


def _count(environment: Mapping[str, str], variable: str) -> int | None:
    text = environment.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 4 or int(text) > MAX_EXPECTED:
        raise SourcesError(
            f"{variable}: {text[:40]!r} is no count; use 0 to {MAX_EXPECTED}, or leave it empty"
        )
    return int(text)
