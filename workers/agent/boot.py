"""The boot that the machine is in, read from the mounted host root.

Owns the one file and its check. A finding counts for one boot, so it is read again before every
report. Talks to nothing.
"""

import re
from pathlib import Path
from typing import Final

BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
"""proc(5): new at each boot."""
MAX_BYTES: Final = 256

_BOOT_ID = re.compile(r"[0-9a-fA-F-]{8,64}")


class NoBootId(Exception):
    """The boot cannot be told; the message says which file is missing and what to do."""


def read_boot_id(host_root: Path) -> str:
    """The id of the boot that runs.

    Raises:
        NoBootId: without it no finding can be bound to a boot.
    """
    path = host_root / BOOT_ID
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise NoBootId(
            f"{path}: {error.strerror}; mount the host's root there, or set FLEETMEND_HOST_ROOT"
        ) from error
    if not _BOOT_ID.fullmatch(text):
        raise NoBootId(f"{path} holds no boot id")
    return text
