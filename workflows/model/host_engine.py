"""Where the host engine of DCGM is, for the two that ask it: the agent's source and `diagnose`.

Owns the variable that says it, what it may say, and dcgmi's words for it. Standard library only:
a source's child on a node loads it. The chart's `dcgm.hostEngine` has the same pattern.
"""

import re
from collections.abc import Mapping
from typing import Final

HOST_ENGINE_VARIABLE: Final = "FLEETMEND_DCGM_HOST_ENGINE"
MAX_ADDRESS: Final = 114
"""A Unix socket's path has at most 107 bytes (sun_path, unix(7)); the rest is the prefix."""
HOST_OPTION: Final = "--host"
"""Of every subcommand of dcgmi: host:port, or unix:// before a path (CommandLineParser.cpp, 4.4)."""
SOCKET_PREFIX: Final = "unix://"

# A part of the path begins with no dot: no `..` leads out of the host's root.
_SOCKET = r"unix:///host(/[A-Za-z0-9_][A-Za-z0-9._-]*)+"
_HOST_PORT = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[1-9][0-9]{0,4}"
_ADDRESS = re.compile(f"{_SOCKET}|{_HOST_PORT}")


class HostEngineError(ValueError):
    """The variable holds no address; the message says what it takes."""


def host_engine(environment: Mapping[str, str]) -> str:
    """The address that dcgmi is to be given; "" = dcgmi's own default (localhost:5555).

    Raises:
        HostEngineError: it is no address.
    """
    given = environment.get(HOST_ENGINE_VARIABLE, "")
    if given and (len(given) > MAX_ADDRESS or not _ADDRESS.fullmatch(given)):
        raise HostEngineError(
            f"{HOST_ENGINE_VARIABLE}: {given[:40]!r} is no address of a host engine; use host:port, "
            "unix:///host/PATH for a socket below the host's root, or leave it empty"
        )
    return given


def host_words(address: str) -> tuple[str, ...]:
    """What dcgmi is told besides its command, to ask the host engine at `address`."""
    return (HOST_OPTION, address) if address else ()


def is_over_network(address: str) -> bool:
    """Whether an address may lead to another node: a socket below the host's root cannot."""
    return bool(address) and not address.startswith(SOCKET_PREFIX)
