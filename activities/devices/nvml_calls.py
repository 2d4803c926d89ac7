"""Calls of NVML through pynvml, with its errors turned into a closed set of our own.

Owns the session with the library and the meaning of its return codes. A feature that a driver or a
board lacks is None, never an error. Calls may hang or crash the process: callers run in a child.
Source: nvml.h and nvidia-ml-py 13.615.71 (return codes).
"""

import ctypes
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]  # it brings no types

from activities.devices.reading import CannotTell

SUPPORTED_FROM_FABRIC_V2: Final = 560
"""Driver branch from which the second struct of the fabric state is asked for; asking an older one
has crashed other agents (leptonai/gpud#1183)."""
RECOVERY_ACTION_FIELD: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""


class Refusal(StrEnum):
    """Why a GPU did not answer a call."""

    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    INFOROM = "inforom-corrupt"
    NODE = "irq-or-power"
    AMBIGUOUS = "ambiguous"
    OURS = "not-permitted"


_ABSENT = frozenset({2, 3, 6, 7, 13, 19, 21, 22, 24, 25, 26, 27, 30})
"""InvalidArgument (past the last link), NotSupported, NotFound, InsufficientSize, FunctionNotFound,
InUse, NoData, VgpuEccNotSupported, FreqNotSupported, ArgumentVersionMismatch, Deprecated, NotReady,
ResetTypeNotSupported: nothing is known of this feature, and nothing is wrong."""
_REFUSALS = MappingProxyType(
    {
        1: Refusal.OURS,
        4: Refusal.OURS,
        8: Refusal.NODE,
        11: Refusal.NODE,
        14: Refusal.INFOROM,
        15: Refusal.LOST,
        16: Refusal.RESET_REQUIRED,
        28: Refusal.LOST,
    }
)
_NO_DRIVER = MappingProxyType(
    {
        9: "the NVIDIA driver is not loaded; load it, or leave nvml out of FLEETMEND_SOURCES",
        12: "libnvidia-ml.so.1 is not found; mount the driver's libraries (NVIDIA container runtime,"
        " NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=utility)",
        18: "driver and library are of different versions; finish the upgrade and reboot the node",
    }
)


class Refused(Exception):
    """A GPU did not answer."""

    def __init__(self, why: Refusal, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.why = why
        self.code = code


class Session:
    """The open library; opened by the first call and again after `drop`."""

    def __init__(self) -> None:
        self._is_open = False
        self.branch = 0
        """Driver branch, such as 580; 0 = not readable."""

    def open(self) -> None:
        """Open it if it is not.

        Raises:
            CannotTell: there is no driver, no library, or it refuses.
        """
        if self._is_open:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            code = _code(error)
            raise CannotTell(
                f"NVML: {_NO_DRIVER.get(code, f'nvmlInit failed, error {code}')}"
            ) from None
        self._is_open = True
        version = str(self.ask("nvmlSystemGetDriverVersion") or "")
        head = version.partition(".")[0]
        self.branch = int(head) if head.isdigit() else 0

    def drop(self) -> None:
        """Close it: handles may be stale after an error or a reset."""
        if self._is_open:
            self._is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return

    def ask(self, function: str, *arguments: object) -> Any:
        """What `function` of pynvml answers; None = this driver or board does not know it.

        Raises:
            Refused: the GPU or the driver did not answer.
        """
        call = getattr(pynvml, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            code = _code(error)
            if code in _ABSENT:
                return None
            raise Refused(_REFUSALS.get(code, Refusal.AMBIGUOUS), code) from None

    def fabric(self, handle: Any) -> tuple[int, int, int] | None:
        """State, status and health mask (0 = none) of the GPU's place in the fabric."""
        if self.branch >= SUPPORTED_FROM_FABRIC_V2:
            second = pynvml.c_nvmlGpuFabricInfo_v2_t()
            if self.ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(second)) is not None:
                return second.state, second.status, second.healthMask
        first = pynvml.c_nvmlGpuFabricInfo_t()
        if self.ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(first)) is None:
            return None
        return first.state, first.status, 0

    def is_over_sram_threshold(self, handle: Any) -> bool:
        """True if the GPU counts more SRAM errors than NVIDIA accepts."""
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        if self.ask("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status)) is None:
            return False
        return bool(status.bThresholdExceeded)

    def recovery_action(self, handle: Any) -> int | None:
        """The number of the driver's recovery action; None = it knows none."""
        values = self.ask("nvmlDeviceGetFieldValues", handle, [RECOVERY_ACTION_FIELD])
        if values is None or values[0].nvmlReturn != 0:
            return None
        return int(values[0].value.uiVal)


def text_of(value: Any) -> str:
    """Text from pynvml, which gives bytes or str by version."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return text.strip()


def _code(error: Exception) -> int:
    # An NVMLError has no hash and compares badly: only its number leaves this module.
    value = getattr(error, "value", 999)
    return value if isinstance(value, int) else 999
